"""The compiler on one screen: its stages in the order in which a program passes them, and the order of looking."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import NamedTuple

from fuzzcompile.compiler.compile_changes import CAPTURE_ONLY, TRACE_ONLY
from fuzzcompile.compiler.watch.ledger import Ledger, Snapshot
from fuzzcompile.compiler.watch.unseen import Unseen, get_gathered
from fuzzcompile.diagnosis.attribution.culprit import Ablator, Attribution, Culprit
from fuzzcompile.diagnosis.kernels.kernel_proofs import (
    prove_decision,
    prove_early_read,
    prove_templates,
    search_behind_graphs,
)
from fuzzcompile.diagnosis.stages import autograd_ways, backend_stages, graph_ways, tracing_ways
from fuzzcompile.diagnosis.stages import operator_ways as operators
from fuzzcompile.diagnosis.stages.graph_passes import Ground, RewritingStage, prove_marking_rewrite, prove_rewrites
from fuzzcompile.diagnosis.stages.own_choices import prove_compiling_branch, prove_own_setting
from fuzzcompile.diagnosis.stages.tracing_ways import prove_instruction
from fuzzcompile.diagnosis.stages.ways import Found, SideBySide, Stage, Way, doubt, prove_at_call, prove_without
from fuzzcompile.model import stages
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.run.ranks import NotOnAllRanks
from fuzzcompile.run.sharded_tensors import is_in_group

# Stages whose input is run beside what they make of it, each way in the order of looking.
_LOST, _OPERATORS, _KERNELS = operators.LOST_CHECKS, operators.OPERATORS, operators.KERNELS
_SYMBOLS = tracing_ways.SYMBOLS[stages.DYNAMO]
DYNAMO = SideBySide(
    stages.DYNAMO,
    (_LOST, tracing_ways.EFFECTS, tracing_ways.CALLS, tracing_ways.BRANCH, _SYMBOLS),
    cleared_by=CAPTURE_ONLY,
)
FUNCTIONALIZATION = SideBySide(
    stages.FUNCTIONALIZATION,
    (_LOST, *autograd_ways.AOT_AUTOGRAD, _OPERATORS, _KERNELS, tracing_ways.SYMBOLS[stages.FUNCTIONALIZATION]),
    TRACE_ONLY,
)
DECOMPOSITION = SideBySide(stages.DECOMPOSITION, (_OPERATORS, _KERNELS, graph_ways.GRAPHS))
FAKE_TENSOR = SideBySide(stages.FAKE_TENSOR, (_OPERATORS, graph_ways.METADATA))
PARTITION = SideBySide(stages.PARTITION, (graph_ways.SAVED, graph_ways.DRAWS, graph_ways.PARTS))

# Stages whose passes rewrite a graph: at torch level, before it is differentiated; at ATen level, before it is cut into
# forward and backward; under ``freezing``, of a graph whose parameters become constants; before it is lowered.
_NO_PATTERNS = {"pattern_matcher": False}
PRE_GRAD = RewritingStage(stages.PRE_GRAD, {"split_cat_fx_passes": False}, _NO_PATTERNS, {"use_pre_grad_passes": False})
JOINT_GRAPH = RewritingStage(stages.JOINT_GRAPH, _NO_PATTERNS, {"use_joint_graph_passes": False})
FREEZING = RewritingStage(stages.FREEZING, {"freezing": False})
POST_GRAD = RewritingStage(stages.POST_GRAD, _NO_PATTERNS, {"use_post_grad_passes": False})

# One setting decides about CUDA graphs alone; then the IR is looked at, the kernels, and the outputs.
LOWERING, SCHEDULER, CODEGEN = backend_stages.Lowering(), backend_stages.Scheduler(), backend_stages.Codegen()
CUDAGRAPHS, RUNTIME = backend_stages.Cudagraphs(), backend_stages.Runtime()
BACKEND_STAGES = (CUDAGRAPHS, LOWERING, SCHEDULER, CODEGEN, RUNTIME)

STAGES: tuple[Stage, ...] = (
    *(DYNAMO, PRE_GRAD, FUNCTIONALIZATION, DECOMPOSITION, FAKE_TENSOR, JOINT_GRAPH, PARTITION, FREEZING, POST_GRAD),
    *(LOWERING, SCHEDULER, CODEGEN, CUDAGRAPHS, RUNTIME),
)

Prove = Callable[[Ablator], Attribution | None]


class Shows(Enum):
    """Condition on where a divergence shows, under which a search step is worth its compiles."""

    ANYWHERE = "anywhere"
    """Wherever it shows: these looks come first, and what they name ends the search."""
    IN_PROGRAM = "in program"
    """In the text of the generated program: what it names ends the search around the rewrites."""
    CERTAINLY = "certainly"
    """Wherever it shows: what is proved ends the search; what repairs it only together stands for the graphs' side."""
    IN_GRAPHS = "in graphs"
    """Where interpreted graphs show it, first; where generated code alone does, last."""
    IN_CODE = "in code"
    """Where generated code alone shows it."""
    UNPROVED = "unproved"
    """Wherever all of these prove nothing: what it names overrides what they doubt."""
    UNSUSPECTED = "unsuspected"
    """Wherever all of these suspect nothing, or only the program that calls kernels which are right."""


class SearchStep(NamedTuple):
    """One step of the search for the culprit. The first step of a group that names anything decides for the group."""

    shows: Shows
    prove: Prove

    def look(self, ablator: Ablator) -> Attribution | None:
        """The culprit that the step names; none where it takes runs that several processes cannot make together."""
        try:
            return self.prove(ablator)
        except NotOnAllRanks as error:
            # Harmless: without a proof by a compile, confidence is low anyway.
            missed = Unseen("a step of the search for the culprit", str(error), (), "its suspects", harmless=True)
            get_gathered().note(missed)
            return None


def _prove_stage(stage: Stage) -> Prove:
    return lambda ablator: stage.prove(ablator, stage.suspects(ablator))


def _prove_symbol(ablator: Ablator) -> Attribution | None:
    """A number that is a symbol, where dynamo alone is wrong: it is so wherever an instruction reads it."""
    symbols = () if ablator.trial.observation.failure is not None else ablator.once(_SYMBOLS.find)
    if not symbols or ablator.is_repaired_by(CAPTURE_ONLY, record=False):
        return None
    return next(filter(None, (tracing_ways.prove_symbols(ablator, found) for found in symbols)), None)


def _prove_suspected_instruction(ablator: Ablator) -> Attribution | None:
    return prove_instruction(ablator, doubts=False) if DYNAMO.suspects(ablator) else None


def _prove_split(ablator: Ablator) -> Attribution | None:
    """Find how dynamo splits a graph of several processes, where dynamo alone is wrong."""
    if not is_in_group() or ablator.is_repaired_by(CAPTURE_ONLY, record=False):
        return None
    return prove_decision(ablator, {}, tracing=True)


def _prove_first(way: Way, *, proves_values: bool = False) -> Prove:
    """Find what parts first by a way, proved where a compile can do without it; of wrong values perhaps only then."""

    def prove(ablator: Ablator) -> Attribution | None:
        for found in ablator.once(way.find)[:1]:
            named = prove_without(ablator, found) or doubt(ablator, found)
            return named if named.is_proved or not (proves_values and ablator.is_of_values) else None
        return None

    return prove


def _prove_marking_rewrite(ablator: Ablator) -> Attribution | None:
    """The rewrite that marks nodes for what is at fault later; the lowering, where that shares memory it should not."""
    named = prove_marking_rewrite(ablator)
    if named is None or ablator.verdict is not Verdict.ALIASING:
        return named
    return backend_stages.prove_any_lowering(ablator) or named


# Tuned: what is cheap to look at and rarely wrong comes first. A compile is spent on a suspect only after everything
# above it in the table has named nothing.
ORDER: tuple[SearchStep, ...] = (
    SearchStep(Shows.ANYWHERE, prove_compiling_branch),  # compiles nothing, and few programs have any
    SearchStep(Shows.ANYWHERE, tracing_ways.prove_ignored_mode),  # the same
    *(
        SearchStep(Shows.ANYWHERE, partial(prove_rewrites, ground=ground))  # the strongest evidence first
        for ground in Ground
        if ground not in (Ground.SHARED_MEMORY, Ground.REFUSED)
    ),
    SearchStep(Shows.IN_PROGRAM, backend_stages.prove_flawed_program),
    SearchStep(Shows.CERTAINLY, autograd_ways.prove_raising_copy),
    # Of a kernel that is wrong on some layouts, whatever agrees with it or not would be blamed.
    SearchStep(Shows.CERTAINLY, operators.prove_kernels),
    # Code that is generated for a wrong dtype or layout is wrong code: this comes before any search behind the graphs.
    SearchStep(Shows.CERTAINLY, partial(operators.prove_operators, certain=True)),
    SearchStep(Shows.IN_GRAPHS, partial(prove_rewrites, ground=Ground.REFUSED)),
    SearchStep(Shows.IN_GRAPHS, partial(operators.prove_operators, certain=False)),
    # Of what is wrong in Python, the operator that it reaches is told apart too.
    SearchStep(Shows.IN_GRAPHS, _prove_symbol),
    SearchStep(Shows.IN_GRAPHS, _prove_split),
    SearchStep(Shows.IN_GRAPHS, _prove_suspected_instruction),
    SearchStep(Shows.IN_GRAPHS, _prove_stage(DYNAMO)),
    SearchStep(Shows.IN_GRAPHS, _prove_stage(FUNCTIONALIZATION)),
    SearchStep(Shows.IN_GRAPHS, _prove_stage(PARTITION)),
    SearchStep(Shows.IN_GRAPHS, partial(prove_instruction, doubts=True)),
    SearchStep(Shows.IN_GRAPHS, _prove_first(graph_ways.METADATA, proves_values=True)),
    SearchStep(Shows.IN_GRAPHS, _prove_first(graph_ways.TANGENTS)),
    SearchStep(Shows.IN_GRAPHS, operators.doubt_operators),
    SearchStep(Shows.IN_GRAPHS, _prove_first(_LOST)),
    SearchStep(Shows.IN_GRAPHS, partial(prove_instruction, doubts=False, own_errors=True)),
    SearchStep(Shows.IN_GRAPHS, graph_ways.prove_runtime),
    SearchStep(Shows.IN_CODE, graph_ways.prove_repeated_outputs),
    SearchStep(Shows.IN_CODE, prove_templates),
    SearchStep(Shows.IN_CODE, backend_stages.prove_output_strides),
    SearchStep(Shows.IN_CODE, prove_early_read),
    SearchStep(Shows.IN_CODE, partial(search_behind_graphs, BACKEND_STAGES)),
    SearchStep(Shows.IN_CODE, backend_stages.prove_vectors),
    SearchStep(Shows.UNPROVED, partial(prove_rewrites, ground=Ground.SHARED_MEMORY)),
    SearchStep(Shows.UNPROVED, prove_own_setting),
    SearchStep(Shows.UNPROVED, _prove_marking_rewrite),
    SearchStep(Shows.UNSUSPECTED, backend_stages.prove_any_lowering),
)
# The backends of PyTorch's ladder, each of which adds a part of the compiler, and the stage at fault if it is the first
# that shows the divergence.
LADDER = (
    ("eager", DYNAMO.name),
    ("aot_eager", FUNCTIONALIZATION.name),
    ("aot_eager_decomp_partition", DECOMPOSITION.name),
)


def look_around_rewrites(ablator: Ablator) -> Attribution | None:
    """Find what is at fault before, between and behind the graph passes; None if nothing is suspected."""
    flawed = look_in_order(ablator, Shows.IN_PROGRAM)
    if flawed is not None:
        return flawed
    attribution = look_at_sides(ablator)
    if attribution is not None and attribution.is_proved:
        return attribution
    # What no compile can do without, and whose IR is wrong: a rewrite may be no more than what it takes to show that.
    doubted = attribution.culprit if attribution is not None else None
    if doubted is not None and (doubted.necessary is not None or not doubted.details.get("shown_in_float64")):
        doubted = None
    if doubted is not None and (at_call := prove_at_call(ablator, Found(doubted))) is not None:
        return at_call
    named = look_in_order(ablator, Shows.UNPROVED)
    if doubted is not None and named is not None and _brings_in(ablator.trial.ledger, named, doubted):
        return Attribution(replace(doubted, necessary=True))
    named = named or attribution
    if named is None or (named.culprit is not None and named.culprit.stage == stages.RUNTIME):
        return look_in_order(ablator, Shows.UNSUSPECTED) or named
    return named


def _brings_in(ledger: Ledger, named: Attribution, doubted: Culprit) -> bool:
    """Return whether a rewrite, by whose absence a compile is right, puts the operator that is in doubt in a graph."""
    culprit, operator = named.culprit, doubted.rewrite

    def calls(snapshot: Snapshot) -> bool:
        return any(str(target) == operator for target in snapshot.called_targets)

    return culprit is not None and any(
        calls(record.snapshots[rewrite.after]) and not calls(record.snapshots[rewrite.before])
        for _, record, rewrite in ledger.list_rewrites()
        if (rewrite.label.stage, rewrite.label.rewrite) == (culprit.stage, culprit.rewrite)
    )


def look_at_sides(ablator: Ablator) -> Attribution | None:
    """The side on which the divergence shows first, then the other: a fault may need generated code to show.

    Of what nothing proves, that which was not tried comes before that which did not repair, and what goes wrong
    early, which explains what looks wrong later, before the rest.
    """
    certain = look_in_order(ablator, Shows.CERTAINLY)
    if certain is not None and certain.is_proved:
        return certain
    unproved: dict[Shows, Attribution] = {}
    sides = (Shows.IN_GRAPHS, Shows.IN_CODE)
    for side in sides if ablator.screens else reversed(sides):
        # Operators that repair it only together stand for their side: nothing later in it is as certain.
        together = certain if side is Shows.IN_GRAPHS else None
        attribution = together or look_in_order(ablator, side)
        if attribution is not None and attribution.is_proved:
            return attribution
        if attribution is not None:
            unproved[side] = attribution
    early_first = [unproved[side] for side in sides if side in unproved]
    untried = (each for each in early_first if each.culprit is None or each.culprit.necessary is None)
    return next(untried, next(iter(early_first), None))


def look_in_order(ablator: Ablator, shows: Shows) -> Attribution | None:
    """Run the search steps of a group in order; return the first attribution with a culprit, else None."""
    attributions = (step.look(ablator) for step in ORDER if step.shows is shows)
    return next((named for named in attributions if named is not None and named.culprit is not None), None)


_NAMED = {stage.name: stage for stage in STAGES}


def get_stage(name: str) -> Stage:
    """The stage of that name in the JSON contract."""
    return _NAMED[name]
