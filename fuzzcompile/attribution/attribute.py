"""From a failing trial to its culprit: replay names the suspects, vetoes prove which of them it is."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from fuzzcompile.attribution.ablating import Ablator, Evidence, OutOfTime, changes_meaning
from fuzzcompile.attribution.before.search import before_the_graphs, operators_at_fault, operators_checked
from fuzzcompile.attribution.culprit import Attribution, Culprit
from fuzzcompile.attribution.proving import MAX_SUSPECTS, Prover, failing_rewrite
from fuzzcompile.attribution.steps import ReplayCount, Step
from fuzzcompile.attribution.workaround import find_workaround, workaround_by
from fuzzcompile.compiler.labels import backend_label
from fuzzcompile.compiler.ledger import Label
from fuzzcompile.compiler.refusing import MANDATORY
from fuzzcompile.stages.kernels.search import behind_the_graphs
from fuzzcompile.trials.compiles import Experiments, Trial

_UNKNOWN = "unknown"
_UPSTREAM = (
    ("eager", "dynamo"),
    ("aot_eager", "functionalization"),
    ("aot_eager_decomp_partition", "decomposition"),
)


def _told(backend: str) -> str:
    return f"backend={backend}"


class Attributor:
    """Attributes one failing trial. Every compile it makes is an ablation that it reports."""

    def __init__(
        self,
        experiments: Experiments,
        trial: Trial,
        steps: Sequence[Step],
        count: ReplayCount,
        *,
        evidence: Evidence = "values",
        deadline: float | None = None,
        thorough: bool = False,
    ) -> None:
        """``evidence`` says what shows the bug; after ``deadline`` (``time.monotonic()``) no compile is begun.

        ``thorough`` tries every backend of the ladder that PyTorch's issue form asks for, whoever is at fault.
        """
        self.experiments = experiments
        self.trial = trial
        self.steps = steps
        self.count = count
        self.thorough = thorough
        self.ablator = Ablator(experiments, trial, count, evidence, deadline)
        self.prover = Prover(self.ablator, steps)

    def run(self) -> Attribution:
        """Try the rewrite that failed, then what replay suspects, then the stages around the graph passes."""
        found: Attribution | None = None
        try:
            found = (
                self._from_error()
                or self._from_steps()
                or self._from_random()
                or self._from_unreplayed()
                or self._from_lowering_patterns()
                or self._from_mandatory()
                or self._from_around()
            )
            if found.culprit is not None:
                found.workaround = find_workaround(self.ablator, found.culprit)
            if self.thorough:
                self._climb()
        except OutOfTime:
            found = found if found is not None else self._unproved()
        found.ablations = self.ablator.ablations
        return found

    def _climb(self) -> None:
        """The backends, each of which adds a part of the compiler, as far as they were not tried yet."""
        if self.ablator.replays or self._own_backend:
            return
        tried = {ablation.toggle for ablation in self.ablator.ablations}
        for backend, _ in _UPSTREAM:
            if not tried & {_told(backend), workaround_by(backend)}:
                self._repaired_by(backend)

    def _unproved(self) -> Attribution:
        """The first suspect as it stands, with what was not shown left open."""
        failed = failing_rewrite(self.trial)
        if self.trial.observation.failure is not None and failed is not None:
            return Attribution(Culprit.from_label(failed, confidence="low"))
        suspects = self.prover.suspects(self.steps)
        return Attribution(Culprit.from_step(suspects[0], confidence="low") if suspects else None)

    # -- errors -----------------------------------------------------------------------------------

    def _from_error(self) -> Attribution | None:
        """The rewrite that left a graph which does not run, or the rule that was at work when the error rose."""
        failed = failing_rewrite(self.trial)
        if self.trial.observation.failure is None or failed is None:
            return None
        for step in self.prover.suspects(self.steps)[:MAX_SUSPECTS]:
            found = self.prover.prove(step.label, step) if step.raised else None
            if found is not None:
                return found
        return None if failed.rewrite in MANDATORY else self.prover.prove(failed, None)

    # -- suspects from replay ---------------------------------------------------------------------

    def _from_steps(self) -> Attribution | None:
        for step in self.prover.suspects(self.steps)[:MAX_SUSPECTS]:
            found = self.prover.prove(step.label, step)
            if found is not None:
                return found
        return self._all_suspects() or self._one_of_several()

    def _one_of_several(self) -> Attribution | None:
        """A rewrite that changed the meaning, though something else keeps the result wrong without it."""
        proved = changes_meaning(self.steps)
        if not proved:
            return None
        culprit = Culprit.from_step(proved[0], necessary=False, confidence="low")
        return Attribution(culprit, self._besides([step.label for step in proved]))

    def _besides(self, labels: Sequence[Label]) -> list[Culprit]:
        """What around the graph passes is at fault too: looked for with the rewrites at fault refused."""
        experiments = self.experiments.under(self.experiments.how.with_vetoes(*self.prover.names(labels)))
        trial = self.ablator.compiled(experiments.how)
        if self.ablator.repaired(trial):
            return []
        other = replace(self.ablator, experiments=experiments, trial=trial)  # the table of ablations is one
        found = self._looked_around(other)
        return [] if found is None or found.culprit is None else [found.culprit, *found.contributors]

    def _all_suspects(self) -> Attribution | None:
        """Several suspects of which no one alone repairs the divergence."""
        suspects = self.prover.suspects(self.steps)
        if len(suspects) < 2:
            return None
        labels = [step.label for step in suspects]
        if not self.prover.veto(labels, screen=self.ablator.screens)[1]:
            return None
        first, rest = suspects[0], suspects[1:]
        return Attribution(
            Culprit.from_step(first, necessary=None, confidence="low"),
            [Culprit.from_step(step) for step in rest],
        )

    # -- what replay cannot judge -----------------------------------------------------------------

    def _from_random(self) -> Attribution | None:
        """Rewrites after which a graph draws other random numbers: two such graphs have no value in common.

        Where eager draws none at all (dropout that does nothing in eval), one that draws is at fault all the same.
        """
        if self.trial.sampled is None and self.experiments.draws:
            return None
        for step in [step for step in self.steps if step.random][:MAX_SUSPECTS]:
            found = self.prover.prove(step.label, step)
            if found is not None:
                return found
        return None

    def _from_unreplayed(self) -> Attribution | None:
        """Passes of the user over something else than a graph: a veto can blame them, or nothing can."""
        for label in dict.fromkeys(self.trial.ledger.unreplayed):
            found = self.prover.prove(label, None)
            if found is not None:
                return found
        return None

    def _from_lowering_patterns(self) -> Attribution | None:
        """Patterns that put a lowering of their own in place of what they matched.

        Replay runs what they matched, so it cannot blame them; a veto can.
        """
        opaque = {step.label: step for step in self.steps if step.is_opaque}
        for label, step in list(opaque.items())[:MAX_SUSPECTS]:
            found = self.prover.prove(label, step)
            if found is not None and found.culprit is not None:
                # The veto also breaks what the lowering was fused with, which hides bugs of code generation.
                return replace(found, culprit=replace(found.culprit, confidence="low"))
        return None

    def _from_mandatory(self) -> Attribution | None:
        """Passes that no compile can do without: a float64 step blames them, and no veto can prove it."""
        for step in self.steps:
            if step.label.rewrite in MANDATORY and step.is_semantic:
                return Attribution(Culprit.from_step(step, confidence="low"))
        return None

    # -- around the graph passes ------------------------------------------------------------------

    def _from_around(self) -> Attribution:
        """What lies before the graph passes, where the divergence shows without code generation, else behind them.

        The other side is looked at too where nothing is proved: a fault may need generated code to show.
        """
        if self._own_backend:
            return self._from_stages()
        found = self._looked_around(self.ablator)
        if found is None or found.culprit is None or not found.culprit.necessary:
            found = self._from_shared_memory() or found
        return found if found is not None else self._from_stages()

    def _from_shared_memory(self) -> Attribution | None:
        """Rewrites after which other results share memory: a later write, or a later call, may show it in values."""
        for step in [step for step in self.steps if step.alias and not step.is_semantic][:MAX_SUSPECTS]:
            found = self.prover.prove(step.label, step)
            if found is not None:
                return found
        return None

    def _looked_around(self, ablator: Ablator) -> Attribution | None:
        checked = operators_checked(ablator)
        certain = operators_at_fault(ablator, checked)
        if certain is not None and certain.culprit is not None and certain.culprit.necessary:
            return certain
        before = functools.partial(before_the_graphs, checked=checked)
        looks = (before, behind_the_graphs) if ablator.screens else (behind_the_graphs, before)
        unproved: list[Attribution] = []
        for look in looks:
            found = look(ablator)
            if found is None or found.culprit is None:
                continue
            if found.culprit.necessary:
                return found
            if look is behind_the_graphs:
                unproved.append(found)
            else:  # what goes wrong early explains what looks wrong later
                unproved.insert(0, found)
        unproved.sort(key=lambda found: found.culprit is not None and found.culprit.necessary is not None)
        return unproved[0] if unproved else None

    def _from_stages(self) -> Attribution:
        """The first backend that shows the divergence names the stage; else it lies behind the graphs.

        Where that is not Inductor but a backend of the case's own, it is at fault if Inductor alone is right.
        """
        stage = "lowering"
        for backend, name in _UPSTREAM:
            if not self._repaired_by(backend):
                stage = name
                break
        else:
            if self._own_backend and self._repaired_by("inductor"):
                label = backend_label(self.experiments.case.settings.backend)
                return Attribution(Culprit.from_label(label, necessary=True))
        operator = self._operator()  # tells bugs apart, though it need not be at fault itself
        details = {"output of": operator} if operator else {}
        return Attribution(Culprit(stage, None, None, operator or _UNKNOWN, confidence="low", details=details))

    def _repaired_by(self, backend: str) -> bool:
        how = replace(self.experiments.how, backend=backend, record=False)
        return self.ablator.attempt(how, _told(backend))[1]

    @property
    def _own_backend(self) -> bool:
        """Whether the case is compiled by something else than Inductor."""
        return self.experiments.how.backend is None and self.experiments.case.settings.backend != "inductor"

    def _operator(self) -> str | None:
        """The operator that computes the diverging output, as the user's program calls it; that in which it failed."""
        worst = self.trial.judgement.worst
        failed = self.trial.ledger.failed_in
        if worst is None:
            return failed.rewrite if failed is not None and failed.rewrite != failed.stage else None
        for frame in self.trial.ledger.frames:
            record = frame.record("pre_grad")
            if record is not None and record.snapshots:
                return producer(record.snapshots[0].graph, worst.name)
        return None


def producer(graph: object, output: str) -> str | None:
    """Name of the operator behind output ``outN`` of a dynamo-level graph."""
    nodes = list(graph.nodes)  # type: ignore[attr-defined]
    result = nodes[-1].args[0]
    index = output.rsplit("out", 1)[-1]
    listed = list(result) if isinstance(result, (tuple, list)) else [result]
    node = listed[int(index)] if index.isdigit() and int(index) < len(listed) else listed[0]
    while getattr(node, "op", None) == "call_function" and getattr(node.target, "__name__", "") == "getitem":
        node = node.args[0]
    target = getattr(node, "target", None)
    return target if isinstance(target, str) else getattr(target, "__name__", None)
