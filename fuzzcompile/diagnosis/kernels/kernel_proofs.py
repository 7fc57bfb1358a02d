"""The search behind the graph passes: a watched compile, its suspects, and compiles with operators or code changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from torch import fx

from fuzzcompile.compiler.compile_changes import CompileChange, CompilerFlags, DynamoSettings, InductorSettings, Lowered
from fuzzcompile.compiler.kernels import kernel_patches
from fuzzcompile.compiler.kernels.ir_evaluation import is_lowered_to_view
from fuzzcompile.compiler.kernels.kernel_loops import (
    check_dependences,
    find_definition,
    find_early_read,
    reads_what_it_writes,
)
from fuzzcompile.compiler.kernels.lowering_control import (
    EVERYTHING,
    UNCHANGED,
    Control,
    can_fall_back,
    find_lowering_source,
    get_operator_name,
    parse_operator,
)
from fuzzcompile.compiler.operators.decompositions import get_operator_family, is_mutating, is_view
from fuzzcompile.compiler.session import get_effective_setting
from fuzzcompile.compiler.watch.ledger import LoweringFailure
from fuzzcompile.diagnosis.attribution.culprit import Ablator, Attribution, Culprit, Divergence
from fuzzcompile.diagnosis.kernels.code_generators import LOOPS, CodeGenerator, CodeSource
from fuzzcompile.diagnosis.kernels.watched_graph import LoweredStep, find_first_wrong_kernels, find_site
from fuzzcompile.diagnosis.stages.ways import Stage, Suspect
from fuzzcompile.diagnosis.trials.case_runs import Trial
from fuzzcompile.model.culprit_contract import DetailsJson
from fuzzcompile.model.facts import facts
from fuzzcompile.model.stages import CODEGEN, DYNAMO, LOWERING, POST_GRAD, RUNTIME, SCHEDULER
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.run.tensors import name_collective

_MAX_BISECTION = 6  # halvings, and tries one by one


def search_behind_graphs(stages: Sequence[Stage], ablator: Ablator) -> Attribution | None:
    """Find the culprit behind the graph passes, in one of ``stages``, in their order; None if there is none."""
    if ablator.screens:
        return None
    trial = (
        ablator.trial
    )  # if the kernels were not watched, only a setting that decides about a whole stage is evidence
    for separate, name in ((True, "every loop nest a kernel"), (False, "kernels watched")):
        how = ablator.how.under(Lowered(Control(separate=separate)))
        watched = ablator.run_trial(replace(how, kernels=True, record=True))
        if not ablator.repairs(watched):
            trial = watched
            break
        ablator.note(name, watched, True)
    divergence = Divergence(ablator.experiments, trial)
    doubtful: Attribution | None = None
    for stage in stages:
        attribution = stage.prove(ablator, stage.suspects(divergence))
        if attribution is not None and (stage.name != LOWERING or attribution.contributors or attribution.is_proved):
            # An operator that looks wrong and is not proved wrong is a better answer than the wrapper alone.
            return doubtful if stage.name == RUNTIME and doubtful is not None else attribution
        doubtful = attribution or doubtful
    return doubtful


def prove_decision(
    ablator: Ablator, details: DetailsJson, *, ordered: bool = False, tracing: bool = False
) -> Attribution | None:
    """The first decision about memory or order that a setting switches off, and without which the program is right.

    ``ordered``: without it kernels also have to read what earlier ones wrote. ``tracing``: decisions of dynamo's about
    what becomes a graph are meant.
    """
    settings = ablator.experiments.case.settings
    for decision in (each for each in facts().decisions.values() if (each.stage == DYNAMO) == tracing):
        off = decision.without.items()
        if not tracing and all(get_effective_setting(settings, ablator.how, key) == value for key, value in off):
            continue
        without = DynamoSettings(dict(off)) if tracing else InductorSettings(dict(off), needs_code=True)
        trial, repaired = ablator.attempt_under(without, watched=ordered)
        if repaired and not (ordered and any(map(find_early_read, trial.ledger.lowered))):
            place = find_definition(decision.place)
            culprit = Culprit(decision.stage, None, decision.name, decision.name, (), *place, necessary=True)
            return Attribution(replace(culprit, details=details))
    return None


def prove_early_read(ablator: Ablator) -> Attribution | None:
    """The decision by which a kernel of a graph with collectives comes before what writes its input; None if none is.

    Where a wait comes too late, what is read is a matter of time, so that more than the result has to be right.
    """
    records = (record for frame in ablator.trial.ledger.frames for record in frame.records if record.snapshots)
    calls = (target for record in records for target in record.snapshots[-1].called_targets)
    if ablator.screens or not any(map(name_collective, calls)):
        return None
    watched = ablator.run_trial(replace(ablator.how, kernels=True, record=True))
    early = next(filter(None, map(find_early_read, watched.ledger.lowered)), None)
    return None if early is None else prove_decision(ablator, {"kernel": early.name}, ordered=True)


def list_kernel_suspects(stage: str, divergence: Divergence, *, overwritten: tuple[str, ...] = ()) -> list[Suspect]:
    """The operators of the kernel that failed, or of a graph's first wrong one; ``overwritten`` if its inputs are."""
    trial = divergence.trial
    if trial.observation.failure is not None:
        return list_failed_suspects(stage, trial)
    if divergence.verdict is Verdict.ACCEPTS_INVALID:
        return []
    suspects: list[Suspect] = []
    for wrong in divergence.once(find_first_wrong_kernels):
        families = overwritten if wrong.overwritten is not None else ()
        if wrong.overwritten is None and wrong.kernel is not None and not wrong.kernel.extern:
            operators = wrong.list_code_operators(wrong.buffer, *wrong.kernel.writes)
            families = (*operators, *map(wrong.find_family, wrong.kernel.nodes), "fusion", "loop", "kernel call")
        suspects += [Suspect(stage, family, finding=wrong) for family in dict.fromkeys(families)]
    return suspects


# Compiles with some operators or templates changed, and the bisection for the one that repairs the divergence.


def with_aten(operators: Sequence[str]) -> Lowered:
    """ATen computes these operators."""
    return Lowered(Control(fallbacks=tuple(operators)), "ATen computes " + ", ".join(operators))


def without_fusion(labels: tuple[str, ...]) -> Lowered:
    """The operators of one kernel are fused with nothing."""
    return Lowered(Control(apart=labels), "this kernel not fused")


def with_isolated_kernels(labels: tuple[str, ...]) -> Lowered:
    """Each operator has a kernel of its own."""
    return Lowered(Control(realised=labels, apart=(EVERYTHING,), separate=True), "nothing fused")


# Reductions whose result is a place: of loops in another order, it is another one.
_OF_PLACES = {"reduction:argmax", "reduction:argmin"}


def prove_inlining(ablator: Ablator, wrong: LoweredStep) -> Attribution | None:
    """The value without whose memory one loop is wrong; None if the loop is wrong though every value is stored.

    A lowering is at fault that writes in place to memory from which the loop still reads, to compute that value; else
    the code, in which the value is not what it is once it was stored, rounded to its dtype. Of a place, it is the code
    that computes it: a value that is stored is read by other loops, and a place alone hangs on these.
    """
    kernel, stored = wrong.kernel, Lowered(Control(realised=wrong.labels), "every value stored")
    if kernel is None or not ablator.attempt_under(stored)[1]:
        return None
    name, nodes = _find_stored(ablator, wrong, kernel.nodes)
    nodes = nodes or kernel.nodes
    details: DetailsJson = {"operators": wrong.list_code_operators(), "stored": name}
    code, stage, family = wrong.generator.find_fusion_code("inlining"), CODEGEN, wrong.find_family(nodes[-1])
    place = next(filter(_OF_PLACES.__contains__, wrong.list_code_operators()), None)
    if reads_what_it_writes(wrong.lowered, kernel.scheduled):
        code, stage, family = _find_writing_code(wrong), LOWERING, ""
    elif place is not None:
        code, family, nodes = wrong.generator.find_code(place, vectorised=wrong.is_vectorised), place, wrong.nodes
    culprit = wrong.make_culprit(stage, code, family, nodes=nodes, necessary=True, details=details)
    return Attribution(replace(culprit, confidence="low" if name is None else "high"))


def _with_stored(operators: Sequence[str]) -> Lowered:
    return Lowered(Control(realised=tuple(operators)), f"{', '.join(operators)} stored")


def _find_stored(ablator: Ablator, step: LoweredStep, among: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """The operator that repairs the divergence if what it computes is stored, and its nodes; none if none does."""
    labels = step.lowered.labels
    name, _ = bisect_candidates(ablator, step.list_operator_names(among), _with_stored)
    return name, tuple(node for node in among if parse_operator(labels.get(node, "")) == name)


def _find_writing_code(wrong: LoweredStep) -> CodeSource:
    """The lowering of the operator that writes in place in a kernel, or what all writes go through where it copies."""
    for node in map(wrong.lowered.find_node, wrong.kernel.nodes if wrong.kernel is not None else ()):
        name = get_operator_name(node.target) if node is not None and is_mutating(node.target) else ""
        if node is not None and name and get_operator_family(name) != "copy":
            return CodeSource(name, *find_lowering_source(node.target))
    return CodeSource("in-place write", *find_definition(facts().places.write_in_place))


def prove_order(ablator: Ablator, wrong: LoweredStep) -> Attribution | None:
    """The lowering that gives the place of a loop, though Inductor may change the order of loops."""
    names = wrong.list_operator_names()
    if not wrong.scheduled or not names or not _OF_PLACES.intersection(wrong.list_code_operators()):
        return None
    node = wrong.lowered.find_node(wrong.nodes[-1])
    if node is None or not ablator.attempt_under(with_aten(names))[1]:
        return None
    code = CodeSource(names[-1], *find_lowering_source(node.target))
    return Attribution(wrong.make_culprit(LOWERING, code, necessary=True))


def prove_views(ablator: Ablator, wrong: LoweredStep) -> Attribution | None:
    """The view that the generated program hands to a library's kernel, if that is right on a copy; else None."""
    reader, labels = wrong.lowered.find_node(wrong.nodes[-1]), wrong.lowered.labels
    read = _iterate_views(reader) if reader is not None else ()
    views = {labels[node.name]: node.name for node in read if node.name in labels}
    label, _ = bisect_candidates(
        ablator,
        list(views),
        lambda half: Lowered(Control(realised=half), f"{', '.join(map(parse_operator, half))} copied"),
    )
    if label is None:
        return None
    code = CodeSource(parse_operator(label), *find_definition(facts().places.program_views))
    return Attribution(wrong.make_culprit(CODEGEN, code, nodes=(views[label],), necessary=True))


def _iterate_views(reader: fx.Node) -> Iterator[fx.Node]:
    """The views that an operator reads, each before those that it is a view of."""
    for node in reader.all_input_nodes:
        if is_view(node.target):
            yield node
            yield from _iterate_views(node)


def prove_around_operators(ablator: Ablator, wrong: LoweredStep) -> Attribution | None:
    """The fault beside the operators of a kernel: its loops are split, or the compiler is lax; None without one."""
    split = wrong.generator.find_loop_split() if wrong.lowered.split.intersection(wrong.nodes) else None
    whole = Lowered(Control(unsplit=True), "no loop made two for a division in an index")
    if split is not None and ablator.attempt_under(whole)[1]:
        return Attribution(wrong.make_culprit(CODEGEN, split, "loop split", necessary=True))
    return _prove_compiler(ablator, wrong)


def _prove_compiler(ablator: Ablator, wrong: LoweredStep) -> Attribution | None:
    strict = wrong.generator.strict
    if not strict or not ablator.is_repaired_by(CompilerFlags(tuple(strict), "strict flags")):
        return None
    named, _ = bisect_candidates(ablator, list(strict), CompilerFlags)
    name = strict[named] if named is not None else "+".join(strict.values())
    code = CodeSource(name, *find_definition(f"{kernel_patches.FLAGS.module}:{kernel_patches.FLAGS.attribute}"))
    culprit = wrong.make_culprit(CODEGEN, code, name, necessary=True)
    return Attribution(replace(culprit, confidence="low" if named is None else "high"))


def prove_propagation(ablator: Ablator, wrong: LoweredStep) -> Attribution | None:
    """Constants and indices that are computed while loops are built, if the program is right without that."""
    unfolded = InductorSettings(facts().settings.switching_off["IndexPropagation"], needs_code=True)
    if not ablator.is_repaired_by(unfolded):
        return None
    code = CodeSource("IndexPropagation", *find_definition(facts().places.index_propagation))
    return Attribution(wrong.make_culprit(LOWERING, code, "IndexPropagation", necessary=True))


def is_right_without_vectors(ablator: Ablator, generator: CodeGenerator) -> bool:
    """Return whether the divergence is gone when no loop is vectorised."""
    return ablator.is_repaired_by(InductorSettings(generator.scalars, needs_code=True))


def find_right_in_scalars(
    ablator: Ablator, generator: CodeGenerator, operators: Sequence[str]
) -> tuple[str | None, list[str]]:
    """The elementwise operator of vectorised code that, done in scalars alone, repairs the divergence.

    Also those that could not be done in scalars, of which nothing is known.
    """

    def scalarise(half: tuple[str, ...]) -> CompileChange:
        return Lowered(generator.scalarise(half) or UNCHANGED, f"{', '.join(half)} in scalars")

    return bisect_candidates(ablator, [name for name in operators if ":" not in name], scalarise)


def bisect_candidates(
    ablator: Ablator, candidates: Sequence[str], change: Callable[[tuple[str, ...]], CompileChange]
) -> tuple[str | None, list[str]]:
    """The candidate that alone repairs the divergence when ``change`` is applied to it; the most telling come first.

    Also those with which the program fails in another way, so that nothing is known of them.
    """

    def attempt(names: tuple[str, ...]) -> tuple[bool, bool]:
        trial, repaired = ablator.attempt_under(change(names))
        return repaired, trial.observation.failure is not None and not ablator.fails_alike(trial)

    left, untested, one_by_one = list(candidates), list[str](), False
    for _ in range(2 * _MAX_BISECTION):
        if not left:
            break
        half = tuple(left[: 1 if one_by_one else (len(left) + 1) // 2])
        repaired, failed = attempt(half)
        if len(half) == 1:
            if repaired:
                return half[0], untested
            untested += half if failed else ()
        elif failed:  # a candidate that does not compile says nothing of the others
            one_by_one = True
            continue
        elif repaired:
            left = list(half)
            continue
        left = left[len(half) :]
    return None, untested


# Products that autotuning gave to a template of Inductor's: proved by one compile that leaves them to a library.

_TEMPLATE = re.compile(r"CppTemplateBuffer\((\w+)\)")
LIBRARY: dict[str, object] = {"max_autotune": False, "max_autotune_gemm": False}
_FILES = {"CppGemmTemplate": "cpp_gemm_template", "CppBmmTemplate": "cpp_bmm_template"}


def prove_templates(ablator: Ablator) -> Attribution | None:
    """The C++ template whose kernels the divergence needs; None if there is none, or it stays without."""
    reached = ablator.trial.ledger.reached
    named = sorted({name for part in reached if part.stage == SCHEDULER for name in _TEMPLATE.findall(part.name)})
    if not named or not ablator.attempt_under(InductorSettings(LIBRARY, needs_code=True))[1]:
        return None
    module, family = _FILES.get(named[0]), "+".join(named)
    place = find_definition(f"torch._inductor.codegen.{module}:{named[0]}.render") if module else (None, None)
    return Attribution(Culprit(CODEGEN, None, family, family, (), *place, necessary=True))


def find_failure(trial: Trial) -> LoweredStep | None:
    """Find the failure behind the graph passes that raised the trial's exception; None if there is none."""
    for lowered in reversed(trial.ledger.lowered):
        failed = lowered.failed
        running = next((call.running for call in lowered.calls if call.running is not None), None)
        if failed is None and running is not None:
            kernel = lowered.kernels[running]
            failed = LoweringFailure(LOWERING if kernel.extern else RUNTIME, kernel.nodes, kernel.name)
        if failed is None:
            continue
        step = LoweredStep(lowered, failed.nodes, lowered.find_kernel(failed.kernel), failed=failed)
        if failed.refused is not None:  # with the compiler's complaint, and the operators whose code it refused
            message = f"{failed.message}: {step.generator.find_complaint(failed.refused) or ''}"[:300]
            statements = lowered.statements.get(failed.kernel or "", ())
            operators = step.generator.list_refused_operators(statements, failed.refused)
            step = replace(step, failed=replace(failed, message=message, operators=operators))
        return step
    return None


def list_failed_suspects(stage: str, trial: Trial) -> list[Suspect]:
    """Names that a signature may give an error: operators of the graph or of the code; none without an error."""
    failure = find_failure(trial)
    if failure is None:
        return []
    families = [*failure.raised.operators, *map(failure.find_family, reversed(failure.nodes))]
    families += _list_last_operators(failure)
    return [Suspect(stage, family, finding=failure) for family in dict.fromkeys(families or ["unknown"])]


def _list_last_operators(failure: LoweredStep) -> list[str]:
    writes = failure.kernel.writes if failure.kernel is not None else ()
    return failure.list_code_operators(writes[-1]) if writes else []


def _find_failed_stage(failure: LoweredStep) -> str:
    """The stage of what raised: loops are built by the lowering's code, whatever asks for them."""
    failed, files = failure.raised, facts().lowering_files
    if failed.place == RUNTIME:
        return CODEGEN
    if failed.source in files.always or (failed.place == SCHEDULER and failed.source in files.when_scheduling):
        return LOWERING
    return failed.place


def find_omission(failure: LoweredStep) -> Culprit | None:
    """The pass that should have replaced the operator whose lowering raised; None if there is none.

    AOTAutograd and dynamo alone put these operators into a graph, so that the pass met them. Where a lowering is
    registered after all, the lowering is at fault. No compile can do without the pass, so that no ablation proves it,
    and no step shows it: the graph computes the same before and after the pass.
    """
    node = failure.lowered.find_node(failure.nodes[-1]) if failure.nodes else None
    if node is None or not callable(node.target):
        return None
    name = get_operator_name(node.target).removeprefix("higher_order.")
    replacing = facts().passes.replacing.get(name)
    if replacing is None or find_lowering_source(node.target) != (None, None):
        return None
    place = find_definition(f"{facts().stages[POST_GRAD].tables}:{replacing}")
    details: DetailsJson = {"left": name, "error": failure.raised.message, "operator": get_operator_family(name)}
    site = find_site(failure.lowered, node.name)
    culprit = Culprit(POST_GRAD, replacing, replacing, replacing, failure.nodes, *place, site=site, details=details)
    return culprit if culprit.source is not None else None


def prove_failure(ablator: Ablator, failure: LoweredStep, stage: str) -> Attribution | None:
    """Name what raised in a stage, and prove it; None if it did so in another.

    The stage may turn out to be another than that in which the error rose: a kernel that fails only fused is a fault
    of the scheduler.
    """
    if _find_failed_stage(failure) != stage:
        return None
    failed = failure.raised
    # The nodes that are called as the operators of the code are.
    wanted = [operator.rpartition(":")[2] for operator in failed.operators]
    computing = tuple(name for name in failure.nodes if failure.find_family(name) in wanted)
    if failed.operators and failed.source is None:
        return _prove_refused(ablator, failure, computing)
    failure = replace(failure, nodes=computing or failure.nodes)
    if failed.place != LOWERING and len(failure.nodes) > 1:
        trial, repaired = ablator.attempt_under(with_isolated_kernels(failure.labels), watched=True)
        if repaired:
            return _prove_fusion_failure(ablator, failure)
        failure = find_failure(trial) or failure
    return _prove_raised(ablator, failure)


def _prove_refused(ablator: Ablator, failure: LoweredStep, nodes: tuple[str, ...]) -> Attribution:
    """A kernel that does not compile: the operator whose statement the compiler of the generated code refused."""
    operators, generator = failure.raised.operators, failure.generator
    operator = operators[0]
    vectorised = proved = failure.is_vectorised and is_right_without_vectors(ablator, generator)
    narrowings: list[Lowered] = []  # without the operator whose code was refused, then without the fusion
    if not vectorised:
        names = failure.list_operator_names(nodes)
        narrowings = [*([with_aten(names)] if names else []), without_fusion(failure.labels)]
    elif ":" not in operator and operator not in LOOPS:
        control = generator.scalarise((operator,))
        narrowings = [Lowered(control, f"{operator} in scalars")] if control is not None else []
    helping = next((change for change in narrowings if ablator.attempt_under(change)[1]), None)
    proved = proved or helping is not None
    # Is changing what was named enough?
    narrow = not narrowings or (helping is not None and not helping.control.apart)
    details: DetailsJson = {"operators": list(operators), "vectorised": vectorised}
    code = generator.find_code(operator, vectorised=vectorised)
    culprit = failure.make_culprit(CODEGEN, code, operator, nodes=nodes or failure.nodes, details=details)
    return attribute(culprit, proved, sure=proved and narrow)


def _prove_fusion_failure(ablator: Ablator, failure: LoweredStep) -> Attribution:
    """Only the fused kernel fails: the scheduler put together what its code generator cannot do."""
    repaired = ablator.attempt_under(without_fusion(failure.labels))[1]
    name, nodes = (None, ()) if repaired else _find_stored(ablator, failure, failure.nodes)
    node = failure.lowered.find_node(nodes[-1]) if nodes else None
    if name is not None and node is not None:  # no fusion of kernels: what is not stored has no memory to be indexed in
        code = CodeSource(name, *find_lowering_source(node.target))
        details: DetailsJson = {"operators": [failure.find_family(each) for each in failure.nodes], "stored": name}
        # Where the lowering's own code raises, what it has not stored is missing; else its code may be read wrongly.
        sure = failure.raised.source in (*facts().lowering_files.always, *facts().lowering_files.when_scheduling)
        culprit = failure.make_culprit(LOWERING, code, nodes=nodes, necessary=True, details=details)
        return Attribution(replace(culprit, confidence="high" if sure else "low"))
    kernel = failure.kernel
    allowed = kernel is not None and check_dependences(failure.lowered, kernel.scheduled) == "kept"
    stage = CODEGEN if allowed or failure.raised.place == CODEGEN else SCHEDULER
    families = sorted({failure.find_family(name) for name in failure.nodes if name in failure.lowered.labels})
    code = find_fusion_source(ablator, stage, failure.generator, "fusion")
    details = {"operators": families or [""]}
    return attribute(failure.make_culprit(stage, code, "+".join(families) or "fusion", details=details), repaired)


def find_fusion_source(ablator: Ablator, stage: str, generator: CodeGenerator, name: str) -> CodeSource:
    """What fuses loops, under a name: the scheduler's decision, or the code that is generated for them together.

    That for loops of other ranges goes by its own name, where it is enough to leave these apart.
    """
    if stage == SCHEDULER:
        return CodeSource(name, *find_definition(facts().places.fusion_decision))
    outer, flat = generator.find_outer_loop_code(), Lowered(Control(flat=True), "no other loops under an outer loop")
    return outer if outer is not None and ablator.attempt_under(flat)[1] else generator.find_fusion_code(name)


def _prove_raised(ablator: Ablator, failure: LoweredStep) -> Attribution:
    stage, names = _find_failed_stage(failure), failure.list_operator_names()
    undone = find_omission(failure) if stage == LOWERING else None
    if undone is not None:
        return Attribution(undone)
    code, family, details, vectorised = CodeSource(failure.name), "", DetailsJson(), False
    node = failure.lowered.find_node(failure.nodes[-1]) if failure.nodes else None
    if stage == LOWERING and node is not None:
        code = CodeSource(failure.name, *find_lowering_source(node.target))
    elif stage == CODEGEN:
        generator, operators = failure.generator, _list_last_operators(failure)
        vectorised = failure.is_vectorised and is_right_without_vectors(ablator, generator)
        named = find_right_in_scalars(ablator, generator, operators)[0] if vectorised else None
        family = named or (operators[0] if len(operators) == 1 else "")
        code = generator.find_code(family, vectorised=vectorised) if family else code
        details = {"operators": operators, "vectorised": vectorised}
    culprit = failure.make_culprit(stage, code, family, details=details)
    if vectorised:
        return Attribution(replace(culprit, necessary=True))
    repaired = bool(names) and ablator.attempt_under(with_aten(names))[1]
    earlier = None if repaired or stage != LOWERING else prove_earlier(ablator, failure)
    return earlier or attribute(culprit, repaired)


def prove_earlier(ablator: Ablator, wrong: LoweredStep) -> Attribution | None:
    """The operator whose IR the lowering of a later one cannot use, and can once ATen computes the earlier one.

    Where none raises, that is one that has no memory of its own though it should.
    """
    before: dict[str, fx.Node] = {}  # the nearest first
    for reader in (pending := [node for node in map(wrong.lowered.find_node, wrong.nodes[-1:]) if node is not None]):
        new = [source for source in reader.all_input_nodes if source not in pending]
        pending += new
        for each in new:
            if label := wrong.lowered.labels.get(each.name):
                before.setdefault(parse_operator(label), each)
    names = [name for name, each in before.items() if can_fall_back(wrong.lowered, each) and not is_view(each.target)]
    if wrong.failed is None:
        names = [name for name in names if is_lowered_to_view(wrong.lowered, before[name].name)]
    named, _ = bisect_candidates(ablator, names, with_aten)
    if named is None:
        return None
    code = CodeSource(named, *find_lowering_source(before[named].target))
    details: DetailsJson = {"operator": get_operator_family(wrong.name)}
    if wrong.failed is not None:
        details["error"] = wrong.failed.message
    at = LoweredStep(wrong.lowered, (before[named].name,))
    culprit = at.make_culprit(LOWERING, code, necessary=True, details=details)
    # What repairs by its memory alone may be right, and the later lowering not able to read what has none; where that
    # runs, ATen's kernel in its place read the same wrong values.
    stored = wrong.failed is not None and ablator.attempt_under(_with_stored([named]))[1]
    return Attribution(replace(culprit, confidence="low" if stored else "high"))


def attribute(culprit: Culprit, repaired: bool, *, sure: bool | None = None) -> Attribution:
    """The culprit, necessary if a compile without it repairs the divergence; ``sure`` by default if one does."""
    confidence = "high" if (repaired if sure is None else sure) else "low"
    return Attribution(replace(culprit, necessary=True if repaired else None, confidence=confidence))
