"""Errors behind the graph passes: the operator whose lowering raised, or the kernel that could not be made or run."""

from __future__ import annotations

from dataclasses import replace

from fuzzcompile.attribution.ablating import Ablator
from fuzzcompile.attribution.culprit import Attribution, Culprit
from fuzzcompile.codegen.base import LOOPS
from fuzzcompile.compiler.kernels.fused import dependences
from fuzzcompile.compiler.kernels.lowered import Failed
from fuzzcompile.compiler.kernels.operators import lowering_source
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.facts import facts
from fuzzcompile.stage_names import CODEGEN, LOWERING, RUNTIME, SCHEDULER
from fuzzcompile.stages.base import Without
from fuzzcompile.stages.kernels.bisection import (
    attempt,
    by_aten,
    controlled,
    isolated,
    right_in_scalars,
    right_without_vectors,
    unfused,
)
from fuzzcompile.stages.kernels.culprits import fusion_source, kernel_details, kernel_of, site_of
from fuzzcompile.stages.kernels.omissions import left_undone
from fuzzcompile.stages.kernels.wrong import Failure, family_of_node, labels_of, names_of
from fuzzcompile.trials.compiles import Trial

# Where loops are built from the IR: by the lowering, or later when the scheduler asks for them.
_FILES = facts().lowering_files


def failure_of(trial: Trial) -> Failure | None:
    """Find the failure behind the graph passes that raised the trial's exception; None if there is none."""
    for lowered in reversed(trial.ledger.lowered):
        if lowered.failed is not None:
            return _read(Failure(lowered, lowered.failed))
        running = next((call.running for call in lowered.calls if call.running is not None), None)
        if running is not None:
            kernel = lowered.kernels[running]
            return Failure(lowered, Failed(LOWERING if kernel.extern else RUNTIME, kernel.nodes, kernel.name))
    return None


def _read(failure: Failure) -> Failure:
    """With the complaint of the compiler that refused the generated code, and the operators that it refused."""
    failed, generator = failure.failed, failure.generator
    if failed.refused is None:
        return failure
    statements = failure.lowered.statements.get(failed.kernel or "", ())
    message = f"{failed.message}: {generator.complaint(failed.refused) or ''}"[:300]
    operators = generator.refused_operators(statements, failed.refused)
    return replace(failure, failed=replace(failed, message=message, operators=operators))


def failed_families(failure: Failure | None) -> list[str]:
    """List the names that a signature may give an error: operators of the graph or of the code; empty without error."""
    if failure is None:
        return []
    nodes = (family_of_node(failure.lowered, failure.lowered.producer(name)) for name in reversed(failure.failed.nodes))
    families = [*failure.failed.operators, *nodes, *failure.code_operators()]
    return list(dict.fromkeys(families or ["unknown"]))


def stage_of(failed: Failed) -> str:
    """The stage of what raised: loops are built by the lowering's code, whatever asks for them."""
    if failed.place == RUNTIME:
        return CODEGEN
    if failed.source in _FILES.always or (failed.place == SCHEDULER and failed.source in _FILES.when_scheduling):
        return LOWERING
    return failed.place


def without_failure(failure: Failure, how: Compilation) -> Without | None:
    """The compile in which ATen computes the operators that failed; None if none is known."""
    names = names_of(failure.lowered, failure.failed.nodes)
    return by_aten(how, names) if names else None


def prove_failure(ablator: Ablator, failure: Failure) -> Attribution:
    """Name what raised, and prove it.

    The stage may turn out to be another than that in which the error rose: a kernel that fails only fused is a fault
    of the scheduler.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    failed = failure.failed
    if failed.operators and failed.source is None:
        return _refused(ablator, failure)
    if failed.operators:
        failure = _with_nodes(failure, _computing(failure))
    if failed.place != LOWERING and len(failure.failed.nodes) > 1:
        trial, repaired = attempt(ablator, isolated(ablator.how, failure.labels))
        if repaired:
            return _together(ablator, failure)
        failure = failure_of(trial) or failure
    return _proved(ablator, failure)


def _with_nodes(failure: Failure, nodes: tuple[str, ...]) -> Failure:
    return replace(failure, failed=replace(failure.failed, nodes=nodes)) if nodes else failure


def _refused(ablator: Ablator, failure: Failure) -> Attribution:
    """A kernel that does not compile: the operator whose statement the compiler of the generated code refused."""
    failed, generator = failure.failed, failure.generator
    operator, nodes = failed.operators[0], _computing(failure)
    vectorised = proved = failure.vectorised and right_without_vectors(ablator, generator)
    narrow = None  # whether changing what was named is enough
    for without in _narrowings(ablator.how, failure, operator, nodes, vectorised=vectorised):
        narrow = attempt(ablator, without)[1]
        proved = proved or narrow
        if narrow:
            narrow = not without.how.control.apart
            break
    code = generator.code_of(operator, vectorised=vectorised)
    refused = _with_nodes(failure, nodes)
    refused = replace(refused, failed=replace(refused.failed, source=code.source, line=code.line))
    culprit = _culprit(refused, CODEGEN, code.name)
    details = {**culprit.details, "operators": list(failed.operators), "vectorised": vectorised}
    sure = _sure(proved and narrow is not False)
    return Attribution(
        replace(culprit, family=operator, necessary=True if proved else None, confidence=sure, details=details)
    )


def _narrowings(
    how: Compilation, failure: Failure, operator: str, nodes: tuple[str, ...], *, vectorised: bool
) -> list[Without]:
    """Compiles without the operator whose code was refused, then without the fusion of its kernel."""
    if not vectorised:
        names = names_of(failure.lowered, nodes)
        return [*([by_aten(how, names)] if names else []), unfused(how, failure.labels)]
    if ":" in operator or operator in LOOPS:
        return []
    control = failure.generator.in_scalars((operator,))
    return [controlled(how, control, f"{operator} in scalars")] if control is not None else []


def _computing(failure: Failure) -> tuple[str, ...]:
    """The nodes that are called as the operator of the code is."""
    wanted = [operator.rpartition(":")[2] for operator in failure.failed.operators]
    return tuple(name for name in failure.failed.nodes if family_of_node(failure.lowered, name) in wanted)


def _together(ablator: Ablator, failure: Failure) -> Attribution:
    """Only the fused kernel fails: the scheduler put together what its code generator cannot do."""
    repaired = attempt(ablator, unfused(ablator.how, failure.labels))[1]
    kernel = failure.lowered.kernel(failure.failed.kernel)
    allowed = kernel is not None and dependences(failure.lowered, kernel.scheduled) == "kept"
    stage = CODEGEN if allowed or failure.failed.place == CODEGEN else SCHEDULER
    culprit = _culprit(failure, stage, "fusion")
    if culprit.source is None:
        source, line = fusion_source(stage, failure.generator)
        culprit = replace(culprit, source=source, line=line)
    nodes = [name for name in failure.failed.nodes if labels_of(failure.lowered, (name,))]
    family = "+".join(sorted({family_of_node(failure.lowered, name) for name in nodes}))
    culprit = replace(culprit, family=family or "fusion", details={**culprit.details, "operators": family.split("+")})
    return Attribution(replace(culprit, necessary=True if repaired else None, confidence=_sure(repaired)))


def _proved(ablator: Ablator, failure: Failure) -> Attribution:
    stage, names = stage_of(failure.failed), names_of(failure.lowered, failure.failed.nodes)
    undone = left_undone(failure) if stage == LOWERING else None
    if undone is not None:
        return Attribution(undone)
    culprit = _culprit(failure, stage, names[-1] if names else "unknown")
    if stage == CODEGEN:
        culprit, proved = _with_code(ablator, failure, culprit)
        if proved:
            return Attribution(replace(culprit, necessary=True))
    without = without_failure(failure, ablator.how)
    if without is None:
        return Attribution(replace(culprit, confidence="low"))
    repaired = attempt(ablator, without)[1]
    return Attribution(replace(culprit, necessary=True if repaired else None, confidence=_sure(repaired)))


def _with_code(ablator: Ablator, failure: Failure, culprit: Culprit) -> tuple[Culprit, bool]:
    """The culprit with the operator of the generated code, and whether that is proved."""
    generator, operators = failure.generator, failure.code_operators()
    vectorised = failure.vectorised and right_without_vectors(ablator, generator)
    elementwise = [name for name in operators if ":" not in name]
    named = right_in_scalars(ablator, generator, elementwise)[0] if vectorised else None
    operator = named or (operators[0] if len(operators) == 1 else None)
    culprit = replace(culprit, details={**culprit.details, "operators": operators, "vectorised": vectorised})
    if operator is None:
        return culprit, vectorised
    code = generator.code_of(operator, vectorised=vectorised)
    culprit = replace(culprit, rewrite=code.name, family=operator)
    if failure.failed.source is None:
        culprit = replace(culprit, source=code.source, line=code.line)
    return culprit, vectorised


def _culprit(failure: Failure, stage: str, rewrite: str) -> Culprit:
    lowered, failed = failure.lowered, failure.failed
    last = failed.nodes[-1] if failed.nodes else None
    node = lowered.node(last) if last is not None else None
    source, line = failed.source, failed.line  # of what raised, where that is known
    if source is None and node is not None and stage == LOWERING:
        source, line = lowering_source(node.target)
    kernel = lowered.kernel(failed.kernel) or (kernel_of(lowered, last) if last is not None else None)
    return Culprit.of_operator(
        stage,
        rewrite,
        nodes=failed.nodes,
        source=source,
        line=line,
        site=site_of(lowered, last) if last is not None else None,
        details={**kernel_details(lowered, kernel), "error": failed.message},
    )


def _sure(repaired: bool) -> str:
    return "high" if repaired else "low"
