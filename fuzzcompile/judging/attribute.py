"""From a failing trial to its culprit: the stages name suspects in the order of looking, and ablations prove them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from torch import fx

from fuzzcompile.attribution.ablating import Ablator, OutOfTime
from fuzzcompile.attribution.culprit import UNKNOWN, Attribution, Culprit, frames_shown
from fuzzcompile.attribution.divergence import Divergence
from fuzzcompile.attribution.inputs import inputs_of
from fuzzcompile.attribution.proving import Prover, failing_rewrite
from fuzzcompile.attribution.steps import Step, changing_meaning, steps_of
from fuzzcompile.compiler.custom import backend_label
from fuzzcompile.compiler.functional import passing_on
from fuzzcompile.compiler.session import path_of
from fuzzcompile.judging.workaround import find_workaround, workaround_by
from fuzzcompile.sides import AOTI, COMPILE, EXPORT
from fuzzcompile.stage_files import stage_of_file
from fuzzcompile.stage_names import CODEGEN, DECOMPOSITION, DYNAMO, FAKE_TENSOR, FUNCTIONALIZATION, LOWERING, PRE_GRAD
from fuzzcompile.stages.kernels.wrapper import flawed_program, with_asserted_layout
from fuzzcompile.stages.rewriting import culprit_of_rewrite, rewrites_blamed
from fuzzcompile.stages.table import LADDER, LAST, Shows, looked
from fuzzcompile.trials.compiles import Experiments

# Stages that the ladder has shown to be right where it names a later one.
_EARLIER = (DYNAMO, FUNCTIONALIZATION)


def _toggle(backend: str) -> str:
    return f"backend={backend}"


@dataclass(frozen=True)
class Attributor:
    """Attributes one failing trial. Every compile it makes is an ablation that it reports.

    Attributes:
        ablator: compiles the case of the failing trial in other ways.
        steps: how much each of the trial's rewrites moved the result.
        thorough: try every backend of the ladder that PyTorch's issue form asks for, whatever is at fault.
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
        return Divergence.seen_by(self.ablator, self.steps)

    def run(self) -> Attribution:
        """Look where the table of the stages says, in its order; out of time, name the first suspect as it stands."""
        attribution: Attribution | None = None
        try:
            attribution = self._from_rewrites() or self._around_rewrites()
            if attribution.culprit is not None:
                attribution.workaround = find_workaround(self.ablator, attribution.culprit)
            if self.thorough:
                self._climb()
        except OutOfTime:
            attribution = attribution or Attribution(first_rewrite(self.divergence))
        attribution = with_asserted_layout(attribution, self.ablator.trial)
        attribution.ablations = self.ablator.ablations
        attribution.culprit = self._with_frames(attribution.culprit)
        return attribution

    def _with_frames(self, culprit: Culprit | None) -> Culprit | None:
        """The culprit of an error with the compiler's code that raised it, which places a culprit without a place."""
        failure = self.ablator.trial.observation.failure
        if culprit is None or failure is None or not failure.raised:
            return culprit
        culprit = replace(culprit, details={**culprit.details, "raised": frames_shown(failure.raised)})
        if culprit.source is not None or culprit.necessary:
            return culprit
        # What a compile without it did not repair only handed the error on.
        cleared = {ablation.toggle for ablation in self.ablator.ablations if not ablation.repairs}
        frame = next((frame for frame in failure.raised if f"veto {frame[2]}" not in cleared), failure.raised[0])
        return _placed(culprit, frame)

    def _from_rewrites(self) -> Attribution | None:
        """The rewrite at fault, and what else is where the result stays wrong without it."""
        attribution = looked(self.ablator, self.divergence, Shows.ANYWHERE)
        if attribution is None or attribution.culprit is None or attribution.culprit.necessary is not False:
            return attribution
        trial = self.ablator.trial
        if trial.observation.failure is not None and failing_rewrite(trial) is None:
            return None  # it moves values, and what raises was not under way in it and raises without it
        prover = Prover(self.ablator, self.steps)
        refused = prover.names([step.label for step in changing_meaning(self.steps)])
        experiments = self.experiments.under(self.experiments.how.with_vetoes(*refused))
        trial = self.ablator.compiled(experiments.how)
        if self.ablator.repaired(trial):
            return attribution
        ablator = replace(self.ablator, experiments=experiments, trial=trial)  # the table of ablations is one
        second = self._around(ablator, Divergence.seen_by(ablator, self.steps))
        if second is None or second.culprit is None:
            return attribution
        return replace(attribution, contributors=[second.culprit, *second.contributors])

    def _around_rewrites(self) -> Attribution:
        """Look around the graph passes; else take the first backend of the ladder that shows the divergence."""
        if self._own_backend or self._path == EXPORT:
            return self._from_ladder()
        shared = self._from_compile() if self._path == AOTI else None
        if shared is not None:
            return shared
        attribution = flawed_program(self.ablator)
        if attribution is not None:
            return attribution
        attribution = self._around(self.ablator, self.divergence)
        if attribution is None or attribution.culprit is None or not attribution.culprit.necessary:
            attribution = LAST(self.ablator, self.divergence) or attribution
        return attribution if attribution is not None else self._from_ladder()

    @property
    def _path(self) -> str:
        return path_of(self.experiments.case.settings, self.experiments.how)

    @staticmethod
    def _around(ablator: Ablator, divergence: Divergence) -> Attribution | None:
        """The side on which the divergence shows first, then the other: a fault may need generated code to show.

        Of what nothing proves, that which was not tried comes before that which did not repair, and what goes wrong
        early, which explains what looks wrong later, before the rest.
        """
        certain = looked(ablator, divergence, Shows.CERTAINLY)
        if certain is not None and certain.culprit is not None and certain.culprit.necessary:
            return certain
        unproved: dict[Shows, Attribution] = {}
        sides = (Shows.IN_GRAPHS, Shows.IN_CODE)
        for side in sides if ablator.screens else reversed(sides):
            # Operators that repair it only together stand for their side: nothing later in it is as certain.
            together = certain if side is Shows.IN_GRAPHS else None
            attribution = together or looked(ablator, divergence, side)
            if attribution is not None and attribution.culprit is not None:
                if attribution.culprit.necessary:
                    return attribution
                unproved[side] = attribution
        early_first = [unproved[side] for side in sides if side in unproved]
        return min(early_first, key=_was_tried, default=None)

    def _climb(self) -> None:
        """The backends, each of which adds a part of the compiler, as far as they were not tried yet."""
        tried = {ablation.toggle for ablation in self.ablator.ablations}
        if self.ablator.replays or self._own_backend or self._path != COMPILE:
            return
        for backend, _ in LADDER:
            if not tried & {_toggle(backend), workaround_by(backend)}:
                self._repaired_by(backend)

    def _from_ladder(self) -> Attribution:
        """The first backend that shows the divergence names the stage; else it lies behind the graphs.

        Where that is not Inductor but a backend of the case's own, it is at fault if Inductor alone is right.
        """
        if self._path != COMPILE:
            return self._from_exported()
        stage = LOWERING
        for backend, name in LADDER:
            if not self._repaired_by(backend):
                stage = name
                break
        else:
            if self._own_backend and self._repaired_by("inductor"):
                label = backend_label(self.experiments.case.settings.backend)
                return Attribution(Culprit.from_label(label, necessary=True))
        family = self._operator()  # tells bugs apart, though it need not be at fault
        details = {"output of": family} if family else {}
        return Attribution(Culprit(stage, None, None, family or UNKNOWN, confidence="low", details=details))

    def _from_compile(self) -> Attribution | None:
        """Attribute to ``torch.compile``, which can be examined in more depth; None if it is right."""
        experiments = self.experiments.under(replace(self.experiments.how, path=COMPILE))
        trial, repaired = self.ablator.attempt(experiments.how, f"path={COMPILE}")
        if repaired or not self.ablator.same_kind(trial):
            return None
        ablator = replace(self.ablator, experiments=experiments, trial=trial)  # the table of ablations is one
        attributor = Attributor(ablator, steps_of(trial.ledger, ablator.count))
        return attributor._from_rewrites() or attributor._around_rewrites()

    def _from_exported(self) -> Attribution:
        """Attribute to the capture by export, or to AOTInductor if the exported program alone is right."""
        stage = DYNAMO
        if self._path == AOTI and self._repaired_on(EXPORT):
            stage = CODEGEN
        return Attribution(Culprit(stage, None, None, UNKNOWN, confidence="low", details={"path": self._path}))

    def _repaired_on(self, path: str) -> bool:
        how = replace(self.experiments.how, path=path, record=False)
        return self.ablator.attempt(how, f"path={path}")[1]

    def _repaired_by(self, backend: str) -> bool:
        how = replace(self.experiments.how, backend=backend, record=False)
        return self.ablator.attempt(how, _toggle(backend))[1]

    @property
    def _own_backend(self) -> bool:
        """Return whether the case is compiled by something else than Inductor."""
        return self.experiments.how.backend is None and self.experiments.case.settings.backend != "inductor"

    def _operator(self) -> str | None:
        """The operator that computes the diverging output, as the user's program calls it; that in which it failed."""
        worst = self.ablator.trial.judgement.worst
        failed = self.ablator.trial.ledger.failed_in
        if worst is None:
            return failed.rewrite if failed is not None and failed.rewrite != failed.stage else None
        for frame in self.ablator.trial.ledger.frames:
            record = frame.record(PRE_GRAD)
            if record is not None and record.snapshots:
                inputs = inputs_of(frame, record)
                passing = passing_on(record.snapshots[0], inputs) if inputs is not None else ()
                return producer(record.snapshots[0].graph, worst.name, passing)
        return None


def _placed(culprit: Culprit, frame: tuple[str, int, str]) -> Culprit:
    """The culprit in the file that raised, unless that complains about what a later stage gave it.

    Ahead of functionalization, decompositions compute fake tensors alone.
    """
    file, line, _ = frame
    stage = stage_of_file(file) or culprit.stage
    if stage in _EARLIER and culprit.stage not in _EARLIER[: _EARLIER.index(stage) + 1]:
        return culprit
    if culprit.stage == DYNAMO and stage == DECOMPOSITION:
        stage = FAKE_TENSOR
    return replace(culprit, stage=stage, source=file, line=line)


def _was_tried(attribution: Attribution) -> bool:
    return attribution.culprit is not None and attribution.culprit.necessary is not None


def first_rewrite(divergence: Divergence) -> Culprit | None:
    """Return the first suspected rewrite of one compile, unproved; None if there is none."""
    suspects = rewrites_blamed(divergence)
    return replace(culprit_of_rewrite(suspects[0]), confidence="low") if suspects else None


def producer(graph: fx.Graph, output: str, passing: Collection[str] = ()) -> str | None:
    """Name of the operator behind output ``outN`` of a dynamo-level graph.

    Args:
        graph: dynamo's.
        output: the name of the output.
        passing: names of nodes that give back their first argument itself, which have made nothing.
    """
    result = list(graph.nodes)[-1].args[0]
    index = output.rsplit("out", 1)[-1]
    listed = list(result) if isinstance(result, (tuple, list)) else [result]
    node = listed[int(index)] if index.isdigit() and int(index) < len(listed) else listed[0]
    while isinstance(node, fx.Node) and (node.target is operator.getitem or node.name in passing):
        node = node.args[0]
    target = getattr(node, "target", None)
    return target if isinstance(target, str) else getattr(target, "__name__", None)
