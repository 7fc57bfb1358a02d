"""Public issues of pytorch/pytorch as cases: what is a bug of torch 2.13, what is none, and what is one no more.

``tests/public_issues`` has one folder for each of the three; the file says why. A file's EXPECT is the list of
verdicts that are right for it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from test_known_issues import expected

from fuzzcompile.diagnosis.worker.file_triage import FileAnswer, triage_files
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.verdicts import Verdict

FOLDER = Path(__file__).parent / "public_issues"
CASES = sorted(FOLDER.glob("*/issue_*.py"))
# One for each trap: kinds of program on which a triager is easily wrong, in one direction or the other.
TRAPS = {
    "issue_133542_topk_ties": "which of equal elements is taken",
    "issue_141436_division_bfloat16": "one ulp of a large element in a tensor of small ones",
    "issue_150114_condition_of_singular": "eager and compiled agree, and both have no correct digit",
    "issue_183607_half_overflow_cast": "eager overflows where its casts make it, compiled does not",
    "issue_195422_attribute_write_lost": "a lost write that no output shows",
    "issue_195451_copy_back_alias": "right values in memory that is not the result's own",
    "issue_115774_cache_attribute": "a result that a later call changes",
    "issue_197091_ldexp_dtype": "a wrong dtype, and values as exact as that dtype can hold",
    "issue_197895_floor_division_bins": "integers that no rounding can move",
    "issue_198100_contiguous_then_unsqueeze": "a plain Python error out of the compiler",
}
# What is wrong today, and why. A file here that gets its verdict is reported as XPASS: take it out then.
WRONG: dict[str, str] = {}
SHARE_ON_THE_RIGHT_SIDE = 0.95
SHARE_EXACT = 0.9
pytestmark = pytest.mark.skipif(
    not torch.__version__.startswith("2.13"), reason="the expected verdicts are those of torch 2.13"
)


@pytest.fixture(scope="module")
def answers(request: pytest.FixtureRequest) -> dict[str, FileAnswer]:
    """Triage of the files that the selected tests ask for, in two workers: some crash, some never end."""
    selected = [getattr(item, "callspec", None) for item in request.session.items]
    named = {spec.params.get("judged") for spec in selected if spec is not None}
    files = [path for path in CASES if path in named]
    return {answer.path.stem: answer for answer in triage_files(files, Conditions("cpu"), workers=2)}


def marked(path: Path) -> object:
    reason = WRONG.get(path.stem)
    marks = [pytest.mark.xfail(reason=reason, strict=False)] if reason else []
    return pytest.param(path, id=f"{path.parent.name}-{path.stem}", marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize("judged", [marked(path) for path in CASES])
def test_verdict(judged: Path, answers: dict[str, FileAnswer]):
    answer = answers[judged.stem]
    assert answer.report is not None, answer.error
    assert answer.report["verdict"] in expected(judged), answer.report["detail"]


@pytest.mark.slow
def test_nearly_all_are_told_right(answers: dict[str, FileAnswer]):
    total: Counter[str] = Counter()
    on_the_right_side: Counter[str] = Counter()
    exact: Counter[str] = Counter()
    for path in CASES:
        answer = answers.get(path.stem)
        if answer is None:  # only some of the tests are run
            continue
        verdict, right = (answer.report or {}).get("verdict"), expected(path)
        kind = path.parent.name
        total[kind] += 1
        exact[kind] += verdict in right
        on_the_right_side[kind] += verdict is not None and Verdict(verdict).is_bug == (kind == "bugs")
    for kind, count in total.items():
        print(f"{kind}: {count}, on the right side {on_the_right_side[kind]}, exact {exact[kind]}")
    if not total:
        pytest.skip("none of the issues was judged")
    others = [kind for kind in total if kind != "bugs"]
    harmless = sum(total[kind] for kind in others)
    assert on_the_right_side["bugs"] >= SHARE_ON_THE_RIGHT_SIDE * total["bugs"]
    assert sum(on_the_right_side[kind] for kind in others) >= SHARE_ON_THE_RIGHT_SIDE * harmless
    assert exact.total() >= SHARE_EXACT * total.total()


def test_every_file_has_a_place():
    assert {path.parent.name for path in CASES} == {"bugs", "benign", "fixed"}
    assert not set(TRAPS) - {path.stem for path in CASES} and not set(WRONG) - {path.stem for path in CASES}
    for path in CASES:
        verdicts = [Verdict(name) for name in expected(path)]
        assert verdicts and all(verdict.is_bug == (path.parent.name == "bugs") for verdict in verdicts), path


@pytest.mark.parametrize("trap", [marked(path) for path in CASES if path.stem in TRAPS])
def test_trap(trap: Path, triaged):
    report = triaged(trap)
    assert report["verdict"] in expected(trap), f"{TRAPS[trap.stem]}: {report['detail']}"
