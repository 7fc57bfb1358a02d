"""From a case that takes its process down to the part of the compiler that does, by trials in other processes.

The search is the same code in every process: it looks up the trials that were made, and where it asks for the first
that was not, the process makes that one (:meth:`LossAblator.run_trial`), survives it or is lost.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from torch._ops import OpOverload

from fuzzcompile.compiler.compile_changes import Backend, InductorSettings, Lowered, OnlyRewrites, Undecomposed
from fuzzcompile.compiler.functional_run import OperatorMode
from fuzzcompile.compiler.kernels import kernel_patches
from fuzzcompile.compiler.kernels.kernel_loops import find_definition
from fuzzcompile.compiler.kernels.lowering_control import EVERYTHING, Control, can_fall_back, find_lowering_source
from fuzzcompile.compiler.operators.decompositions import find_decomposition, find_operator, read_decomposition_table
from fuzzcompile.compiler.session import Compilation, find_path, get_effective_setting
from fuzzcompile.compiler.torch_config import MISSING
from fuzzcompile.compiler.watch.ledger import Label, Ledger
from fuzzcompile.compiler.watch.rule_labels import find_source
from fuzzcompile.diagnosis.attribution.culprit import UNKNOWN, Ablator, Attribution, Culprit, OutOfTime, Workaround
from fuzzcompile.diagnosis.attributor import find_workaround
from fuzzcompile.diagnosis.kernels import kernel_proofs as proofs
from fuzzcompile.diagnosis.kernels.code_generators import LOOPS, get_generator
from fuzzcompile.diagnosis.kernels.watched_graph import LoweredStep
from fuzzcompile.diagnosis.oracle.judgement import Judgement
from fuzzcompile.diagnosis.stages.graph_passes import Prover, RewritingStage, prove_marking_rewrite
from fuzzcompile.diagnosis.stages.stage_table import CUDAGRAPHS, LADDER, STAGES
from fuzzcompile.diagnosis.trials.case_runs import Trial
from fuzzcompile.model import stages
from fuzzcompile.model.contract import COMPILE
from fuzzcompile.model.culprit_contract import CulpritJson
from fuzzcompile.model.errors import FuzzcompileError
from fuzzcompile.model.facts import facts
from fuzzcompile.model.judge_task import LossTrial
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.run import runs
from fuzzcompile.run.case_program import build
from fuzzcompile.run.observation import Failure, Observation

# How often a process has to survive a trial, and at most, within so many seconds: of one that writes beyond its memory,
# three of five survived the first and one the second (measured).
_FEWEST_REPEATS, _MOST_REPEATS, _REPEATING = 3, 6, 6.0


class TrialMade(Exception):
    """A trial was made that nobody had made before, and it did not take this process down."""

    def __init__(self, trial: LossTrial) -> None:
        super().__init__(trial.change)
        self.trial = trial


@dataclass(frozen=True)
class LossAblator(Ablator):
    """Looks up trials that other processes made, and makes the first that none did.

    ``announce`` hears of that one once eager mode has finished, before it is made. If the search ``is_over``, none is.
    """

    made: Sequence[LossTrial] = ()
    is_over: bool = False
    announce: Callable[[str], object] = field(default=lambda change: None, compare=False)

    def run_trial(self, how: Compilation) -> Trial:
        """The trial that was made.

        Raises:
            TrialMade: nobody had made it.
            OutOfTime: nobody had, and nobody may.
        """
        made = self.find_made(how)
        if made is not None:
            failure = None if made.failure is None else Failure(*made.failure)
            ledger = Ledger(offered=[Label(*label) for label in made.labels])
            judgement = Judgement(Verdict(made.verdict), made.comparisons)
            return Trial(how, Observation(failure=failure), judgement, ledger, 0.0)
        if self.is_over:
            raise OutOfTime
        self.experiments.run_eager()
        change = _describe_compile(how)
        self.announce(change)
        try:
            made = _keep_trial(change, self._try_repeatedly(how))
        except FuzzcompileError:
            raise
        except Exception as error:  # broken memory makes our own code raise anything
            made = LossTrial(change, str(self.verdict), failure=(type(error).__name__, str(error)))
        if made.failure is not None and made.failure[0] == MemoryError.__name__:  # it asks for nonsense
            made = replace(made, verdict=str(self.verdict), failure=None)
        raise TrialMade(made)

    def _try_repeatedly(self, how: Compilation) -> Trial:
        """The first trial of several that is wrong: what writes out of bounds is noticed when memory is next used."""
        ends = time.monotonic() + _REPEATING
        for number in range(_MOST_REPEATS):
            if number >= _FEWEST_REPEATS and time.monotonic() > ends:
                break
            trial = self.experiments.trial(replace(how, timed=True))  # which calls it many times
            if trial.judgement.verdict.is_bug:
                break
        return trial

    def find_made(self, how: Compilation) -> LossTrial | None:
        """What was kept of a trial; None if nobody made it."""
        change = _describe_compile(how)
        return next((trial for trial in self.made if trial.change == change), None)


def _describe_compile(how: Compilation) -> str:
    """Whatever changes what is compiled: the same text in each process."""
    watched = ("graphs interpreted",) * how.screen + ("kernels watched",) * how.kernels
    return "; ".join((*(change.text for change in how.changes), *watched))


def _keep_trial(change: str, trial: Trial) -> LossTrial:
    failure, ledger = trial.observation.failure, trial.ledger
    labels = (
        (label.stage, label.pass_name, label.rewrite, label.source, label.line)
        for label in dict.fromkeys(ledger.offered)
    )
    nodes = ((each, name, each.find_node(name)) for each in ledger.lowered for name in each.labels)
    able = (
        LoweredStep(each, (name,)).name for each, name, node in nodes if node is not None and can_fall_back(each, node)
    )
    kernels = ((each, kernel) for each in ledger.lowered for kernel in each.kernels if not kernel.extern)
    steps = (LoweredStep(each, kernel.nodes, kernel) for each, kernel in kernels)
    written = (name for step in steps if step.kernel for name in step.list_code_operators(*step.kernel.writes))
    return LossTrial(
        change,
        str(trial.judgement.verdict),
        trial.judgement.comparisons,
        None if failure is None else (failure.type_name, failure.message),
        tuple(labels),
        tuple(dict.fromkeys(able)),
        tuple(dict.fromkeys(written)),
    )


def attribute_loss(ablator: LossAblator, stack: CulpritJson | None) -> tuple[Attribution, str | None]:
    """The culprit without which a process survives, and a note that says why there is none.

    ``stack`` is what the Python stack of a lost process says: it is tried first, and adds to what is proved.
    """
    settings, attribution, note = ablator.experiments.case.settings, Attribution(), None
    if find_path(settings, ablator.how) != COMPILE or settings.backend != "inductor":
        return attribution, "what takes the process down is looked for in compiles by Inductor alone"
    try:
        if ablator.repairs(ablator.run_trial(ablator.how)):
            return attribution, "a process that compiles and runs it once survives: no change of the compile was tried"
        attribution = _find_culprit(ablator, stack) or attribution
        if attribution.culprit is None:
            note = "the process is lost, whatever was changed about the compile"
        elif attribution.is_proved:
            attribution.workaround = _find_workaround(ablator, attribution.culprit)
    except OutOfTime:
        attribution.cut_off = True
        note = "the time was over before anything was found without which the process survives"
    attribution.ablations = list(dict.fromkeys(ablator.ablations))
    if attribution.culprit is not None and stack is not None:
        attribution.culprit = _with_stack(attribution.culprit, stack)
    return attribution, note


def _find_workaround(ablator: LossAblator, culprit: Culprit) -> Workaround | None:
    before = len(ablator.ablations)
    workaround = find_workaround(ablator, culprit)
    return workaround and replace(workaround, compiles=len(ablator.ablations) - before)


def _with_stack(culprit: Culprit, stack: CulpritJson) -> Culprit:
    """The culprit with the stack as details, which gives a place to one of the same stage that has none."""
    culprit = replace(culprit, details={**stack["details"], **culprit.details})
    if culprit.source is not None or stack["stage"] != culprit.stage:
        return culprit
    return replace(culprit, source=stack["source"], line=stack["line"], rewrite=culprit.rewrite or stack["rewrite"])


def _find_culprit(ablator: LossAblator, stack: CulpritJson | None) -> Attribution | None:
    interpreted = replace(ablator.how, screen=True)
    if not ablator.attempt(interpreted, "no code generated")[1]:
        cleared = ablator.is_repaired_by(Backend(LADDER[-1][0]), record=False)
        return _prove_pass(ablator, stack) if cleared else _attribute_to_capture(ablator)
    looks = [_prove_setting, _prove_fusion, _prove_operator]
    if stack is not None and stack["stage"] == stages.LOWERING:
        looks.insert(0, looks.pop())
    attributions = (look(ablator, stack) for look in looks)
    return next((named for named in attributions if named is not None), None)


def _attribute_to_capture(ablator: LossAblator) -> Attribution:
    """The first backend of the ladder that loses its process names the stage; of a decomposition, its operator."""
    stage = next(name for backend, name in LADDER if not ablator.is_repaired_by(Backend(backend), record=False))
    named = _find_decomposed_operator(ablator) if stage == stages.DECOMPOSITION else None
    if named is not None:
        operator, place = named
        return Attribution(Culprit.from_operator(stage, operator, place, necessary=True))
    necessary = None if stage == LADDER[0][1] else True  # nothing is left to be compiled without the first
    return Attribution(Culprit(stage, None, None, UNKNOWN, necessary=necessary, confidence="low"))


def _find_decomposed_operator(ablator: LossAblator) -> tuple[str, tuple[str | None, int | None]] | None:
    """The operator without whose decomposition alone the process survives, and the place of that decomposition."""
    table, called = read_decomposition_table(), list[OpOverload]()

    def call(operator: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        called.append(operator)
        return operator(*args, **kwargs)

    case, device = ablator.experiments.case, ablator.experiments.device
    program = build(case, device)
    runs.observe(case, program, program.model, around=OperatorMode(call))
    decomposed = dict(found for each in called if (found := find_decomposition(each, table)) is not None)
    sources = {str(operator): find_source(function) for operator, function in decomposed.items()}
    named, _ = proofs.bisect_candidates(ablator, list(sources), Undecomposed)
    return None if named is None else (named, sources[named])


def _prove_pass(ablator: LossAblator, stack: CulpritJson | None) -> Attribution | None:
    """The rewrite of a graph, among those that could be refused, without which the process survives; else the stage.

    What was offered is known of a compile that refused it all, as no other one survived.
    """
    refusing, alive = ablator.attempt(replace(ablator.how.under(OnlyRewrites(())), screen=True), "no rewrite")
    if alive:
        ablator = replace(ablator, trial=replace(ablator.trial, ledger=refusing.ledger))
        frames = {frame["function"] for frame in stack["details"].get("stack", [])} if stack is not None else set()
        running = next((label for label in refusing.ledger.offered if label.rewrite in frames), None)
        named = Prover(ablator).prove(running, None) if running is not None else None
        return named or prove_marking_rewrite(ablator)
    for stage in STAGES:
        if isinstance(stage, RewritingStage) and ablator.attempt_under(InductorSettings(stage.settings[-1]))[1]:
            return Attribution(Culprit(stage.name, None, None, UNKNOWN, necessary=True, confidence="low"))
    return None


class _Part(NamedTuple):
    """A part of the compiler behind the graphs that settings switch off."""

    stage: str
    name: str
    place: tuple[str | None, int | None]
    without: Mapping[str, object]


def _list_parts(ablator: LossAblator) -> dict[str, _Part]:
    """The parts that settings of Inductor switch off, which the case has on, by these settings."""
    off, places, generator = facts().settings.switching_off, facts().places, get_generator(None)
    loop, flags = generator.find_code(LOOPS[0], vectorised=True), kernel_patches.FLAGS
    built = find_definition(f"{flags.module}:{flags.attribute}")
    parts = [
        *(
            _Part(each.stage, each.name, find_definition(each.place), each.without)
            for name, each in facts().decisions.items()
            if name != "fusion"  # a look of its own (`_prove_fusion`): what is generated for it is suspected first
        ),
        _Part(stages.LOWERING, "IndexPropagation", find_definition(places.index_propagation), off["IndexPropagation"]),
        _Part(stages.CODEGEN, "AssertScalar", find_definition(places.scalar_check), off["AssertScalar"]),
        *(_Part(stages.CODEGEN, name, built, off[name]) for name in generator.strict.values() if name in off),
        _Part(stages.CODEGEN, "template", (None, None), proofs.LIBRARY),
        _Part(stages.CODEGEN, loop.name, loop[1:], generator.scalars),
        *(_Part(CUDAGRAPHS.name, CUDAGRAPHS.name, (None, None), settings) for settings in CUDAGRAPHS.settings),
    ]

    def changes(key: str, value: object) -> bool:
        return get_effective_setting(ablator.experiments.case.settings, ablator.how, key) not in (MISSING, value)

    return {
        InductorSettings(part.without).text: part
        for part in parts
        if any(changes(key, value) for key, value in part.without.items())
    }


def _prove_setting(ablator: LossAblator, stack: CulpritJson | None) -> Attribution | None:
    """The part that a setting of Inductor switches off and without which alone the process survives."""
    parts = _list_parts(ablator)

    def switch_off(names: Sequence[str]) -> InductorSettings:
        merged = {key: value for name in names for key, value in parts[name].without.items()}
        return InductorSettings(merged, needs_code=True)

    if not ablator.attempt_under(switch_off(list(parts)))[1]:
        return None
    named, _ = proofs.bisect_candidates(ablator, list(parts), switch_off)
    if named is None:
        return None
    stage, name, (source, line), without = parts[named]
    if without is get_generator(None).scalars:
        return Attribution(_make_vector_culprit(ablator, switch_off([named])))
    return Attribution(Culprit(stage, None, name, name, source=source, line=line, necessary=True))


def _make_vector_culprit(ablator: LossAblator, scalars: InductorSettings) -> Culprit:
    """The operator whose code in vectors takes the process down; all such code, where none alone is enough."""
    generator, how = get_generator(None), replace(ablator.how.under(scalars), kernels=True)
    with contextlib.suppress(OutOfTime):
        ablator.run_trial(how)
        made = ablator.find_made(how)
        operators = list(made.code_operators) if made is not None else []
        operator, _ = proofs.find_right_in_scalars(ablator, generator, operators)
        if operator is not None:
            code = generator.find_code(operator, vectorised=True)
            return Culprit(stages.CODEGEN, None, code.name, operator, (), code.source, code.line, necessary=True)
    code = generator.find_code(LOOPS[0], vectorised=True)
    return Culprit(stages.CODEGEN, None, code.name, LOOPS[0], (), code.source, code.line, necessary=True)


def _prove_fusion(ablator: LossAblator, stack: CulpritJson | None) -> Attribution | None:
    """Loops that are computed together, if the process survives where each operator has a kernel of its own.

    The scheduler seldom fuses what then writes out of bounds: unless the process was lost in it, the code is suspected.
    """
    if not ablator.attempt_under(proofs.with_isolated_kernels((EVERYTHING,)))[1]:
        return None
    stage = stages.SCHEDULER if stack is not None and stack["stage"] == stages.SCHEDULER else stages.CODEGEN
    code = proofs.find_fusion_source(ablator, stage, get_generator(None), "fusion")
    culprit = Culprit(stage, None, code.name, "fusion", source=code.source, line=code.line)
    return Attribution(replace(culprit, necessary=True, confidence="low"))


def _prove_operator(ablator: LossAblator, stack: CulpritJson | None) -> Attribution | None:
    """The operator that ATen must compute for the process to survive.

    Its lowering is certainly at fault where the process was lost in that, and else suspected before its code.
    """
    change = Lowered(Control(fallbacks=(EVERYTHING,)), "ATen computes all that it can")
    if not ablator.attempt_under(change)[1]:
        return None
    made = ablator.find_made(ablator.how.under(change))
    named, _ = proofs.bisect_candidates(ablator, made.operators if made is not None else (), proofs.with_aten)
    operator = None if named is None else find_operator(named)
    if named is None or operator is None:
        return None
    behind = (stages.LOWERING, stages.SCHEDULER, stages.CODEGEN)
    known = stack is not None and stack["source"] is not None and stack["stage"] in behind
    stage = stack["stage"] if stack is not None and known else stages.LOWERING
    place = find_lowering_source(operator) if stage == stages.LOWERING else (None, None)
    confidence = "high" if known else "low"
    return Attribution(Culprit.from_operator(stage, named, place, necessary=True, confidence=confidence))
