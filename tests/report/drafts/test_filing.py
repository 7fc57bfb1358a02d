"""What is not to be filed, why, and what would make it fileable; the index of a folder of drafts."""

from __future__ import annotations

import pytest
from findings import CULPRIT, SHOWN, WRONG, facts
from triage_reports import output

from fuzzcompile.corpus.models import Umbrella
from fuzzcompile.corpus.replay.replay_history import History
from fuzzcompile.corpus.transactions import Mark
from fuzzcompile.model.evidence import RANDOM_STATE
from fuzzcompile.report.filing import find_refusal, make_entry, with_entry

ISSUE = "https://github.com/pytorch/pytorch/issues/1"
NAN = {"max_abs_error_compiled": None, "non_finite": "nan"}
SUSPECT = {**CULPRIT, "necessary": False}


def test_a_proved_finding_is_to_be_filed():
    assert find_refusal(facts()) is None


@pytest.mark.parametrize("verdict", ["equal", "rounding", "unstable", "precision_casts", "invalid"])
def test_what_is_no_bug_is_not_filed(verdict):
    refusal = find_refusal(facts(verdict, culprit=None))
    assert refusal is not None and refusal.reason.startswith("no bug: ")


@pytest.mark.parametrize(
    ("fields", "reason", "remedy"),
    [
        ({"culprit": SUSPECT}, "`addmm` is a suspect, not a proof", "--proof"),
        ({"culprit": {**CULPRIT, "necessary": None}}, "a suspect, not a proof", "--proof"),
        ({"culprit": None}, "nothing in the compiler could be shown to cause it", "--proof"),
        ({"mark": Mark("known", ISSUE)}, f"it is known: {ISSUE}", "comment on that issue"),
        ({"mark": Mark("known", note="Optimus only")}, "it is known (Optimus only)", "mark FINDING open"),
        ({"mark": Mark("dup", duplicate_of="F2")}, "it is a duplicate of F2", "mark FINDING open"),
        ({"mark": Mark("fixed")}, "marked as fixed", "mark FINDING open"),
        ({"mark": Mark("invalid")}, "marked as invalid", "mark FINDING open"),
        ({"mark": Mark("wontfix")}, "will not fix", "mark FINDING open"),
        (
            {"umbrella": Umbrella("validation", issue=ISSUE)},
            f"group validation, which has an issue: {ISSUE}",
            "comment",
        ),
        (
            {"umbrella": Umbrella("opt_in-split_cat"), "grouped": 3, "opt_in": ["freezing"]},
            "one issue for the 3 findings of the group opt_in-split_cat",
            "issue opt_in-split_cat",
        ),
        ({"umbrella": Umbrella("layout", "wontfix")}, "group layout, which is marked wontfix", "mark layout open"),
        (
            {"history": History({"2.13.0": "failing", "2.15.0": "fixed"}, "2.13.0", "2.15.0", "2.15.0", True)},
            "it is fixed in torch 2.15.0, the newest that was tried",
            "unless it comes back",
        ),
        ({"confirmed": False}, "Minimal reproducer (", "minimize"),
        ({"plants": ["a.py", "b.py"]}, "planted bugs (a.py, b.py)", "without `--plant`"),
        (
            {"evidence": {"outputs": [{**WRONG, "name": RANDOM_STATE, "finding": "integer"}]}},
            "only the state of the random generator",
            "next random numbers",
        ),
        ({"evidence": {"outputs": [WRONG], "layout_doubt": "no result is long"}}, "means nothing: no result", "view()"),
        (
            {
                "evidence": {
                    "outputs": [{**WRONG, "torch_same": True, "max_abs_error_compiled": None, "non_finite": "nan"}]
                }
            },
            "Higher-precision baseline",
            "larger",
        ),
        ({"reproducer": None}, "Minimal reproducer (there is none yet)", "minimize"),
        ({"evidence": {"outputs": [{**WRONG, "within_default_tolerance": True}]}}, "Default tolerances", "larger"),
        ({"evidence": {"outputs": [{**WRONG, "torch_same": True}]}}, "Higher-precision baseline", "larger"),
        ({"evidence": {"outputs": [{**WRONG, "max_abs_error_eager": 5.0}]}}, "farther from float64", "larger"),
        ({"ablations": [], "shown": {}}, "Ablation", "fuzzcompile triage FINDING"),
        ({"shown": {"plain": "x = torch.randn(2)"}}, "Equal random state", "seed the script"),
    ],
)
def test_what_is_refused_and_what_would_change_that(fields, reason, remedy):
    refusal = find_refusal(facts(**fields))
    assert refusal is not None
    assert reason in refusal.reason and remedy in refusal.remedy


@pytest.mark.parametrize(
    "fields",
    [
        {"mark": Mark("open")},
        {"umbrella": Umbrella("layout")},
        {"umbrella": Umbrella("opt_in-split_cat"), "opt_in": ["freezing"]},  # the only one of its group
        {"history": History({"2.11.0": "fixed"}, newest="2.11.0")},  # older than where it was seen
        {"history": History({"2.13.0": "failing", "2.15.0": "errored"}, "2.13.0", None, "2.15.0", True)},
        {"ablations": []},  # the ladder of backends is one
        {"shown": {**SHOWN, "plain": "x = torch.ones(2)"}},  # draws no random numbers
        {"culprit": SUSPECT, "shown": {**SHOWN, "eager_only": "print(torch.ops.aten.tril(x))"}},
        # A write that only eager makes has no value beside it to be compared with.
        {
            "verdict": "aliasing",
            "evidence": {"outputs": [output("input0 after the call", finding="missing", detail="only eager has it")]},
        },
    ],
)
def test_what_does_not_stand_against_filing(fields):
    assert find_refusal(facts(**fields)) is None


@pytest.mark.parametrize("verdict", ["compile_error", "runtime_error", "crash", "timeout"])
def test_an_error_without_a_culprit_is_evident_and_one_with_a_suspect_is_not(verdict):
    assert find_refusal(facts(verdict, culprit=None, detail="RuntimeError: bad view")) is None
    assert find_refusal(facts(verdict, culprit=SUSPECT, detail="RuntimeError: bad view")) is not None


def test_the_first_reason_is_the_weightiest():
    refusal = find_refusal(facts(culprit=SUSPECT, mark=Mark("dup", duplicate_of="F2"), confirmed=False))
    assert refusal is not None and "duplicate" in refusal.reason


def entry(name, finding):
    return make_entry(name, finding, find_refusal(finding))


def test_the_index_lists_the_worst_first_and_what_is_refused_with_the_reason():
    stride = {"name": "out0", "finding": "stride", "detail": "eager (1, 2), compiled (2, 1)", "view_raises": False}
    index = ""
    for name, finding in (
        ("F10", facts("compile_error", detail="TypeError: a | b", cause=None)),
        ("F3", facts("metadata", stride, cause=None)),
        ("F9", facts()),
        ("F2", facts(culprit=SUSPECT)),
        ("F1", facts("rounding", culprit=None)),
    ):
        index = with_entry(index, entry(name, finding))
    lines = [line for line in index.splitlines() if line.startswith("| ") and "F" in line]
    assert [line.split(" | ")[0] for line in lines] == [
        "| [F9](F9.md)",
        "| [F10](F10.md)",
        "| [F3](F3.md)",
        "| F2",
        "| F1",
    ]
    assert "3 to be filed, 2 refused" in index and "| `addmm` is a suspect, not a proof" in lines[3]
    assert lines[1].endswith("fails to compile: TypeError: a \\| b |") and "| error |" in lines[1]


def test_an_entry_replaces_that_of_the_same_finding_and_keeps_the_rest():
    index = with_entry(with_entry("", entry("F1", facts())), entry("F2", facts(mark=Mark("known", ISSUE))))
    assert with_entry(index, entry("F2", facts(mark=Mark("known", ISSUE)))) == index
    again = with_entry(index, entry("F1", facts(culprit=SUSPECT)))
    assert "0 to be filed, 2 refused" in again and again.count("| F1 |") == 1 and "F1.md" not in again
    assert f"it is known: {ISSUE}" in again
