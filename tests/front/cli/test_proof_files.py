"""``bisect --html`` and ``--dump-ledger``: what they write, and what becomes of places that cannot be written."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import calling
import pytest
from calling import SUBTRACTS


def call(*arguments: object) -> tuple[int, str, str]:
    """Exit status, standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = calling.call(*arguments)
    return status, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, plant: Path, kept_pools) -> tuple[int, str, Path]:
    """Status and output of one call that writes both, and the folder that it wrote into."""
    folder = tmp_path_factory.mktemp("proof")
    case = folder / "case.py"
    case.write_text(SUBTRACTS, encoding="utf-8")
    html, ledger = folder / "out.html", folder / "deep" / "ledger"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fuzzcompile.diagnosis.worker.local_pool.open_pool", kept_pools)
        status, out, _ = call("bisect", case, "--plant", plant, "--html", html, "--dump-ledger", ledger)
    return status, out, folder


@pytest.mark.slow
def test_the_terminal_shows_the_graph_before_and_after(written):
    status, out, _ = written
    assert status == 1
    lines = [line.strip() for line in out.splitlines()]
    assert any(line.startswith("culprit: planted_sub in joint_graph") for line in lines)
    assert any(line.startswith("-sub: f32[3, 4] = aten.sub.Tensor") for line in lines)
    assert any(line.startswith("+add") and "aten.add.Tensor" in line for line in lines)
    assert any(line.startswith("matched case.py:6: return (lambda a, b: (a - b) * 2)") for line in lines)
    assert ["planted_sub", "off", "yes"] in [line.split()[:3] for line in lines]


def test_the_page_holds_the_same(written):
    page = (written[2] / "out.html").read_text(encoding="utf-8")
    for part in ("planted_sub", "-sub: f32[3, 4] = aten.sub.Tensor", "<code>planted_sub</code> off", "case.py:6",
                 "PyTorch", "Errors over the elements of <code>out0</code>", "one cell is one element"):  # fmt: skip
        assert part in page
    assert not list(written[2].glob(".*.part"))


def test_the_ledger_is_there_as_text(written):
    ledger = written[2] / "deep" / "ledger"
    assert "planted_sub" in (ledger / "index.md").read_text(encoding="utf-8")
    (diff,) = ledger.rglob("*planted_sub.diff")
    assert "-sub: f32[3, 4]" in diff.read_text(encoding="utf-8")


@pytest.mark.parametrize("option", ["--html", "--dump-ledger"])
def test_places_that_cannot_be_written_are_said_before_anything_is_compiled(option, tmp_path):
    (tmp_path / "file").write_text("")
    case = tmp_path / "case.py"
    case.write_text(SUBTRACTS, encoding="utf-8")
    status, out, err = call("bisect", case, option, tmp_path / "file" / "below")
    assert status == 2 and out == ""
    assert err.startswith("fuzzcompile: Cannot write") and option in err and err.count("\n") == 1


def test_a_folder_that_holds_something_is_not_written_into(tmp_path):
    (tmp_path / "mine.txt").write_text("keep")
    case = tmp_path / "case.py"
    case.write_text(SUBTRACTS, encoding="utf-8")
    status, _, err = call("bisect", case, "--dump-ledger", tmp_path)
    assert status == 2 and "is not empty" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["case.py", "mine.txt"]
    status, _, err = call("bisect", case, "--html", tmp_path)
    assert status == 2 and "is a folder" in err
