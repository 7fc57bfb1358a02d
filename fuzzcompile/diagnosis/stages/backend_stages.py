"""Stages behind the graph passes: lowering, scheduling, code generation, and the generated program at run time."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from fuzzcompile.compiler.compile_changes import CompileChange, InductorSettings, Lowered, ProgramsInOrder
from fuzzcompile.compiler.kernels.kernel_loops import check_dependences, find_definition
from fuzzcompile.compiler.kernels.lowering_control import (
    Control,
    can_fall_back,
    find_lowering_source,
    lowers_draw,
    parse_operator,
)
from fuzzcompile.compiler.operators.decompositions import find_operator, get_operator_family, is_view
from fuzzcompile.compiler.operators.operator_application import find_fake_function
from fuzzcompile.compiler.session import get_effective_setting
from fuzzcompile.compiler.target.kernel_log import ProgramOrder
from fuzzcompile.compiler.watch.rule_labels import find_source
from fuzzcompile.diagnosis.attribution.culprit import UNKNOWN, Ablation, Ablator, Attribution, Culprit, Divergence
from fuzzcompile.diagnosis.kernels import kernel_proofs as proofs
from fuzzcompile.diagnosis.kernels.code_generators import CodeSource, get_generator
from fuzzcompile.diagnosis.kernels.watched_graph import (
    LoweredStep,
    describe_kernel,
    describe_values,
    find_first_wrong_kernels,
    find_kernel,
    find_watched_graphs,
    watch_graphs,
)
from fuzzcompile.diagnosis.stages.operator_ways import KERNELS
from fuzzcompile.diagnosis.stages.ways import Found, Stage, Suspect
from fuzzcompile.diagnosis.trials.case_runs import Trial
from fuzzcompile.model.culprit_contract import DetailsJson
from fuzzcompile.model.facts import facts
from fuzzcompile.model.stages import CODEGEN, CUDAGRAPHS, FAKE_TENSOR, LOWERING, RUNTIME, SCHEDULER
from fuzzcompile.model.verdicts import AGREEING, Verdict

_MAX_OPERATORS = 3


class Lowering(Stage):
    """Wrong IR, a library called wrongly, a lowering that raises or lost a check, an operator that a pass left."""

    name = LOWERING

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """Operators whose IR is wrong, those wrong in float64 first, then operators that failed."""
        trial = divergence.trial
        error, operators = trial.observation.failure, list(_iter_operators(divergence))
        failure = proofs.find_failure(trial) if error is not None else None
        undone = proofs.find_omission(failure) if failure is not None else None
        lowered = [Suspect(self.name, each.find_family(each.nodes[-1]), None, each, each.exact) for each in operators]
        if undone is not None:
            lowered.append(Suspect(undone.stage, undone.family, undone.source, failure, certain=True))
        lowered += proofs.list_failed_suspects(self.name, trial) if error is not None else []
        found = [] if lowered else [each for each in divergence.once(KERNELS.find) if each.culprit.stage == self.name]
        return [*lowered, *map(Suspect.from_found, found)]

    def prove(self, ablator: Ablator, suspects: Sequence[Suspect]) -> Attribution | None:
        """The operators that ATen must compute for the divergence to go; unproved, one that is certainly wrong."""
        steps = _list_steps(suspects)
        operators = [step for step in steps if step.failed is None]
        if ablator.trial.judgement.verdict is Verdict.ACCEPTS_INVALID:
            repaired = bool(operators) and ablator.attempt_under(proofs.with_aten([operators[0].name]))[1]
            culprit = _make_operator_culprit(operators[0], necessary=repaired) if operators else None
            return Attribution(replace(culprit, confidence="high" if repaired else "low")) if culprit else None
        named = _prove_operators(ablator, [wrong for wrong in operators if wrong.kernel is None])
        if named is not None and (named.contributors or named.is_proved):
            return named
        if ablator.trial.observation.failure is not None:
            failure = next((step for step in steps if step.failed is not None), None)
            return proofs.prove_failure(ablator, failure, self.name) if failure is not None else None
        called = next((wrong for wrong in operators if wrong.kernel is not None), None)
        if called is None:
            return named
        computed = _prove_operators(ablator, [called])
        if computed is not None and computed.is_proved:
            return computed
        return proofs.prove_views(ablator, called) or computed or named

    def workarounds(self, culprit: Culprit, given: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
        """Loops that are not vectorised, where the code generator of the culprit's kernel has vectors."""
        generator = get_generator(culprit.details.get("code_generator"))
        yield from [generator.scalars] if generator.scalars else []


def _list_steps(suspects: Sequence[Suspect]) -> list[LoweredStep]:
    return [suspect.finding for suspect in suspects if isinstance(suspect.finding, LoweredStep)]


def _iter_operators(divergence: Divergence) -> Iterator[LoweredStep]:
    graphs, error = divergence.once(find_watched_graphs), divergence.trial.observation.failure
    if divergence.verdict is Verdict.ACCEPTS_INVALID:
        # The operators that raise when the graphs are interpreted lost their checks.
        for look in graphs:
            name = look.find_first_refused()
            if name is not None and name in look.lowered.labels:
                yield LoweredStep(look.lowered, (name,), step=0.0)
        return
    if error is not None and error.phase != "run":
        return
    wrong = sorted((each for look in graphs for each in look.find_wrong_operators()), key=lambda each: not each.exact)
    if error is not None:  # a wrong index, say, that a kernel stumbled over
        yield from (each for each in wrong if each.exact)
        return
    if divergence.experiments.runs.draws and divergence.trial.sampled is None:
        called = ((look.lowered, node) for look in graphs for node in look.lowered.snapshot.graph.nodes)
        drawing = ((lowered, node.name) for lowered, node in called if lowers_draw(lowered, node))
        yield from (LoweredStep(lowered, (name,), step=0.0) for lowered, name in drawing if name in lowered.labels)
    yield from wrong
    if not any(each.exact for each in wrong):  # else nothing is left to explain, and kernels cost several evaluations
        for each in divergence.once(find_first_wrong_kernels):
            if each.kernel is not None and each.kernel.extern and each.overwritten is None:
                yield replace(each, nodes=each.nodes[-1:])  # the call of a library's kernel is at fault


def _prove_operators(ablator: Ablator, wrong: list[LoweredStep]) -> Attribution | None:
    """Have ATen compute the first wrong operator wherever it is, and the next ones too until that repairs it."""
    chosen: dict[str, LoweredStep] = {}
    for operator in wrong:
        node = operator.lowered.find_node(operator.nodes[-1])
        can_do_without = node is not None and can_fall_back(operator.lowered, node)
        if ablator.verdict is Verdict.ALIASING and node is not None and is_view(node.target):
            continue  # a copy shares nothing, whatever made the memory
        if operator.name not in chosen and len(chosen) < _MAX_OPERATORS and can_do_without:
            chosen[operator.name] = operator
            if ablator.attempt_under(proofs.with_aten(list(chosen)))[1]:
                in_code = _prove_in_scalars(ablator, operator) if len(chosen) == 1 else None
                return in_code or _attribute_operators(ablator, list(chosen.values()))
    # Wrong in float64 is shown by the evaluation of its IR, though no compile with ATen's kernel proves it.
    tried = list(chosen.values())
    left = next((operator for operator in wrong if operator.exact or operator not in tried), None)
    if left is None:
        return None
    # What ATen reads as wrongly was lowered to no form to be read.
    earlier = proofs.prove_earlier(ablator, left) if left.exact and left in tried else None
    return earlier or _doubt(_make_operator_culprit(left, necessary=False if left in tried else None))


def _prove_in_scalars(ablator: Ablator, wrong: LoweredStep) -> Attribution | None:
    """The code in vectors of an operator whose IR is right in float64, if the program is right with it in scalars."""
    kernel, name = find_kernel(wrong.lowered, wrong.nodes[-1]), get_operator_family(wrong.name)
    step = replace(wrong, kernel=kernel)
    if wrong.exact or kernel is None or not step.is_vectorised or name not in step.list_code_operators(*kernel.writes):
        return None
    named, untested = proofs.find_right_in_scalars(ablator, step.generator, [name])
    if named is None and not (untested and proofs.is_right_without_vectors(ablator, step.generator)):
        return None
    return Attribution(_make_code_culprit(step, None, name, vectorised=True, necessary=True))


def _attribute_operators(ablator: Ablator, chosen: list[LoweredStep]) -> Attribution:
    last = chosen[-1]
    # Was the last one alone what it takes? The others looked wrong and may be innocent.
    if len(chosen) == 1 or ablator.attempt_under(proofs.with_aten([last.name]))[1]:
        # Does the divergence stay when ATen computes everything that it can but this operator?
        alone = Lowered(Control(lowered=(last.name,)), f"ATen computes all but {last.name}")
        trial, repaired = ablator.attempt_under(alone)
        sufficient = False if repaired else True if ablator.fails_alike(trial) else None
        return Attribution(replace(_make_operator_culprit(last, necessary=True), sufficient=sufficient))
    needed = list(chosen)
    for operator in chosen[:-1] if len(chosen) > 2 else ():
        rest = [other for other in needed if other is not operator]
        if ablator.attempt_under(proofs.with_aten([other.name for other in rest]))[1]:
            needed = rest
    culprits = [_make_operator_culprit(operator) for operator in needed]
    if len({(culprit.source, culprit.line, culprit.family) for culprit in culprits}) == 1:  # one lowering of overloads
        siblings = tuple(str(culprit.rewrite) for culprit in culprits[1:])
        return Attribution(replace(culprits[0], necessary=True, siblings=siblings))
    # Each is wrong on its own, and none of them alone repairs it.
    sure = "high" if all(operator.exact for operator in chosen) else "low"
    independent = [replace(culprit, necessary=False, confidence=sure) for culprit in culprits]
    return Attribution(independent[0], independent[1:])


def prove_any_lowering(ablator: Ablator) -> Attribution | None:
    """The operator that ATen must compute for the divergence to go, though its IR and its kernel look right.

    It may hand on memory that something else writes to. None if leaving one operator to ATen repairs nothing.
    """
    if ablator.screens:
        return None
    watched = ablator.run_trial(replace(ablator.how, kernels=True, record=True))
    steps: dict[str, LoweredStep] = {}
    for lowered in watched.ledger.lowered:
        for name in lowered.labels:
            node, step = lowered.find_node(name), LoweredStep(lowered, (name,))
            # A copy of a view parts what was fused, too.
            if node is not None and can_fall_back(lowered, node) and not is_view(node.target):
                steps.setdefault(step.name, step)
    # What makes the memory that results share is nearer to them than what it is fused with.
    names = list(reversed(steps) if ablator.verdict is Verdict.ALIASING else steps)
    named, _ = proofs.bisect_candidates(ablator, names, proofs.with_aten)
    if named is None:
        return None
    in_code = _prove_in_scalars(ablator, steps[named])
    return in_code or Attribution(_make_operator_culprit(steps[named], necessary=True))


_STRIDES = "strides of a view"


def prove_output_strides(ablator: Ablator) -> Attribution | None:
    """Strides of an output whose order alone is kept, because it is a view; None if more is wrong than strides.

    A view may be lowered to a loop, and what is a view of it, too.
    """
    wrong = [each.finding for each in ablator.trial.judgement.comparisons if each.finding not in AGREEING]
    if ablator.verdict is not Verdict.METADATA or set(wrong) != {"stride"} or ablator.screens:
        return None
    if not ablator.attempt_under(Lowered(Control(strided=True), "outputs laid out as the graph says"))[1]:
        return None
    place = find_definition(facts().places.output_strides)
    return Attribution(Culprit(LOWERING, None, _STRIDES, _STRIDES, (), *place, necessary=True))


def _make_operator_culprit(wrong: LoweredStep, *, necessary: bool | None = None) -> Culprit:
    node = wrong.lowered.find_node(wrong.nodes[-1])
    target = find_operator(wrong.name) or (node.target if node is not None else None)  # it may be in the node's body
    named = CodeSource(wrong.name, *(find_lowering_source(target) if target is not None else ()))
    return wrong.make_culprit(LOWERING, named, necessary=necessary, details={"shown_in_float64": wrong.exact})


_NO_REUSE: dict[str, object] = {"allow_buffer_reuse": False, "inplace_buffers": False}
KERNEL_CALL = "kernel call"
# What a kernel's operators give when each has a kernel of its own; "unknown" where that does not run.
_Alone = Literal["right", "wrong", "unknown"]


class Scheduler(Stage):
    """Fusion that breaks a dependence, kernels in a wrong order, memory that is given away too early."""

    name = SCHEDULER
    settings = ({"epilogue_fusion": False}, {"max_fusion_size": 1}, {"inplace_buffers": False})

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """The first wrong kernel of each graph: its arguments were overwritten, or it is fused; failed operators."""
        return proofs.list_kernel_suspects(self.name, divergence, overwritten=("buffer reuse", "order of kernels"))

    def prove(self, ablator: Ablator, suspects: Sequence[Suspect]) -> Attribution | None:
        """Overwritten arguments, and errors of the scheduler.

        Fusion is told from the code of a kernel in the proof of the latter, :class:`Codegen`.
        """
        wrong = next((step for step in _list_steps(suspects) if step.failed or step.overwritten), None)
        if wrong is None or wrong.failed is not None:
            return proofs.prove_failure(ablator, wrong, self.name) if wrong is not None else None
        # Arguments were overwritten before the kernel read them: reuse came too early, or the order is wrong.
        no_reuse = InductorSettings(_NO_REUSE, "no reuse of buffers", needs_code=True)
        stale, repaired = wrong.overwritten, ablator.attempt_under(no_reuse)[1]
        details: DetailsJson = {} if stale is None else {"overwritten": stale.buffer, "written_by": stale.written_by}
        name = "buffer reuse" if repaired else "order of kernels"
        return proofs.attribute(wrong.make_culprit(SCHEDULER, CodeSource(name), name, details=details), repaired)


class Codegen(Stage):
    """Wrong code of an operator, a reduction or a loop, in vectors or in scalars; code that does not compile."""

    name = CODEGEN

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """The operators of the first wrong kernel of each graph, or of the kernel that failed."""
        return proofs.list_kernel_suspects(self.name, divergence)

    def prove(self, ablator: Ablator, suspects: Sequence[Suspect]) -> Attribution | None:
        """Compile without vectors, then with nothing fused: wrong code, wrong fusion, or neither."""
        for step in {id(step): step for step in _list_steps(suspects)}.values():
            if step.failed is not None:
                return proofs.prove_failure(ablator, step, self.name)
            before_code = proofs.prove_order(ablator, step)
            if before_code is None and step.scheduled:  # it is wrong before it is code
                before_code = proofs.prove_propagation(ablator, step)
            named = before_code or proofs.prove_around_operators(ablator, step) or _prove_kernel(ablator, step)
            if named is not None:
                return named
        return None

    def workarounds(self, culprit: Culprit, given: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
        """Those of what is named, and of the code generator that wrote its kernel."""
        yield from super().workarounds(culprit, given)
        yield from get_generator(culprit.details.get("code_generator")).settings


def _prove_kernel(ablator: Ablator, wrong: LoweredStep) -> Attribution | None:
    alone, single = _isolate(ablator, wrong)
    if alone == "right":
        return _prove_fusion(ablator, wrong)
    vectorised = wrong.is_vectorised and proofs.is_right_without_vectors(ablator, wrong.generator)
    in_order = ProgramsInOrder(ProgramOrder.FORWARD)
    if ablator.how.order is not ProgramOrder.FORWARD and ablator.attempt_under(in_order)[1]:
        # The programs of the kernel touch the same elements.
        at, programs = single or wrong, "right in ascending order, wrong in descending order"
        details: DetailsJson = {"operators": at.list_code_operators(), "programs": programs}
        code = at.generator.find_store_code()
        return Attribution(at.make_culprit(CODEGEN, code, "race", necessary=True, details=details))
    if single is None and not vectorised:
        return None
    named = _prove_vectorised(ablator, wrong, single) if vectorised else _prove_scalar(ablator, wrong, single)
    # Code is at fault for certain only if it stays wrong when nothing else stands beside it.
    return named if alone == "wrong" or named.culprit is None else _doubt(named.culprit)


def _isolate(ablator: Ablator, wrong: LoweredStep) -> tuple[_Alone, LoweredStep | None]:
    """Give each operator its own kernel; return the effect on the divergence and the kernel that is still wrong.

    Small kernels of one operator stay vectorised where the fused one is: their scalar code says nothing of it.
    """
    isolated, changes = proofs.with_isolated_kernels(wrong.labels), list[CompileChange]()
    if wrong.is_vectorised:
        changes.append(InductorSettings(wrong.generator.all_vectors))
    trial, repaired = ablator.attempt_under(*changes, isolated, toggle=isolated.text, watched=True)
    if repaired:
        return "right", None
    if trial.observation.failure is not None:
        return "unknown", None
    firsts = (look.find_wrong_kernel() for look in watch_graphs(trial.ledger))
    return "wrong", next((first for first in firsts if first and first.kernel and not first.kernel.extern), None)


def _doubt(culprit: Culprit) -> Attribution:
    return Attribution(replace(culprit, confidence="low"))


def _prove_vectorised(ablator: Ablator, wrong: LoweredStep, single: LoweredStep | None) -> Attribution:
    """Right in scalars: one operator of the vectorised code should be enough to do so."""
    operators = (single or wrong).list_code_operators()
    reductions = [name for name in operators if ":" in name]
    named, untested = proofs.find_right_in_scalars(ablator, wrong.generator, operators)
    if named is None and len(untested) == 1 and not reductions:
        # Its scalar form does not compile inside the vectors; all in scalars is right.
        culprit = _make_code_culprit(wrong, single, untested[0], vectorised=True, necessary=True)
        return Attribution(culprit) if len(operators) == 1 else _doubt(culprit)
    if named is None and not reductions and wrong.kernel is not None:
        # A small error there may be what a later operator makes a large one of: NaN out of a lost tiny number.
        rest = [name for name in wrong.list_code_operators(*wrong.kernel.writes) if name not in operators]
        named, _ = proofs.find_right_in_scalars(ablator, wrong.generator, rest)
        if named is not None:
            wrong, single = replace(wrong, nodes=wrong.kernel.nodes), None
        elif (elsewhere := prove_vectors(ablator)) is not None:
            return elsewhere
    # What cannot be done in scalars on its own: loads, stores, reductions, masks. The whole kernel was.
    rewrite = named or (reductions[0] if reductions else "loop")
    return Attribution(_make_code_culprit(wrong, single, rewrite, vectorised=True, necessary=True))


def prove_vectors(ablator: Ablator) -> Attribution | None:
    """An operator whose code in vectors rounds otherwise than its code in scalars, where no kernel alone is wrong.

    A value that is computed twice, once in each, is then not equal to itself.
    """
    if ablator.screens or ablator.trial.observation.failure is not None:
        return None
    watched = ablator.run_trial(replace(ablator.how, kernels=True, record=True))
    steps = (
        LoweredStep(look.lowered, kernel.nodes, kernel)
        for look in watch_graphs(watched.ledger)
        for kernel in look.lowered.kernels
        if not kernel.extern
    )
    vectorised = [step for step in steps if step.is_vectorised]
    if ablator.repairs(watched) or not vectorised:
        return None
    generator = vectorised[0].generator
    written = ((step, step.kernel.writes) for step in vectorised if step.kernel is not None)
    found = {name: step for step, buffers in written for name in step.list_code_operators(*buffers)}
    if not proofs.is_right_without_vectors(ablator, generator):
        return None
    named, untested = proofs.find_right_in_scalars(ablator, generator, list(found))
    left = named or (untested[0] if len(untested) == 1 else None)  # the one that does not compile so among vectors
    if left is None:
        return None
    culprit = _make_code_culprit(found[left], None, left, vectorised=True, necessary=True)
    return Attribution(culprit) if named is not None else _doubt(culprit)


def _prove_scalar(ablator: Ablator, wrong: LoweredStep, single: LoweredStep | None) -> Attribution:
    """Wrong in scalars and on its own: the code of an operator; proved by having ATen compute it."""
    at = single or wrong
    operators, names = at.list_code_operators(), at.list_operator_names()
    repaired = ablator.attempt_under(proofs.with_aten(names))[1] if names else False
    if not operators:  # nothing is computed: the lowering says which elements are copied, or it got other memory
        node = at.lowered.find_node(at.nodes[-1]) if at.nodes else None
        if repaired or (node is not None and (is_view(node.target) or not can_fall_back(at.lowered, node))):
            operator = _make_operator_culprit(at, necessary=repaired or None)
            return Attribution(operator) if repaired else _doubt(operator)
        return Attribution(wrong.make_culprit(RUNTIME, CodeSource(KERNEL_CALL), KERNEL_CALL, confidence="low"))
    kernel = wrong.kernel
    if not repaired and kernel is not None:  # the cause may be an operator before it
        before = [name for name in wrong.list_operator_names(kernel.nodes) if name not in names]
        earlier, _ = proofs.bisect_candidates(ablator, before, proofs.with_aten)
        if earlier is not None:
            nodes = tuple(n for n in kernel.nodes if parse_operator(wrong.lowered.labels.get(n, "")) == earlier)
            name, step = get_operator_family(earlier), replace(at, nodes=nodes)
            if name not in at.list_code_operators(*kernel.writes):  # no code is of it: it decided what is read
                propagated = proofs.prove_propagation(ablator, at)  # or it became a part of an index
                return propagated or Attribution(_make_operator_culprit(step, necessary=True))
            return Attribution(_make_code_culprit(step, None, name, vectorised=False, necessary=True))
    culprit = _make_code_culprit(wrong, single, operators[0], vectorised=False, necessary=True if repaired else None)
    return Attribution(culprit) if repaired and len(operators) <= 1 else _doubt(culprit)


def _make_code_culprit(
    wrong: LoweredStep, single: LoweredStep | None, operator: str, *, vectorised: bool, necessary: bool | None
) -> Culprit:
    at = single or wrong
    code = at.generator.find_code(operator, vectorised=vectorised)
    details: DetailsJson = {"operators": at.list_code_operators(), "vectorised": vectorised}
    if single is not None:
        details["alone"] = describe_kernel(single.lowered, single.kernel).get("kernel_source")
    return wrong.make_culprit(CODEGEN, code, operator, nodes=at.nodes, necessary=necessary, details=details)


def _prove_fusion(ablator: Ablator, wrong: LoweredStep) -> Attribution:
    """Right with a kernel for each operator: it should be enough to leave this one's unfused, or to store one of them.

    That they are computed together is proved to be needed; how it goes wrong is narrowed down as far as compiles tell.
    The scheduler is at fault if it broke a dependence. Otherwise the code generator may have written wrong code for
    loops that may be computed together (a common subexpression that is none), and which step did so is not proved.
    """
    kernel = wrong.kernel
    assert kernel is not None, "it is a kernel that is wrong"
    repaired = ablator.attempt_under(proofs.without_fusion(wrong.labels))[1]
    inlined = None if repaired else proofs.prove_inlining(ablator, wrong)
    if inlined is not None:
        return inlined
    vectorised = wrong.is_vectorised and proofs.is_right_without_vectors(ablator, wrong.generator)
    memory = check_dependences(wrong.lowered, kernel.scheduled)
    shown = wrong.scheduled or memory == "broken"
    operators = wrong.list_code_operators() or wrong.list_code_operators(*kernel.writes)
    details: DetailsJson = {"operators": operators, "vectorised": vectorised, "dependences": memory}
    named = None
    if vectorised and not shown:
        named, _ = proofs.find_right_in_scalars(ablator, wrong.generator, operators)
        details["right_in_scalars"] = named
    for operator, control in wrong.generator.forms.items() if not shown else ():
        if ablator.attempt_under(Lowered(control, f"{operator} in another form"))[1]:
            whole = replace(wrong, nodes=kernel.nodes)
            return Attribution(_make_code_culprit(whole, None, operator, vectorised=False, necessary=True))
    stage = CODEGEN if not shown and (vectorised or memory == "kept") else SCHEDULER
    fused = proofs.find_fusion_source(ablator, stage, wrong.generator, "loop order" if wrong.scheduled else "fusion")
    family = named or "+".join(sorted(operators)) or "fusion"
    culprit = wrong.make_culprit(stage, fused, family, nodes=kernel.nodes, details=details)
    return proofs.attribute(culprit, True, sure=repaired and shown)


_WRAPPER = "wrapper"


class Runtime(Stage):
    """Outputs that are wrong, or too few, though all kernels wrote what they should: nothing can be proved of these."""

    name = RUNTIME
    settings = ({"allow_buffer_reuse": False, "inplace_buffers": False},)

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """The kernels that may have been handed wrong memory; the wrapper where no kernel is wrong."""
        failed, shown = divergence.trial.observation.failure is not None, list[DetailsJson]()
        for lowered, call in ((each, call) for each in divergence.trial.ledger.lowered for call in each.calls):
            wanted, given = len(lowered.snapshot.results), call.outputs
            if failed and given is not None and len(given) != wanted:
                shown.append({"finding": "results", "expected": wanted, "got": len(given)})
        if not shown:
            if failed or divergence.verdict is Verdict.ACCEPTS_INVALID or divergence.once(find_first_wrong_kernels):
                return proofs.list_kernel_suspects(self.name, divergence)
            wrong = [each for look in divergence.once(find_watched_graphs) for each in look.find_wrong_outputs()]
            shown = [{"output": each.buffer, **describe_values(each.comparison)} for each in wrong]
        place = find_definition(facts().places.program_results)
        culprit = Culprit(self.name, None, _WRAPPER, _WRAPPER, (), *place, confidence="low")
        return [Suspect(self.name, _WRAPPER, finding=Found(replace(culprit, details=each))) for each in shown]

    def prove(self, ablator: Ablator, suspects: Sequence[Suspect]) -> Attribution | None:
        """The wrapper, if outputs are wrong and no kernel is; confidence stays low."""
        shown = (suspect.finding for suspect in suspects if isinstance(suspect.finding, Found))
        return next((Attribution(found.culprit) for found in shown), None)


# Programs that raise by themselves: a setting that repairs them, or the statement at which they fail.

# A program that reads what it has not, or unpacks other inputs than it gets: no operator of the user's raises these.
_OWN_ERRORS = ("NameError", "UnboundLocalError")
_NO_PYTHON = ("SyntaxError", "IndentationError")
_SPELLED = re.compile(r"torch\.ops\.([\w.]+)\(")
_ASSERTED = re.compile(r"assert_size_stride\((\w+), .*'torch\.ops\.([\w.]+)'\)")


def prove_flawed_program(ablator: Ablator) -> Attribution | None:
    """Attribute the error of a generated program that raises by itself, or for which no memory could be planned.

    The first decision about memory or order that a setting switches off, and without which the program runs, is proved;
    a check that the program makes, by one that leaves it out. Else the program is named with the statement at which it
    fails: which part of the compiler should have written it otherwise does not show in its text. Where that statement
    is no Python, it is for the name of an operator in it, if it is Python under another name. None for any other error.
    """
    failure, statement = ablator.trial.observation.failure, _find_statement(ablator.trial)
    if failure is None:
        return None
    if failure.type_name in _NO_PYTHON and statement is not None:
        return _name_unparsed(ablator, failure.stage or CODEGEN, statement)
    if statement is not None and statement.startswith("raise "):
        return _prove_check(ablator, statement)
    unpacks = failure.type_name == "ValueError" and "values to unpack" in failure.message
    if failure.type_name not in _OWN_ERRORS and not (unpacks and statement and statement.endswith("= args")):
        statement = None
    # The scheduler's decisions may contradict the planning of memory.
    planning = any(function in facts().errors.planning for _, _, function in failure.raised)
    if statement is None and not planning:
        return None
    shown: DetailsJson = {"statement": statement or ""}
    decided = proofs.prove_decision(ablator, DetailsJson() if statement is None else shown)
    if decided is not None:
        return decided
    unnamed = Culprit(CODEGEN, None, None, UNKNOWN, confidence="low", details=shown)
    return Attribution(unnamed) if statement is not None else None


def _prove_check(ablator: Ablator, statement: str) -> Attribution | None:
    """The check that the program makes, of what its user asserts or the compiler assumed, if it is right without."""
    name = "AssertScalar"
    if not ablator.attempt_under(InductorSettings(facts().settings.switching_off[name], needs_code=True))[1]:
        return None
    place = find_definition(facts().places.scalar_check)
    return Attribution(Culprit(CODEGEN, None, name, name, (), *place, necessary=True, details={"statement": statement}))


def _name_unparsed(ablator: Ablator, stage: str, statement: str) -> Attribution:
    details: DetailsJson = {"statement": statement}
    for spelled in dict.fromkeys(_SPELLED.findall(statement)):
        try:
            ast.parse(statement.replace(f"torch.ops.{spelled}(", "renamed("))
        except SyntaxError:
            continue
        ablator.ablations.append(Ablation(f"the generated program, parsed with another name for {spelled}", True, None))
        return Attribution(Culprit.from_operator(stage, spelled, necessary=True, details=details))
    return Attribution(Culprit(stage, None, None, UNKNOWN, confidence="low", details=details))


def _find_statement(trial: Trial) -> str | None:
    place = None if trial.observation.failure is None else trial.observation.failure.generated
    return None if place is None else place.source.splitlines()[place.line - 1].strip()


def with_asserted_layout(attribution: Attribution, trial: Trial) -> Attribution:
    """The attribution with the rule of the operator whose result the program asserts to be laid out in another way.

    The program has the layout from the rule, so that the rule disagrees with the kernel, unless a lowering gave the
    operator other inputs than the rule saw. What puts the operator into the graph is necessary too.
    """
    failure, culprit = trial.observation.failure, attribution.culprit
    statement = _find_statement(trial) or ""
    asserted = _ASSERTED.match(statement)
    if failure is None or failure.type_name != "AssertionError" or asserted is None:
        return attribution
    if culprit is not None and culprit.stage == FAKE_TENSOR:
        return attribution
    name = asserted[2]
    operator = find_operator(name)
    place = find_source(find_fake_function(operator) if operator is not None else None)
    asserting = Culprit.from_operator(FAKE_TENSOR, name, place, confidence="low", details={"statement": statement})
    if culprit is not None and culprit.necessary:
        return replace(attribution, contributors=[*attribution.contributors, asserting])
    others = [] if culprit is None else [culprit]
    return replace(attribution, culprit=asserting, contributors=[*others, *attribution.contributors])


_SETTING = "triton.cudagraphs"


class Cudagraphs(Stage):
    """Recording and replaying a compiled graph, where a setting or a mode such as ``reduce-overhead`` asks for it.

    One compile without it decides. Tried on an H100 with torch 2.11, and on CPU builds, where Inductor records nothing,
    with its check of the devices and its recording function replaced.
    """

    name = CUDAGRAPHS
    settings = ({_SETTING: False},)

    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """The recording, if it was asked for and Inductor found no reason to go without it."""
        experiments, trial = divergence.experiments, divergence.trial
        if get_effective_setting(experiments.case.settings, trial.how, _SETTING) is not True:
            return []
        graphs = trial.ledger.lowered
        # Without watched kernels nothing says what Inductor decided; it never records graphs without a CUDA device.
        recorded = any(lowered.cudagraphs for lowered in graphs) if graphs else experiments.device.type == "cuda"
        place, without = (
            find_definition(facts().places.graph_recording),
            InductorSettings(self.settings[0], needs_code=True),
        )
        found = Found(Culprit(self.name, None, self.name, self.name, (), *place), without)
        return [Suspect.from_found(found)] if recorded else []
