"""Generated programs that raise by themselves: no code of the compiler is at work then, and their text is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from fuzzcompile.attribution.ablating import Ablator
from fuzzcompile.attribution.culprit import Attribution, Culprit
from fuzzcompile.compiler.decompositions import operator_named
from fuzzcompile.compiler.fake import fake_function
from fuzzcompile.compiler.kernels.codegen_operators import defined_at
from fuzzcompile.compiler.labels import source_of
from fuzzcompile.stage_names import CODEGEN, FAKE_TENSOR, FUNCTIONALIZATION, PARTITION, SCHEDULER
from fuzzcompile.stages.kernels.bisection import attempt, configured
from fuzzcompile.stages.kernels.wrapper_text import Flaw, Flawed, flaw_of
from fuzzcompile.trials.compiles import Trial

# What gives memory to the buffers of a program.
_PLANNING = ("memory_plan", "memory_plan_reuse")
_SCHEDULER = "torch._inductor.scheduler:Scheduler"
_WRAPPER = "torch._inductor.codegen.wrapper:PythonWrapperCodegen"


@dataclass(frozen=True)
class _Owner:
    """A decision of the compiler; ``without`` switches it off, where a setting does."""

    stage: str
    name: str
    place: str
    without: tuple[tuple[str, object], ...] = ()


_ORDER = _Owner(SCHEDULER, "order of kernels", f"{_SCHEDULER}.topological_sort_schedule")
_PEAK = _Owner(
    SCHEDULER,
    "order of kernels",
    "torch._inductor.memory:reorder_for_peak_memory",
    (("reorder_for_peak_memory", False),),
)
_LIFETIME = _Owner(SCHEDULER, "lifetime of buffers", f"{_SCHEDULER}.compute_last_usage")
_IN_PLACE = _Owner(
    SCHEDULER,
    "buffer reuse",
    "torch._inductor.scheduler:SchedulerNode.decide_inplace_update",
    (("inplace_buffers", False),),
)
_REUSE = _Owner(
    CODEGEN, "buffer reuse", "torch._inductor.codegen.wrapper:AllocateLine.plan", (("allow_buffer_reuse", False),)
)
_FREEING = _Owner(CODEGEN, "lifetime of buffers", f"{_WRAPPER}.codegen_free")
_REMOVAL = _Owner(SCHEDULER, "removal of kernels", f"{_SCHEDULER}.dead_node_elimination")
_ALLOCATION = _Owner(CODEGEN, "allocation", f"{_WRAPPER}.codegen_allocation")
_INPUTS = _Owner(CODEGEN, "inputs of the program", f"{_WRAPPER}.codegen_inputs")
_SAVED = _Owner(PARTITION, "values saved for backward", "torch._functorch.partitioners:_extract_fwd_bwd_modules")
_CALL = _Owner(
    FUNCTIONALIZATION,
    "inputs of the program",
    "torch._functorch._aot_autograd.runtime_wrappers:_create_runtime_wrapper",
)


def flawed_program(ablator: Ablator) -> Attribution | None:
    """The decisions behind a generated program that reads what it has not, or gets other inputs; None for any other.

    Where the error rose while memory was planned for the program, they are those about memory that is used again. The
    first that a setting switches off and that repairs the program is proved. Else those that may have written what
    stands there are named, most telling first, with low confidence.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    flawed = _flaw(ablator.trial)
    if flawed is None:
        return _proved(ablator, (_IN_PLACE, _REUSE), {}) if _raised_while_planning(ablator.trial) else None
    if flawed.flaw is Flaw.LAYOUT:
        return None
    owners, details = list(_owners(flawed)), _details(flawed)
    first, *others = (_culprit(owner, details) for owner in owners if not owner.without)
    return _proved(ablator, owners, details) or Attribution(first, others)


def _proved(ablator: Ablator, owners: Iterable[_Owner], details: Mapping[str, object]) -> Attribution | None:
    """The first decision without which the program is right."""
    for owner in owners:
        if owner.without and attempt(ablator, configured(ablator.how, dict(owner.without)))[1]:
            return Attribution(replace(_culprit(owner, details), necessary=True, confidence="high"))
    return None


def _raised_while_planning(trial: Trial) -> bool:
    """Return whether the error rose during memory planning, which the scheduler's decisions may contradict."""
    failure = trial.observation.failure
    return failure is not None and any(function in _PLANNING for _, _, function in failure.raised)


def with_asserted_layout(attribution: Attribution, trial: Trial) -> Attribution:
    """The attribution with the rule of the operator whose result the program asserts to be laid out in another way.

    The program has the layout from the rule, so that the rule disagrees with the kernel, unless a lowering gave the
    operator other inputs than the rule saw. What puts the operator into the graph is necessary too.
    """
    flawed = _flaw(trial)
    culprit = attribution.culprit
    if flawed is None or flawed.flaw is not Flaw.LAYOUT or (culprit is not None and culprit.stage == FAKE_TENSOR):
        return attribution
    name = flawed.operators[0]
    operator = operator_named(name)
    rule = fake_function(operator) if operator is not None else None
    source, line = source_of(rule) if rule is not None else (None, None)
    asserting = Culprit.of_operator(
        FAKE_TENSOR, name, source=source, line=line, confidence="low", details=_details(flawed)
    )
    if culprit is not None and culprit.necessary:
        return replace(attribution, contributors=[*attribution.contributors, asserting])
    others = [] if culprit is None else [culprit]
    return replace(attribution, culprit=asserting, contributors=[*others, *attribution.contributors])


def _flaw(trial: Trial) -> Flawed | None:
    failure = trial.observation.failure
    return None if failure is None or failure.generated is None else flaw_of(failure.generated, str(failure))


def _owners(flawed: Flawed) -> Iterator[_Owner]:
    """Yield the compiler's decisions that may cause the flaw, strongest evidence first."""
    if flawed.flaw is Flaw.INPUTS:
        yield from (_SAVED, _CALL) if flawed.backward else (_CALL,)
    elif flawed.flaw is Flaw.FREED:
        yield from (_IN_PLACE, _REUSE) if flawed.reused else ()
        yield from (_LIFETIME, _FREEING)
    elif flawed.written:
        yield _ALLOCATION
    elif flawed.flaw is Flaw.EARLY:
        yield from (_PEAK, _ORDER)
    elif flawed.of_buffer:
        yield from (_REMOVAL, _ALLOCATION)
    else:
        yield _INPUTS


def _culprit(owner: _Owner, details: Mapping[str, object]) -> Culprit:
    source, line = defined_at(owner.place)
    name = owner.name
    return Culprit(owner.stage, None, name, name, source=source, line=line, confidence="low", details=details)


def _details(flawed: Flawed) -> dict[str, object]:
    shown = {
        "program": flawed.flaw.value,
        "variable": flawed.variable,
        "statement": flawed.statement,
        "elsewhere": flawed.elsewhere,
        "operators": list(flawed.operators),
    }
    return {name: value for name, value in shown.items() if value}
