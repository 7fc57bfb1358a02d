"""Lowered graphs of a watched compile, and the steps of them that go wrong: an operator's IR, a kernel, an output."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, Unpack, cast

import torch
from torch import fx

from fuzzcompile.compiler.graph_replay import NodeValues, compute_values, list_random_calls, replay_graph
from fuzzcompile.compiler.kernels.ir_evaluation import NOT_FOLLOWED, GraphEvaluation, map_buffers_to_nodes
from fuzzcompile.compiler.kernels.lowering_control import parse_operator
from fuzzcompile.compiler.operators.decompositions import get_operator_family, is_mutating, leaves_unwritten
from fuzzcompile.compiler.watch.ledger import (
    GraphCall,
    Kernel,
    Ledger,
    LoweredGraph,
    LoweringFailure,
    OverwrittenBuffer,
)
from fuzzcompile.diagnosis.attribution.culprit import Culprit, CulpritFields, Divergence
from fuzzcompile.diagnosis.attribution.steps import find_inputs
from fuzzcompile.diagnosis.kernels.code_generators import CodeGenerator, CodeSource, find_generator
from fuzzcompile.diagnosis.oracle.judgement import compare
from fuzzcompile.diagnosis.oracle.rounding import changes_meaning, relative_change
from fuzzcompile.model.culprit_contract import DetailsJson
from fuzzcompile.model.stages import POST_GRAD
from fuzzcompile.model.thresholds import KERNEL_FACTOR, NOISE_SEEDS, SEMANTIC_STEP
from fuzzcompile.model.verdicts import Comparison
from fuzzcompile.run import metrics
from fuzzcompile.run.observation import Value
from fuzzcompile.run.ranks import is_led
from fuzzcompile.run.tensors import list_significant_strides, name_collective

T = TypeVar("T")
_WRONG = ("far", "nonfinite", "integer", "shape", "dtype")
_LINES = 80


@dataclass(frozen=True)
class LoweredStep:
    """A step of a lowered graph that goes wrong, though everything that it reads is right.

    It is an operator's IR (without ``kernel``), the first wrong kernel in a call, an output, or what raised
    (``failed``). ``nodes`` are the operators concerned; of a kernel, those whose values ``buffer`` holds.
    ``comparison`` is in the program's own dtypes; ``exact`` says that it is wrong in float64, by ``step`` in units of
    the RMS size. ``scheduled``: the scheduler's form of the loops is wrong already. ``overwritten`` is an argument that
    was right when it was written.
    """

    lowered: LoweredGraph
    nodes: tuple[str, ...]
    kernel: Kernel | None = None
    buffer: str = ""
    comparison: Comparison | None = None
    step: float | None = None
    exact: bool = False
    scheduled: bool = False
    overwritten: OverwrittenBuffer | None = None
    failed: LoweringFailure | None = None

    @property
    def name(self) -> str:
        """The last of the operators: ``aten.gelu.default``; ``unknown`` where none is known."""
        names = self.list_operator_names()
        return names[-1] if names else "unknown"

    @property
    def generator(self) -> CodeGenerator:
        """The code generator that wrote the kernel, or that writes the graph's kernels."""
        return find_generator(self.lowered, None if self.kernel is None else self.kernel.name)

    @property
    def is_vectorised(self) -> bool:
        """Return whether the kernel's code uses vectors."""
        return self.kernel is not None and self.generator.is_vectorised(self.lowered.sources.get(self.kernel.name, ""))

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of all operators of the kernel, or of the operators that were lowered."""
        names = self.nodes if self.kernel is None or self.failed is not None else self.kernel.nodes
        return tuple(self.lowered.labels[name] for name in names if name in self.lowered.labels)

    def list_operator_names(self, nodes: Sequence[str] | None = None) -> tuple[str, ...]:
        """The operators of nodes, by default those concerned, each once: ``aten.gelu.default``."""
        labels = self.lowered.labels
        names = (parse_operator(labels[name]) for name in (self.nodes if nodes is None else nodes) if name in labels)
        return tuple(dict.fromkeys(names))

    def find_family(self, node: str) -> str:
        """The family of a node's operator: ``gelu``."""
        return get_operator_family(parse_operator(self.lowered.labels.get(self.lowered.find_producer(node), "")))

    def list_code_operators(self, *buffers: str) -> list[str]:
        """The operators of the loops that write the buffer, or further ones, as the code generator calls them."""
        written, generator = buffers or (self.buffer,), self.generator
        scheduled = self.kernel.scheduled if self.kernel is not None else ()
        return list(dict.fromkeys(name for buffer in written for name in generator.list_operators(scheduled, buffer)))

    @property
    def raised(self) -> LoweringFailure:
        """The error of a step that raised."""
        assert self.failed is not None, "it is an error that rose"
        return self.failed

    def make_culprit(self, stage: str, code: CodeSource, family: str = "", **known: Unpack[CulpritFields]) -> Culprit:
        """What is at fault there as a culprit; details beside those known are its kernel, wrong values and error.

        ``code`` is at fault, unless it is known what raised the error.
        """
        nodes = known.setdefault("nodes", self.nodes)
        sites = (site for name in reversed(nodes) if (site := find_site(self.lowered, name)))
        known.setdefault("site", next(sites, None))
        step = self.step if self.comparison is None else self.comparison.relative_error
        known.setdefault("step", step)
        kernel = self.kernel or (find_kernel(self.lowered, nodes[-1]) if nodes else None)
        shown = {**describe_kernel(self.lowered, kernel), **describe_values(self.comparison)}
        if self.failed is not None:
            shown["error"] = self.failed.message
            code = code if self.failed.source is None else CodeSource(code.name, self.failed.source, self.failed.line)
        known["details"] = {**shown, **known.get("details", {})}  # type: ignore[typeddict-item]
        known["source"], known["line"] = code.source, code.line
        if is_led():
            targets = self.lowered.snapshot.called_targets
            collectives = {str(target) for target in targets if name_collective(target) is not None}
            if collectives and code.name not in collectives:
                # Collectives were imitated, and a compile without it may be right as kernels are in another order.
                known["confidence"] = "low"
        return Culprit(stage, None, code.name, family or get_operator_family(code.name), **known)


def find_site(lowered: LoweredGraph, node: str) -> str | None:
    """``model.py:14 #1`` of an operator."""
    location, _, ordinal = lowered.labels.get(node, "").partition("@")[2].rpartition("#")
    return f"{location} #{ordinal}" if location and location != "?" else None


def find_kernel(lowered: LoweredGraph, node: str) -> Kernel | None:
    """The first kernel that computes an operator."""
    return next((kernel for kernel in lowered.kernels if node in kernel.nodes), None)


def describe_kernel(lowered: LoweredGraph, kernel: Kernel | None) -> DetailsJson:
    """Name, operators with their lines, and generated source of a kernel, for the reader."""
    if kernel is None:
        return {}
    lines = lowered.sources.get(kernel.name, "").splitlines()
    rest = [f"… {len(lines) - _LINES} more lines"] if len(lines) > _LINES else []
    written: DetailsJson = {} if kernel.extern else {"code_generator": find_generator(lowered, kernel.name).name}
    return {
        "graph": lowered.direction,
        "kernel": kernel.name,
        **written,
        "fused": [lowered.labels[name].partition(":")[2] for name in kernel.nodes if name in lowered.labels],
        "kernel_source": "\n".join([*lines[:_LINES], *rest]) if lines else None,
    }


def describe_values(comparison: Comparison | None) -> DetailsJson:
    """Describe the worst element of a comparison as JSON."""
    if comparison is None:
        return {}

    def convert(value: object) -> float | int | str | None:
        plain = value is None or (isinstance(value, (int, float)) and math.isfinite(value))
        return value if plain else str(value)  # type: ignore[return-value]

    return {
        "finding": comparison.finding,
        "where": list(comparison.where) if comparison.where is not None else None,
        "values": {name: convert(value) for name, value in comparison.at.items()},
    }


class WatchedGraph:
    """One lowered graph of a watched compile, evaluated on the inputs of one of its calls.

    Every computation is made on first use. Three computations of the same values are compared: the graph interpreted
    operator by operator, the IR that the lowerings made of it evaluated without code, and what the kernels wrote when
    the compiled graph ran. IR that is wrong on right inputs is a fault of a lowering; a kernel that writes something
    else than its IR says is one of the scheduler or the code generator.
    """

    def __init__(self, ledger: Ledger, lowered: LoweredGraph, number: int = 0) -> None:
        self.lowered = lowered
        frame = next((frame for frame in ledger.frames if frame.index == lowered.frame), None)
        record = frame.find_record(POST_GRAD, lowered.direction) if frame is not None else None
        self.inputs: Sequence[object] | None = None
        if frame is not None and record is not None and record.snapshots:
            self.inputs = find_inputs(frame, record, number)
        self.call = lowered.calls[number] if number < len(lowered.calls) else GraphCall()
        self._values: dict[tuple[bool, int | None], NodeValues] = {}
        self._evaluations: dict[tuple[bool, int | None, bool], GraphEvaluation] = {}

    def interpret(self, *, double: bool, noise_seed: int | None = None) -> NodeValues:
        """Every node's value, in float64 or the program's own dtypes, with noise of an ulp for each result."""
        if (double, noise_seed) not in self._values:
            values = compute_values(self.lowered.snapshot, self.inputs or (), double=double, noise_seed=noise_seed)
            self._values[double, noise_seed] = values
        return self._values[double, noise_seed]

    def evaluate(self, *, double: bool, noise_seed: int | None = None, as_run: bool = False) -> GraphEvaluation:
        """The IR, in the same ways; ``as_run``: on what the compiled graph drew, and what other processes sent it."""
        key = (double, noise_seed, as_run and (self.draws or self.imitates_ranks))
        if key not in self._evaluations:
            given = self.interpret(double=double, noise_seed=noise_seed)
            how: dict[str, Any] = {"double": double, "noise_seed": noise_seed, "as_run": key[-1]}
            self._evaluations[key] = GraphEvaluation(self.lowered, self.inputs or (), given, self.call, **how)
        return self._evaluations[key]

    @property
    def draws(self) -> bool:
        """Return whether the graph draws random numbers, which differ from run to run."""
        return bool(list_random_calls(self.lowered.snapshot))

    @property
    def imitates_ranks(self) -> bool:
        """Return whether other processes took part in the run that were imitated when the graph was interpreted."""
        return is_led() and any(name_collective(target) for target in self.lowered.snapshot.called_targets)

    def find_first_refused(self) -> str | None:
        """The first node at which the interpreted graph raises; None if it runs."""
        nodes, known = self.lowered.snapshot.graph.nodes, self.interpret(double=False)
        return next((node.name for node in nodes if node.op != "output" and node.name not in known), None)

    # -- lowerings ------------------------------------------------------------------------------

    def find_wrong_operators(self) -> list[LoweredStep]:
        """Operators whose IR is wrong and that read nothing wrong: those that are wrong in float64 first."""
        exact = self._select_roots(self._measure_step)
        wrong = [LoweredStep(self.lowered, (name,), step=step, exact=True) for name, step in exact]
        native = [] if exact else self._select_roots(self._compare_natively)
        return [*wrong, *(LoweredStep(self.lowered, (name,), comparison=compared) for name, compared in native)]

    def _measure_step(self, name: str) -> float | None:
        value = _evaluate_or_none(self.evaluate(double=True).evaluate_node, name)
        change = relative_change(self.interpret(double=True)[name], value) if value is not None else 0.0
        if value is None or not changes_meaning(change):
            return None
        # Constants of the IR are rounded to its dtype: what is right in that is not wrong in float64 for them.
        native = _evaluate_or_none(self.evaluate(double=False).evaluate_node, name)
        right = self.interpret(double=False).get(name)
        if native is not None and isinstance(right, torch.Tensor) and metrics.have_same_values(native, right):
            return None
        noisy = _evaluate_or_none(self.evaluate(double=True, noise_seed=1).evaluate_node, name)
        noise = relative_change(value, noisy) if noisy is not None and noisy.shape == value.shape else 0.0
        return change if changes_meaning(change, noise) else None

    def _compare_natively(self, name: str) -> Comparison | None:
        value = _evaluate_or_none(self.evaluate(double=False).evaluate_node, name)
        right, exact = self.interpret(double=False).get(name), self.interpret(double=True)[name]
        if value is None or not isinstance(right, torch.Tensor) or not isinstance(exact, torch.Tensor):
            return None
        # The bits of a float64 have another shape.
        if metrics.have_same_values(right, value) or exact.shape != right.shape:
            return None
        # What rounding the operator itself may have; that of its IR may be what is wrong with it.
        noisy = (self.interpret(double=False, noise_seed=seed).get(name) for seed in NOISE_SEEDS)
        comparison = _find_error(name, right, value, exact, [each for each in noisy if isinstance(each, torch.Tensor)])
        if comparison is None or not (_is_beyond_rounding(comparison) or not comparison.within_default_tolerance):
            return None
        return comparison

    def _select_roots(self, measure: Callable[[str], T | None]) -> list[tuple[str, T]]:
        """The operators that ``measure`` finds wrong and that are computed from right ones only."""
        exact, tainted, roots = self.interpret(double=True), set[fx.Node](), list[tuple[str, T]]()
        for node in self.lowered.snapshot.graph.nodes:
            known = node.name in self.lowered.labels and isinstance(exact.get(node.name), torch.Tensor)
            evidence = measure(node.name) if known and not leaves_unwritten(node.target) else None
            inherits = any(source in tainted for source in node.all_input_nodes)
            if evidence is not None and not inherits:
                root = self._find_lost_write(node) or node
                roots.append((self.lowered.find_producer(root.name), evidence))
            if evidence is not None or inherits:
                tainted.add(node)
        return roots

    def _find_lost_write(self, node: fx.Node) -> fx.Node | None:
        """The operator that writes to what a wrong node reads, where the node's IR reads it as it was before."""
        order = {each: place for place, each in enumerate(self.lowered.snapshot.graph.nodes)}
        writers = [
            each
            for each in itertools.takewhile(lambda each: each is not node, order)
            if is_mutating(each.target)
            and any(read in each.all_input_nodes and order[read] < order[each] for read in node.all_input_nodes)
        ]
        read = _evaluate_or_none(self.evaluate(double=True).evaluate_node, node.name) if writers else None
        if read is None or not callable(node.target):
            return None
        exact = self.interpret(double=True)
        known = cast("Callable[[fx.Node], fx.node.Argument]", lambda each: exact.get(each.name))
        args, kwargs = fx.map_arg(node.args, known), fx.map_arg(node.kwargs, known)
        with contextlib.suppress(Exception), torch.no_grad():  # of the program, on values that it did not mean
            unwritten = node.target(*args, **kwargs)
            return writers[-1] if not changes_meaning(relative_change(read, unwritten)) else None
        return None

    # -- kernels --------------------------------------------------------------------------------

    def find_wrong_kernel(self) -> LoweredStep | None:
        """The first kernel that wrote something wrong, beyond default tolerances if there is one."""
        nodes = map_buffers_to_nodes(self.lowered)
        wrong: list[tuple[Comparison, LoweredStep]] = []
        for (number, name), value in self.call.written.items():
            comparison = self._compare_written(number, name, value)
            if comparison is not None:
                kernel = self.lowered.kernels[number]
                stale = next((buffer for buffer in self.call.overwritten if buffer.read_by == number), None)
                holds = (self.lowered.find_producer(nodes[name]),) if name in nodes else ()
                step = LoweredStep(self.lowered, holds or kernel.nodes, kernel, name, comparison, overwritten=stale)
                wrong.append((comparison, step))
        gross = [step for comparison, step in wrong if not comparison.within_default_tolerance]
        chosen = gross or [step for comparison, step in wrong if _is_beyond_rounding(comparison)]
        return self._with_schedule(chosen[0]) if chosen else None

    def _compare_written(self, number: int, name: str, value: torch.Tensor) -> Comparison | None:
        # The IR is evaluated to its end: nothing may write into the same buffer afterwards.
        renamed = getattr(self.lowered.scheduler, "mutation_real_name", {})
        later = (written for kernel, written in self.call.written if kernel > number)
        if any(renamed.get(written, written) == renamed.get(name, name) for written in later):
            return None
        right, exact = (
            _evaluate_or_none(self.evaluate(double=double, as_run=True).evaluate_buffer, name)
            for double in (False, True)
        )
        if right is None or exact is None or right.shape != value.shape:
            return None
        if metrics.have_same_values(right, value.cpu()):
            return None
        runs = (self.evaluate(double=False, noise_seed=seed, as_run=True) for seed in NOISE_SEEDS)
        samples = [each for run in runs if (each := _evaluate_or_none(run.evaluate_buffer, name)) is not None]
        return _find_error(name, right, value.cpu(), exact, samples)

    def _with_schedule(self, wrong: LoweredStep) -> LoweredStep:
        ir = self.evaluate(double=True, as_run=True)
        right = _evaluate_or_none(ir.evaluate_buffer, wrong.buffer)
        parts = wrong.kernel.scheduled if wrong.kernel is not None and right is not None else ()
        for loop in (loop for scheduled in parts for loop in scheduled.get_nodes()):
            if wrong.buffer in [buffer.get_name() for buffer in loop.get_outputs()]:
                value = (_evaluate_or_none(ir.run_scheduled, loop) or {}).get(wrong.buffer)
                if value is not None and right is not None and value.shape == right.shape:
                    return replace(wrong, scheduled=relative_change(right, value) > SEMANTIC_STEP)
        return wrong

    # -- outputs --------------------------------------------------------------------------------

    def find_wrong_outputs(self) -> list[LoweredStep]:
        """Outputs of the compiled graph that differ from the interpreted graph's, and inputs that it wrote to."""
        if self.call.outputs is None or self.draws or self.inputs is None:
            return []
        native, exact = (replay_graph(self.lowered.snapshot, self.inputs, double=double) for double in (False, True))
        values: dict[str, tuple[object, object, object]] = {
            f"output {number}": triple
            for number, triple in enumerate(zip(self.call.outputs, native.outputs, exact.outputs, strict=False))
        }
        for place, value in self.call.inputs_after.items():
            if place < min(len(native.inputs), len(exact.inputs)):
                values[f"input {place} after the call"] = value, native.inputs[place], exact.inputs[place]
        wrong = []
        for name, (seen, right, wide) in values.items():
            if isinstance(seen, torch.Tensor) and isinstance(right, torch.Tensor) and isinstance(wide, torch.Tensor):
                comparison = _find_error(name, right, seen.cpu(), wide, [])
                if comparison is not None and not comparison.within_default_tolerance:
                    wrong.append(LoweredStep(self.lowered, (), buffer=name, comparison=comparison))
        return wrong


def _find_error(
    name: str, right: torch.Tensor, value: torch.Tensor, exact: torch.Tensor, samples: Sequence[torch.Tensor]
) -> Comparison | None:
    """Compare ``value`` with ``exact``, the value in float64; None if rounding explains the distance.

    ``right`` is another computation of it in the same dtype, and ``samples`` are that with rounding errors added.
    """
    as_value = functools.partial(Value, name, kind="output")
    strides = list_significant_strides(right)
    comparison = compare(
        as_value(value=right, stride=strides),
        as_value(value=value, stride=strides),
        as_value(value=exact),
        [as_value(value=sample) for sample in samples],
    )
    return comparison if comparison.finding in _WRONG else None


def _is_beyond_rounding(comparison: Comparison) -> bool:
    usual = max(comparison.max_abs_error_eager, comparison.noise_floor)
    return comparison.finding != "far" or comparison.max_abs_error_compiled > KERNEL_FACTOR * usual


def _evaluate_or_none(evaluate: Callable[..., T], *args: object) -> T | None:
    try:
        return evaluate(*args)
    except NOT_FOLLOWED:
        return None


def watch_graphs(ledger: Ledger, calls: Sequence[int] | None = None) -> list[WatchedGraph]:
    """Every lowered graph of a watched compile on the inputs of each call that was kept, or of so many calls."""
    kept = [max(len(lowered.calls), 1) for lowered in ledger.lowered] if calls is None else calls
    numbered = ((lowered, n) for lowered, made in zip(ledger.lowered, kept, strict=False) for n in range(made))
    looks = [WatchedGraph(ledger, lowered, number) for lowered, number in numbered]
    return [look for look in looks if look.inputs is not None]


def find_watched_graphs(divergence: Divergence) -> list[WatchedGraph]:
    """The lowered graphs of the failing compile."""
    return watch_graphs(divergence.trial.ledger)


def find_first_wrong_kernels(divergence: Divergence) -> list[LoweredStep]:
    """The first wrong kernel in each call of each graph."""
    graphs = divergence.once(find_watched_graphs)
    return [wrong for look in graphs if (wrong := look.find_wrong_kernel()) is not None]
