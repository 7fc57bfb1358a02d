"""From a failing trial to its culprit: replay names the suspects, vetoes prove which of them it is."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fuzzcompile.attribution.ablating import Ablator, Evidence, OutOfTime, changes_meaning
from fuzzcompile.attribution.borders import borders_of
from fuzzcompile.attribution.culprit import Attribution, Culprit
from fuzzcompile.attribution.steps import Form, ReplayCount, Step, steps_of, suspects_of
from fuzzcompile.attribution.workaround import find_workaround
from fuzzcompile.experiments import Experiments, Trial
from fuzzcompile.inductor.labels import backend_label, base_name, family_of, vetoes
from fuzzcompile.inductor.ledger import Label
from fuzzcompile.inductor.recorder import MANDATORY
from fuzzcompile.oracle.verdicts import Verdict

_MAX_SIBLINGS = 12
_MAX_SUSPECTS = 4
_MAX_CONTRIBUTORS = 8
_UPSTREAM = (
    ("eager", "dynamo"),
    ("aot_eager", "functionalization"),
    ("aot_eager_decomp_partition", "decomposition"),
)


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
    ) -> None:
        """``evidence`` says what shows the bug; after ``deadline`` (``time.monotonic()``) no compile is begun."""
        self.experiments = experiments
        self.trial = trial
        self.steps = steps
        self.count = count
        self.ablator = Ablator(experiments, trial, count, evidence, deadline)

    def run(self) -> Attribution:
        """Try the rewrite that failed, then what replay suspects, then the stages around the graph passes."""
        try:
            found = (
                self._from_error()
                or self._from_steps()
                or self._from_random()
                or self._from_unreplayed()
                or self._from_lowering_patterns()
                or self._from_stages()
            )
            if found.culprit is not None:
                found.workaround = find_workaround(self.ablator, found.culprit)
        except OutOfTime:
            found = self._unproved()
        found.ablations = self.ablator.ablations
        return found

    def _unproved(self) -> Attribution:
        """The first suspect as it stands, with what was not shown left open."""
        failed = failing_rewrite(self.trial)
        if self.trial.observation.failure is not None and failed is not None:
            return Attribution(Culprit.from_label(failed, confidence="low"))
        suspects = self._suspects(self.steps)
        return Attribution(Culprit.from_step(suspects[0], confidence="low") if suspects else None)

    # -- errors -----------------------------------------------------------------------------------

    def _from_error(self) -> Attribution | None:
        failed = failing_rewrite(self.trial)
        if self.trial.observation.failure is None or failed is None:
            return None
        return self._prove(failed, None)

    # -- suspects from replay ---------------------------------------------------------------------

    def _from_steps(self) -> Attribution | None:
        for step in self._suspects(self.steps)[:_MAX_SUSPECTS]:
            found = self._prove(step.label, step)
            if found is not None:
                return found
        return self._all_suspects() or self._one_of_several()

    def _one_of_several(self) -> Attribution | None:
        """A rewrite that changed the meaning, though something else keeps the result wrong without it."""
        proved = changes_meaning(self.steps)
        if not proved:
            return None
        culprit = Culprit.from_step(proved[0], necessary=False, confidence="low")
        return Attribution(culprit)

    def _suspects(self, steps: Sequence[Step]) -> list[Step]:
        return suspects_of(steps, forms_shown(self.trial))

    def _prove(self, label: Label, step: Step | None) -> Attribution | None:
        """Veto the label, then whatever takes its place, until the divergence is gone.

        The search screens its trials where the interpreted graphs show the divergence; what it finds is then
        proved by a full compile. What comes up only once its predecessor is vetoed is a sibling that falls
        through; what was a suspect from the start is a cause of its own.
        """
        known = {(s.label.stage, base_name(s.label.rewrite)) for s in self._suspects(self.steps)}
        closure, others = [label], list[Label]()
        for _ in range(_MAX_SIBLINGS):
            # The first suspect is nearly always the one, and a compile proves it; a search after it screens.
            screen = bool(closure[1:] or others) and self._screens
            trial, repaired = self._veto([*closure, *others], screen=screen)
            if repaired and screen:
                trial, repaired = self._veto([*closure, *others])
            if repaired:
                return self._proved(label, step, closure, others)
            following = self._next_suspect(trial, [*closure, *others])
            if following is None:
                return None
            independent = family_of(following.rewrite) != family_of(label.rewrite) and (
                (following.stage, base_name(following.rewrite)) in known
            )
            (others if independent else closure).append(following)
        return None

    def _next_suspect(self, trial: Trial, seen: Sequence[Label]) -> Label | None:
        names = self._names(seen)
        failed = failing_rewrite(trial)
        if trial.observation.failure is not None and failed is not None and not vetoes(failed, names):
            return failed
        for step in self._suspects(steps_of(trial.ledger, self.count)):
            if not vetoes(step.label, names):
                return step.label
        return None

    def _all_suspects(self) -> Attribution | None:
        """Several suspects of which no one alone repairs the divergence."""
        suspects = self._suspects(self.steps)
        if len(suspects) < 2:
            return None
        labels = [step.label for step in suspects]
        if not self._veto(labels, screen=self._screens)[1]:
            return None
        first, rest = suspects[0], suspects[1:]
        return Attribution(
            Culprit.from_step(first, necessary=None, confidence="low"),
            [Culprit.from_step(step) for step in rest],
        )

    def _proved(
        self, label: Label, step: Step | None, closure: Sequence[Label], others: Sequence[Label]
    ) -> Attribution:
        family = family_of(label.rewrite)
        siblings = {family_of(sibling.rewrite) for sibling in closure}
        culprit = self._culprit(label, step, necessary=not others)
        if len(siblings) > 1:
            culprit = replace(culprit, family="+".join(sorted(siblings | {family})))
        siblings_told = tuple(self._prefix(sibling) + sibling.rewrite for sibling in closure[1:])
        culprit = replace(culprit, siblings=siblings_told)
        try:
            sufficient = self._sufficient(closure)
        except OutOfTime:  # what is shown stays shown
            return Attribution(culprit, [self._culprit(other, None, necessary=None) for other in others])
        culprit = replace(culprit, sufficient=sufficient)
        contributors = [self._culprit(other, None, necessary=None) for other in others]
        if sufficient is False and not others:
            contributors = self._contributors(closure)
        return Attribution(culprit, contributors)

    def _culprit(self, label: Label, step: Step | None, *, necessary: bool | None) -> Culprit:
        if step is None:
            there = [s for s in self.steps if (s.label.stage, s.label.rewrite) == (label.stage, label.rewrite)]
            step = next((s for s in self._suspects(there)), there[0] if there else None)
        if step is not None:
            return Culprit.from_step(step, necessary=necessary)
        return Culprit.from_label(label, necessary=necessary)

    # -- ablations --------------------------------------------------------------------------------

    @property
    def _screens(self) -> bool:
        return self.ablator.screens

    def _veto(self, labels: Sequence[Label], *, screen: bool = False) -> tuple[Trial, bool]:
        names = self._names(labels)
        how = replace(self.experiments.how.with_vetoes(*names), screen=screen)
        return self.ablator.attempt(how, "veto " + _shown(names))

    def _names(self, labels: Sequence[Label]) -> list[str]:
        """Veto names of exactly these rules; the variants of a pattern stand and fall together.

        A rule that works in several stages is named with its stage.
        """
        return list(dict.fromkeys(f"{self._prefix(label)}={base_name(label.rewrite)}" for label in labels))

    def _prefix(self, label: Label) -> str:
        return f"{label.stage}:" if len(self._stages[base_name(label.rewrite)]) > 1 else ""

    @functools.cached_property
    def _stages(self) -> Mapping[str, set[str]]:
        """The stages in which each rule changed a graph."""
        stages = defaultdict[str, set[str]](set)
        for _, _, rewrite in self.trial.ledger.rewrites():
            stages[base_name(rewrite.label.rewrite)].add(rewrite.label.stage)
        return stages

    def _sufficient(self, closure: Sequence[Label]) -> bool | None:
        """Whether the divergence stays when every optional rewrite but the culprit's is vetoed.

        None if the program then fails in another way, which says nothing.
        """
        only = tuple(self._names(closure))
        around = self.trial.ledger.inside
        needed = self._names([around[label] for label in closure if label in around])
        how = replace(self.experiments.how, only=(*only, *needed), record=self.ablator.replays)
        trial, repaired = self.ablator.attempt(how, "only " + _shown(only))
        if repaired:
            return False
        return True if self.ablator.same_kind(trial) else None

    def _contributors(self, closure: Sequence[Label]) -> list[Culprit]:
        """Other rewrites without which the divergence is gone as well."""
        found: list[Culprit] = []
        tried = {base_name(label.rewrite) for label in closure}
        for _, _, rewrite in self.trial.ledger.rewrites():
            name = base_name(rewrite.label.rewrite)
            if name in tried or rewrite.label.rewrite in MANDATORY or " " in name or len(tried) > _MAX_CONTRIBUTORS:
                continue
            tried.add(name)
            if self._veto([rewrite.label], screen=self._screens)[1]:
                found.append(self._culprit(rewrite.label, None, necessary=True))
        return found

    # -- what replay cannot judge -----------------------------------------------------------------

    def _from_random(self) -> Attribution | None:
        """Rewrites after which a graph draws other random numbers: two such graphs have no value in common."""
        if self.trial.sampled is None:
            return None
        for step in [step for step in self.steps if step.random][:_MAX_SUSPECTS]:
            found = self._prove(step.label, step)
            if found is not None:
                return found
        return None

    def _from_unreplayed(self) -> Attribution | None:
        """Passes of the user over something else than a graph: a veto can blame them, or nothing can."""
        for label in dict.fromkeys(self.trial.ledger.unreplayed):
            found = self._prove(label, None)
            if found is not None:
                return found
        return None

    def _from_lowering_patterns(self) -> Attribution | None:
        """Patterns that put a lowering of their own in place of what they matched.

        Replay runs what they matched, so it cannot blame them; a veto can.
        """
        opaque = {step.label: step for step in self.steps if step.is_opaque}
        for label, step in list(opaque.items())[:_MAX_SUSPECTS]:
            found = self._prove(label, step)
            if found is not None and found.culprit is not None:
                # The veto also breaks what the lowering was fused with, which hides bugs of code generation.
                return replace(found, culprit=replace(found.culprit, confidence="low"))
        return None

    # -- beyond the graph passes ------------------------------------------------------------------

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
        operator = self._operator()
        if stage in ("functionalization", "decomposition"):
            border = max(borders_of(self.trial.ledger, self.count), key=lambda found: found.step, default=None)
            if border is not None and border.operator is not None:
                return Attribution(replace(border.culprit(), stage=stage))
        culprit = Culprit(stage, None, operator, operator or "unknown", confidence="low")
        return Attribution(culprit)

    def _repaired_by(self, backend: str) -> bool:
        how = replace(self.experiments.how, backend=backend, record=False)
        return self.ablator.attempt(how, f"backend={backend}")[1]

    @property
    def _own_backend(self) -> bool:
        """Whether the case is compiled by something else than Inductor."""
        return self.experiments.how.backend is None and self.experiments.case.settings.backend != "inductor"

    def _operator(self) -> str | None:
        """The operator that computes the diverging output, as the user's program calls it."""
        worst = self.trial.judgement.worst
        failed = self.trial.ledger.failed_in
        if worst is None:
            return failed.rewrite if failed is not None and failed.rewrite != failed.stage else None
        for frame in self.trial.ledger.frames:
            record = frame.record("pre_grad")
            if record is not None and record.snapshots:
                return producer(record.snapshots[0].graph, worst.name)
        return None


def names_stage(label: Label) -> bool:
    """Whether the label names no rule, only the stage that was under way."""
    return label.rewrite in (label.stage, "lowering")


def failing_rewrite(trial: Trial) -> Label | None:
    """The rule that was active when the trial's exception rose, if there was one."""
    failed = trial.ledger.failed_in
    return None if failed is None or names_stage(failed) else failed


def forms_shown(trial: Trial) -> tuple[Form, ...]:
    """What the trial's divergence is, where it is none of values."""
    verdict = trial.judgement.verdict
    if verdict is Verdict.METADATA and any(c.finding == "stride" for c in trial.judgement.comparisons):
        return ("stride",)
    return _FORMS.get(verdict, ())


_FORMS: Mapping[Verdict, tuple[Form, ...]] = {Verdict.ALIASING: ("alias",), Verdict.ACCEPTS_INVALID: ("silenced",)}


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


def _shown(names: Sequence[str]) -> str:
    return ", ".join(name.replace("=", "") for name in names)
