"""A finding as files."""

import hashlib
import json
from pathlib import Path

import pytest
from corpus_examples import ENVIRONMENT, SDPA, bug, case, reproducer

from fuzzcompile.corpus.records import CorpusError
from fuzzcompile.corpus.store import Store
from fuzzcompile.model.errors import UsageError


@pytest.fixture
def filled(store: Store) -> Store:
    store.record(None, case("x = 1  # é\n"), ENVIRONMENT, bug())
    store.record(None, case("y = 1\n"), ENVIRONMENT, bug("lowering/softmax"))
    store.add_reproducer(1, reproducer("repro\n", neighbour="passes\n"))
    return store


def test_case_reproducer_neighbour_and_report(filled: Store, tmp_path: Path) -> None:
    folder = tmp_path / "out" / "F1"
    paths = filled.export("F1", folder)
    assert [path.relative_to(folder).name for path in paths] == [
        "case.py",
        "repro.py",
        "neighbour.py",
        "finding.json",
    ]
    assert sorted(paths) == sorted(folder.iterdir())
    assert (folder / "case.py").read_text("utf-8") == "x = 1  # é\n"
    assert (folder / "repro.py").read_text() == "repro\n"
    assert (folder / "neighbour.py").read_text() == "passes\n"
    summary = json.loads((folder / "finding.json").read_text())
    assert (summary["id"], summary["signature"], summary["report"]) == ("F1", SDPA, bug())
    assert summary["reproducer"]["confirmed"] is True


def test_without_a_reproducer(filled: Store, tmp_path: Path) -> None:
    assert [path.name for path in filled.export(2, tmp_path / "out")] == ["case.py", "finding.json"]
    assert json.loads((tmp_path / "out" / "finding.json").read_text())["reproducer"] is None


def test_the_same_finding_again_is_brought_up_to_date(filled: Store, tmp_path: Path) -> None:
    filled.export(1, tmp_path / "out")
    filled.add_reproducer(1, reproducer("r\n", lines=0))
    filled.export(1, tmp_path / "out")
    assert (tmp_path / "out" / "repro.py").read_text() == "r\n"
    assert not (tmp_path / "out" / "neighbour.py").exists(), "the neighbour was the other reproducer's"


def test_another_findings_files_are_not_overwritten(filled: Store, tmp_path: Path) -> None:
    filled.export(1, tmp_path / "out")
    before = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with pytest.raises(UsageError, match="does not belong to F2") as raised:
        filled.export(2, tmp_path / "out")
    assert raised.value.exit_status == 2
    assert before == {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}


@pytest.mark.parametrize("content", ["mine\n", "[1]", '{"signature": 3}'])
def test_a_users_own_files_are_not_overwritten(filled: Store, tmp_path: Path, content: str) -> None:
    for name in ("case.py", "finding.json"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_text(content)
        with pytest.raises(UsageError, match=name):
            filled.export(1, folder)
        assert [path.name for path in folder.iterdir()] == [name]


def test_what_was_changed_by_hand_is_not_overwritten(filled: Store, tmp_path: Path) -> None:
    filled.export(1, tmp_path / "out")
    (tmp_path / "out" / "neighbour.py").write_text("better\n")
    filled.add_reproducer(1, reproducer("r\n", lines=0))
    with pytest.raises(UsageError, match="neighbour"):
        filled.export(1, tmp_path / "out")
    assert (tmp_path / "out" / "neighbour.py").read_text() == "better\n"
    assert (tmp_path / "out" / "repro.py").read_text() == "repro\n", "all or nothing"


def test_a_report_cannot_name_files_for_removal(filled: Store, tmp_path: Path) -> None:
    filled.export(1, tmp_path / "out")
    (tmp_path / "mine.py").write_text("mine")
    report = json.loads((tmp_path / "out" / "finding.json").read_text())
    report["files"]["../mine.py"] = hashlib.sha256(b"mine").hexdigest()
    (tmp_path / "out" / "finding.json").write_text(json.dumps(report))
    filled.export(1, tmp_path / "out")
    assert (tmp_path / "mine.py").exists()


def test_other_files_in_the_folder_are_no_hindrance(filled: Store, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    filled.export(1, tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_written(filled: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CorpusError, match="cannot be exported") as raised:
        filled.export(1, tmp_path / "file" / "out")
    assert raised.value.exit_status == 3


def test_an_unknown_finding(filled: Store, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        filled.export("F7", tmp_path / "out")
    assert not (tmp_path / "out").exists()
