"""Errors behind the graph passes: the operator whose lowering raised, or the kernel that could not be made or run."""

from __future__ import annotations

from dataclasses import replace

from fuzzcompile.attribution.ablating import Ablator
from fuzzcompile.attribution.behind.code import bisected, named_code
from fuzzcompile.attribution.behind.culprits import kernel_details, kernel_of, site_of
from fuzzcompile.attribution.culprit import Attribution, Culprit
from fuzzcompile.compiler.decompositions import family_of_operator
from fuzzcompile.compiler.kernels.codegen_operators import LOOPS, code_operators, is_vectorised
from fuzzcompile.compiler.kernels.control import EVERYTHING, Control
from fuzzcompile.compiler.kernels.lowered import Failed, Lowered
from fuzzcompile.compiler.kernels.operators import lowering_source, operator_of
from fuzzcompile.facts import facts
from fuzzcompile.trials.compiles import Trial

# Where loops are built from the IR: by the lowering, or later when the scheduler asks for them.
_FILES = facts().lowering_files
_LOWERING = ("torch/_inductor/ir.py", "torch/_inductor/loop_body.py")


def error_behind(ablator: Ablator, trial: Trial) -> Attribution | None:
    """Name what raised, and prove it; None if nothing behind the graph passes did.

    Raises:
        OutOfTime: the ablator's deadline has passed.
    """
    found = failure_of(trial)
    if found is None:
        return None
    lowered, failed = found
    if failed.operators and failed.source is None:
        return _refused(ablator, lowered, failed)
    if failed.operators:
        failed = replace(failed, nodes=_computing(lowered, failed) or failed.nodes)
    if failed.place != "lowering" and len(failed.nodes) > 1:
        alone = _alone(ablator, lowered, failed)
        if alone is None:
            return _together(ablator, lowered, failed)
        lowered, failed = alone
    return _proved(ablator, lowered, failed)


def failure_of(trial: Trial) -> tuple[Lowered, Failed] | None:
    """Where behind the passes the trial's exception rose; None if it was not there."""
    for lowered in reversed(trial.ledger.lowered):
        if lowered.failed is not None:
            return lowered, lowered.failed
        running = next((call.running for call in lowered.calls if call.running is not None), None)
        if running is not None:
            kernel = lowered.kernels[running]
            place = "lowering" if kernel.extern else "runtime"
            return lowered, Failed(place, kernel.nodes, kernel.name)  # type: ignore[arg-type]
    return None


def _refused(ablator: Ablator, lowered: Lowered, failed: Failed) -> Attribution:
    """A kernel that does not compile: the operator whose statement the C++ compiler refused."""
    operator = failed.operators[0]
    nodes = _computing(lowered, failed)
    vectorised = proved = _right_in_scalars(ablator, lowered, failed)
    toggles: list[tuple[str, Control]] = []
    if vectorised and ":" not in operator and operator not in LOOPS:
        toggles.append((f"{operator} in scalars", Control(scalarised=(operator,))))
    elif not vectorised:
        names = tuple(dict.fromkeys(operator_of(lowered.labels[name]) for name in nodes))
        toggles += [("ATen computes " + ", ".join(names), Control(fallbacks=names))] if names else []
        toggles.append(("this kernel not fused", Control(apart=_labels(lowered, failed))))
    narrow = None  # whether what was named is enough to change
    for toggle, control in toggles:
        narrow = ablator.attempt(replace(ablator.how, control=control, screen=False), toggle)[1]
        proved = proved or narrow
        if narrow:
            narrow = not control.apart
            break
    source, line, name = named_code(operator, vectorised=vectorised)
    culprit = _culprit(lowered, replace(failed, nodes=nodes or failed.nodes, source=source, line=line), "codegen", name)
    details = {**culprit.details, "operators": list(failed.operators), "vectorised": vectorised}
    sure = _sure(proved and narrow is not False)
    return Attribution(
        replace(culprit, family=operator, necessary=True if proved else None, confidence=sure, details=details)
    )


def _right_in_scalars(ablator: Ablator, lowered: Lowered, failed: Failed) -> bool:
    if not is_vectorised(lowered.sources.get(failed.kernel or "", "")):
        return False
    config = {**(ablator.how.config or {}), "cpp.simdlen": 1}
    return ablator.attempt(replace(ablator.how, config=config, screen=False), "cpp.simdlen=1")[1]


def _computing(lowered: Lowered, failed: Failed) -> tuple[str, ...]:
    """The nodes that are called as the operator of the code is."""
    wanted = [operator.rpartition(":")[2] for operator in failed.operators]
    return tuple(name for name in failed.nodes if _family(lowered, name) in wanted)


def _family(lowered: Lowered, node: str) -> str:
    return family_of_operator(operator_of(lowered.labels.get(node, "")))


def _labels(lowered: Lowered, failed: Failed) -> tuple[str, ...]:
    return tuple(lowered.labels[name] for name in failed.nodes if name in lowered.labels)


def _alone(ablator: Ablator, lowered: Lowered, failed: Failed) -> tuple[Lowered, Failed] | None:
    """The failure when each operator has a kernel of its own; None if nothing fails then."""
    control = Control(realised=_labels(lowered, failed), apart=(EVERYTHING,), separate=True)
    how = replace(ablator.how, control=control, kernels=True, record=True, screen=False)
    trial, repaired = ablator.attempt(how, "nothing fused")
    return None if repaired else failure_of(trial) or (lowered, failed)


def _together(ablator: Ablator, lowered: Lowered, failed: Failed) -> Attribution:
    """Only the fused kernel fails: the scheduler put together what its code generator cannot do."""
    how = replace(ablator.how, control=Control(apart=_labels(lowered, failed)), screen=False)
    repaired = ablator.attempt(how, "this kernel not fused")[1]
    stage = "codegen" if failed.place == "codegen" else "scheduler"
    culprit = _culprit(lowered, failed, stage, "fusion")
    family = "+".join(sorted({_family(lowered, name) for name in failed.nodes if name in lowered.labels}))
    culprit = replace(culprit, family=family or "fusion", details={**culprit.details, "operators": family.split("+")})
    return Attribution(replace(culprit, necessary=True if repaired else None, confidence=_sure(repaired)))


def _proved(ablator: Ablator, lowered: Lowered, failed: Failed) -> Attribution:
    stage = _stage(failed)
    names = tuple(dict.fromkeys(operator_of(lowered.labels[n]) for n in failed.nodes if n in lowered.labels))
    culprit = _culprit(lowered, failed, stage, names[-1] if names else "unknown")
    if stage == "codegen":
        culprit, proved = _code(ablator, lowered, failed, culprit)
        if proved:
            return Attribution(replace(culprit, necessary=True))
    if not names:
        return Attribution(replace(culprit, confidence="low"))
    how = replace(ablator.how, control=Control(fallbacks=names), screen=False)
    repaired = ablator.attempt(how, "ATen computes " + ", ".join(names))[1]
    return Attribution(replace(culprit, necessary=True if repaired else None, confidence=_sure(repaired)))


def _code(ablator: Ablator, lowered: Lowered, failed: Failed, culprit: Culprit) -> tuple[Culprit, bool]:
    """The culprit with the operator of the generated code, and whether that is proved."""
    kernel = next((one for one in lowered.kernels if one.name == failed.kernel), None)
    operators = code_operators(kernel.scheduled, kernel.writes[-1]) if kernel is not None and kernel.writes else []
    vectorised = _right_in_scalars(ablator, lowered, failed)
    named = bisected(ablator, [name for name in operators if ":" not in name])[0] if vectorised else None
    operator = named or (operators[0] if len(operators) == 1 else None)
    details = {**culprit.details, "operators": operators, "vectorised": vectorised}
    if operator is None:
        return replace(culprit, details=details), vectorised
    source, line, name = named_code(operator, vectorised=vectorised)
    if failed.source is not None:
        source, line = failed.source, failed.line
    found = replace(culprit, rewrite=name, family=operator, source=source, line=line, details=details)
    return found, vectorised


def _culprit(lowered: Lowered, failed: Failed, stage: str, rewrite: str) -> Culprit:
    last = lowered.node(failed.nodes[-1]) if failed.nodes else None
    source, line = failed.source, failed.line  # of what raised, where that is known
    if source is None and last is not None and stage == "lowering":
        source, line = lowering_source(last.target)
    kernel = next((k for k in lowered.kernels if k.name == failed.kernel), None)
    if kernel is None and failed.nodes:
        kernel = kernel_of(lowered, failed.nodes[-1])
    return Culprit(
        stage,
        None,
        rewrite,
        family_of_operator(rewrite),
        nodes=failed.nodes,
        source=source,
        line=line,
        site=site_of(lowered, failed.nodes[-1]) if failed.nodes else None,
        details={**kernel_details(lowered, kernel), "error": failed.message},
    )


def _stage(failed: Failed) -> str:
    """The stage of what raised: loops are built by the lowering's code, whoever asks for them."""
    if failed.place == "runtime":
        return "codegen"
    if failed.source in _FILES.always or (failed.place == "scheduler" and failed.source in _FILES.when_scheduling):
        return "lowering"
    return str(failed.place)


def _sure(repaired: bool) -> str:
    return "high" if repaired else "low"
