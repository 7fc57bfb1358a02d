"""In-place writes and views made functional, and the results given back as the program's own memory."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from fuzzcompile import stage_names
from fuzzcompile.attribution.ablating import Ablator
from fuzzcompile.attribution.culprit import Attribution, Culprit
from fuzzcompile.attribution.divergence import Divergence
from fuzzcompile.attribution.inputs import inputs_of
from fuzzcompile.attribution.replays import ReplayCount, shared_memory
from fuzzcompile.compiler.decompositions import operator_name
from fuzzcompile.compiler.functional import SEEDS, NodeRun, run_functionally, run_plainly
from fuzzcompile.compiler.labels import location
from fuzzcompile.compiler.ledger import GraphRecord
from fuzzcompile.compiler.recorder import CAPTURED_CALLS
from fuzzcompile.compiler.replay import drawing
from fuzzcompile.compiler.tangents import AS_THEY_COME
from fuzzcompile.compiler.views import lossy_views
from fuzzcompile.execution.tensors import significant_strides
from fuzzcompile.oracle.change import SEMANTIC_STEP, relative_change
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.stages.around_graphs import changed_tangents, contradicted, is_tangent
from fuzzcompile.stages.base import Stage, Suspect, tracing_text
from fuzzcompile.stages.breaking import prove_by_break
from fuzzcompile.stages.operators.aten import kernel_suspects
from fuzzcompile.stages.operators.composites import other_paths
from fuzzcompile.stages.operators.stage import culprit_of
from fuzzcompile.stages.operators.suspected import doubted, lost_checks_suspected, operators_suspected


class Functionalization(Stage):
    """An operator that gives another value once in-place writes are made functional.

    Dynamo's graph is run as it is and functionally, on the same inputs, in float64; outputs and inputs afterwards are
    compared, and where these differ, the values of its nodes.
    """

    name = stage_names.FUNCTIONALIZATION
    component = "aot autograd"

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """The write or view that another value shows, calls on another path, copies of tangents, undeclared writes."""
        undeclared = [suspect for suspect in divergence.once(operators_suspected) if suspect.stage == self.name]
        if divergence.verdict is Verdict.ACCEPTS_INVALID:
            return [lost for lost in divergence.once(lost_checks_suspected) if lost.stage == self.name]
        if not divergence.is_of_values and divergence.verdict not in (Verdict.METADATA, Verdict.ALIASING):
            return undeclared
        culprit = divergence.once(_first_functionalized)
        first = [] if culprit is None else [culprit]
        shown = [*first, *divergence.once(other_paths), *divergence.once(changed_tangents)]
        shown += divergence.once(contradicted)
        return [*map(doubted, shown), *undeclared, *kernel_suspects(divergence, self.name)]

    def prove(self, ablator: Ablator, suspects: Sequence[Suspect]) -> Attribution | None:
        """Shown by a compile that ends behind this stage, proved by one that leaves the call to eager mode."""
        # What a kernel's layouts explain was tried before.
        shown = [self.culprit(s) for s in suspects if isinstance(s.finding, Culprit) and not _is_kernel(s.finding)]
        if not shown:
            return None
        for culprit in filter(is_tangent, shown):
            how = replace(ablator.how, functorch=AS_THEY_COME)
            if ablator.attempt(how, tracing_text(AS_THEY_COME))[1]:
                return Attribution(replace(culprit, necessary=True, confidence="high"))
        how = replace(ablator.how, backend="aot_eager", record=False)
        if ablator.attempt(how, "backend=aot_eager")[1]:
            return None
        proved = (prove_by_break(ablator, culprit) for culprit in shown)
        return next(filter(None, proved), Attribution(replace(shown[0], confidence="low")))

    def culprit(self, suspect: Suspect) -> Culprit:
        """The operator that writes, or the copy of a tangent."""
        return culprit_of(suspect)

    def tracing_settings(self, culprit: Culprit) -> Mapping[str, object]:
        """Tangents that stay in the layout in which they come."""
        return AS_THEY_COME if is_tangent(culprit) else {}


def _is_kernel(culprit: Culprit) -> bool:
    return "aten_kernel" in culprit.details


def _first_functionalized(divergence: Divergence) -> Culprit | None:
    for frame in divergence.trial.ledger.frames:
        record = frame.record(stage_names.PRE_GRAD)
        if record is None or not record.snapshots:
            continue
        for number in range(CAPTURED_CALLS):
            # In a later call inputs may overlap that did not when the graph was made.
            inputs = inputs_of(frame, record, number)
            culprit = _functionalized(record, inputs, divergence.count) if inputs is not None else None
            if culprit is not None:
                return culprit
    return None


def _functionalized(record: GraphRecord, inputs: Sequence[Any], count: ReplayCount) -> Culprit | None:
    snapshot = record.snapshots[-1]
    for seed in SEEDS if drawing(snapshot) else SEEDS[:1]:
        for double in (True, False):
            plain = run_plainly(snapshot, inputs, double=double, seed=seed)
            lazily = run_functionally(snapshot, inputs, double=double, seed=seed)
            count.replays += 2
            if lazily is None:
                return None
            if plain.error is None and lazily.error is None:
                break
        else:
            return None
        difference = _differing(plain, lazily)
        if difference is None:
            continue
        count.replays += 1
        read = run_functionally(snapshot, inputs, double=double, seed=seed, by_node=True)
        node = _first_differing(snapshot.graph, plain, read) if read is not None and read.error is None else None
        count.replays += 1
        through = _written_through(snapshot.graph, plain, lossy_views(snapshot, inputs))
        return _functional_culprit(snapshot.graph, node, plain, difference, through)
    return None


def _written_through(graph: fx.Graph, plain: NodeRun, lossy: Collection[str]) -> tuple[fx.Node, fx.Node] | None:
    """The first write through one of these views, and that view."""
    for node in graph.nodes:
        view = node.args[0] if node.args and _is_written(node, plain) else None
        while isinstance(view, fx.Node):
            if view.name in lossy:
                return node, view
            view = view.args[0] if view.args else None
    return None


def _differing(plain: NodeRun, functional: NodeRun) -> tuple[str, float | None] | None:
    """Return the first difference between the two runs: its name and its size."""
    named = [
        *((f"output {i}", a, b) for i, (a, b) in enumerate(zip(plain.outputs, functional.outputs, strict=False))),
        *((f"input {i}", a, b) for i, (a, b) in enumerate(zip(plain.inputs, functional.inputs, strict=False))),
    ]
    for name, value, functionally in named:
        step = _apart(value, functionally)
        if step > SEMANTIC_STEP:
            return name, step if math.isfinite(step) else None
    before, after = shared_memory(plain), shared_memory(functional)
    for name in before:
        if before[name] != after.get(name):
            # AOTAutograd regenerates views of inputs after the call: only memory that outputs share is its graph's.
            if any(owner.startswith("input") for owner in (*before[name], *after.get(name, ()))):
                continue
            return name, None
    return None


def _apart(plain: object, functional: object) -> float:
    """The change, infinite where the dtype is another."""
    if isinstance(plain, torch.Tensor) and isinstance(functional, torch.Tensor) and plain.dtype != functional.dtype:
        return math.inf
    return relative_change(plain, functional) if isinstance(plain, torch.Tensor) else 0.0


def _first_differing(graph: fx.Graph, plain: NodeRun, functional: NodeRun) -> fx.Node | None:
    """The first node whose value differs or, if one before it has another layout, that one: it is read by memory."""
    laid_out: fx.Node | None = None
    for node in graph.nodes:
        value, functionally = plain.values.get(node.name), functional.values.get(node.name)
        if value is None or functionally is None:
            continue
        if _apart(value, functionally) > SEMANTIC_STEP:
            return laid_out or node
        if laid_out is None and significant_strides(value) != significant_strides(functionally):
            laid_out = node
    return laid_out


def _functional_culprit(
    graph: fx.Graph,
    node: fx.Node | None,
    plain: NodeRun,
    difference: tuple[str, float | None],
    through: tuple[fx.Node, fx.Node] | None,
) -> Culprit:
    """The write at fault or, where a view loses what is not in it, that view at the place of the write."""
    name, step = difference
    read = node
    if through is not None:
        node = through[0]
    elif node is None or not _is_written(node, plain):
        # What reads another value is not at fault, but the write before it; the last, if only late views differ.
        earlier = list(graph.nodes)[: list(graph.nodes).index(node)] if node is not None else list(graph.nodes)
        written = [earlier_node for earlier_node in earlier if _is_written(earlier_node, plain)]
        node = written[-1] if written else node
    named = node if through is None else through[1]
    operators = plain.operators.get(named.name, []) if named is not None else []
    operator = next((op for op in operators if _writes(op)), operators[-1] if operators else None)
    return Culprit.of_operator(
        stage_names.FUNCTIONALIZATION,
        operator_name(operator) if operator is not None else None,
        nodes=(node.name,) if node is not None else (),
        site=location([node]) if node is not None else None,
        step=step,
        confidence="low",
        details={
            "kind": "values" if step is not None else "alias",
            "differs": name,
            "read": read.name if read is not None else None,
            **({"written through": through[1].name} if through is not None else {}),
        },
    )


def _is_written(node: fx.Node, run: NodeRun) -> bool:
    return any(_writes(operator) for operator in run.operators.get(node.name, ()))


def _writes(operator: Any) -> bool:
    return bool(getattr(getattr(operator, "_schema", None), "is_mutable", False))
