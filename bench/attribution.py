"""Attribution of known and planted bugs, beside torch's own CompilerBisector.

    python bench/attribution.py [--only WORD] [--no-bisector] [--warm] [--limit SECONDS] [--json FILE]

Every bug is triaged in this process. CompilerBisector gets the same program, compiled in the same way and judged by
the same judge (a run is bad if its verdict is a bug), in the same process; which of the two comes first alternates,
as the one that comes second finds some kernels compiled already. ``--warm`` runs each of them once untimed.

An answer is *right* if it names the stage and the pattern, operator or pass (and each further one that is needed),
*coarse* if it names the right stage or group and nothing further, *wrong* if it names anything else, and *none* if it
names nothing. Costs are those after detection, which takes two compiles.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from grading import Grade, graded, graded_bisection
from plants import Expected, Planted, planted
from plants.public import issues
from torch._inductor.compiler_bisector import BisectionResult, CompilerBisector

from fuzzcompile.compiler.compile_changes import Backend
from fuzzcompile.compiler.rule_catalogue import initialise_patterns
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.compiler.torch_config import compile_in_process, drop_broken_kernels
from fuzzcompile.diagnosis.engine import TriageProgress, triage
from fuzzcompile.diagnosis.triage_report import TriageReport
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run.device import Numerics, describe_environment

CPU = torch.device("cpu")
_BEFORE = ("dynamo", "functionalization", "decomposition", "fake_tensor", "partition")
_GRAPHS = ("pre_grad", "joint_graph", "post_grad", "freezing")


class OutOfTime(Exception):
    """CompilerBisector has had its time."""


@dataclass(frozen=True)
class Answer:
    """What one of the two said of a bug, and what it took after detection.

    The search for a workaround, which CompilerBisector does not make, is counted apart.
    """

    said: str
    grade: Grade
    compiles: int
    screens: int
    seconds: float
    causes: int = 1  # rewrites that had to be vetoed together, or are needed each
    verdict: str = ""
    necessary: bool | None = None
    workaround_compiles: int = 0
    workaround_seconds: float = 0.0


@dataclass(frozen=True)
class Row:
    """One bug."""

    name: str
    stage: str
    ours: Answer
    bisector: Answer | None


# -- fuzzcompile ----------------------------------------------------------------------------------------


class _Verdicts(TriageProgress):
    latest: TriageReport

    def note_verdict(self, report: TriageReport) -> None:
        self.latest = report


def attributed(path: Path, expected: Expected) -> Answer:
    """Triage a case: what it says of the culprit."""
    progress = _Verdicts()
    report = triage(load_case(path), CPU, progress=progress)
    before, after, found = progress.latest.cost, report.cost, report.attribution
    culprit, workaround = found.culprit, found.workaround
    more = (workaround.compiles, workaround.seconds) if workaround is not None else (0, 0.0)
    said = "–" if culprit is None else f"{culprit.stage}: {culprit.rewrite}"
    if found.contributors:
        said += " + " + ", ".join(str(other.rewrite) for other in found.contributors)
    return Answer(
        said,
        graded(found, expected),
        after.compiles - before.compiles - more[0],
        after.screens - before.screens,
        after.seconds - before.seconds - more[1],
        1 + len(found.contributors) + (len(culprit.siblings) if culprit is not None else 0),
        str(report.verdict),
        None if culprit is None else culprit.necessary,
        *more,
    )


# -- CompilerBisector -----------------------------------------------------------------------------------


def bisected(path: Path, expected: Expected, limit: float) -> Answer:
    """Give a case to CompilerBisector, with our judge for its test."""
    experiments = Experiments(load_case(path), CPU)
    experiments.run_eager()
    started = time.perf_counter()

    def good() -> bool:
        if time.perf_counter() - started > limit:
            raise OutOfTime
        trial = experiments.trial(Compilation((Backend(CompilerBisector.get_backend()),), record=False))
        return not trial.judgement.verdict.is_bug

    said: str
    grade: Grade
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            result = CompilerBisector.do_bisect(good)
        said, grade = _shown(result), graded_bisection(result, expected)
    except OutOfTime:
        said, grade = f"nothing within {limit:.0f} s", "none"
    except Exception as error:
        said, grade = f"raises {type(error).__name__}: {' '.join(str(error).split())[:80]}", "none"
    compiles = (
        experiments.counts.compiles + experiments.counts.screens
    )  # its first steps are backends that generate no code
    answer = Answer(said, grade, compiles, 0, time.perf_counter() - started)
    _finish_bisector()
    return answer


def _finish_bisector() -> None:
    """CompilerBisector tidies up when its frame dies, which an exception out of a compile may keep alive for long.

    It would then do so in the midst of the next bisection, and disable passes in compiles of ours until then.
    """
    with contextlib.redirect_stdout(io.StringIO()):
        gc.collect()
    if CompilerBisector.in_process_cache is not None or CompilerBisector.bisection_enabled:
        raise RuntimeError("CompilerBisector is still at work; rows that follow would be wrong")


def _shown(result: BisectionResult | None) -> str:
    if result is None:
        return "–"
    info = (result.debug_info or "").replace("\n", " ")
    return " / ".join(part for part in (result.backend, result.subsystem, info) if part)


# -- the table ------------------------------------------------------------------------------------------


def measured(bug: Planted, number: int, *, bisector: bool, warm: bool, limit: float) -> Row:
    """Both answers to one bug."""
    with tempfile.TemporaryDirectory() as folder, bug.install():
        path = _case_file(bug, Path(folder))

        def ours() -> Answer:
            return attributed(path, bug.expected)

        def theirs() -> Answer:
            return bisected(path, bug.expected, limit)

        runs: list[Callable[[], Answer]] = [ours, theirs] if bisector else [ours]
        if number % 2:
            runs.reverse()
        if warm:
            for run in runs:
                run()
        else:
            Experiments(load_case(path), CPU).trial()  # detection: the plain compile's kernels are there for both
        answers = {run: run() for run in runs}
    return Row(bug.name, bug.expected.stages[0], answers[ours], answers.get(theirs))


def _case_file(bug: Planted, folder: Path) -> Path:
    if isinstance(bug.case, Path):
        return bug.case
    path = folder / "case.py"
    path.write_text(bug.case, encoding="utf-8")
    return path


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="WORD", help="Only bugs with WORD in their name or stage.")
    parser.add_argument("--no-bisector", action="store_true", help="Leave CompilerBisector out.")
    parser.add_argument("--warm", action="store_true", help="Run both once before they are timed.")
    parser.add_argument("--limit", type=float, default=120.0, help="Seconds that CompilerBisector gets for a bug.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="Write all rows to FILE as well.")
    given = parser.parse_args()
    torch.set_num_threads(1)
    Numerics().apply()
    compile_in_process()
    drop_broken_kernels()
    initialise_patterns(CPU)
    facts = describe_environment(CPU)
    print(f"torch {facts['torch']}, {facts['cpu']}, {torch.get_num_threads()} thread; {time.strftime('%Y-%m-%d')}\n")
    bugs = [bug for bug in [*issues(), *planted()] if given.only in bug.name or given.only in bug.expected.stages]
    rows: list[Row] = []
    for number, bug in enumerate(bugs):
        row = measured(bug, number, bisector=not given.no_bisector, warm=given.warm, limit=given.limit)
        rows.append(row)
        print(_line(row), flush=True)
        if given.json:
            found = {"facts": facts, "rows": [asdict(row) for row in rows]}
            given.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    print("\n" + summary(rows))


def _line(row: Row) -> str:
    ours, theirs = row.ours, row.bisector
    text = (
        f"{row.name:44} {ours.grade:6} {ours.compiles:2} compiles {ours.screens:2} screens {ours.seconds:5.1f} s  "
        f"{ours.said}"
    )
    if theirs is not None:
        text += f"\n{'':36} bisector {theirs.grade:6} {theirs.compiles:2} compiles {'':10} {theirs.seconds:5.1f} s  "
        text += theirs.said[:90]
    return text


def summary(rows: Sequence[Row]) -> str:
    """Counts, medians and ratios."""
    lines = []
    for who, answers in (("fuzzcompile", [r.ours for r in rows]), ("bisector", [r.bisector for r in rows])):
        there = [answer for answer in answers if answer is not None]
        if there:
            grades = Counter(answer.grade for answer in there)
            share = grades["right"] / len(there)
            counted = ", ".join(f"{grades[grade]} {grade}" for grade in ("right", "coarse", "wrong", "none"))
            lines.append(f"{who}: {counted} of {len(there)} ({share:.0%} right)")
    for title, stages in (("before the graphs", _BEFORE), ("graph passes", _GRAPHS), ("behind the graphs", None)):
        chosen = [r for r in rows if (r.stage in stages if stages else r.stage not in (*_BEFORE, *_GRAPHS))]
        if chosen:
            lines.append(f"{title} ({len(chosen)}): " + _medians(chosen))
    if rows:
        lines.append("all: " + _medians(rows))
    return "\n".join(lines)


def _medians(rows: Sequence[Row]) -> str:
    def median(values: Sequence[float]) -> str:
        return f"{statistics.median(values):.3g}"

    ours = [row.ours for row in rows]
    text = (
        f"median {median([a.compiles for a in ours])} compiles "
        f"({median([a.compiles - (a.causes - 1) for a in ours])} without one for each sibling or further cause), "
        f"{median([a.screens for a in ours])} screens, {median([a.seconds for a in ours])} s "
        f"(then for the workaround {median([a.workaround_compiles for a in ours])} compiles, "
        f"{median([a.workaround_seconds for a in ours])} s)"
    )
    pairs = [(row.ours, row.bisector) for row in rows if row.bisector is not None]
    if pairs:
        theirs = [b for _, b in pairs]
        ratios = [a.seconds / b.seconds for a, b in pairs]
        total = sum(a.seconds for a, _ in pairs) / sum(b.seconds for b in theirs)
        text += (
            f"; bisector {median([b.compiles for b in theirs])} compiles, {median([b.seconds for b in theirs])} s; "
            f"ratio of times: median {median(ratios)}, of the sums {total:.3g}"
        )
    return text


if __name__ == "__main__":
    main()
