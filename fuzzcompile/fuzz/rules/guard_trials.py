"""Trials of guards: a condition must stop a rule on a finding's program, and leave it where it is right today."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from typing import cast

import torch

from fuzzcompile.compiler.guard_patches import Guard, GuardedRule, GuardUnknown, Observed, find_guarded_rule
from fuzzcompile.compiler.session import silence_torch
from fuzzcompile.compiler.torch_config import preserve_config
from fuzzcompile.fuzz.rules.rule_programs import iter_candidates, screen_source
from fuzzcompile.model.contract import FixJson, ReportJson
from fuzzcompile.model.errors import CaseError
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.programs.edits.pattern_program import (
    PatternProgram,
    apply_edit,
    list_edits,
    render_pattern_program,
)
from fuzzcompile.run.observation import Observation, Value
from fuzzcompile.run.pool.worker import get_current_device
from fuzzcompile.run.runs import run_eager

# Programs of the rule that a guard is tried on, those among which they are looked for, and seconds for it.
_KNOWN, _LOOKED_AT, _SECONDS = 6, 24, 60.0
# A difference from eager that no rounding makes in any dtype.
_FAR = 0.05
# Near misses that leave what a call is asked for.
_EDITS = ("size", "dtype", "layout", "followed")
# Conditions that are tried, and those that hold which a script is run with.
_MOST_GUARDS, _ENOUGH = 12, 3


def try_guards(source: str, report: ReportJson) -> list[FixJson]:
    """Try the conditions that set a finding's program apart from its neighbour, until enough hold.

    Where none holds, the first is told with what it fails at; where none can be tried, the only one says why.
    """
    device = torch.device(get_current_device())
    with silence_torch():
        try:
            return _GuardTrials(source, report, find_guarded_rule(report.get("culprit"), device), device).run()
        except GuardUnknown as unknown:
            return [{"why_not": str(unknown)}]


class _GuardTrials:
    def __init__(self, source: str, report: ReportJson, rule: GuardedRule, device: torch.device) -> None:
        self.source, self.report, self.rule, self.device = source, report, rule, device
        self.cause = report.get("cause") or None
        self.neighbour = (self.cause or {}).get("neighbour") or ""
        self.known: list[str] = []
        self.wrong: list[tuple[str, int]] = []  # each with how often the rule is applied

    def run(self) -> list[FixJson]:
        if not self.neighbour:
            raise GuardUnknown("no program close to this one is known that passes, so no condition can be read off")
        failing, self.failing_count = self._observe(self.source)
        right, self.right_count = self._observe(self.neighbour)
        if not self.failing_count or not self.right_count:
            which = "the script" if not self.failing_count else "the nearest program that passes"
            raise GuardUnknown(f"`{self.rule.name}` does not apply to {which} here")
        guards = self.rule.list_guards(failing, right, self.cause)
        if not guards:
            raise GuardUnknown("nothing that it can ask of a call sets the script apart from the nearest that passes")
        self._find_programs()
        trials = list[FixJson]()
        for guard in guards[:_MOST_GUARDS]:
            trials.append(self._try(guard))
            if sum("patch" in trial for trial in trials) == _ENOUGH:
                break
        held = [trial for trial in trials if "patch" in trial]
        return sorted(held, key=lambda trial: -trial["stopped"]) or trials[:1]

    def _observe(self, source: str) -> tuple[Observed, int]:
        with self.rule.watch() as observed:
            try:
                screen_source(source, self.device)
            except (CaseError, MemoryError) as error:
                raise GuardUnknown(f"the program cannot be compiled here ({error})") from error
        return observed, self.rule.applied

    def _find_programs(self) -> None:
        """Find programs written for the rule in which it fires: those where the graphs give eager's values, and others.

        Where one of the latter is far off, the rule is wrong there, too.
        """
        until = time.monotonic() + _SECONDS
        for program, may_be_known in self._iter_programs():
            text = render_pattern_program(program)
            with self.rule.watch():
                try:
                    case, _, seen = screen_source(text, self.device)
                except (CaseError, MemoryError):
                    continue
            if self.rule.applied and not (eager := run_eager(case, self.device)).failure:
                if self._agrees(eager, seen):
                    self.known += [text] if may_be_known and len(self.known) < _KNOWN else []
                elif not self._agrees(eager, seen, _FAR) and len(self.wrong) < _KNOWN:
                    self.wrong.append((text, self.rule.applied))
            if len(self.known) == len(self.wrong) == _KNOWN or time.monotonic() > until:
                break

    def _iter_programs(self) -> Iterator[tuple[PatternProgram, bool]]:
        """Programs written for the rule, then near misses of the first; those that may be known to be right, and not.

        A near miss that changes what a call is asked for may be right by chance where the rule is wrong.
        """
        first = None
        for program in itertools.islice(iter_candidates(self.rule.rules[0]), _LOOKED_AT):
            first = first or program
            yield program, True
        edits = [] if first is None else list_edits(first)
        random.Random(self.rule.name).shuffle(edits)
        for kept in (True, False):
            for edit in [edit for edit in edits if (edit.name in _EDITS) is kept][:_LOOKED_AT]:
                if first is not None and (edited := apply_edit(first, edit)) is not None:
                    yield edited, kept

    def _agrees(self, eager: Observation, compiled: Observation, tolerance: float | None = None) -> bool:
        theirs = compiled.index_by_name()
        return not compiled.failure and all(
            name in theirs and self._is_close(value, theirs[name], tolerance)
            for name, value in eager.index_by_name().items()
        )

    def _is_close(self, eager: Value, compiled: Value, tolerance: float | None) -> bool:
        if self.report.get("verdict") == Verdict.METADATA and eager.stride != compiled.stride:
            return False
        try:
            torch.testing.assert_close(compiled.value, eager.value, rtol=tolerance, atol=tolerance, equal_nan=True)
        except (AssertionError, TypeError, ValueError):
            return not eager.is_tensor and bool(eager.value == compiled.value)
        return True

    def _try(self, guard: Guard) -> FixJson:
        def count(source: str) -> int:
            return self._observe(source)[1]

        with preserve_config(), self.rule.kept():
            self.rule.run_patch(guard.patch)
            refuses, neighbour = count(self.source) < self.failing_count, count(self.neighbour) >= self.right_count
            fires = sum(count(text) > 0 for text in self.known)
            stopped = sum(count(text) < before for text, before in self.wrong)
        lost = len(self.known) - fires
        failures = (
            (refuses, "it still applies to the script"),
            (neighbour, "it does not apply any more to the nearest program that passes"),
            (not lost, f"it does not apply any more to {lost} of {len(self.known)} known cases"),
        )
        why_not = next((why for holds, why in failures if not holds), None)
        counts = {"known": len(self.known), "fires": fires, "wrong": len(self.wrong), "stopped": stopped}
        tried = cast(FixJson, {"guard": guard.words, **counts, "torch": torch.__version__})
        return {**tried, "patch": guard.patch} if why_not is None else {**tried, "why_not": why_not}
