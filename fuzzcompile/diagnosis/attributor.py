"""From a failing trial to its culprit: stages name suspects in search order, ablations prove them."""

from __future__ import annotations

import functools
import operator
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from torch import fx

from fuzzcompile.compiler.compile_changes import (
    Backend,
    CompileChange,
    CompilePath,
    GraphBreak,
    InductorSettings,
    OmittedPass,
    TracingSettings,
    Veto,
)
from fuzzcompile.compiler.custom_code import make_backend_label, make_config_without
from fuzzcompile.compiler.functional_run import find_identity_nodes
from fuzzcompile.compiler.graph_breaks import find_captured_calls, is_function
from fuzzcompile.compiler.session import find_path
from fuzzcompile.compiler.torch_config import MISSING, get_setting
from fuzzcompile.compiler.watch.rule_labels import make_family_veto
from fuzzcompile.diagnosis.attribution.ablation import Ablator, Divergence, OutOfTime
from fuzzcompile.diagnosis.attribution.culprit import UNKNOWN, Attribution, Culprit, Workaround, frames_to_json
from fuzzcompile.diagnosis.attribution.steps import Step, find_inputs, measure_steps, select_semantic_steps
from fuzzcompile.diagnosis.attribution.veto_proof import Prover, find_failing_rewrite
from fuzzcompile.diagnosis.oracle.judgement import largest_error
from fuzzcompile.diagnosis.stages.backend_stages import with_asserted_layout
from fuzzcompile.diagnosis.stages.graph_passes import list_blamed_rewrites, make_rewrite_culprit
from fuzzcompile.diagnosis.stages.stage_table import (
    LADDER,
    get_stage,
    look_around_rewrites,
    look_at_rewrites,
    look_at_sides,
)
from fuzzcompile.diagnosis.stages.ways import attempt_backend
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.model.contract import AOTI, COMPILE, EXPORT, PATHS
from fuzzcompile.model.culprit_contract import DetailsJson
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
    find_file_stage,
)
from fuzzcompile.model.verdicts import Verdict

# Workarounds: settings that a user can put into the program today, run and seen to repair the divergence.

# Compiles that the search may spend; candidates that are screened first cost no compile until they help.
_COMPILES = 4
# The rest of the compiler without the stage at fault, the one that keeps most of it first.
_BACKENDS = ("aot_eager_decomp_partition", "aot_eager")


def find_workaround(ablator: Ablator, culprit: Culprit) -> Workaround | None:
    """The narrowest setting that repairs the divergence; None if there is none, or no time to look for it.

    Where eager mode is what is wrong, a setting that made compiled agree with it would mend nothing.
    """
    kernel = culprit.details.get("aten_kernel")
    if kernel is not None and kernel["wrong_in"] == "eager":
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
        if repaired:
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
    yield from map(InductorSettings, _iter_settings(culprit, ablator))
    tracing = get_stage(culprit.stage).tracing_settings(culprit)
    if tracing:
        yield TracingSettings(tracing)
    if culprit.stage not in GRAPH_STAGES:
        calls = find_captured_calls(ablator.trial.ledger, culprit.site, culprit.nodes)
        functions = tuple((name, call) for name, call in calls.items() if is_function(call))
        if functions:
            yield GraphBreak(functions)
    path = find_path(ablator.experiments.case.settings, ablator.how)
    if path != COMPILE:
        yield from map(CompilePath, PATHS[: PATHS.index(path)])
        return
    own = ablator.experiments.case.settings.backend != "inductor"
    yield from map(Backend, ("inductor", *_BACKENDS) if own else _BACKENDS)


def _iter_settings(culprit: Culprit, ablator: Ablator) -> Iterator[dict[str, object]]:
    """The stage's settings, as far as the installed torch has them and they change anything."""
    own = ablator.experiments.case.settings.own_config
    for settings in get_stage(culprit.stage).workarounds(culprit, own):
        changed = {
            key: value for key, value in settings.items() if own.get(key, get_setting(key)) not in (MISSING, value)
        }
        if changed:
            yield changed


# Stages that the ladder has shown to be right where it names a later one.
_EARLIER = (DYNAMO, FUNCTIONALIZATION)


@dataclass(frozen=True)
class Attributor:
    """Attributes the failing trial of an ablator, whose rewrites moved the result by ``steps``.

    ``thorough`` tries every backend of the ladder that PyTorch's issue form asks for, whatever is at fault.
    """

    ablator: Ablator
    steps: Sequence[Step]
    thorough: bool = False

    @property
    def experiments(self) -> Experiments:
        """The runs and compiles of the case."""
        return self.ablator.experiments

    @functools.cached_property
    def divergence(self) -> Divergence:
        """Divergence of the failing trial, as the stages read it."""
        return Divergence.from_ablator(self.ablator, self.steps)

    def run(self) -> Attribution:
        """Look where the table of the stages says, in its order; out of time, name the first suspect as it stands."""
        attribution: Attribution | None = None
        try:
            attribution = self._attribute_to_rewrites() or self._attribute_around_rewrites()
            if attribution.culprit is not None:
                attribution.workaround = find_workaround(self.ablator, attribution.culprit)
            if self.thorough:
                self._try_ladder()
        except OutOfTime:
            attribution = attribution or Attribution(find_first_rewrite(self.divergence), cut_off=True)
        attribution = with_asserted_layout(attribution, self.ablator.trial)
        attribution.ablations = self.ablator.ablations
        attribution.culprit = self._with_frames(attribution.culprit)
        return attribution

    def _with_frames(self, culprit: Culprit | None) -> Culprit | None:
        """The culprit of an error with the compiler's code that raised it, which places a culprit without a place."""
        failure = self.ablator.trial.observation.failure
        if culprit is None or failure is None or not failure.raised:
            return culprit
        culprit = replace(culprit, details={**culprit.details, "raised": frames_to_json(failure.raised)})
        if culprit.source is not None or culprit.necessary:
            return culprit
        # What a compile without it did not repair only handed the error on.
        cleared = {ablation.toggle for ablation in self.ablator.ablations if not ablation.repairs}
        frame = next((frame for frame in failure.raised if f"veto {frame[2]}" not in cleared), failure.raised[0])
        return _place_culprit(culprit, frame)

    def _attribute_to_rewrites(self) -> Attribution | None:
        """The rewrite at fault, and what else is where the result stays wrong without it."""
        attribution = look_at_rewrites(self.ablator, self.divergence)
        if attribution is None or attribution.culprit is None or attribution.culprit.necessary is not False:
            return attribution
        trial = self.ablator.trial
        if trial.observation.failure is not None and find_failing_rewrite(trial) is None:
            return None  # it moves values, and what raises was not under way in it and raises without it
        prover = Prover(self.ablator, self.steps)
        refused = prover.names([step.label for step in select_semantic_steps(self.steps)])
        experiments = self.experiments.under(self.experiments.how.under(Veto(tuple(refused))))
        trial = self.ablator.run_trial(experiments.how)
        if self.ablator.repairs(trial):
            return attribution
        ablator = replace(self.ablator, experiments=experiments, trial=trial)  # the table of ablations is one
        second = look_at_sides(ablator, Divergence.from_ablator(ablator, self.steps))
        if second is None or second.culprit is None:
            return attribution
        return replace(attribution, contributors=[second.culprit, *second.contributors])

    def _attribute_around_rewrites(self) -> Attribution:
        """Look around the graph passes; else take the first backend of the ladder that shows the divergence."""
        if self._own_backend or self._path == EXPORT:
            return self._attribute_by_ladder()
        shared = self._attribute_to_compile() if self._path == AOTI else None
        if shared is not None:
            return shared
        return look_around_rewrites(self.ablator, self.divergence) or self._attribute_by_ladder()

    @property
    def _path(self) -> str:
        return find_path(self.experiments.case.settings, self.experiments.how)

    def _try_ladder(self) -> None:
        """The backends, each of which adds a part of the compiler, as far as they were not tried yet."""
        tried = {ablation.toggle for ablation in self.ablator.ablations}
        if self.ablator.replays or self._own_backend or self._path != COMPILE:
            return
        for backend, _ in LADDER:
            if not tried & {Backend(backend).text, Backend(backend).workaround}:
                attempt_backend(self.ablator, Backend(backend))

    def _attribute_by_ladder(self) -> Attribution:
        """The first backend that shows the divergence names the stage; else it lies behind the graphs.

        Where that is not Inductor but a backend of the case's own, it is at fault if Inductor alone is right.
        """
        if self._path != COMPILE:
            return self._attribute_to_export()
        stage = LOWERING
        for backend, name in LADDER:
            if not attempt_backend(self.ablator, Backend(backend)):
                stage = name
                break
        else:
            if self._own_backend and attempt_backend(self.ablator, Backend("inductor")):
                label = make_backend_label(self.experiments.case.settings.backend)
                return Attribution(Culprit.from_label(label, necessary=True))
        family = self._find_operator()  # tells bugs apart, though it need not be at fault
        details: DetailsJson = {"output of": family} if family else {}
        return Attribution(Culprit(stage, None, None, family or UNKNOWN, confidence="low", details=details))

    def _attribute_to_compile(self) -> Attribution | None:
        experiments = self.experiments.under(self.experiments.how.under(CompilePath(COMPILE)))
        trial, repaired = self.ablator.attempt(experiments.how, CompilePath(COMPILE).text)
        if repaired or not self.ablator.fails_alike(trial):
            return None
        ablator = replace(self.ablator, experiments=experiments, trial=trial)  # the table of ablations is one
        attributor = Attributor(ablator, measure_steps(trial.ledger, ablator.count))
        return attributor._attribute_to_rewrites() or attributor._attribute_around_rewrites()

    def _attribute_to_export(self) -> Attribution:
        """Attribute to the capture by export, or to AOTInductor if the exported program alone is right."""
        stage = DYNAMO
        if self._path == AOTI and attempt_backend(self.ablator, CompilePath(EXPORT)):
            stage = CODEGEN
        return Attribution(Culprit(stage, None, None, UNKNOWN, confidence="low", details={"path": self._path}))

    @property
    def _own_backend(self) -> bool:
        return self.experiments.how.backend is None and self.experiments.case.settings.backend != "inductor"

    def _find_operator(self) -> str | None:
        """The operator that computes the diverging output, as the user's program calls it; that in which it failed."""
        worst = self.ablator.trial.judgement.worst
        failed = self.ablator.trial.ledger.failed_in
        if worst is None:
            return failed.rewrite if failed is not None and failed.rewrite != failed.stage else None
        for frame in self.ablator.trial.ledger.frames:
            record = frame.find_record(PRE_GRAD)
            if record is not None and record.snapshots:
                inputs = find_inputs(frame, record)
                passing = find_identity_nodes(record.snapshots[0], inputs) if inputs is not None else ()
                return find_producer(record.snapshots[0].graph, worst.name, passing)
        return None


def _place_culprit(culprit: Culprit, frame: tuple[str, int, str]) -> Culprit:
    """The culprit in the file that raised, unless that complains about what a later stage gave it.

    Ahead of functionalization, decompositions compute fake tensors alone.
    """
    file, line, _ = frame
    stage = find_file_stage(file) or culprit.stage
    if stage in _EARLIER and culprit.stage not in _EARLIER[: _EARLIER.index(stage) + 1]:
        return culprit
    if culprit.stage == DYNAMO and stage == DECOMPOSITION:
        stage = FAKE_TENSOR
    return replace(culprit, stage=stage, source=file, line=line)


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


# Hits of bugs that are known: recognised by their first suspect, and proved by a veto without code generation.


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

    Returns:
        None if something stays wrong, so that the case shows another bug too; if the bug needs generated code to show;
        or if there is no time.
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
