"""``fuzzcompile issue`` and the folder of drafts, for findings of a corpus."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from findings import CASE, CHECK, CULPRIT, ENVIRONMENT, SHOWN, WRONG, facts

from fuzzcompile.corpus.models import Related, Replay
from fuzzcompile.corpus.records import CaseRecord, Reproducer
from fuzzcompile.corpus.store import Store
from fuzzcompile.corpus.transactions import Mark
from fuzzcompile.front.cli.main import main
from fuzzcompile.fuzz.campaign.campaign_outputs import write_draft
from fuzzcompile.model.errors import FuzzcompileError

SUSPECT = {**CULPRIT, "necessary": False}
PLACE = "post_grad:torch/_inductor/fx_passes/post_grad.py"


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "corpus.db") as opened:
        yield opened


def added(store, number=1, **fields):
    """A finding of its own, with a reproducer."""
    report = {**facts(**fields).report, "signature": f"{PLACE}:rule{number}"}
    case = CaseRecord(f"{number:064}", CASE, "generated")
    stored = store.record(None, case, ENVIRONMENT, report)
    sha256 = f"{number + 100:064}"
    reproducer = Reproducer(CASE + CHECK, sha256, 12, "graph", True, report["torch"], report, shown=SHOWN)
    store.add_reproducer(stored.finding_id, reproducer)
    return f"F{stored.finding_id}", sha256


def issue(store, capsys, *arguments):
    with pytest.raises(SystemExit) as ending:
        main(["issue", *arguments, "--corpus", str(store.location)])
    out, err = capsys.readouterr()
    return int(ending.value.code or 0), out, err


def test_the_command_prints_the_draft(store, capsys):
    name, _ = added(store)
    status, out, err = issue(store, capsys, name)
    assert status == 0 and err == "" and out.startswith("# `torch.add(x, a @ b, alpha=0.5)` ignores `alpha`")
    assert out.endswith("`topic: fuzzer`.\n") and "449b1768/torch" not in out and "#L1800)" in out


def test_the_numbers_of_a_draft_are_those_of_its_script(store, capsys):
    name, _ = added(store)
    own = store.best_reproducer(name)
    small = {**WRONG, "at": {"eager": 1.0, "compiled": 2.0}}
    shown = {**SHOWN, "plain_output": "tensor([[1.]])\ntensor([[2.]])\ntensor([[0.6037]])\ntensor([[1.504]])"}
    report = {**own.report, "evidence": {**own.report["evidence"], "outputs": [small]}}
    store.add_reproducer(
        name, replace(own, sha256=f"{9:064}", source=own.source + "\n", lines=3, report=report, shown=shown)
    )
    draft = issue(store, capsys, name)[1]
    assert "is 1 in eager and 2 compiled" in draft and "is 0.6037 in eager" not in draft
    smaller = {**WRONG, "at": {"eager": 3.0, "compiled": 4.0}}
    shown = {**SHOWN, "plain_output": "tensor([[3.]])\ntensor([[4.]])"}
    # A script alone that proves nothing leaves the culprit of the finding, without the figures of the other program.
    unproved = {**own.report, "culprit": None, "evidence": {"outputs": [smaller]}, "signature": "post_grad:-:program-1"}
    store.add_reproducer(name, replace(own, sha256=f"{8:064}", lines=2, report=unproved, shown=shown))
    _, draft, said = issue(store, capsys, name, "--anyway")
    assert "is 3 in eager and 4 compiled" in draft and "- **Culprit:** `addmm`" in draft, said


def test_what_is_not_to_be_filed_gets_the_reason_and_no_draft(store, capsys):
    name, _ = added(store, culprit=SUSPECT, cause=None)
    status, out, err = issue(store, capsys, name)
    assert status == 0 and out == ""
    assert err.startswith(f"{name} is not to be filed: `addmm` is a suspect, not a proof")
    assert "What would change that: a proved culprit" in err and "`--anyway` prints the draft." in err
    status, out, err = issue(store, capsys, name, "--anyway")
    assert status == 0 and out.startswith("> **Not to be filed: `addmm` is a suspect") and err == ""


@pytest.mark.parametrize("anyway", [(), ("--anyway",)])
def test_the_answer_as_json(store, capsys, anyway):
    (proved, _), (suspect, _) = added(store), added(store, 2, culprit=SUSPECT, cause=None)
    status, out, _ = issue(store, capsys, proved, "--json", *anyway)
    answer = json.loads(out)
    assert status == 0 and answer["finding"] == proved and answer["fileable"] is True
    assert answer["reason"] is None and answer["remedy"] is None and answer["draft"].startswith("# `torch.add")
    answer = json.loads(issue(store, capsys, suspect, "--json", *anyway)[1])
    assert answer["fileable"] is False and "suspect" in answer["reason"] and "corpus refresh F2" in answer["remedy"]
    assert bool(answer["draft"]) == bool(anyway)


def test_an_unknown_finding_is_wrong_usage(store, capsys):
    added(store)
    status, out, err = issue(store, capsys, "F99")
    assert status == 2 and out == "" and "F1" in err


def test_a_draft_rests_on_replays_and_on_what_a_search_found(store, capsys):
    name, sha256 = added(store)
    replay = Replay(sha256, "2.13.0+cpu", None, "failing", ["failing"] * 3, "", 1.0)
    store.add_replay(name, replay)
    url = "https://github.com/pytorch/pytorch/issues/7"
    store.keep_related(name, [Related(url, "issue", "alpha is dropped", "open", 3.0, "alpha")], ["addmm alpha"])
    _, out, _ = issue(store, capsys, name)
    assert "Only torch 2.13.0 was tried, and has it." in out and f"[alpha is dropped]({url})" in out
    store.add_replay(name, replace(replay, torch="2.15.0", status="fixed", runs=["fixed"] * 3))
    assert "it is fixed in torch 2.15.0" in issue(store, capsys, name)[2]


def test_drafts_are_written_with_an_index_and_a_refused_one_goes(store, tmp_path):
    folder = tmp_path / "new" / "drafts"
    (proved, sha256), (suspect, _) = added(store), added(store, 2, culprit=SUSPECT, cause=None)
    for name in (suspect, proved):
        write_draft(store, name, folder)
    assert sorted(path.name for path in folder.iterdir()) == [f"{proved}.md", "INDEX.md"]
    index = (folder / "INDEX.md").read_text(encoding="utf-8")
    assert f"| [{proved}]({proved}.md) | silent | `torch.add(x, a @ b, alpha=0.5)` ignores `alpha`" in index
    assert f"| {suspect} | silent |" in index and "a suspect, not a proof" in index
    store.add_replay(proved, Replay(sha256, "2.15.0", None, "fixed", ["fixed"] * 3, "", 1.0))
    write_draft(store, proved, folder)
    assert [path.name for path in folder.iterdir()] == ["INDEX.md"]
    assert "0 to be filed, 2 refused" in (folder / "INDEX.md").read_text(encoding="utf-8")


def test_a_folder_that_cannot_be_written_is_an_error_of_the_system(store, tmp_path):
    name, _ = added(store)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        write_draft(store, name, tmp_path / "file")
    with pytest.raises(FuzzcompileError, match="F99"):
        write_draft(store, "F99", tmp_path)


def test_what_a_person_said_stands_against_filing(store, capsys):
    name, _ = added(store)
    store.mark(name, Mark("wontfix", note="Optimus only"))
    assert "will not fix (Optimus only)" in issue(store, capsys, name)[2]
    store.mark(name, Mark("open"))
    assert issue(store, capsys, name)[1].startswith("# ")


def test_a_group_with_an_issue_stands_against_filing(store, capsys):
    detail = "eager raises ValueError: bad; compiled runs"
    name, _ = added(store, verdict="accepts_invalid", detail=detail, cause=None)
    assert issue(store, capsys, name)[1].startswith("# `torch.add` is accepted")
    store.mark("validation", Mark("known", "https://github.com/pytorch/pytorch/issues/5"))
    err = issue(store, capsys, name)[2]
    assert "it belongs to the group validation, which has an issue: https://github.com/pytorch/pytorch/issues/5" in err


def test_a_merged_finding_leaves_the_folder(store, tmp_path):
    (kept, _), (merged, _) = added(store), added(store, 2)
    for name in (kept, merged):
        write_draft(store, name, tmp_path / "drafts")
    same = store.best_reproducer(merged)
    store.add_reproducer(kept, replace(same, program="key", sha256=f"{300:064}"))
    store.add_reproducer(merged, replace(same, program="key", sha256=f"{301:064}"))
    write_draft(store, merged, tmp_path / "drafts")
    survivor = store.finding(merged).public_id
    assert sorted(path.name for path in (tmp_path / "drafts").iterdir()) == [f"{survivor}.md", "INDEX.md"]
    assert "1 to be filed, 0 refused" in (tmp_path / "drafts" / "INDEX.md").read_text(encoding="utf-8")


def test_a_comment_adds_what_the_thread_of_a_known_report_lacks(store, capsys):
    name, _ = added(store)
    status, out, err = issue(store, capsys, name, "--comment", "#198270")
    assert status == 0 and err == ""
    assert "https://github.com/pytorch/pytorch/issues/198270" in out.splitlines()[0]
    assert "ignores `alpha` under `torch.compile`. With `alpha=1` instead of `alpha=0.5` the result is correct." in out
    assert "```python\nimport torch\n" in out and "A script of 8 lines shows it:" in out
    points = [line.partition(":")[0] for line in out.splitlines() if line.startswith("- ")]
    assert points[:4] == ["- At fault", "- Mechanism", "- Proof", "- Workaround"]
    assert points[4].startswith("- Seen with PyTorch 2.13.0")
    answer = json.loads(issue(store, capsys, name, "--comment", "#198270", "--json")[1])
    assert answer["comment"] == out and answer["issue"].endswith("/198270")


def test_a_comment_on_nothing_is_refused(store, capsys):
    name, _ = added(store)
    status, _, err = issue(store, capsys, name, "--comment", "soon")
    assert status == 2 and "soon" in err


def test_a_group_is_drafted_with_its_culprits_and_what_its_scripts_print(store, tmp_path, capsys):
    detail = "eager raises ValueError: bad; compiled runs"
    (first, sha256), (second, _) = (added(store, n, verdict="accepts_invalid", detail=detail) for n in (1, 2))
    store.add_replay(first, Replay(sha256, "2.13.0+cpu", None, "failing", ["failing"] * 3, "", 1.0))
    for name in (first, second):
        write_draft(store, name, tmp_path)
    draft = (tmp_path / "validation.md").read_text(encoding="utf-8")
    assert draft.startswith("# torch.compile accepts calls that eager mode refuses (2 cases)\n")
    assert (
        draft.count("post_grad.py#L1800) | `torch.add(x, a @ b, alpha=0.5)` | `add(…, alpha=0.5)` | `ValueError: bad`")
        == 2
    )
    assert "| 2.13.0 |" in draft and "| 2.13.0 (no other was tried) |" in draft
    assert draft.count("- **Proof:** the bug is gone") == draft.count(SHOWN["plain_output"]) == 2
    # Where only one is left to report, a group is not worth an issue.
    store.mark(first, Mark("known", "https://github.com/pytorch/pytorch/issues/5"))
    write_draft(store, first, tmp_path)
    assert not (tmp_path / "validation.md").exists()
    assert (
        f"| {first} ([known](https://github.com/pytorch/pytorch/issues/5)) |" in issue(store, capsys, "validation")[1]
    )


def test_the_title_of_a_group_says_what_its_parts_do(store, capsys):
    name, _ = added(store, opt_in=["freezing"])
    added(store, 2, opt_in=["freezing"], culprit={**CULPRIT, "rewrite": "bmm"})
    draft = issue(store, capsys, store.finding(name).umbrella)[1]
    assert draft.startswith("# [opt-in] `addmm` and `bmm` give wrong values\n")
