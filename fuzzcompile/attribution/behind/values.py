"""Which operator's IR, which kernel, which output is the first to be wrong in a compile that was watched.

Three computations of the same values are compared: the graph interpreted operator by operator, the IR that the
lowerings made of it evaluated without code, and what the kernels wrote when the compiled graph ran. IR that is wrong
on right inputs is a fault of a lowering; a kernel that writes something else than its IR says is one of the
scheduler or the code generator.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from fuzzcompile.attribution.behind.wrong import (
    WrongKernel,
    WrongOperator,
    WrongOutput,
    beyond_rounding,
    how_wrong,
    relative_change,
)
from fuzzcompile.attribution.inputs import inputs_of
from fuzzcompile.attribution.replays import ReplayCount
from fuzzcompile.compiler.kernels.evaluated import Evaluated, nodes_by_buffer
from fuzzcompile.compiler.kernels.loops import NotEvaluable
from fuzzcompile.compiler.kernels.lowered import GraphCall, Lowered
from fuzzcompile.compiler.ledger import Ledger
from fuzzcompile.compiler.replay import Values, random_calls, replay, values_of
from fuzzcompile.oracle import metrics
from fuzzcompile.oracle.change import SEMANTIC_STEP
from fuzzcompile.oracle.comparison import Comparison

_NOISE_SEEDS = (1, 2)
_NOISE_FACTOR = 100.0


class Examined:
    """One lowered graph of a watched compile, looked at on the inputs of one of its calls."""

    def __init__(self, ledger: Ledger, lowered: Lowered, count: ReplayCount, number: int = 0) -> None:
        """``number`` is the call; after construction nothing was run yet."""
        self.lowered, self.count = lowered, count
        frame = next((frame for frame in ledger.frames if frame.index == lowered.frame), None)
        record = frame.record("post_grad", lowered.direction) if frame is not None else None
        self.inputs: Sequence[Any] | None = None
        if frame is not None and record is not None and record.snapshots:
            self.inputs = inputs_of(frame, record, number)
        self.call = lowered.calls[number] if number < len(lowered.calls) else GraphCall()
        self._as_run = False
        self._ran = {name: value for (_, name), value in self.call.written.items()}

    # -- the same values, three times -----------------------------------------------------------

    @functools.cached_property
    def exact(self) -> Values:
        """Every node's value in float64, as far as the graph runs."""
        return self._interpreted(double=True)

    @functools.cached_property
    def native(self) -> Values:
        """Every node's value in the program's own dtypes, as far as the graph runs."""
        return self._interpreted(double=False)

    def _interpreted(self, *, double: bool, noise_seed: int | None = None) -> Values:
        self.count.replays += 1
        return values_of(self.lowered.snapshot, self.inputs or (), double=double, noise_seed=noise_seed)

    @functools.cached_property
    def exact_ir(self) -> Evaluated:
        """The IR in float64."""
        return self._evaluated(self.exact, double=True)

    @functools.cached_property
    def native_ir(self) -> Evaluated:
        """The IR in the program's own dtypes."""
        return self._evaluated(self.native, double=False)

    @functools.cached_property
    def noisy_exact_ir(self) -> Evaluated:
        """The IR in float64 with every result moved by one ulp of it."""
        return self._evaluated(self._interpreted(double=True, noise_seed=1), double=True, noise_seed=1)

    @functools.cached_property
    def noisy_native_ir(self) -> list[Evaluated]:
        """The IR in the program's own dtypes with every result moved by one ulp."""
        runs = zip(_NOISE_SEEDS, self.noisy_native, strict=True)
        return [self._evaluated(values, double=False, noise_seed=seed) for seed, values in runs]

    @functools.cached_property
    def noisy_native(self) -> list[Values]:
        """Every node's value with every result moved by one ulp."""
        return [self._interpreted(double=False, noise_seed=seed) for seed in _NOISE_SEEDS]

    def _evaluated(self, given: Values, *, double: bool, noise_seed: int | None = None) -> Evaluated:
        return Evaluated(
            self.lowered,
            self.inputs or (),
            given,
            self._ran,
            double=double,
            noise_seed=noise_seed,
            as_run=self._as_run,
        )

    @property
    def usable(self) -> bool:
        """Whether there are inputs to look at it on."""
        return self.inputs is not None

    @property
    def draws(self) -> bool:
        """Whether the graph draws random numbers, which are others in each run."""
        return bool(random_calls(self.lowered.snapshot))

    @functools.cached_property
    def as_run(self) -> Examined:
        """The same graph on the random numbers that the compiled one drew."""
        if not self.draws:
            return self
        other = copy.copy(self)
        for name in ("exact_ir", "native_ir", "noisy_exact_ir", "noisy_native_ir"):
            vars(other).pop(name, None)
        other._as_run = True
        return other

    # -- errors that the graph raises and the compiled program does not -------------------------

    def first_refused(self) -> str | None:
        """The first node at which the interpreted graph raises; None if it runs."""
        order = [node.name for node in self.lowered.snapshot.graph.nodes if node.op != "output"]
        return next((name for name in order if name not in self.native), None)

    # -- lowerings ------------------------------------------------------------------------------

    def wrong_operators(self) -> list[WrongOperator]:
        """Operators whose IR is wrong and that read nothing wrong: those that are wrong in float64 first."""
        exact = self._roots({name: self._step(name) for name in self._names()})
        native = {} if exact else self._roots({name: self._natively(name) for name in self._names()})
        found = [WrongOperator(self.lowered, self.lowered.producer(name), True, step) for name, step in exact.items()]
        for name, comparison in native.items():
            step = comparison.relative_error if comparison is not None else 0.0
            found.append(WrongOperator(self.lowered, self.lowered.producer(name), False, step, comparison))
        return found

    def _names(self) -> Iterator[str]:
        return (name for name in self.lowered.labels if isinstance(self.exact.get(name), torch.Tensor))

    def _step(self, name: str) -> float | None:
        """How far the IR is from the interpreted graph in float64; None where that is rounding, or not known."""
        right = self.exact[name]
        value = _node(self.exact_ir, name)
        if value is None:
            return None
        if value.shape != right.shape:
            return float("inf")
        change = relative_change(right, value)
        if change <= SEMANTIC_STEP:
            return None
        noisy = _node(self.noisy_exact_ir, name)
        noise = relative_change(value, noisy) if noisy is not None and noisy.shape == value.shape else 0.0
        return change if change > _NOISE_FACTOR * noise else None

    def _natively(self, name: str) -> Comparison | None:
        """How the IR is wrong natively; None where it is right, or not known."""
        value, right = _node(self.native_ir, name), self.native.get(name)
        if value is None or not isinstance(right, torch.Tensor):
            return None
        # What rounding the operator itself may have; that of its IR may be what is wrong with it.
        samples = [run[name] for run in self.noisy_native if isinstance(run.get(name), torch.Tensor)]
        comparison = how_wrong(name, right, value, self.exact[name], samples)
        if comparison is None or not (beyond_rounding(comparison) or not comparison.within_default_tolerance):
            return None
        return comparison

    def _roots(self, wrong: Mapping[str, Any]) -> dict[str, Any]:
        """Of the wrong nodes those that are computed from right ones only."""
        tainted: set[Any] = set()
        roots = {}
        for node in self.lowered.snapshot.graph.nodes:
            inherits = any(source in tainted for source in node.all_input_nodes)
            bad = wrong.get(node.name)
            if bad is not None and not inherits:
                roots[node.name] = bad
            if bad is not None or inherits:
                tainted.add(node)
        return roots

    # -- kernels --------------------------------------------------------------------------------

    def wrong_kernels(self) -> list[WrongKernel]:
        """Kernels that wrote something wrong, in the order in which they ran; beyond default tolerances first."""
        if not self.call.written:
            return []
        nodes, found = nodes_by_buffer(self.lowered), []
        for (number, name), value in self.call.written.items():
            comparison = self._written_wrong(number, name, value)
            if comparison is None:
                continue
            kernel = self.lowered.kernels[number]
            stale = next((one for one in self.call.overwritten if one.read_by == number), None)
            holds = (self.lowered.producer(nodes[name]),) if name in nodes else ()
            found.append(WrongKernel(self.lowered, kernel, name, comparison, holds or kernel.nodes, overwritten=stale))
        gross = [one for one in found if not one.comparison.within_default_tolerance]
        chosen = gross or [one for one in found if beyond_rounding(one.comparison)]
        return [_with_schedule(self.exact_ir, one) for one in chosen[:1]] + chosen[1:]

    def _written_wrong(self, number: int, name: str, value: torch.Tensor) -> Comparison | None:
        if not self._is_last(number, name):
            return None
        right, exact = _buffer(self.native_ir, name), _buffer(self.exact_ir, name)
        if right is None or exact is None or right.shape != value.shape:
            return None
        if metrics.same_values(right, value.cpu()):
            return None
        samples = [sample for ir in self.noisy_native_ir if (sample := _buffer(ir, name)) is not None]
        return how_wrong(name, right, value.cpu(), exact, samples)

    def _is_last(self, number: int, name: str) -> bool:
        """Whether nothing writes into the same buffer afterwards: the IR is evaluated to its end."""
        renamed = getattr(self.lowered.scheduler, "mutation_real_name", {})
        place = renamed.get(name, name)
        later = (written for n, written in self.call.written if n > number)
        return all(renamed.get(other, other) != place for other in later)

    # -- outputs --------------------------------------------------------------------------------

    def wrong_outputs(self) -> list[WrongOutput]:
        """Outputs of the compiled graph that differ from the interpreted graph's, and inputs that it wrote to."""
        if self.call.outputs is None or self.draws or self.inputs is None:
            return []
        self.count.replays += 2
        native, exact = (replay(self.lowered.snapshot, self.inputs, double=double) for double in (False, True))
        found = []
        triples: list[tuple[str, Any, Any]] = [
            (f"output {n}", *both) for n, both in enumerate(zip(native.outputs, exact.outputs, strict=False))
        ]
        given: dict[str, Any] = dict(zip([name for name, *_ in triples], self.call.outputs, strict=False))
        for place, value in self.call.inputs_after.items():
            if place < len(native.inputs) and place < len(exact.inputs):
                triples.append((f"input {place} after the call", native.inputs[place], exact.inputs[place]))
                given[f"input {place} after the call"] = value
        for name, right, best in triples:
            seen = given.get(name)
            if not (isinstance(right, torch.Tensor) and isinstance(best, torch.Tensor)):
                continue
            if not isinstance(seen, torch.Tensor):
                continue
            comparison = how_wrong(name, right, seen.cpu(), best, [])
            if comparison is not None and not comparison.within_default_tolerance:
                found.append(WrongOutput(self.lowered, name, comparison))
        return found


def examined(ledger: Ledger, count: ReplayCount) -> list[Examined]:
    """Every lowered graph of a watched compile on the inputs of each call that was kept, as far as that can be."""
    looks = [
        Examined(ledger, lowered, count, number)
        for lowered in ledger.lowered
        for number in range(max(len(lowered.calls), 1))
    ]
    return [look for look in looks if look.usable]


def _with_schedule(ir: Evaluated, wrong: WrongKernel) -> WrongKernel:
    """Whether the scheduler's form of the loops is wrong already."""
    right = _buffer(ir, wrong.buffer)
    for scheduled in wrong.kernel.scheduled:
        for one in scheduled.get_nodes():
            if wrong.buffer not in [buffer.get_name() for buffer in one.get_outputs()] or right is None:
                continue
            try:
                value = ir.scheduled(one).get(wrong.buffer)
            except (NotEvaluable, AttributeError, RuntimeError, TypeError, KeyError):
                continue
            if value is not None and value.shape == right.shape and relative_change(right, value) > SEMANTIC_STEP:
                return WrongKernel(
                    wrong.lowered, wrong.kernel, wrong.buffer, wrong.comparison, wrong.nodes, True, wrong.overwritten
                )
    return wrong


def _node(ir: Evaluated, name: str) -> torch.Tensor | None:
    try:
        return ir.node(name)
    except (NotEvaluable, AttributeError, RuntimeError, TypeError, KeyError):
        return None


def _buffer(ir: Evaluated, name: str) -> torch.Tensor | None:
    try:
        return ir.buffer(name)
    except (NotEvaluable, AttributeError, RuntimeError, TypeError, KeyError):
        return None
