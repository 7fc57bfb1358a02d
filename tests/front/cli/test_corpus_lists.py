"""`corpus list`, `show` and `mark` on a corpus made by hand: no compile."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from calling import call, sentence

from fuzzcompile.corpus.records import CaseRecord, Reproducer
from fuzzcompile.corpus.store import Store
from fuzzcompile.front.cli.main import main

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {"torch": "2.13.0+cpu", "device": "cpu"}
HARMLESS = {"outputs": [{"name": "out0", "finding": "stride", "view_raises": False}]}
FINDINGS = {
    "decomposition:d.py:celu": {"verdict": "accepts_invalid"},
    "decomposition:d.py:fmin": {"verdict": "metadata", "evidence": HARMLESS},
    "lowering:CppCompileError:no": {"verdict": "compile_error", "culprit": None},
    "post_grad:p.py:fold:sum(dim)": {"verdict": "miscompile"},
    "decomposition:d.py:cat": {"verdict": "metadata", "evidence": HARMLESS},
}


def report(signature: str, **fields: Any) -> dict[str, Any]:
    stage, source, family = signature.split(":")[:3]
    culprit = {"stage": stage, "source": source, "line": 1, "rewrite": family, "family": family, "necessary": True}
    culprit |= {"pass": None, "nodes": [], "site": None, "step": None, "sufficient": None}
    judged = {"schema": 1, "case": "c", "torch": "2.13.0+cpu", "device": "cpu", "verdict": "miscompile", "is_bug": True}
    judged |= {
        "confidence": "high",
        "detail": "it differs",
        "evidence": {"outputs": []},
        "culprit": culprit,
        "contributors": [],
    }
    judged |= {"changed_bits": [], "ablations": [], "workaround": None, "signature": signature, "rewrites": []}
    return judged | {"suspects": [], "target": None, "cost": {"compiles": 1, "replays": 0, "seconds": 1.0}} | fields


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("filled") / "corpus.db"
    with Store.open(path) as store:
        for number, (signature, fields) in enumerate(FINDINGS.items()):
            case = CaseRecord(f"{number:064}", f"# case {number}\n", "generated")
            store.record(None, case, ENVIRONMENT, report(signature, **fields))
        judged = report("post_grad:p.py:fold:sum(dim)")
        script = Reproducer("print('repro')\n", "f" * 64, 1, "graph", True, "2.13.0+cpu", judged)
        store.add_reproducer("F4", script)
    return path


@pytest.fixture
def corpus(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FUZZCOMPILE_CORPUS", str(tmp_path / "corpus.db"))
    return Path(shutil.copy(filled, tmp_path / "corpus.db"))


def listed(capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, Any]]:
    assert call("corpus", "list", "--json", *options) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_worst_comes_first_and_what_is_minor_is_counted(corpus, capsys):
    assert call("corpus", "list") == 0
    out = capsys.readouterr().out
    assert out.index("F4") < out.index("F3") and "F1" not in out and "F2" not in out
    assert "And 2 of other layout and 1 that accept what eager refuses: fuzzcompile corpus list --all" in out
    assert "5 cases, 5 runs, 5 findings." in out


def test_all_lists_groups(corpus, capsys):
    assert call("corpus", "list", "--all") == 0
    out = capsys.readouterr().out
    layout, validation = out.index("layout-decomposition (2)"), out.index("validation (1)")
    assert out.index("F4") < layout < out.index("F2") < out.index("F5") < validation < out.index("F1")


def test_json_lists_every_finding_with_all_that_is_said_of_it(corpus, capsys):
    call("mark", "F4", "known", "#189518")
    call("mark", "validation", "known", "owner/other#7")
    capsys.readouterr()
    lines = listed(capsys)
    assert [line["finding"] for line in lines] == ["F4", "F3", "F2", "F5", "F1"]
    assert {key: lines[0][key] for key in ("severity", "status", "issue", "umbrella", "signature")} == {
        "severity": "silent",
        "status": "known",
        "issue": "https://github.com/pytorch/pytorch/issues/189518",
        "umbrella": None,
        "signature": "post_grad:p.py:fold:sum(dim)",
    }
    assert (lines[-1]["status"], lines[-1]["umbrella_issue"]) == ("open", "https://github.com/owner/other/issues/7")


def test_show_says_what_it_is_and_json_says_it_all(corpus, capsys):
    call("mark", "F4", "wontfix", "--note", "by design")
    capsys.readouterr()
    assert call("corpus", "show", "F4") == 0
    out = capsys.readouterr().out
    assert "F4  silent  post_grad:p.py:fold:sum(dim)" in out and "Marked: wontfix (by design)" in out
    assert "print('repro')" in out
    assert call("corpus", "show", "F4", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["report"]["verdict"] == shown["verdict"] == "miscompile"
    assert shown["reproducer"]["source"] == "print('repro')\n" and shown["related"] == shown["replays"] == []


@pytest.mark.parametrize("shows", [True, False])
def test_show_prints_the_script_for_an_issue_before_the_one_that_checks(corpus, capsys, shows: bool):
    seen = {"plain": "print(f(x))\n", "plain_output": "tensor([1.])", "plain_shows": shows}
    with Store.open(corpus) as store:
        made = report("post_grad:p.py:other:sum(dim)")
        checking = Reproducer("# checks\n", "e" * 64, 1, "graph", True, "2.13.0+cpu", made, shown=seen)
        store.record(None, CaseRecord("9" * 64, "# nine\n", "generated"), ENVIRONMENT, made)
        name = next(each.public_id for each in store.findings() if each.signature.startswith("post_grad:p.py:other"))
        store.add_reproducer(name, checking)
    assert call("corpus", "show", name) == 0
    out = capsys.readouterr().out
    if shows:
        assert out.index("print(f(x))") < out.index("tensor([1.])") < out.index("# checks")
    else:
        assert "print(f(x))" not in out and "# checks" in out, "it did not show the bug"


def test_a_merged_finding_answers_under_its_old_name(corpus, capsys):
    with Store.open(corpus) as store:
        store.record(
            None,
            CaseRecord("9" * 64, "# nine\n", "generated"),
            ENVIRONMENT,
            report("unattributed:-:program-0"),
        )
        proved = report("post_grad:p.py:fold:sum(dim)")
        store.add_reproducer("F6", Reproducer("x\n", "e" * 64, 1, "graph", True, "2.13.0+cpu", proved))
    assert call("corpus", "show", "f6") == 0
    assert "F6 was merged into F4: the same bug." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("F3", "known", "#12"), "F3: known https://github.com/pytorch/pytorch/issues/12"),
        (("F3", "known", "https://example.org/x/1"), "F3: known https://example.org/x/1"),
        (("F3", "dup", "F4", "--note", "same line"), "F3: dup F4 (same line)"),
        (("lowering:CppCompileError", "invalid"), "F3: invalid"),
        (("layout-decomposition", "wontfix"), "layout-decomposition: wontfix"),
    ],
)
def test_marks(corpus, capsys, words, said):
    assert call("mark", *words) == 0
    assert capsys.readouterr().out.strip() == said


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("F3", "known"), "needs the ISSUE"),
        (("F3", "known", "12"), "'12' is no issue: give #123"),
        (("F3", "dup"), "needs the FINDING"),
        (("F3", "dup", "F3"), "duplicate of itself"),
        (("F3", "dup", "F9"), "There is no finding 'F9'"),
        (("F3", "fixed", "#3"), "takes nothing more"),
        (("F3", "solved"), "'solved' is no status: give one of open, known"),
        (("nosuch", "fixed"), "There is no finding 'nosuch'"),
        (("validation", "dup", "F3"), "is a group"),
    ],
)
def test_a_wrong_mark_is_one_sentence(corpus, capsys, words, why):
    assert call("mark", *words) == 2
    said = sentence(capsys)
    assert why in said and "\n" not in said


def test_marks_outlive_hits_and_go_when_opened_again(corpus, capsys):
    call("mark", "F3", "dup", "F4", "--note", "seen before")
    call("mark", "F4", "known", "#5")
    call("mark", "F4", "fixed")
    with Store.open(corpus) as store:
        store.record(
            None,
            CaseRecord("8" * 64, "#\n", "x"),
            ENVIRONMENT,
            report("post_grad:p.py:fold:sum(dim)"),
        )
        fixed, duplicate = store.finding("F4"), store.finding("F3")
    assert (fixed.status, fixed.issue) == ("fixed", "https://github.com/pytorch/pytorch/issues/5")
    assert (duplicate.status, duplicate.duplicate_of, duplicate.note) == ("dup", "F4", "seen before")
    assert call("mark", "F4", "dup", "F3") == 2, "that would be a circle"
    assert call("mark", "F3", "open") == 0
    with Store.open(corpus) as store:
        opened = store.finding("F3")
    assert (opened.status, opened.duplicate_of, opened.issue, opened.note) == ("open", None, None, "seen before")


def test_a_mark_survives_a_merge(corpus):
    call("mark", "F3", "known", "#6")
    with Store.open(corpus) as store:
        for finding in ("F5", "F3"):
            judged = report(FINDINGS and dict(enumerate(FINDINGS, 1))[int(finding[1])])
            script = Reproducer(f"{finding}\n", f"{finding[1]:>064}", 1, "graph", True, "t", judged, program="k" * 64)
            store.add_reproducer(finding, script)
        kept = store.finding("F5")
        assert (kept.public_id, kept.status, kept.issue) == (
            "F3",
            "known",
            "https://github.com/pytorch/pytorch/issues/6",
        )


def test_lists_need_neither_torch_nor_alembic(corpus):
    for command in (["list"], ["list", "--json"], ["show", "F4"]):
        program = (
            "import sys\nfrom fuzzcompile.front.cli import main\n"
            f"try:\n    main(['corpus', *{command!r}])\nexcept SystemExit as end:\n    assert not end.code\n"
            "print({'torch', 'alembic'} & set(sys.modules), file=sys.stderr)"
        )
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stderr.strip() == "set()", command


def completed(monkeypatch, capsys, *words: str) -> list[str]:
    """What a shell offers for the last word."""
    monkeypatch.setenv("_FUZZCOMPILE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", " ".join(("fuzzcompile", *words)))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    with pytest.raises(SystemExit):
        main([])
    return [line.partition(",")[2] for line in capsys.readouterr().out.splitlines()]


def test_findings_and_rewrites_of_the_corpus_are_offered(corpus, monkeypatch, capsys):
    assert "F1" in completed(monkeypatch, capsys, "corpus", "show", "F")
    assert "F1" in completed(monkeypatch, capsys, "minimize", "f1")
    assert not any(completed(monkeypatch, capsys, "mark", "F99"))
    assert "corpus" in completed(monkeypatch, capsys, "cor")
    monkeypatch.setenv("FUZZCOMPILE_CORPUS", "/nowhere.db")
    assert not any(completed(monkeypatch, capsys, "mark", "F"))
