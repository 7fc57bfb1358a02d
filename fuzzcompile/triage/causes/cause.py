"""Look for the cause of a bug in the process that judged it."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import cast

import torch

from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.signatures import drop_fingerprint, has_fingerprints, parse_fingerprint
from fuzzcompile.model.stages import GRAPH_STAGES
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.programs.capture.case_loader import load
from fuzzcompile.programs.ir.case_source import write_program
from fuzzcompile.programs.ir.case_text import program_key
from fuzzcompile.programs.ir.graph_programs import capture_graph_programs, write_out
from fuzzcompile.programs.ir.program import Program
from fuzzcompile.run.case import Case
from fuzzcompile.run.worker import say
from fuzzcompile.triage.causes.search import CulpritActivity, ScreenResult, find_cause
from fuzzcompile.triage.probe import SignatureLock, probe_case
from fuzzcompile.triage.triage_report import Report

# Seconds after which no further compile is begun.
_SECONDS = 20.0
_NONE = "no program that is right was found one change away: the signature names no cause, and may hold several bugs"
# Compiling a candidate of one of these would take this process down.
_LOST = (Verdict.CRASH, Verdict.TIMEOUT)
_RIGHT = (Verdict.EQUAL, Verdict.ROUNDING)


def add_cause(
    report: Report,
    case: Case,
    device: torch.device,
    *,
    vetoes: tuple[str, ...] = (),
    known: Collection[str] = (),
    deadline: float | None = None,
) -> Report:
    """The report with its cause, where one is found, and with the key of its program: both make its signature.

    Args:
        report: the report on the case.
        case: the case.
        device: where it ran.
        vetoes: rewrites that are refused throughout.
        known: fingerprints of causes to try first.
        deadline: value of ``time.monotonic()`` after which no compile is begun.
    """
    if not report.is_bug:
        return report
    report = replace(report, program=program_key(case.source))
    culprit = report.attribution.culprit
    if culprit is None or not culprit.is_named or not has_fingerprints(culprit.stage):
        return report
    if report.verdict in _LOST or report.target is not None:
        return report
    say("looking for what must change for the case to pass")
    started = time.monotonic()
    asked = cast(ReportJson, report.to_json())
    screens = LocalScreener(SignatureLock.of(asked), device, vetoes)
    ends = started + _SECONDS if deadline is None else min(started + _SECONDS, deadline)
    note = _NONE
    try:
        programs = capture_graph_programs(case, device) or capture_graph_programs(case, device, "aten")
        cause = find_cause(asked, programs, screens, known=known, deadline=ends)
    except MemoryError:
        raise
    except Exception as error:  # the search runs parts of any program, which may raise anything; the verdict stands
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        cause, note = None, f"the search for the cause failed, and the signature names none: {said}"
    seconds = report.cost.seconds + time.monotonic() - started
    cost = replace(report.cost, seconds=seconds, cause_screens=screens.count)
    return replace(report, cause=cause, cost=cost, notes=report.notes if cause else (*report.notes, note))


def known_causes(report: Report, known: Collection[tuple[str, str]]) -> frozenset[str]:
    """The fingerprints of known bugs that a hit may be.

    Args:
        report: the hit.
        known: signatures of known bugs, each with the kind of its verdict. Only those of the report's kind count: a bug
            that was proved to raise is yet to be proved where it gives wrong values.
    """
    culprit = report.attribution.culprit
    if culprit is None or not report.attribution.known:
        return frozenset()
    kind = report.verdict.kind
    here = (signature for signature, of in known if of == kind and drop_fingerprint(signature) == culprit.signature)
    return frozenset(cause for signature in here if (cause := parse_fingerprint(signature)) is not None)


@dataclass
class LocalScreener:
    """Compiles candidates in this process, without code generation, and compares what they show with ``target``.

    ``count`` says how many.
    """

    target: SignatureLock
    device: torch.device
    vetoes: tuple[str, ...] = ()
    count: int = 0

    def screen(self, program: Program) -> ScreenResult:
        """Compile a program once; one that cannot run at all shows nothing."""
        self.count += 1
        with write_out(write_program(program)) as path:
            try:
                probed = probe_case(
                    load(path, self.device), self.device, vetoes=self.vetoes, screen=True, target=self.target
                )
            except MemoryError:
                raise
            except Exception:  # a part of a program may fail anywhere, in any way
                return ScreenResult(False, False, CulpritActivity.ABSENT)
        # Of wrong values, those are mended that another bug of the same pass leaves with other strides or memory.
        mended = Verdict(self.target.verdict).kind == "values" and probed.is_bug and probed.right_values
        right = probed.verdict in _RIGHT or (mended and probed.verdict in (Verdict.METADATA, Verdict.ALIASING))
        return ScreenResult(self.target.matches(probed), right, self._still(probed.outcomes), probed.outputs)

    def _still(self, outcomes: Collection[tuple[str, str, str]]) -> CulpritActivity:
        if self.target.stage not in GRAPH_STAGES:
            return CulpritActivity.FIRES  # the operator is there as before
        own = {how for stage, family, how in outcomes if stage == self.target.stage and family in self.target.families}
        if "fired" in own:
            return CulpritActivity.FIRES
        return CulpritActivity.REFUSED if "refused" in own else CulpritActivity.ABSENT
