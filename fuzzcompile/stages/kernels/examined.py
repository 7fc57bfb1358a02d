"""First wrong operator IR, kernel or output in a compile that was watched."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import fx

from fuzzcompile.attribution.divergence import Divergence
from fuzzcompile.attribution.inputs import inputs_of
from fuzzcompile.attribution.replays import ReplayCount
from fuzzcompile.compiler.kernels.evaluated import Evaluated, nodes_by_buffer
from fuzzcompile.compiler.kernels.loops import NotEvaluable
from fuzzcompile.compiler.kernels.lowered import GraphCall, Lowered
from fuzzcompile.compiler.ledger import Ledger
from fuzzcompile.compiler.replay import Values, random_calls, replay, values_of
from fuzzcompile.oracle import metrics
from fuzzcompile.oracle.change import SEMANTIC_STEP, changes_meaning, relative_change
from fuzzcompile.oracle.comparison import Comparison
from fuzzcompile.stage_names import POST_GRAD
from fuzzcompile.stages.kernels.wrong import WrongKernel, WrongOperator, WrongOutput, beyond_rounding, how_wrong

T = TypeVar("T")
_NOISE_SEEDS = (1, 2)
_NOT_KNOWN = (NotEvaluable, AttributeError, RuntimeError, TypeError, KeyError)


class Examined:
    """One lowered graph of a watched compile, evaluated on the inputs of one of its calls.

    Every computation is made on first use.

    Three computations of the same values are compared: the graph interpreted operator by operator, the IR that the
    lowerings made of it evaluated without code, and what the kernels wrote when the compiled graph ran. IR that is
    wrong on right inputs is a fault of a lowering; a kernel that writes something else than its IR says is one of the
    scheduler or the code generator.

    Args:
        ledger: of the watched compile.
        lowered: the graph.
        count: counts the replays.
        number: of the call.
    """

    def __init__(self, ledger: Ledger, lowered: Lowered, count: ReplayCount, number: int = 0) -> None:
        self.lowered, self.count = lowered, count
        frame = next((frame for frame in ledger.frames if frame.index == lowered.frame), None)
        record = frame.record(POST_GRAD, lowered.direction) if frame is not None else None
        self.inputs: Sequence[object] | None = None
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
        """Return whether there are inputs to evaluate the graph on."""
        return self.inputs is not None

    @property
    def draws(self) -> bool:
        """Return whether the graph draws random numbers, which differ from run to run."""
        return bool(random_calls(self.lowered.snapshot))

    @functools.cached_property
    def as_run(self) -> Examined:
        """The same graph on the random numbers that the compiled one drew."""
        if not self.draws:
            return self
        clone = copy.copy(self)
        for name in ("exact_ir", "native_ir", "noisy_exact_ir", "noisy_native_ir"):
            vars(clone).pop(name, None)
        clone._as_run = True
        return clone

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
        producer = self.lowered.producer
        wrong = [WrongOperator(self.lowered, producer(name), True, step) for name, step in exact.items()]
        wrong += [
            WrongOperator(self.lowered, producer(name), False, comparison.relative_error, comparison)
            for name, comparison in native.items()
        ]
        return wrong

    def _names(self) -> Iterator[str]:
        return (name for name in self.lowered.labels if isinstance(self.exact.get(name), torch.Tensor))

    def _step(self, name: str) -> float | None:
        """Measure the IR's change against the interpreted graph in float64; None if it is rounding, or unknown."""
        value = _known(self.exact_ir.node, name)
        if value is None:
            return None
        change = relative_change(self.exact[name], value)
        if not changes_meaning(change):
            return None
        noisy = _known(self.noisy_exact_ir.node, name)
        noise = relative_change(value, noisy) if noisy is not None and noisy.shape == value.shape else 0.0
        return change if changes_meaning(change, noise) else None

    def _natively(self, name: str) -> Comparison | None:
        """Compare the IR with the interpreted graph natively; None if it is right, or not known."""
        value, right, exact = _known(self.native_ir.node, name), self.native.get(name), self.exact[name]
        if value is None or not isinstance(right, torch.Tensor) or not isinstance(exact, torch.Tensor):
            return None
        if metrics.same_values(right, value) or exact.shape != right.shape:  # the bits of a float64 have another shape
            return None
        # What rounding the operator itself may have; that of its IR may be what is wrong with it.
        samples = [sample for run in self.noisy_native if isinstance(sample := run.get(name), torch.Tensor)]
        comparison = how_wrong(name, right, value, exact, samples)
        if comparison is None or not (beyond_rounding(comparison) or not comparison.within_default_tolerance):
            return None
        return comparison

    def _roots(self, wrong: Mapping[str, T | None]) -> dict[str, T]:
        """Of the wrong nodes those that are computed from right ones only."""
        tainted: set[fx.Node] = set()
        roots = {}
        for node in self.lowered.snapshot.graph.nodes:
            inherits = any(source in tainted for source in node.all_input_nodes)
            evidence = wrong.get(node.name)
            if evidence is not None and not inherits:
                roots[node.name] = evidence
            if evidence is not None or inherits:
                tainted.add(node)
        return roots

    # -- kernels --------------------------------------------------------------------------------

    def wrong_kernels(self) -> list[WrongKernel]:
        """Kernels that wrote something wrong, in the order in which they ran; beyond default tolerances first."""
        nodes, wrong = nodes_by_buffer(self.lowered), []
        for (number, name), value in self.call.written.items():
            comparison = self._written_wrong(number, name, value)
            if comparison is None:
                continue
            kernel = self.lowered.kernels[number]
            stale = next((buffer for buffer in self.call.overwritten if buffer.read_by == number), None)
            holds = (self.lowered.producer(nodes[name]),) if name in nodes else ()
            wrong.append(WrongKernel(self.lowered, kernel, name, comparison, holds or kernel.nodes, overwritten=stale))
        gross = [kernel for kernel in wrong if not kernel.comparison.within_default_tolerance]
        chosen = gross or [kernel for kernel in wrong if beyond_rounding(kernel.comparison)]
        return [_with_schedule(self.exact_ir, kernel) for kernel in chosen[:1]] + chosen[1:]

    def _written_wrong(self, number: int, name: str, value: torch.Tensor) -> Comparison | None:
        if not self._is_last(number, name):
            return None
        right, exact = _known(self.native_ir.buffer, name), _known(self.exact_ir.buffer, name)
        if right is None or exact is None or right.shape != value.shape:
            return None
        if metrics.same_values(right, value.cpu()):
            return None
        samples = [sample for ir in self.noisy_native_ir if (sample := _known(ir.buffer, name)) is not None]
        return how_wrong(name, right, value.cpu(), exact, samples)

    def _is_last(self, number: int, name: str) -> bool:
        """Return whether nothing writes into the same buffer afterwards: the IR is evaluated to its end."""
        renamed = getattr(self.lowered.scheduler, "mutation_real_name", {})
        place = renamed.get(name, name)
        later = (written for kernel, written in self.call.written if kernel > number)
        return all(renamed.get(written, written) != place for written in later)

    # -- outputs --------------------------------------------------------------------------------

    def wrong_outputs(self) -> list[WrongOutput]:
        """Outputs of the compiled graph that differ from the interpreted graph's, and inputs that it wrote to."""
        if self.call.outputs is None or self.draws or self.inputs is None:
            return []
        self.count.replays += 2
        native, exact = (replay(self.lowered.snapshot, self.inputs, double=double) for double in (False, True))
        triples: list[tuple[str, object, object, object]] = [
            (f"output {n}", *values)
            for n, values in enumerate(zip(self.call.outputs, native.outputs, exact.outputs, strict=False))
        ]
        triples += [
            (f"input {place} after the call", value, native.inputs[place], exact.inputs[place])
            for place, value in self.call.inputs_after.items()
            if place < min(len(native.inputs), len(exact.inputs))
        ]
        return [wrong for triple in triples if (wrong := self._output_wrong(*triple)) is not None]

    def _output_wrong(self, name: str, seen: object, right: object, exact: object) -> WrongOutput | None:
        if not all(isinstance(value, torch.Tensor) for value in (seen, right, exact)):
            return None
        assert isinstance(seen, torch.Tensor) and isinstance(right, torch.Tensor) and isinstance(exact, torch.Tensor)
        comparison = how_wrong(name, right, seen.cpu(), exact, [])
        if comparison is None or comparison.within_default_tolerance:
            return None
        return WrongOutput(self.lowered, name, comparison)


def examined(ledger: Ledger, count: ReplayCount) -> list[Examined]:
    """Every lowered graph of a watched compile on the inputs of each call that was kept, as far as that can be."""
    looks = [
        Examined(ledger, lowered, count, number)
        for lowered in ledger.lowered
        for number in range(max(len(lowered.calls), 1))
    ]
    return [look for look in looks if look.usable]


def examined_in(divergence: Divergence) -> list[Examined]:
    """The lowered graphs of the failing compile, evaluated once for all stages."""
    return divergence.once(_examined)


def first_wrong_kernels(divergence: Divergence) -> list[WrongKernel]:
    """The first wrong kernel in each call of each graph."""
    return divergence.once(_first_wrong_kernels)


def _first_wrong_kernels(divergence: Divergence) -> list[WrongKernel]:
    return [wrong for look in examined_in(divergence) for wrong in look.as_run.wrong_kernels()[:1]]


def _examined(divergence: Divergence) -> list[Examined]:
    return examined(divergence.trial.ledger, divergence.count)


def _with_schedule(ir: Evaluated, wrong: WrongKernel) -> WrongKernel:
    """Mark the kernel if the scheduler's form of its loops is wrong already."""
    right = _known(ir.buffer, wrong.buffer)
    for scheduled in wrong.kernel.scheduled:
        for loop in scheduled.get_nodes():
            if wrong.buffer not in [buffer.get_name() for buffer in loop.get_outputs()] or right is None:
                continue
            try:
                value = ir.scheduled(loop).get(wrong.buffer)
            except _NOT_KNOWN:
                continue
            if value is not None and value.shape == right.shape and relative_change(right, value) > SEMANTIC_STEP:
                return replace(wrong, scheduled=True)
    return wrong


def _known(value_of: Callable[[str], torch.Tensor | None], name: str) -> torch.Tensor | None:
    """A value of the IR; None where that cannot be evaluated."""
    try:
        return value_of(name)
    except _NOT_KNOWN:
        return None
