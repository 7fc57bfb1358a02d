"""The search behind the graph passes: the first wrong operator IR, kernel or output of a watched compile."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import fx

from fuzzcompile.compiler.compile_changes import Lowered
from fuzzcompile.compiler.graph_replay import NodeValues, compute_values, list_random_calls, replay_graph
from fuzzcompile.compiler.kernels.ir_evaluation import GraphEvaluation, map_buffers_to_nodes
from fuzzcompile.compiler.kernels.loop_body import NotEvaluable
from fuzzcompile.compiler.kernels.lowering_control import Control
from fuzzcompile.compiler.watch.ledger import GraphCall, Ledger, LoweredGraph
from fuzzcompile.diagnosis.attribution.ablation import Ablator, Divergence
from fuzzcompile.diagnosis.attribution.culprit import Attribution
from fuzzcompile.diagnosis.attribution.steps import ReplayCount, find_inputs
from fuzzcompile.diagnosis.kernels.kernel_bisection import (
    WrongKernel,
    WrongOperator,
    WrongOutput,
    find_error,
    find_node_family,
    is_beyond_rounding,
)
from fuzzcompile.diagnosis.kernels.kernel_culprits import find_failure, list_failed_families
from fuzzcompile.diagnosis.oracle.rounding import changes_meaning, relative_change
from fuzzcompile.diagnosis.stages.stage import Stage, Suspect
from fuzzcompile.diagnosis.trials.case_runs import Trial
from fuzzcompile.model.stages import LOWERING, POST_GRAD, RUNTIME
from fuzzcompile.model.thresholds import NOISE_SEEDS, SEMANTIC_STEP
from fuzzcompile.model.verdicts import Comparison, Verdict
from fuzzcompile.run import metrics

T = TypeVar("T")
_NOT_KNOWN = (NotEvaluable, AttributeError, RuntimeError, TypeError, KeyError)


class WatchedGraph:
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

    def __init__(self, ledger: Ledger, lowered: LoweredGraph, count: ReplayCount, number: int = 0) -> None:
        self.lowered, self.count = lowered, count
        frame = next((frame for frame in ledger.frames if frame.index == lowered.frame), None)
        record = frame.find_record(POST_GRAD, lowered.direction) if frame is not None else None
        self.inputs: Sequence[object] | None = None
        if frame is not None and record is not None and record.snapshots:
            self.inputs = find_inputs(frame, record, number)
        self.call = lowered.calls[number] if number < len(lowered.calls) else GraphCall()
        self._as_run = False
        self._ran = {name: value for (_, name), value in self.call.written.items()}

    # -- the same values, three times -----------------------------------------------------------

    @functools.cached_property
    def exact(self) -> NodeValues:
        """Every node's value in float64, as far as the graph runs."""
        return self._interpret(double=True)

    @functools.cached_property
    def native(self) -> NodeValues:
        """Every node's value in the program's own dtypes, as far as the graph runs."""
        return self._interpret(double=False)

    def _interpret(self, *, double: bool, noise_seed: int | None = None) -> NodeValues:
        self.count.replays += 1
        return compute_values(self.lowered.snapshot, self.inputs or (), double=double, noise_seed=noise_seed)

    @functools.cached_property
    def exact_ir(self) -> GraphEvaluation:
        """The IR in float64."""
        return self._evaluate(self.exact, double=True)

    @functools.cached_property
    def native_ir(self) -> GraphEvaluation:
        """The IR in the program's own dtypes."""
        return self._evaluate(self.native, double=False)

    @functools.cached_property
    def noisy_exact_ir(self) -> GraphEvaluation:
        """The IR in float64 with every result moved by one ulp of it."""
        return self._evaluate(self._interpret(double=True, noise_seed=1), double=True, noise_seed=1)

    @functools.cached_property
    def noisy_native_ir(self) -> list[GraphEvaluation]:
        """The IR in the program's own dtypes with every result moved by one ulp."""
        runs = zip(NOISE_SEEDS, self.noisy_native, strict=True)
        return [self._evaluate(values, double=False, noise_seed=seed) for seed, values in runs]

    @functools.cached_property
    def noisy_native(self) -> list[NodeValues]:
        """Every node's value with every result moved by one ulp."""
        return [self._interpret(double=False, noise_seed=seed) for seed in NOISE_SEEDS]

    def _evaluate(self, given: NodeValues, *, double: bool, noise_seed: int | None = None) -> GraphEvaluation:
        return GraphEvaluation(
            self.lowered,
            self.inputs or (),
            given,
            self._ran,
            double=double,
            noise_seed=noise_seed,
            as_run=self._as_run,
        )

    @property
    def is_usable(self) -> bool:
        """Return whether there are inputs to evaluate the graph on."""
        return self.inputs is not None

    @property
    def draws(self) -> bool:
        """Return whether the graph draws random numbers, which differ from run to run."""
        return bool(list_random_calls(self.lowered.snapshot))

    @functools.cached_property
    def as_run(self) -> WatchedGraph:
        """The same graph on the random numbers that the compiled one drew."""
        if not self.draws:
            return self
        clone = copy.copy(self)
        for name in ("exact_ir", "native_ir", "noisy_exact_ir", "noisy_native_ir"):
            vars(clone).pop(name, None)
        clone._as_run = True
        return clone

    # -- errors that the graph raises and the compiled program does not -------------------------

    def find_first_refused(self) -> str | None:
        """The first node at which the interpreted graph raises; None if it runs."""
        order = [node.name for node in self.lowered.snapshot.graph.nodes if node.op != "output"]
        return next((name for name in order if name not in self.native), None)

    # -- lowerings ------------------------------------------------------------------------------

    def find_wrong_operators(self) -> list[WrongOperator]:
        """Operators whose IR is wrong and that read nothing wrong: those that are wrong in float64 first."""
        exact = self._select_roots({name: self._measure_step(name) for name in self._iter_names()})
        native = (
            {} if exact else self._select_roots({name: self._compare_natively(name) for name in self._iter_names()})
        )
        producer = self.lowered.find_producer
        wrong = [WrongOperator(self.lowered, producer(name), True, step) for name, step in exact.items()]
        wrong += [
            WrongOperator(self.lowered, producer(name), False, comparison.relative_error, comparison)
            for name, comparison in native.items()
        ]
        return wrong

    def _iter_names(self) -> Iterator[str]:
        return (name for name in self.lowered.labels if isinstance(self.exact.get(name), torch.Tensor))

    def _measure_step(self, name: str) -> float | None:
        """Measure the IR's change against the interpreted graph in float64; None if it is rounding, or unknown."""
        value = _evaluate_or_none(self.exact_ir.evaluate_node, name)
        if value is None:
            return None
        change = relative_change(self.exact[name], value)
        if not changes_meaning(change):
            return None
        noisy = _evaluate_or_none(self.noisy_exact_ir.evaluate_node, name)
        noise = relative_change(value, noisy) if noisy is not None and noisy.shape == value.shape else 0.0
        return change if changes_meaning(change, noise) else None

    def _compare_natively(self, name: str) -> Comparison | None:
        """Compare the IR with the interpreted graph natively; None if it is right, or not known."""
        value, right, exact = (
            _evaluate_or_none(self.native_ir.evaluate_node, name),
            self.native.get(name),
            self.exact[name],
        )
        if value is None or not isinstance(right, torch.Tensor) or not isinstance(exact, torch.Tensor):
            return None
        if (
            metrics.have_same_values(right, value) or exact.shape != right.shape
        ):  # the bits of a float64 have another shape
            return None
        # What rounding the operator itself may have; that of its IR may be what is wrong with it.
        samples = [sample for run in self.noisy_native if isinstance(sample := run.get(name), torch.Tensor)]
        comparison = find_error(name, right, value, exact, samples)
        if comparison is None or not (is_beyond_rounding(comparison) or not comparison.within_default_tolerance):
            return None
        return comparison

    def _select_roots(self, wrong: Mapping[str, T | None]) -> dict[str, T]:
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

    def find_wrong_kernels(self) -> list[WrongKernel]:
        """Kernels that wrote something wrong, in the order in which they ran; beyond default tolerances first."""
        nodes, wrong = map_buffers_to_nodes(self.lowered), []
        for (number, name), value in self.call.written.items():
            comparison = self._compare_written(number, name, value)
            if comparison is None:
                continue
            kernel = self.lowered.kernels[number]
            stale = next((buffer for buffer in self.call.overwritten if buffer.read_by == number), None)
            holds = (self.lowered.find_producer(nodes[name]),) if name in nodes else ()
            wrong.append(WrongKernel(self.lowered, kernel, name, comparison, holds or kernel.nodes, overwritten=stale))
        gross = [kernel for kernel in wrong if not kernel.comparison.within_default_tolerance]
        chosen = gross or [kernel for kernel in wrong if is_beyond_rounding(kernel.comparison)]
        return [_with_schedule(self.exact_ir, kernel) for kernel in chosen[:1]] + chosen[1:]

    def _compare_written(self, number: int, name: str, value: torch.Tensor) -> Comparison | None:
        if not self._is_last(number, name):
            return None
        right, exact = (
            _evaluate_or_none(self.native_ir.evaluate_buffer, name),
            _evaluate_or_none(self.exact_ir.evaluate_buffer, name),
        )
        if right is None or exact is None or right.shape != value.shape:
            return None
        if metrics.have_same_values(right, value.cpu()):
            return None
        samples = [
            sample for ir in self.noisy_native_ir if (sample := _evaluate_or_none(ir.evaluate_buffer, name)) is not None
        ]
        return find_error(name, right, value.cpu(), exact, samples)

    def _is_last(self, number: int, name: str) -> bool:
        """Return whether nothing writes into the same buffer afterwards: the IR is evaluated to its end."""
        renamed = getattr(self.lowered.scheduler, "mutation_real_name", {})
        place = renamed.get(name, name)
        later = (written for kernel, written in self.call.written if kernel > number)
        return all(renamed.get(written, written) != place for written in later)

    # -- outputs --------------------------------------------------------------------------------

    def find_wrong_outputs(self) -> list[WrongOutput]:
        """Outputs of the compiled graph that differ from the interpreted graph's, and inputs that it wrote to."""
        if self.call.outputs is None or self.draws or self.inputs is None:
            return []
        self.count.replays += 2
        native, exact = (replay_graph(self.lowered.snapshot, self.inputs, double=double) for double in (False, True))
        triples: list[tuple[str, object, object, object]] = [
            (f"output {n}", *values)
            for n, values in enumerate(zip(self.call.outputs, native.outputs, exact.outputs, strict=False))
        ]
        triples += [
            (f"input {place} after the call", value, native.inputs[place], exact.inputs[place])
            for place, value in self.call.inputs_after.items()
            if place < min(len(native.inputs), len(exact.inputs))
        ]
        return [wrong for triple in triples if (wrong := self._compare_output(*triple)) is not None]

    def _compare_output(self, name: str, seen: object, right: object, exact: object) -> WrongOutput | None:
        if not all(isinstance(value, torch.Tensor) for value in (seen, right, exact)):
            return None
        assert isinstance(seen, torch.Tensor) and isinstance(right, torch.Tensor) and isinstance(exact, torch.Tensor)
        comparison = find_error(name, right, seen.cpu(), exact, [])
        if comparison is None or comparison.within_default_tolerance:
            return None
        return WrongOutput(self.lowered, name, comparison)


def watch_graphs(ledger: Ledger, count: ReplayCount) -> list[WatchedGraph]:
    """Every lowered graph of a watched compile on the inputs of each call that was kept, as far as that can be."""
    looks = [
        WatchedGraph(ledger, lowered, count, number)
        for lowered in ledger.lowered
        for number in range(max(len(lowered.calls), 1))
    ]
    return [look for look in looks if look.is_usable]


def get_watched_graphs(divergence: Divergence) -> list[WatchedGraph]:
    """The lowered graphs of the failing compile, evaluated once for all stages."""
    return divergence.once(_watch_graphs)


def get_first_wrong_kernels(divergence: Divergence) -> list[WrongKernel]:
    """The first wrong kernel in each call of each graph."""
    return divergence.once(_find_first_wrong_kernels)


def _find_first_wrong_kernels(divergence: Divergence) -> list[WrongKernel]:
    return [wrong for look in get_watched_graphs(divergence) for wrong in look.as_run.find_wrong_kernels()[:1]]


def _watch_graphs(divergence: Divergence) -> list[WatchedGraph]:
    return watch_graphs(divergence.trial.ledger, divergence.count)


def _with_schedule(ir: GraphEvaluation, wrong: WrongKernel) -> WrongKernel:
    """Mark the kernel if the scheduler's form of its loops is wrong already."""
    right = _evaluate_or_none(ir.evaluate_buffer, wrong.buffer)
    for scheduled in wrong.kernel.scheduled:
        for loop in scheduled.get_nodes():
            if wrong.buffer not in [buffer.get_name() for buffer in loop.get_outputs()] or right is None:
                continue
            try:
                value = ir.run_scheduled(loop).get(wrong.buffer)
            except _NOT_KNOWN:
                continue
            if value is not None and value.shape == right.shape and relative_change(right, value) > SEMANTIC_STEP:
                return replace(wrong, scheduled=True)
    return wrong


def _evaluate_or_none(value_of: Callable[[str], torch.Tensor | None], name: str) -> torch.Tensor | None:
    """A value of the IR; None where that cannot be evaluated."""
    try:
        return value_of(name)
    except _NOT_KNOWN:
        return None


# Suspects of one stage among the kernels of a failing compile.


def list_kernel_suspects(stage: str, divergence: Divergence, *, overwritten: tuple[str, ...] = ()) -> list[Suspect]:
    """The operators of the kernel that failed, or of the first wrong kernel of each graph.

    Args:
        stage: whose suspects they are.
        divergence: a failing compile whose kernels were watched.
        overwritten: the families of a kernel whose arguments were overwritten before it read them.
    """
    trial = divergence.trial
    if trial.observation.failure is not None:
        failure = find_failure(trial)
        return [Suspect(stage, family, finding=failure) for family in list_failed_families(failure)]
    if divergence.verdict is Verdict.ACCEPTS_INVALID:
        return []
    return [
        Suspect(stage, family, finding=wrong)
        for wrong in get_first_wrong_kernels(divergence)
        for family in (_list_families(wrong) if wrong.overwritten is None else overwritten)
    ]


def _list_families(wrong: WrongKernel) -> list[str]:
    """List the families of possible faults in a kernel whose arguments are right, as signatures name them."""
    if wrong.kernel.extern:
        return []
    generator, scheduled = wrong.generator, wrong.kernel.scheduled
    buffers = (wrong.buffer, *wrong.kernel.writes)
    names = [name for buffer in buffers for name in generator.operators(scheduled, buffer)]
    names += [find_node_family(wrong.lowered, wrong.lowered.find_producer(node)) for node in wrong.kernel.nodes]
    return list(dict.fromkeys([*names, "fusion", "loop", "kernel call"]))


# The search behind the graph passes: one watched compile, then the stages in a fixed order.


def search_behind_graphs(stages: Sequence[Stage], ablator: Ablator) -> Attribution | None:
    """Find the culprit behind the graph passes; None if the fault is not there, or nothing was found.

    Args:
        stages: those behind the graph passes, in the order of looking.
        ablator: makes the watched compile and the proofs.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    if ablator.screens:
        return None
    # If the kernels were not watched, only a setting that decides about a whole stage is evidence.
    trial = compile_watched(ablator) or ablator.trial
    divergence = Divergence(ablator.experiments, trial, (), ablator.count)
    doubtful: Attribution | None = None
    for stage in stages:
        attribution = stage.prove(ablator, stage.suspects(divergence))
        if attribution is not None and (stage.name != LOWERING or attribution.contributors or _is_proved(attribution)):
            # An operator that looks wrong and is not proved wrong is a better answer than the wrapper alone.
            return doubtful if stage.name == RUNTIME and doubtful is not None else attribution
        doubtful = attribution or doubtful
    return doubtful


def compile_watched(ablator: Ablator) -> Trial | None:
    """A compile whose IR and kernels are kept; None if the divergence does not show in it.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    for separate, name in ((True, "every loop nest a kernel"), (False, "kernels watched")):
        how = ablator.how.under(Lowered(Control(separate=separate)))
        trial = ablator.run_trial(replace(how, kernels=True, record=True))
        if not ablator.repairs(trial):
            return trial
        ablator.note(name, trial, True)
    return None


def _is_proved(attribution: Attribution) -> bool:
    return attribution.culprit is not None and bool(attribution.culprit.necessary)
