"""Culprits behind the graph passes: wrong kernels, lowerings and kernels that raise, and passes that were omitted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

from fuzzcompile.compiler.compile_changes import Lowered
from fuzzcompile.compiler.kernels.kernel_loops import check_dependences, find_definition
from fuzzcompile.compiler.kernels.lowering_control import find_lowering_source, get_operator_name
from fuzzcompile.compiler.operators.decompositions import get_operator_family
from fuzzcompile.compiler.watch.ledger import Kernel, LoweredGraph, LoweringFailure
from fuzzcompile.diagnosis.attribution.ablation import Ablator
from fuzzcompile.diagnosis.attribution.culprit import Attribution, Culprit, Proof
from fuzzcompile.diagnosis.kernels.code_generators import LOOPS, CodeGenerator, find_generator
from fuzzcompile.diagnosis.kernels.kernel_bisection import (
    BackendFailure,
    WrongKernel,
    find_node_family,
    find_right_in_scalars,
    is_right_without_vectors,
    list_labels,
    list_operator_names,
    with_aten,
    with_isolated_kernels,
    without_fusion,
)
from fuzzcompile.diagnosis.trials.case_runs import Trial
from fuzzcompile.model.culprit_contract import DetailsJson
from fuzzcompile.model.facts import facts
from fuzzcompile.model.stages import CODEGEN, LOWERING, POST_GRAD, RUNTIME, SCHEDULER
from fuzzcompile.model.verdicts import Comparison

# Culprits behind the graph passes, with what a reader wants to see of them.

_LINES = 80


def make_kernel_culprit(
    wrong: WrongKernel,
    stage: str,
    rewrite: str,
    family: str,
    *,
    nodes: tuple[str, ...] | None = None,
    details: DetailsJson | None = None,
    source: str | None = None,
    line: int | None = None,
    **proof: Unpack[Proof],
) -> Culprit:
    """Something about one kernel as a culprit, with the kernel and its wrong values as details.

    Args:
        wrong: the kernel.
        stage: the stage at fault.
        rewrite: what is at fault there, for the reader.
        family: what is at fault, for the signature.
        nodes: the operators that it concerns; those of the wrong buffer by default.
        details: further details.
        source: the file at fault.
        line: the line there.
        proof: how sure that is.
    """
    nodes = wrong.nodes if nodes is None else nodes
    site = next((site for name in reversed(nodes) if (site := find_site(wrong.lowered, name))), None)
    shown: DetailsJson = {
        **describe_kernel(wrong.lowered, wrong.kernel),
        **describe_values(wrong.comparison),
        **(details or {}),
    }
    step = wrong.comparison.relative_error
    return Culprit(stage, None, rewrite, family, nodes, source, line, site, step=step, details=shown, **proof)


def find_site(lowered: LoweredGraph, node: str) -> str | None:
    """``model.py:14 #1`` of an operator."""
    location, _, ordinal = lowered.labels.get(node, "").partition("@")[2].rpartition("#")
    return f"{location} #{ordinal}" if location and location != "?" else None


def find_fusion_source(stage: str, generator: CodeGenerator) -> tuple[str | None, int | None]:
    """File and line of what fuses loops: the scheduler's decision, or the code that is generated for them together."""
    if stage == SCHEDULER:
        return find_definition(facts().places.fusion_decision)
    code = generator.find_fusion_code()
    return code.source, code.line


def find_kernel(lowered: LoweredGraph, node: str) -> Kernel | None:
    """The first kernel that computes an operator."""
    return next((kernel for kernel in lowered.kernels if node in kernel.nodes), None)


def describe_kernel(lowered: LoweredGraph, kernel: Kernel | None) -> DetailsJson:
    """Name, operators with their lines, and generated source of a kernel, for the reader."""
    if kernel is None:
        return {}
    source = lowered.sources.get(kernel.name)
    written: DetailsJson = {} if kernel.extern else {"code_generator": find_generator(lowered, kernel.name).name}
    return {
        "graph": lowered.direction,
        "kernel": kernel.name,
        **written,
        "fused": [label.partition(":")[2] for label in list_labels(lowered, kernel.nodes)],
        "kernel_source": _shorten(source.splitlines()) if source else None,
    }


def _shorten(lines: Sequence[str]) -> str:
    rest = [f"… {len(lines) - _LINES} more lines"] if len(lines) > _LINES else []
    return "\n".join([*lines[:_LINES], *rest])


def describe_values(comparison: Comparison | None) -> DetailsJson:
    """Describe the worst element of a comparison as JSON."""
    if comparison is None:
        return {}
    return {
        "finding": comparison.finding,
        "where": list(comparison.where) if comparison.where is not None else None,
        "values": {name: value if _is_json(value) else str(value) for name, value in comparison.at.items()},
    }


def _is_json(value: object) -> bool:
    return value is None or (isinstance(value, (int, float)) and math.isfinite(value))


# Passes that left undone what the lowering relies on.


def find_omission(failure: BackendFailure) -> Culprit | None:
    """The pass that should have replaced the operator whose lowering raised; None if there is none.

    AOTAutograd and dynamo alone put these operators into a graph, so that the pass met them. Where a lowering is
    registered after all, the lowering is at fault. No compile can do without the pass, so that no ablation proves it.

    Such a fault shows in no step: the graph computes the same before and after the pass. It shows when the lowering
    meets an operator that no lowering is registered for, and that a pass which no compile can do without should have
    replaced.
    """
    lowered, failed = failure.lowered, failure.failed
    node = lowered.find_node(failed.nodes[-1]) if failed.nodes else None
    if node is None or not callable(node.target):
        return None
    name = get_operator_name(node.target).removeprefix("higher_order.")
    replacing = facts().passes.replacing.get(name)
    if replacing is None or find_lowering_source(node.target) != (None, None):
        return None
    source, line = find_definition(f"{facts().stages[POST_GRAD].tables}:{replacing}")
    if source is None:
        return None
    return Culprit(
        POST_GRAD,
        replacing,
        replacing,
        replacing,
        nodes=failed.nodes,
        source=source,
        line=line,
        site=find_site(lowered, node.name),
        details={"left": name, "error": failed.message, "operator": get_operator_family(name)},
    )


# Where loops are built from the IR: by the lowering, or later when the scheduler asks for them.
_FILES = facts().lowering_files


def find_failure(trial: Trial) -> BackendFailure | None:
    """Find the failure behind the graph passes that raised the trial's exception; None if there is none."""
    for lowered in reversed(trial.ledger.lowered):
        if lowered.failed is not None:
            return _read_complaint(BackendFailure(lowered, lowered.failed))
        running = next((call.running for call in lowered.calls if call.running is not None), None)
        if running is not None:
            kernel = lowered.kernels[running]
            return BackendFailure(
                lowered, LoweringFailure(LOWERING if kernel.extern else RUNTIME, kernel.nodes, kernel.name)
            )
    return None


def _read_complaint(failure: BackendFailure) -> BackendFailure:
    """With the complaint of the compiler that refused the generated code, and the operators that it refused."""
    failed, generator = failure.failed, failure.generator
    if failed.refused is None:
        return failure
    statements = failure.lowered.statements.get(failed.kernel or "", ())
    message = f"{failed.message}: {generator.find_complaint(failed.refused) or ''}"[:300]
    operators = generator.list_refused_operators(statements, failed.refused)
    return replace(failure, failed=replace(failed, message=message, operators=operators))


def list_failed_families(failure: BackendFailure | None) -> list[str]:
    """List the names that a signature may give an error: operators of the graph or of the code; empty without error."""
    if failure is None:
        return []
    nodes = (
        find_node_family(failure.lowered, failure.lowered.find_producer(name))
        for name in reversed(failure.failed.nodes)
    )
    families = [*failure.failed.operators, *nodes, *failure.code_operators()]
    return list(dict.fromkeys(families or ["unknown"]))


def find_failed_stage(failed: LoweringFailure) -> str:
    """The stage of what raised: loops are built by the lowering's code, whatever asks for them."""
    if failed.place == RUNTIME:
        return CODEGEN
    if failed.source in _FILES.always or (failed.place == SCHEDULER and failed.source in _FILES.when_scheduling):
        return LOWERING
    return failed.place


def without_failure(failure: BackendFailure) -> Lowered | None:
    """ATen computes the operators that failed; None if none is known."""
    names = list_operator_names(failure.lowered, failure.failed.nodes)
    return with_aten(names) if names else None


def prove_failure(ablator: Ablator, failure: BackendFailure) -> Attribution:
    """Name what raised, and prove it.

    The stage may turn out to be another than that in which the error rose: a kernel that fails only fused is a fault
    of the scheduler.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    failed = failure.failed
    if failed.operators and failed.source is None:
        return _prove_refused(ablator, failure)
    if failed.operators:
        failure = _with_nodes(failure, _select_computing_nodes(failure))
    if failed.place != LOWERING and len(failure.failed.nodes) > 1:
        trial, repaired = ablator.attempt_under(with_isolated_kernels(failure.labels), watched=True)
        if repaired:
            return _prove_fusion_failure(ablator, failure)
        failure = find_failure(trial) or failure
    return _prove_raised(ablator, failure)


def _with_nodes(failure: BackendFailure, nodes: tuple[str, ...]) -> BackendFailure:
    return replace(failure, failed=replace(failure.failed, nodes=nodes)) if nodes else failure


def _prove_refused(ablator: Ablator, failure: BackendFailure) -> Attribution:
    """A kernel that does not compile: the operator whose statement the compiler of the generated code refused."""
    failed, generator = failure.failed, failure.generator
    operator, nodes = failed.operators[0], _select_computing_nodes(failure)
    vectorised = proved = failure.is_vectorised and is_right_without_vectors(ablator, generator)
    narrow = None  # whether changing what was named is enough
    for without in _list_narrowings(failure, operator, nodes, vectorised=vectorised):
        narrow = ablator.attempt_under(without)[1]
        proved = proved or narrow
        if narrow:
            narrow = not without.control.apart
            break
    code = generator.find_code(operator, vectorised=vectorised)
    refused = _with_nodes(failure, nodes)
    refused = replace(refused, failed=replace(refused.failed, source=code.source, line=code.line))
    culprit = _make_failure_culprit(refused, CODEGEN, code.name)
    details: DetailsJson = {**culprit.details, "operators": list(failed.operators), "vectorised": vectorised}
    sure = _choose_confidence(proved and narrow is not False)
    return Attribution(
        replace(culprit, family=operator, necessary=True if proved else None, confidence=sure, details=details)
    )


def _list_narrowings(
    failure: BackendFailure, operator: str, nodes: tuple[str, ...], *, vectorised: bool
) -> list[Lowered]:
    """Leave out the operator whose code was refused, then the fusion of its kernel."""
    if not vectorised:
        names = list_operator_names(failure.lowered, nodes)
        return [*([with_aten(names)] if names else []), without_fusion(failure.labels)]
    if ":" in operator or operator in LOOPS:
        return []
    control = failure.generator.scalarise((operator,))
    return [Lowered(control, f"{operator} in scalars")] if control is not None else []


def _select_computing_nodes(failure: BackendFailure) -> tuple[str, ...]:
    """The nodes that are called as the operator of the code is."""
    wanted = [operator.rpartition(":")[2] for operator in failure.failed.operators]
    return tuple(name for name in failure.failed.nodes if find_node_family(failure.lowered, name) in wanted)


def _prove_fusion_failure(ablator: Ablator, failure: BackendFailure) -> Attribution:
    """Only the fused kernel fails: the scheduler put together what its code generator cannot do."""
    repaired = ablator.attempt_under(without_fusion(failure.labels))[1]
    kernel = failure.lowered.find_kernel(failure.failed.kernel)
    allowed = kernel is not None and check_dependences(failure.lowered, kernel.scheduled) == "kept"
    stage = CODEGEN if allowed or failure.failed.place == CODEGEN else SCHEDULER
    culprit = _make_failure_culprit(failure, stage, "fusion")
    if culprit.source is None:
        source, line = find_fusion_source(stage, failure.generator)
        culprit = replace(culprit, source=source, line=line)
    nodes = [name for name in failure.failed.nodes if list_labels(failure.lowered, (name,))]
    family = "+".join(sorted({find_node_family(failure.lowered, name) for name in nodes}))
    culprit = replace(culprit, family=family or "fusion", details={**culprit.details, "operators": family.split("+")})
    return Attribution(replace(culprit, necessary=True if repaired else None, confidence=_choose_confidence(repaired)))


def _prove_raised(ablator: Ablator, failure: BackendFailure) -> Attribution:
    stage, names = find_failed_stage(failure.failed), list_operator_names(failure.lowered, failure.failed.nodes)
    undone = find_omission(failure) if stage == LOWERING else None
    if undone is not None:
        return Attribution(undone)
    culprit = _make_failure_culprit(failure, stage, names[-1] if names else "unknown")
    if stage == CODEGEN:
        culprit, proved = _with_code(ablator, failure, culprit)
        if proved:
            return Attribution(replace(culprit, necessary=True))
    without = without_failure(failure)
    if without is None:
        return Attribution(replace(culprit, confidence="low"))
    repaired = ablator.attempt_under(without)[1]
    return Attribution(replace(culprit, necessary=True if repaired else None, confidence=_choose_confidence(repaired)))


def _with_code(ablator: Ablator, failure: BackendFailure, culprit: Culprit) -> tuple[Culprit, bool]:
    """The culprit with the operator of the generated code, and whether that is proved."""
    generator, operators = failure.generator, failure.code_operators()
    vectorised = failure.is_vectorised and is_right_without_vectors(ablator, generator)
    elementwise = [name for name in operators if ":" not in name]
    named = find_right_in_scalars(ablator, generator, elementwise)[0] if vectorised else None
    operator = named or (operators[0] if len(operators) == 1 else None)
    culprit = replace(culprit, details={**culprit.details, "operators": operators, "vectorised": vectorised})
    if operator is None:
        return culprit, vectorised
    code = generator.find_code(operator, vectorised=vectorised)
    culprit = replace(culprit, rewrite=code.name, family=operator)
    if failure.failed.source is None:
        culprit = replace(culprit, source=code.source, line=code.line)
    return culprit, vectorised


def _make_failure_culprit(failure: BackendFailure, stage: str, rewrite: str) -> Culprit:
    lowered, failed = failure.lowered, failure.failed
    last = failed.nodes[-1] if failed.nodes else None
    node = lowered.find_node(last) if last is not None else None
    source, line = failed.source, failed.line  # of what raised, where that is known
    if source is None and node is not None and stage == LOWERING:
        source, line = find_lowering_source(node.target)
    kernel = lowered.find_kernel(failed.kernel) or (find_kernel(lowered, last) if last is not None else None)
    return Culprit.from_operator(
        stage,
        rewrite,
        nodes=failed.nodes,
        source=source,
        line=line,
        site=find_site(lowered, last) if last is not None else None,
        details={**describe_kernel(lowered, kernel), "error": failed.message},
    )


def _choose_confidence(repaired: bool) -> str:
    return "high" if repaired else "low"
