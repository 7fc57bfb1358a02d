"""Divergences, culprits, and the compiles that prove them (ablations): the result of an attribution."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypedDict, TypeVar, Unpack

import torch
from torch import fx

from fuzzcompile.compiler.compile_changes import CAPTURE_ONLY, TRACE_ONLY, Backend, CompileChange, GraphBreak, Veto
from fuzzcompile.compiler.graph_text import diff_graphs, find_changed_nodes, list_user_lines
from fuzzcompile.compiler.kernels.kernel_loops import find_definition
from fuzzcompile.compiler.operators.decompositions import get_operator_family, is_mutating
from fuzzcompile.compiler.session import Compilation, find_path
from fuzzcompile.compiler.watch.ledger import Label
from fuzzcompile.compiler.watch.rule_labels import get_family, is_vetoed
from fuzzcompile.diagnosis.attribution.steps import Step, measure_steps, select_semantic_steps
from fuzzcompile.diagnosis.oracle.judgement import largest_error
from fuzzcompile.diagnosis.oracle.rounding import relative_change
from fuzzcompile.diagnosis.trials.case_runs import Trial
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.model.contract import COMPILE
from fuzzcompile.model.culprit_contract import AblationJson, CulpritJson, DetailsJson, FrameJson, WorkaroundJson
from fuzzcompile.model.stages import PRE_GRAD
from fuzzcompile.model.thresholds import NEARER_TO_NEIGHBOUR
from fuzzcompile.model.verdicts import AGREEING, ERRORS, Verdict
from fuzzcompile.run.observation import Value
from fuzzcompile.run.pool.worker import say

UNKNOWN = "unknown"
"""The family of a culprit of which the place alone is known."""


Place = tuple[str | None, int | None]
"""File and line of a function of the compiler, as far as they are known."""


class CulpritFields(TypedDict, total=False):
    """Fields of a culprit beside its stage and its names (:class:`Culprit`)."""

    nodes: tuple[str, ...]
    source: str | None
    line: int | None
    site: str | None
    step: float | None
    necessary: bool | None
    sufficient: bool | None
    siblings: tuple[str, ...]
    confidence: str
    details: DetailsJson


@dataclass(frozen=True)
class Culprit:
    """Part of the compiler at fault, with its proof (fields as in the triage contract).

    ``necessary`` and ``sufficient`` are None where they were not tested. ``siblings`` are rewrites that take the
    culprit's place when it is vetoed: it is necessary together with them. ``details`` is what else a reader wants to
    see of this kind of culprit (a diff of the graph, the source of a kernel), as JSON.
    """

    stage: str
    pass_name: str | None
    rewrite: str | None
    family: str
    nodes: tuple[str, ...] = ()
    source: str | None = None
    line: int | None = None
    site: str | None = None
    step: float | None = None
    necessary: bool | None = None
    sufficient: bool | None = None
    siblings: tuple[str, ...] = ()
    confidence: str = "high"
    details: DetailsJson = field(default_factory=lambda: DetailsJson())

    @classmethod
    def from_step(cls, step: Step, /, **known: Unpack[CulpritFields]) -> Culprit:
        """The rewrite behind a step."""
        known["site"] = str(step.rewrite.site) if step.rewrite.site else None
        known["step"] = step.float64 if step.float64 is not None else step.native
        known["nodes"], known["details"] = step.rewrite.nodes, _describe_step(step)
        return cls.from_label(step.label, **known)

    @classmethod
    def from_label(cls, label: Label, **known: Unpack[CulpritFields]) -> Culprit:
        """A rewrite of which no application could be measured (it raised, or was refused)."""
        family = get_family(label.rewrite)
        known["source"], known["line"] = label.source, label.line
        return cls(label.stage, label.pass_name, label.rewrite, family, **known)

    @classmethod
    def from_operator(
        cls, stage: str, operator: str | None, place: Place = (None, None), **known: Unpack[CulpritFields]
    ) -> Culprit:
        """An operator at fault in a stage; its family is its name without namespace and overload.

        ``operator`` is its name with both, None if no operator could be singled out; ``place`` is the file and line of
        the compiler's code for it.
        """
        known["source"], known["line"] = place
        return cls(stage, None, operator, get_operator_family(operator) if operator else UNKNOWN, **known)

    @classmethod
    def from_function(
        cls, stage: str, function: str, family: str | None = None, **known: Unpack[CulpritFields]
    ) -> Culprit:
        """A function of the compiler (``module:function``) at fault in a stage; by default its name is its family."""
        known["source"], known["line"] = find_definition(function)
        name = function.partition(":")[2]
        return cls(stage, None, name, family or name, **known)

    @property
    def is_named(self) -> bool:
        """Return whether a rewrite or an operator is known, and not the place alone."""
        return self.rewrite is not None or self.family != UNKNOWN

    @property
    def signature(self) -> str:
        """Identity of the bug that findings share: stage, source file and family."""
        return ":".join((self.stage, self.source or "-", self.family))

    def to_json(self) -> CulpritJson:
        """The form of the triage contract, in which a report's confidence is that of its culprit."""
        return {
            "stage": self.stage,
            "pass": self.pass_name,
            "rewrite": self.rewrite,
            "family": self.family,
            "nodes": list(self.nodes),
            "source": self.source,
            "line": self.line,
            "site": self.site,
            "step": self.step,
            "necessary": self.necessary,
            "sufficient": self.sufficient,
            "siblings": list(self.siblings),
            "details": self.details,
        }


@dataclass(frozen=True)
class Ablation:
    """One toggle that was tried, and whether the divergence was gone with it."""

    toggle: str
    repairs: bool
    error: float | None

    def to_json(self) -> AblationJson:
        """The form of the triage contract."""
        return {"toggle": self.toggle, "repairs": self.repairs, "error": self.error}


@dataclass(frozen=True)
class Workaround:
    """Setting that avoids the bug, as a user types it, with the result of a compile under it.

    ``config`` patches ``torch._inductor.config``; without it, ``how`` says all there is to do. ``cost_ratio`` is the
    run time with it in units of that without it (the least of several rounds each; None where it could not be
    measured, as where the program does not compile without it). ``error`` is the largest distance from the reference.
    ``compiles`` and ``seconds`` are what finding it took, out of the cost of the whole answer.
    """

    how: str
    config: Mapping[str, Any] = field(default_factory=dict)
    error: float | None = None
    cost_ratio: float | None = None
    verified: bool = True
    compiles: int = 0
    seconds: float = 0.0

    def to_json(self) -> WorkaroundJson:
        """The form of the triage contract."""
        return {
            "how": self.how,
            "config": dict(self.config),
            "verified": self.verified,
            "error": self.error,
            "cost_ratio": self.cost_ratio,
            "found_in": {"compiles": self.compiles, "seconds": round(self.seconds, 3)},
        }


@dataclass
class Attribution:
    """Culprit, what else is needed for the bug, and what was tried.

    ``known``: the culprit was not proved because an earlier case proved it. ``cut_off``: the time was over before every
    stage had been looked at.
    """

    culprit: Culprit | None = None
    contributors: list[Culprit] = field(default_factory=list)
    ablations: list[Ablation] = field(default_factory=list)
    changed_bits: list[Culprit] = field(default_factory=list)
    workaround: Workaround | None = None
    known: bool = False
    cut_off: bool = False

    @property
    def is_proved(self) -> bool:
        """Return whether a compile without the culprit showed that it is at fault."""
        return self.culprit is not None and bool(self.culprit.necessary)


def frames_to_json(frames: Sequence[tuple[str, int, str]]) -> list[FrameJson]:
    """Frames of the compiler (file, line and function) as ``details`` of a culprit hold them."""
    return [{"source": file, "line": line, "function": name} for file, line, name in frames]


def _describe_step(step: Step) -> DetailsJson:
    """Return the step's sizes, the program lines that the rewrite matched, and the graph before and after it.

    ``native_noise`` is what rounding alone does to the native result.
    """
    snapshots = step.record.snapshots
    before, after = snapshots[step.rewrite.before], snapshots[step.rewrite.after]
    writes, overlaps = (
        [sum(map(count, snapshot.graph.nodes)) for snapshot in (before, after)]
        for count in (_writes_inside, _writes_to_overlap)
    )
    return {
        "direction": step.record.direction,
        "float64": step.float64,
        "native": step.native,
        "native_noise": step.native_noise,
        "changed": step.raised or step.metadata or step.stride,
        "reordered": step.reordered,
        "shares": "memory that is written to" if step.by_writes else None if step.is_semantic else step.alias,
        "writes in place": writes[1] > writes[0],
        "writes to overlap": overlaps[1] > overlaps[0],
        "matched": list_user_lines(before, step.rewrite.nodes or find_changed_nodes(before, after)),
        "diff": "\n".join(diff_graphs(before, after)),
    }


def _are_as_wrong(left: Value, right: Value, baseline: Value) -> bool:
    """Return whether two values are much nearer to each other than to what they should be."""
    apart, wrong = relative_change(left.value, right.value), relative_change(right.value, baseline.value)
    return apart <= NEARER_TO_NEIGHBOUR * wrong and wrong > 0.0


def _writes_inside(node: fx.Node) -> bool:
    """Return whether a node writes to something else than a whole argument of the graph, whose last value that is."""
    written = node.args[0] if node.args else None
    return is_mutating(node.target) and isinstance(written, fx.Node) and written.op != "placeholder"


def _writes_to_overlap(node: fx.Node) -> bool:
    """Return whether several elements are one in what a node writes to."""
    value = node.args[0].meta.get("val") if _writes_inside(node) and isinstance(node.args[0], fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return False
    return any(isinstance(stride, int) and stride == 0 for stride in value.stride())


@dataclass(frozen=True)
class Evidence:
    """Test that finds a bug in a compile whose verdict alone does not show it.

    ``replays`` says that it takes a ledger with snapshots.
    """

    shows: Callable[[Trial], bool]
    replays: bool = False


VALUES = Evidence(lambda trial: False)
"""Wrong values, or an error: the verdict says it all."""
REPLAY = Evidence(lambda trial: bool(select_semantic_steps(measure_steps(trial.ledger))), replays=True)
"""A rewrite that moves the float64 result, where native values are within rounding."""
SUSPICION = Evidence(lambda trial: bool(trial.judgement.suspicious))
"""Values beyond rounding and within default tolerances, which float64 proves wrong."""


class OutOfTime(Exception):
    """No further compile may be begun."""


T = TypeVar("T")
# How long operators are compared, at most, where nothing else limits the time.
_SECONDS = 20.0
# Compiles after which a bug that stays away is given up, and how often one that comes and goes may be missed.
_MOST_TRIES, _MISSED = 4, 0.01


@dataclass(frozen=True)
class Divergence:
    """A failing compile, and what replaying its ledger showed: the input of every stage.

    Stages behind the graph passes see something only if the kernels of ``trial`` were watched. ``steps`` say how much
    each rewrite moved the result of its graph; ``deadline`` is the value of ``time.monotonic()`` after which no compile
    is begun.
    """

    experiments: Experiments
    trial: Trial
    steps: Sequence[Step] = ()
    deadline: float | None = None
    _made: dict[object, object] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def how(self) -> Compilation:
        """Compilation of the failing trial, which every ablation changes."""
        return self.experiments.how

    @property
    def seconds(self) -> float:
        """How long operators may be compared: what needs no compile is looked at for a second all the same."""
        left = math.inf if self.deadline is None else self.deadline - time.monotonic()
        return min(_SECONDS, max(1.0, left))

    @property
    def verdict(self) -> Verdict:
        """The judge's verdict on the failing compile; benign where only float64 shows the divergence."""
        return self.trial.judgement.verdict

    @property
    def is_of_values(self) -> bool:
        """Return whether values are wrong, if only in float64."""
        return self.verdict.kind == "values" or not self.verdict.is_bug

    def raises(self, words: str) -> bool:
        """Return whether the compiler or the program raises an error that says so."""
        failure = self.trial.observation.failure
        return failure is not None and words in failure.message

    @property
    def config(self) -> Mapping[str, object]:
        """Entries of Inductor's config that the failing compile ran under."""
        how, settings = self.trial.how, self.experiments.case.settings
        return {**settings.inductor, "fallback_random": True, **how.config}

    def once(self, make: Callable[[Self], T]) -> T:
        """``make`` of this divergence, computed on the first call and kept: several stages read the same findings."""
        if make not in self._made:
            self._made[make] = make(self)
        return self._made[make]  # type: ignore[return-value]


@dataclass(frozen=True)
class Ablator(Divergence):
    """Compiles the case in other ways, checks whether that repairs the divergence, and keeps the table.

    ``evidence`` shows the bug. Every compile raises OutOfTime once the deadline has passed. A bug that comes and goes
    is gone if none of several ``repeats`` shows it.
    """

    evidence: Evidence = VALUES
    repeats: int = 1
    ablations: list[Ablation] = field(default_factory=list)

    @property
    def replays(self) -> bool:
        """Return whether replays alone show the divergence, so that every compile needs a ledger with snapshots."""
        return self.evidence.replays

    def attempt(self, how: Compilation, toggle: str) -> tuple[Trial, bool]:
        """Compile as ``how`` says; the trial, and whether it repairs the divergence. Noted under ``toggle``."""
        say(f"attributing: change {len(self.ablations) + 1}, {toggle}")
        trial = self.run_trial(how)
        repaired = self.repairs(trial)
        self.note(toggle, trial, repaired)
        return trial, repaired

    def attempt_under(self, *changes: CompileChange, toggle: str = "", watched: bool = False) -> tuple[Trial, bool]:
        """Compile under further changes; the trial, and whether they repair the divergence together.

        ``toggle`` is what the table calls them (their own texts by default); a ``watched`` compile keeps the ledger,
        the IR of every graph and what its kernels write.
        """
        how = self.how.under(*changes)
        if watched:
            how = replace(how, kernels=True, record=True)
        toggle = toggle or ", ".join(change.text for change in changes)
        trial, repaired = self.attempt(how, toggle)
        self._made[toggle] = repaired = repaired and self._compiles_rest(trial)
        return trial, repaired

    def is_repaired_by(self, *changes: CompileChange, toggle: str = "", record: bool = True) -> bool:
        """Return whether further changes together repair the divergence; compiled once, however many suspects ask.

        What runs without Inductor needs no ledger: ``record=False``.
        """
        toggle = toggle or ", ".join(change.text for change in changes)
        if toggle not in self._made:
            how = self.how.under(*changes)
            trial, repaired = self.attempt(how if record else replace(how, record=False), toggle)
            self._made[toggle] = repaired and self._compiles_rest(trial)
        return bool(self._made[toggle])

    def _compiles_rest(self, trial: Trial) -> bool:
        """Return whether all is compiled but the calls at which the graph is broken, as far as the program runs.

        In a loop, a generator or ``try`` dynamo leaves all of a frame to eager mode: right whatever is at fault.
        """
        breaks = trial.how.get(GraphBreak)
        if breaks is None or trial.ledger.frames or trial.observation.failure is not None:
            return True
        left = {target for _, target in breaks.calls}
        records = (frame.find_record(PRE_GRAD) for frame in self.trial.ledger.frames)
        graphs = (record.snapshots[0].graph for record in records if record is not None and record.snapshots)
        return all(node.target in left for graph in graphs for node in graph.nodes if node.op.startswith("call"))

    def attempt_in_eager(self, change: contextlib.AbstractContextManager[object], toggle: str) -> bool:
        """Return whether a change of eager mode alone, under which its runs are made again, removes the divergence."""
        self._check_time()
        with change:
            judgement = self.experiments.judge_anew(self.trial.observation)
        trial = replace(self.trial, judgement=judgement)
        accepts = self.verdict is Verdict.ACCEPTS_INVALID  # until eager mode runs too
        repaired = not judgement.verdict.is_bug if accepts else self.repairs(trial)
        self.note(toggle, trial, repaired)
        return repaired

    def run_trial(self, how: Compilation) -> Trial:
        """Compile as ``how`` says, and note nothing; the first of the repeats that is wrong, else the last."""
        for _ in range(self.repeats):
            self._check_time()
            trial = self.experiments.trial(how)
            if self.repeats == 1 or not self.repairs(trial):
                break
        return trial

    def repeat(self) -> Self | None:
        """The same with as many repeats as it takes to see a bug that comes and goes; None if it stays away."""
        for tries in range(1, _MOST_TRIES + 1):
            self._check_time()
            if not self.repairs(self.experiments.trial(replace(self.how, record=self.replays))):
                showing = 2 / (tries + 2)  # of the compiles so far: the first, one that was right, and these
                return replace(self, repeats=math.ceil(math.log(_MISSED) / math.log(1 - showing)))
        return None

    def _check_time(self) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise OutOfTime

    def note(self, toggle: str, trial: Trial, repaired: bool) -> None:
        """Write a line of the table of ablations: what a compile changed, and whether it repaired the divergence."""
        if trial.how.screen:
            toggle += " (graphs interpreted)"
        self.ablations.append(Ablation(toggle, repaired, largest_error(trial.judgement)))

    def repairs(self, trial: Trial) -> bool:
        """Return whether the divergence is gone in ``trial`` (another error is no repair)."""
        verdict, failing = trial.judgement.verdict, self.trial.judgement.verdict
        if failing is Verdict.ACCEPTS_INVALID:
            return trial.observation.failure is not None
        if verdict.is_bug:
            if failing in ERRORS and self._lacks_failing_rewrite(trial):
                return trial.observation.failure is None  # whatever is wrong behind it
            # Layout or sharing that differs besides is another matter than wrong values, and than an error.
            if failing in ERRORS:
                broken = any(isinstance(change, GraphBreak | Backend) for change in trial.how.changes)
                besides = verdict is Verdict.METADATA or (verdict is Verdict.ALIASING and not broken)
                return besides or (verdict.kind == "values" and self._is_wrong_before_inductor(trial))
            if verdict is Verdict.METADATA:  # what shares memory otherwise would be the verdict
                return failing is Verdict.ALIASING or failing.kind == "values"
            parted = verdict is Verdict.ALIASING and any(change.parts_memory for change in trial.how.changes)
            return parted and failing.kind == "values"
        return not self.evidence.shows(trial)

    def _lacks_failing_rewrite(self, trial: Trial) -> bool:
        """Return whether the rule that was active when an exception rose is refused in ``trial``."""
        failed = self.trial.ledger.failed_in
        vetoed = (change.names for change in trial.how.changes if isinstance(change, Veto))
        return failed is not None and any(is_vetoed(failed, names) for names in vetoed)

    def _is_wrong_before_inductor(self, trial: Trial) -> bool:
        """Return whether dynamo, or AOTAutograd, gets the same results as wrong: what is left is a fault of theirs."""
        if find_path(self.experiments.case.settings, trial.how) != COMPILE:
            return False
        wrong = [each.name for each in trial.judgement.comparisons if each.finding not in AGREEING]
        return bool(wrong) and any(
            all(self._is_as_wrong(name, trial, earlier) for name in wrong) for earlier in (CAPTURE_ONLY, TRACE_ONLY)
        )

    def _is_as_wrong(self, name: str, trial: Trial, earlier: Backend) -> bool:
        runs = (trial.observation, self._run_earlier(earlier).observation, self.experiments.baseline)
        values = [value for run in runs if (value := run.index_by_name().get(name)) is not None]
        return len(values) == len(runs) and _are_as_wrong(*values)

    def _run_earlier(self, backend: Backend) -> Trial:
        if backend not in self._made:
            self._made[backend] = self.run_trial(replace(self.how.under(backend), record=False))
        return self._made[backend]  # type: ignore[return-value]

    def fails_alike(self, trial: Trial) -> bool:
        """Return whether ``trial`` fails in the way that the failing one does."""
        return trial.judgement.verdict.kind == self.trial.judgement.verdict.kind

    @functools.cached_property
    def screens(self) -> bool:
        """Return whether the divergence shows without code generation."""
        trial = self.run_trial(replace(self.how, screen=True))
        return not self.repairs(trial) and self.fails_alike(trial)
