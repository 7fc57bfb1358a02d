"""The compiler on one screen: its stages in the order in which a program passes them, and the order of looking."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial

from fuzzcompile.attribution.ablating import Ablator
from fuzzcompile.attribution.culprit import Attribution
from fuzzcompile.attribution.divergence import Divergence
from fuzzcompile.stages.base import Stage
from fuzzcompile.stages.codegen import Codegen
from fuzzcompile.stages.cudagraphs import Cudagraphs
from fuzzcompile.stages.decomposition import Decomposition
from fuzzcompile.stages.dynamo import Dynamo
from fuzzcompile.stages.fake_tensor import FakeTensor
from fuzzcompile.stages.freezing import Freezing
from fuzzcompile.stages.functionalization import Functionalization
from fuzzcompile.stages.joint_graph import JointGraph
from fuzzcompile.stages.kernels.search import behind_the_graphs
from fuzzcompile.stages.kernels.templates import prove_templates
from fuzzcompile.stages.lowering import Lowering
from fuzzcompile.stages.operators.aten import prove_kernels
from fuzzcompile.stages.operators.stage import doubt_first, doubt_operators, prove_operators
from fuzzcompile.stages.operators.suspected import lost_checks_suspected, metadata_suspected
from fuzzcompile.stages.partition import Partition
from fuzzcompile.stages.post_grad import PostGrad
from fuzzcompile.stages.pre_grad import PreGrad
from fuzzcompile.stages.rewriting import Ground, prove_rewrites
from fuzzcompile.stages.runtime import Runtime
from fuzzcompile.stages.scheduler import Scheduler

DYNAMO, FUNCTIONALIZATION, PARTITION = Dynamo(), Functionalization(), Partition()
OPERATORS = (Decomposition(), FakeTensor())
LOWERING, SCHEDULER, CODEGEN, CUDAGRAPHS, RUNTIME = Lowering(), Scheduler(), Codegen(), Cudagraphs(), Runtime()

STAGES: tuple[Stage, ...] = (
    DYNAMO,
    PreGrad(),
    FUNCTIONALIZATION,
    *OPERATORS,
    JointGraph(),
    PARTITION,
    Freezing(),
    PostGrad(),
    LOWERING,
    SCHEDULER,
    CODEGEN,
    CUDAGRAPHS,
    RUNTIME,
)

Prove = Callable[[Ablator, Divergence], Attribution | None]


class Shows(Enum):
    """Condition on where a divergence shows, under which a search step is worth its compiles."""

    ANYWHERE = "anywhere"
    """Wherever it shows: these looks come first, and what they name ends the search."""
    CERTAINLY = "certainly"
    """Wherever it shows: what is proved ends the search; what repairs it only together stands for the graphs' side."""
    IN_GRAPHS = "in graphs"
    """Where interpreted graphs show it, first; where generated code alone does, last."""
    IN_CODE = "in code"
    """Where generated code alone shows it."""


@dataclass(frozen=True)
class Look:
    """One step of the search for the culprit. The first step of a group that names anything decides for the group."""

    shows: Shows
    prove: Prove


def _of_stage(stage: Stage) -> Prove:
    return lambda ablator, divergence: stage.prove(ablator, stage.suspects(divergence))


def _operators(*, certain: bool) -> Prove:
    return partial(prove_operators, OPERATORS, certain=certain)


def _rewrites(ground: Ground) -> Prove:
    return partial(prove_rewrites, ground=ground)


# One setting decides about CUDA graphs alone; then the IR is looked at, the kernels, and the outputs.
BEHIND = (CUDAGRAPHS, LOWERING, SCHEDULER, CODEGEN, RUNTIME)


def _behind_the_graphs(ablator: Ablator, divergence: Divergence) -> Attribution | None:
    return behind_the_graphs(BEHIND, ablator)


# Tuned: what is cheap to look at and rarely wrong comes first. A compile is spent on a suspect only after everything
# above it in the table has named nothing.
ORDER: tuple[Look, ...] = (
    Look(Shows.ANYWHERE, _rewrites(Ground.RAISED)),
    Look(Shows.ANYWHERE, _rewrites(Ground.MOVED)),
    Look(Shows.ANYWHERE, _rewrites(Ground.RANDOM)),
    Look(Shows.ANYWHERE, _rewrites(Ground.UNREPLAYED)),
    Look(Shows.ANYWHERE, _rewrites(Ground.OPAQUE)),
    Look(Shows.ANYWHERE, _rewrites(Ground.MANDATORY)),
    # Of a kernel that is wrong on some layouts, whatever agrees with it or not would be blamed.
    Look(Shows.CERTAINLY, prove_kernels),
    # Code that is generated for a wrong dtype or layout is wrong code: this comes before any search behind the graphs.
    Look(Shows.CERTAINLY, _operators(certain=True)),
    Look(Shows.IN_GRAPHS, _operators(certain=False)),
    Look(Shows.IN_GRAPHS, _of_stage(DYNAMO)),
    Look(Shows.IN_GRAPHS, _of_stage(FUNCTIONALIZATION)),
    Look(Shows.IN_GRAPHS, _of_stage(PARTITION)),
    Look(Shows.IN_GRAPHS, partial(doubt_first, metadata_suspected)),
    Look(Shows.IN_GRAPHS, partial(doubt_operators, OPERATORS)),
    Look(Shows.IN_GRAPHS, partial(doubt_first, lost_checks_suspected)),
    Look(Shows.IN_CODE, prove_templates),
    Look(Shows.IN_CODE, _behind_the_graphs),
)
# What is tried where all of these prove nothing, and overrides what they doubt.
LAST = _rewrites(Ground.SHARED_MEMORY)
# The backends of PyTorch's ladder, each of which adds a part of the compiler, and the stage at fault if it is the first
# that shows the divergence.
LADDER = (
    ("eager", DYNAMO.name),
    ("aot_eager", FUNCTIONALIZATION.name),
    ("aot_eager_decomp_partition", OPERATORS[0].name),
)


def looked(ablator: Ablator, divergence: Divergence, shows: Shows) -> Attribution | None:
    """Run the search steps of a group in order; return the first attribution with a culprit, else None.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    attributions = (look.prove(ablator, divergence) for look in ORDER if look.shows is shows)
    return next((named for named in attributions if named is not None and named.culprit is not None), None)


def stage_named(name: str) -> Stage:
    """The stage of that name in the JSON contract.

    Raises:
        KeyError: there is none.
    """
    return _NAMED[name]


_NAMED = {stage.name: stage for stage in STAGES}
