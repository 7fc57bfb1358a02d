"""The side that is named on cases that are known: public issues of torch, the committed corpus, planted bugs.

Files are judged in a worker under a limit of time, planted bugs in this process. What was judged is in a state file and
is not judged again.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from plants import Planted, planted

from fuzzcompile.compiler.rule_catalogue import initialise_patterns
from fuzzcompile.compiler.torch_config import compile_in_process, drop_broken_kernels
from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.worker.file_triage import FileAnswer, triage_files
from fuzzcompile.model.conditions import Conditions, Limits
from fuzzcompile.model.contract import ReportJson
from fuzzcompile.programs.casefiles.case_module import load_case

CPU = torch.device("cpu")
PLANTED = "bench/plants"
ROOT = Path(__file__).resolve().parents[1]
# Bugs first: only they have a side.
SOURCES = (
    "corpus/torch-2.13.0-cpu/*/repro.py",
    "tests/known_issues/issue_*.py",
    "tests/public_issues/bugs/issue_*.py",
    "tests/public_issues/benign/issue_*.py",
    "tests/public_issues/fixed/issue_*.py",
)


@dataclass(frozen=True)
class KnownSide:
    """The answer on one case; ``is_bug`` is what the judge says."""

    case: str
    verdict: str | None
    wrong: str | None
    confidence: str | None
    culprit: str
    is_bug: bool
    detail: str
    seconds: float


def list_cases() -> list[Path]:
    """The cases, in the order in which they are judged."""
    return [path for source in SOURCES for path in sorted(ROOT.glob(source))]


def read_state(state: Path) -> dict[str, KnownSide]:
    """The answers that a state file holds, by case."""
    lines = state.read_text(encoding="utf-8").splitlines() if state.exists() else []
    return {side.case: side for side in (KnownSide(**json.loads(line)) for line in lines)}


def judge_known(state: Path, seconds: float) -> Iterator[KnownSide]:
    """Judge each case that the state does not hold, and add it there."""
    known = read_state(state)
    conditions = Conditions("cpu", limits=Limits(seconds=seconds))
    left = [path for path in list_cases() if _name(path) not in known]
    for answer in triage_files(left, conditions):
        yield _keep(state, _summarise_answer(answer))
    compile_in_process()
    drop_broken_kernels()
    initialise_patterns(CPU)
    for bug in planted():
        if f"{PLANTED}/{bug.name}" not in known:
            yield _keep(state, _judge_planted(bug))


def _keep(state: Path, side: KnownSide) -> KnownSide:
    with state.open("a", encoding="utf-8") as file:
        file.write(json.dumps(dataclasses.asdict(side)) + "\n")
    return side


def _judge_planted(bug: Planted) -> KnownSide:
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, bug.install():
        path = bug.case if isinstance(bug.case, Path) else Path(folder, f"{bug.name}.py")
        if isinstance(bug.case, str):
            path.write_text(bug.case, encoding="utf-8")
        report = triage(load_case(path), CPU).to_json()
    return _summarise(f"{PLANTED}/{bug.name}", report, time.perf_counter() - started)


def format_known(sides: Mapping[str, KnownSide]) -> str:
    """The summary by side, and the table of bugs, for a report."""
    groups = {source.rpartition("/")[0]: list(map(_name, sorted(ROOT.glob(source)))) for source in SOURCES}
    groups[PLANTED] = [f"{PLANTED}/{bug.name}" for bug in planted()]
    lines = [
        "| cases | judged | bugs | compiled | eager | both | undecided | no side |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for group, names in groups.items():
        lines.append(_summarise_group(group, len(names), [sides[name] for name in names if name in sides]))
    lines += ["", "| case | verdict | `wrong` | confidence | culprit | remark |", "|---|---|---|---|---|---|"]
    for name in (name for names in groups.values() for name in names if name in sides):
        side = sides[name]
        if side.is_bug or side.wrong is not None:
            remark = REMARKS.get(name) or ("" if side.wrong == "compiled" else VALUELESS.get(str(side.verdict), ""))
            cells = (f"`{name}`", side.verdict, side.wrong or "–", side.confidence, side.culprit, remark)
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def _summarise_group(group: str, count: int, judged: Sequence[KnownSide]) -> str:
    bugs = [side for side in judged if side.is_bug]
    told = Counter(side.wrong for side in bugs)
    counts = (told["compiled"], told["eager"], told["both"], told["undecided"], told[None])
    cells = (f"`{group}`", f"{len(judged)} of {count}", len(bugs), *counts)
    return "| " + " | ".join(map(str, cells)) + " |"


# Verdicts that have no side, and why.
VALUELESS = {
    "metadata": "the layout, dtype, shape or requires_grad is not eager's: no values part",
    "aliasing": "memory is shared or written otherwise than in eager: no values part",
    "compile_error": "an error of the compiler: no values",
    "runtime_error": "an error of the compiled program: no values",
    "crash": "the compiled program ends its process: no values",
    "timeout": "no values in time",
    "accepts_invalid": "eager raises: no values to compare",
    "nondeterministic": "the compiled program differs from itself",
}
# Of single cases, by hand.
REMARKS: dict[str, str] = {}


def _name(path: Path) -> str:
    relative = path.relative_to(ROOT)
    return str(relative.parent if path.name == "repro.py" else relative.with_suffix(""))


def _summarise_answer(answer: FileAnswer) -> KnownSide:
    name = _name(answer.path)
    if answer.report is None:
        return KnownSide(name, None, None, None, "", False, str(answer.error), answer.seconds)
    return _summarise(name, answer.report, answer.seconds)


def _summarise(name: str, report: ReportJson, seconds: float) -> KnownSide:
    culprit = report["culprit"]
    named = "" if culprit is None else f"{culprit['stage']}: {culprit['rewrite'] or culprit['family']}"
    verdict, wrong, confidence = report["verdict"], report["wrong"], report["confidence"]
    return KnownSide(name, verdict, wrong, confidence, named, report["is_bug"], report["detail"], round(seconds, 1))
