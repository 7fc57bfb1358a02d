"""From a failing trial to its culprit: stages name suspects in search order, ablations prove them."""

from __future__ import annotations

import operator
import time
from collections.abc import Collection, Iterator
from dataclasses import replace

from torch import fx

from fuzzcompile.compiler.compile_changes import (
    CAPTURE_ONLY,
    CASTS,
    KEPT_CASTS,
    SETTINGS,
    Backend,
    CompileChange,
    CompilePath,
    GraphBreak,
    InductorSettings,
    OmittedPass,
    TracingSettings,
    Veto,
    keep_numbers,
)
from fuzzcompile.compiler.custom_code import make_backend_label, make_config_without
from fuzzcompile.compiler.functional_run import find_identity_nodes
from fuzzcompile.compiler.graph_breaks import find_captured_calls, is_function
from fuzzcompile.compiler.session import find_path, get_effective_setting
from fuzzcompile.compiler.torch_config import MISSING, get_setting
from fuzzcompile.compiler.watch.rule_labels import make_family_veto
from fuzzcompile.diagnosis.attribution.culprit import (
    UNKNOWN,
    Ablator,
    Attribution,
    Culprit,
    Divergence,
    OutOfTime,
    Workaround,
    frames_to_json,
)
from fuzzcompile.diagnosis.attribution.steps import find_inputs, measure_steps, select_semantic_steps
from fuzzcompile.diagnosis.oracle.judgement import largest_error
from fuzzcompile.diagnosis.stages.backend_stages import with_asserted_layout
from fuzzcompile.diagnosis.stages.graph_passes import (
    Prover,
    find_failing_rewrite,
    list_blamed_rewrites,
    make_rewrite_culprit,
)
from fuzzcompile.diagnosis.stages.stage_table import (
    LADDER,
    Shows,
    get_stage,
    look_around_rewrites,
    look_at_sides,
    look_in_order,
)
from fuzzcompile.diagnosis.trials.case_runs import Trial
from fuzzcompile.model.contract import AOTI, CACHED, COMPILE, EXPORT, PATHS
from fuzzcompile.model.culprit_contract import DetailsJson
from fuzzcompile.model.facts import facts
from fuzzcompile.model.signatures import drop_fingerprint
from fuzzcompile.model.stages import (
    CODEGEN,
    DECOMPOSITION,
    DYNAMO,
    FAKE_TENSOR,
    FUNCTIONALIZATION,
    GRAPH_STAGES,
    LOWERING,
    PRE_GRAD,
    RUNTIME,
    find_file_stage,
)
from fuzzcompile.model.verdicts import AGREEING, Verdict

# Workarounds: settings that a user can put into the program today, run and seen to repair the divergence.

# Compiles that the search may spend; candidates that are screened first cost no compile until they help.
_COMPILES = 4
# The rest of the compiler without the stage at fault, the one that keeps most of it first.
_BACKENDS = ("aot_eager_decomp_partition", "aot_eager")


def find_workaround(ablator: Ablator, culprit: Culprit) -> Workaround | None:
    """The narrowest setting that repairs the divergence; None if there is none, or no time to look for it.

    Where eager mode is what is wrong, a setting that made compiled agree with it would mend nothing; and nothing is to
    be mended in what torch means compiled programs to do.
    """
    kernel = culprit.details.get("aten_kernel")
    if (kernel is not None and kernel["wrong_in"] == "eager") or "design" in culprit.details:
        return None
    start, before = time.perf_counter(), ablator.experiments.counts.compiles
    try:
        workaround = _find_first(ablator, _iter_candidates(culprit, ablator), screen=culprit.stage in GRAPH_STAGES)
    except OutOfTime:
        return None
    if workaround is None:
        return None
    spent = ablator.experiments.counts.compiles - before
    return replace(workaround, compiles=spent, seconds=time.perf_counter() - start)


def _find_first(ablator: Ablator, candidates: Iterator[CompileChange], *, screen: bool) -> Workaround | None:
    tried = 0
    for candidate in candidates:
        how = replace(ablator.how.under(candidate), record=ablator.replays)
        text = candidate.workaround or candidate.text
        config = candidate.entries if isinstance(candidate, InductorSettings) else {}
        # The first is nearly always right, and a compile is needed all the same.
        screens = tried > 0 and screen and bool(config) and ablator.screens
        if screens and not ablator.attempt(replace(how, screen=True), text)[1]:
            continue
        if tried == _COMPILES:
            return None
        tried += 1
        trial, repaired = ablator.attempt(replace(how, timed=True), text)
        if repaired and trial.judgement.verdict.kind != "values":  # else an error is gone, and wrong values are left
            base = ablator.experiments.counts.runtime
            ratio = trial.runtime / base if trial.runtime is not None and base else None
            if isinstance(candidate, OmittedPass):
                config = {key: value for key, value in config.items() if value is None}  # other passes are no JSON
            return Workaround(text, config, largest_error(trial.judgement), ratio)
    return None


def _iter_candidates(culprit: Culprit, ablator: Ablator) -> Iterator[CompileChange]:
    left_out = make_config_without(culprit.pass_name)
    if left_out:
        yield OmittedPass(left_out, str(culprit.pass_name))
        return
    if setting := culprit.details.get("setting"):
        config, _, key = setting.partition(".")
        yield SETTINGS[config]({key: False})
        return
    # The stage's settings, as far as the installed torch has them and they change anything.
    own = ablator.experiments.case.settings.own_config
    for settings in get_stage(culprit.stage).workarounds(culprit, own):
        known = {key: own.get(key, get_setting(key)) for key in settings}
        changed = {key: value for key, value in settings.items() if known[key] not in (MISSING, value)}
        if changed:
            yield InductorSettings(changed)
    tracing = (facts().aot_autograd.alias_copy, facts().aot_autograd.tangent_copy)
    yield from (TracingSettings(each.without) for each in tracing if each.function == culprit.rewrite)
    yield from (keep_numbers(each) for each in facts().symbols.values() if each.function == culprit.rewrite)
    if culprit.stage not in GRAPH_STAGES:
        calls = find_captured_calls(ablator.trial.ledger, culprit.site, culprit.nodes)
        functions = tuple((name, call) for name, call in calls.items() if is_function(call))
        if functions:
            yield GraphBreak(functions)
    path = find_path(ablator.experiments.case.settings, ablator.how)
    if path != COMPILE:
        yield from map(CompilePath, PATHS[: PATHS.index(path)])
        return
    inductor = ablator.experiments.case.settings.backend == "inductor"
    yield from map(Backend, _BACKENDS if inductor else ("inductor", *_BACKENDS))


# Stages that the ladder has shown to be right where it names a later one.
_EARLIER = (DYNAMO, FUNCTIONALIZATION)


def attribute(
    ablator: Ablator, *, thorough: bool = False, unsteady: bool = False, part: Ablator | None = None
) -> Attribution:
    """Look where the table of the stages says, in its order; out of time, name the first suspect as it stands.

    ``thorough`` tries every backend of the ladder that PyTorch's issue form asks for, whatever is at fault. Of a bug
    that comes and goes (``unsteady``), each compile is made several times, and one that stays away has no culprit.
    The culprit is looked for in a ``part`` of the program, if one is given; what a user can set, in all of it.
    """
    attribution: Attribution | None = None
    searched = part or ablator
    try:
        if unsteady:
            repeating = searched.repeat()
            if repeating is None:
                return Attribution(ablations=searched.ablations)
            ablator = searched = repeating
        attribution = _attribute_to_rewrites(searched) or _attribute_around_rewrites(searched)
        attribution = _attribute_to_setting(searched, attribution) or attribution
        attribution = _attribute_to_call(searched, attribution) or attribution
        if attribution.culprit is not None:
            attribution.workaround = find_workaround(ablator, attribution.culprit)
        tried = {ablation.toggle for ablation in ablator.ablations}
        whole = not (ablator.replays or _has_own_backend(ablator)) and _find_path(ablator) == COMPILE
        for backend in (Backend(name) for name, _ in LADDER if thorough and whole):
            if not tried & {backend.text, backend.workaround}:
                ablator.is_repaired_by(backend, record=False)
    except OutOfTime:
        attribution = attribution or Attribution(find_first_rewrite(ablator), cut_off=True)
    attribution = with_asserted_layout(attribution, searched.trial)
    attribution.ablations = [*searched.ablations, *(ablator.ablations if part is not None else ())]
    attribution.culprit = _with_frames(searched, attribution.culprit)
    return attribution


# A program of so many calls is looked through call by call; what is left of a case that is reduced has no more.
_MOST_CALLS = 8


def _attribute_to_call(ablator: Ablator, unproved: Attribution) -> Attribution | None:
    """The one call of the program behind which all is right, where nothing is proved otherwise.

    The graph is broken at each in turn, and is compiled but for that call. None if several calls do, or none.
    """
    culprit, settings = unproved.culprit, ablator.experiments.case.settings
    if culprit is None or culprit.necessary is not None or culprit.stage in (*GRAPH_STAGES, DYNAMO, RUNTIME):
        return None
    if "expected" in culprit.details:  # what it made was seen beside what is right: a break there changes it too
        return None
    if _find_path(ablator) != COMPILE or settings.fullgraph or _has_own_backend(ablator):
        return None
    calls = find_captured_calls(ablator.trial.ledger)
    if not 1 < len(calls) <= _MOST_CALLS:
        return None
    repairing = [name for name, call in calls.items() if ablator.is_repaired_by(GraphBreak(((name, call),)))]
    if len(repairing) != 1:
        return None
    blamed = find_captured_calls(ablator.trial.ledger, culprit.site, culprit.nodes) if culprit.is_named else {}
    if list(blamed) != repairing:
        culprit = Culprit(culprit.stage, None, repairing[0], repairing[0].rpartition(".")[2])
    return Attribution(replace(culprit, necessary=True, confidence="low"))


# Settings around the frames of an error that are tried off.
_MOST_SETTINGS = 4


def _attribute_to_setting(ablator: Ablator, unproved: Attribution) -> Attribution | None:
    """The function that an error came through and that a setting, on by default, runs; nothing is proved otherwise."""
    failure, culprit = ablator.trial.observation.failure, unproved.culprit
    if failure is None or (culprit is not None and culprit.necessary is not None):
        return None
    for place in failure.guarded[:_MOST_SETTINGS]:
        if ablator.is_repaired_by(SETTINGS[place.config]({place.key: False})):
            stage = find_file_stage(place.file) or FUNCTIONALIZATION
            details: DetailsJson = {"setting": f"{place.config}.{place.key}"}
            found = Culprit(stage, None, place.function, place.function, source=place.file, line=place.line)
            return Attribution(replace(found, necessary=True, details=details))
    return None


def _with_frames(ablator: Ablator, culprit: Culprit | None) -> Culprit | None:
    """The culprit of an error with the compiler's code that raised it, which places a culprit without a place."""
    failure = ablator.trial.observation.failure
    if culprit is None or failure is None or not failure.raised:
        return culprit
    shown: DetailsJson = {"raised": frames_to_json(failure.raised)}
    if failure.given:
        shown["given"] = list(failure.given)
    culprit = replace(culprit, details={**culprit.details, **shown})
    if culprit.source is not None or culprit.necessary:
        return culprit
    # What a compile without it did not repair only handed the error on.
    cleared = {ablation.toggle for ablation in ablator.ablations if not ablation.repairs}
    file, line, _ = next((frame for frame in failure.raised if f"veto {frame[2]}" not in cleared), failure.raised[0])
    stage = find_file_stage(file) or culprit.stage
    # It may complain about what a later stage gave it.
    if stage in _EARLIER and culprit.stage not in _EARLIER[: _EARLIER.index(stage) + 1]:
        return culprit
    if culprit.stage == DYNAMO and stage == DECOMPOSITION:
        stage = FAKE_TENSOR  # ahead of functionalization, decompositions compute fake tensors alone
    return replace(culprit, stage=stage, source=file, line=line)


def _attribute_to_rewrites(ablator: Ablator) -> Attribution | None:
    """The rewrite at fault, and what else is where the result stays wrong without it."""
    attribution = look_in_order(ablator, Shows.ANYWHERE)
    if attribution is None or attribution.culprit is None or attribution.culprit.necessary is not False:
        return attribution
    if ablator.trial.observation.failure is not None and find_failing_rewrite(ablator.trial) is None:
        return None  # it moves values, and what raises was not under way in it and raises without it
    refused = Prover(ablator).names([step.label for step in select_semantic_steps(ablator.steps)])
    experiments = ablator.experiments.under(ablator.how.under(Veto(tuple(refused))))
    trial = ablator.run_trial(experiments.how)
    if ablator.repairs(trial):
        return attribution
    second = look_at_sides(replace(ablator, experiments=experiments, trial=trial))  # the table of ablations is one
    if second is None or second.culprit is None:
        return attribution
    return replace(attribution, contributors=[second.culprit, *second.contributors])


def _attribute_around_rewrites(ablator: Ablator) -> Attribution:
    """Look around the graph passes; else take the first backend of the ladder that shows the divergence."""
    path = _find_path(ablator)
    if path == EXPORT:
        return look_in_order(ablator, Shows.IN_PROGRAM) or _attribute_by_ladder(ablator)
    if _has_own_backend(ablator):
        found = look_in_order(ablator, Shows.IN_PROGRAM) or _attribute_under(ablator, Backend("inductor"))
        if found is None and ablator.experiments.case.settings.backend in dict(LADDER):  # torch's
            found = look_in_order(ablator, Shows.IN_GRAPHS)
        return found or _attribute_by_ladder(ablator)
    shared = _attribute_under(ablator, CompilePath(COMPILE)) if path in (AOTI, CACHED) else None
    return shared or look_around_rewrites(ablator) or _attribute_with_casts(ablator) or _attribute_by_ladder(ablator)


def _find_path(ablator: Ablator) -> str:
    return find_path(ablator.experiments.case.settings, ablator.how)


def _has_own_backend(ablator: Ablator) -> bool:
    return ablator.how.backend is None and ablator.experiments.case.settings.backend != "inductor"


def _attribute_by_ladder(ablator: Ablator) -> Attribution:
    """The first backend that shows the divergence names the stage; else it lies behind the graphs.

    Where that is not Inductor but a backend of the case's own, it is at fault if Inductor alone is right. Of a program
    captured by export, the capture is at fault, or AOTInductor if the exported program alone is right.
    """
    path = _find_path(ablator)
    if path != COMPILE:
        compiled = path == AOTI and ablator.is_repaired_by(CompilePath(EXPORT), record=False)
        # Of the program as it was captured, dynamo's own capture is run.
        stage, blamed, right = (CODEGEN, AOTI, ()) if compiled else (DYNAMO, EXPORT, (CAPTURE_ONLY,))
        found = _attribute_to_path(ablator, stage, blamed, CompilePath(COMPILE), *right)
        return found or Attribution(Culprit(stage, None, None, UNKNOWN, confidence="low", details={"path": path}))
    showing = (name for each, name in LADDER if not ablator.is_repaired_by(Backend(each), record=False))
    stage = next(showing, LOWERING)
    if stage == LOWERING and _has_own_backend(ablator) and ablator.is_repaired_by(Backend("inductor")):
        label = make_backend_label(ablator.experiments.case.settings.backend)
        return Attribution(Culprit.from_label(label, necessary=True))
    family = _find_operator(ablator)  # tells bugs apart, though it need not be at fault
    details: DetailsJson = {"output of": family} if family else {}
    named = family if _makes_one_call(ablator.trial) else None  # no other can be at fault
    return Attribution(Culprit(stage, None, named, family or UNKNOWN, confidence="low", details=details))


_BLAMED = {EXPORT: "torch.export", AOTI: "AOTInductor"}


def _attribute_to_path(ablator: Ablator, stage: str, path: str, *right: CompileChange) -> Attribution | None:
    """The capture by torch.export, or AOTInductor, proved by a compile without it that is right when it runs.

    It goes by the operator whose result is another one. None where that is not known, or the other compile fails too.
    """
    wrong = (each.name for each in ablator.trial.judgement.comparisons if each.finding not in AGREEING)
    name, graphs = next(wrong, None), ablator.trial.ledger.exported
    producer = find_producer(graphs[0], name) if name is not None and graphs else None
    if producer is None or not ablator.is_repaired_by(*right, record=False):
        return None
    family = producer.partition(".")[0]
    details: DetailsJson = {"path": path, "output of": family}
    return Attribution(Culprit(stage, None, _BLAMED[path], family, necessary=True, details=details))


def _attribute_under(ablator: Ablator, change: CompileChange) -> Attribution | None:
    """What is at fault in a compile with less of the case's own that fails alike; None where it does not."""
    trial, repaired = ablator.attempt_under(change)
    if repaired or not ablator.fails_alike(trial):
        return None
    experiments, steps = ablator.experiments.under(ablator.how.under(change)), measure_steps(trial.ledger)
    ablator = replace(ablator, experiments=experiments, trial=trial, steps=steps)  # the table of ablations is one
    return _attribute_to_rewrites(ablator) or _attribute_around_rewrites(ablator)


def _attribute_with_casts(ablator: Ablator) -> Attribution | None:
    """What is proved where generated code keeps the program's low-precision casts; else it leaves them out as well."""
    experiments = ablator.experiments
    kept = get_effective_setting(experiments.case.settings, ablator.how, CASTS)
    if kept or not experiments.runs.has_low_precision_casts:
        return None
    found = _attribute_under(ablator, KEPT_CASTS)
    return found if found is not None and found.is_proved else None


def _find_operator(ablator: Ablator) -> str | None:
    """The operator that computes the diverging output, as the user's program calls it; that in which it failed."""
    worst, failed = ablator.trial.judgement.worst, ablator.trial.ledger.failed_in
    if worst is None:
        return failed.rewrite if failed is not None and failed.rewrite != failed.stage else None
    for frame in ablator.trial.ledger.frames:
        record = frame.find_record(PRE_GRAD)
        if record is not None and record.snapshots:
            inputs = find_inputs(frame, record)
            passing = find_identity_nodes(record.snapshots[0], inputs) if inputs is not None else ()
            return find_producer(record.snapshots[0].graph, worst.name, passing)
    return None


def _makes_one_call(trial: Trial) -> bool:
    """Return whether the program is one graph with one call."""
    records = [frame.find_record(PRE_GRAD) for frame in trial.ledger.frames]
    graphs = [record.snapshots[0].graph for record in records if record is not None and record.snapshots]
    return len(graphs) == 1 and sum(node.op.startswith("call_") for node in graphs[0].nodes) == 1


def find_first_rewrite(divergence: Divergence) -> Culprit | None:
    """Return the first suspected rewrite of one compile, unproved; None if there is none."""
    suspects = list_blamed_rewrites(divergence)
    return replace(make_rewrite_culprit(suspects[0]), confidence="low") if suspects else None


def find_producer(graph: fx.Graph, output: str, passing: Collection[str] = ()) -> str | None:
    """Name of the operator behind output ``outN`` of dynamo's graph.

    Nodes whose names are ``passing`` give back their first argument itself, and have made nothing.
    """
    result = list(graph.nodes)[-1].args[0]
    index = output.rsplit("out", 1)[-1]
    listed = list(result) if isinstance(result, (tuple, list)) else [result]
    node = listed[int(index)] if index.isdigit() and int(index) < len(listed) else listed[0]
    while isinstance(node, fx.Node) and (node.target is operator.getitem or node.name in passing):
        node = node.args[0]
    target = getattr(node, "target", None)
    return target if isinstance(target, str) else getattr(target, "__name__", None)


def find_known_culprit(divergence: Divergence, verdict: Verdict, known: Collection[tuple[str, str]]) -> Culprit | None:
    """The first suspect, if what it would be reported as is known already.

    ``known`` are signatures, each with the kind of its verdict; their causes do not count.
    """
    if not known or not verdict.is_bug:
        return None
    suspect = find_first_rewrite(divergence)
    places = {(drop_fingerprint(signature), kind) for signature, kind in known}
    return suspect if suspect is not None and (suspect.signature, verdict.kind) in places else None


def prove_again(ablator: Ablator, culprit: Culprit) -> Culprit | None:
    """The culprit with its proof: a compile without its family, whose graphs are interpreted, is right.

    The family is refused as a whole, because its members take each other's place and the signature is that of them all.
    None if something stays wrong, so that the case shows another bug too; if the bug needs generated code to show; or
    if there is no time.
    """
    how = ablator.how.under(Veto((make_family_veto(culprit.stage, culprit.rewrite or ""),)))
    how = replace(how, screen=True, record=ablator.replays)
    try:
        # The failing trial may be a full compile, of which a screen may show nothing.
        if not (ablator.trial.how.screen or ablator.screens):
            return None
        _, repaired = ablator.attempt(how, f"veto of the family {culprit.family}")
    except OutOfTime:
        return None
    return replace(culprit, necessary=True, confidence="high") if repaired else None
