"""``fuzzcompile replay``: what it prints, writes, stores, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from calling import call, sentence
from packaging.version import Version
from torch_stubs import BROKEN_ON, add, interpreter, wheel

from fuzzcompile.corpus.replay import environments
from fuzzcompile.corpus.replay import replay_run as replaying
from fuzzcompile.corpus.replay.environments import NoDisk, Torch, find_torch, is_made
from fuzzcompile.corpus.store import Store
from fuzzcompile.model.errors import EnvironmentUnfit

COMMITTED = Path(__file__).parents[3] / "corpus" / "torch-2.13.0-cpu"
VERSIONS = ("1.0", "1.1", "1.2", "1.3", "1.4", "1.5", "1.6", "1.7")


@pytest.fixture(scope="module")
def torches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Torch]:
    """Stand-ins by version."""
    root = tmp_path_factory.mktemp("torches")
    return {version: find_torch(interpreter(root / version, version) / "bin" / "python") for version in VERSIONS}


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FUZZCOMPILE_CORPUS", str(tmp_path / "corpus.db"))
    return tmp_path / "corpus.db"


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, torches: dict[str, Torch]) -> list[str]:
    """All stand-ins are releases, without pip: the list of those that were asked for."""
    asked: list[str] = []

    def obtain(version: str, say: object) -> Torch:
        asked.append(version)
        return torches[version]

    monkeypatch.setattr(replaying, "obtain", obtain)
    monkeypatch.setattr(environments, "versions", lambda options=(): [Version(version) for version in VERSIONS])
    return asked


def broken_on(*versions: str) -> str:
    return BROKEN_ON.format(versions=list(versions))


def records(capsys: pytest.CaptureFixture[str]) -> dict[str, dict]:
    return {(record := json.loads(line))["finding"]: record for line in capsys.readouterr().out.splitlines()}


def test_findings_across_versions(corpus: Path, torches, tmp_path: Path, capsys):
    with Store.open(corpus) as store:
        add(store, "stage:-:came and went", broken_on("1.2"))
        add(store, "stage:-:layout", broken_on("1.0", "1.2", "1.4"), "accepts_invalid")
        add(store, "stage:-:unknown", None)
    options = [f"--torch={torches[version].python}" for version in ("1.4", "1.0", "1.2")]
    table, junit = tmp_path / "table.md", tmp_path / "junit.xml"
    assert call("replay", "--json", "--runs=2", f"--markdown={table}", f"--junit={junit}", *options) == 0
    replayed = records(capsys)
    assert {key: replayed["F1"][key] for key in ("torch", "affected_since", "fixed_in", "earlier", "severity")} == {
        "torch": {"1.0": "not affected", "1.2": "failing", "1.4": "fixed"},
        "affected_since": "1.2",
        "fixed_in": "1.4",
        "earlier": None,
        "severity": "silent",
    }
    assert (replayed["F2"]["affected_since"], replayed["F2"]["earlier"], replayed["F2"]["fixed_in"]) == (
        "1.0",
        "not tried",
        None,
    )
    assert replayed["F1"]["runs"]["1.2"] == ["failing", "failing"] and list(replayed) == ["F1", "F3", "F2"], (
        "worst first"
    )
    assert replayed["F3"]["torch"]["1.0"] == "not replayable" and "no reproducer yet" in replayed["F3"]["notes"][0]
    rows = [line for line in table.read_text().splitlines() if line.startswith("| F")]
    assert "| not affected | failing | fixed | 1.2 | 1.4 |" in rows[0] and "| 1.0 or earlier | - |" in rows[2]
    suite = ElementTree.parse(junit).find("testsuite")
    assert suite is not None
    assert [suite.get(key) for key in ("tests", "failures", "skipped")] == ["7", "4", "1"]
    with Store.open(corpus) as store:
        assert [replay.torch for replay in store.replays("F1")] == ["1.0", "1.2", "1.4"]


def test_a_regression_and_strictness_decide_the_exit_status(corpus: Path, torches, tmp_path: Path, capsys):
    switch = tmp_path / "switch"
    script = f'print("BUG: on" if (on := open({str(switch)!r}).read()) else "OK: off")\nraise SystemExit(bool(on))\n'
    with Store.open(corpus) as store:
        add(store, "stage:-:switched", script)

    def status(on: str, *options: str) -> int:
        switch.write_text(on)
        return call("replay", "--runs=1", f"--torch={torches['1.0'].python}", *options)

    assert [status("on"), status("on", "--strict"), status(""), status("", "--strict")] == [0, 1, 0, 0]
    assert status("on") == 1, "it was fixed"
    said = capsys.readouterr().out
    assert "failing, REGRESSION" in said and "F1: was fixed and is back" in said
    assert "mark F1 fixed" not in said, "1.0 is older than the torch on which it was found"


def test_what_is_fixed_is_to_be_marked(corpus: Path, tmp_path: Path, capsys):
    with Store.open(corpus) as store:
        add(store, "stage:-:fine", broken_on())
    assert call("replay", "--runs=1", f"--torch={interpreter(tmp_path / 'new', '3.0+cpu')}") == 0
    assert "next: F1: fixed on 3.0; `fuzzcompile corpus mark F1 fixed`" in capsys.readouterr().out


def test_a_torch_that_cannot_be_had_costs_a_sentence_and_the_others_go_on(corpus: Path, torches, tmp_path, capsys):
    with Store.open(corpus) as store:
        add(store, "stage:-:fine", broken_on())
    options = [f"--torch={tmp_path / 'nowhere'}", f"--torch={torches['1.0'].python}"]
    assert call("replay", "--runs=1", "--json", *options, f"--torch={torches['1.0'].python.parents[1]}") == 3
    out, err = capsys.readouterr()
    assert json.loads(out)["torch"] == {"1.0": "fixed"} and json.loads(out)["affected_since"] is None
    assert "There is no Python at" in err and "is left out" in err
    assert call("replay", "--runs=1", options[0]) == 3


def test_a_bisection_shares_environments(corpus: Path, index: list[str], capsys):
    with Store.open(corpus) as store:
        add(store, "stage:-:a", broken_on(*VERSIONS[3:]))
        add(store, "stage:-:b", broken_on(*VERSIONS[2:5]))
        add(store, "stage:-:c", broken_on())
    options = ("--torch=1.0", "--torch=1.4", "--torch=1.7", "--json", "--runs=1")
    assert call("replay", *options, "--bisect", "--yes") == 0
    replayed = records(capsys)
    assert [(replayed[name]["affected_since"], replayed[name]["fixed_in"]) for name in ("F1", "F2", "F3")] == [
        ("1.3", None),
        ("1.2", "1.5"),
        (None, None),
    ]
    assert index == ["1.0", "1.4", "1.7", "1.2", "1.6", "1.5", "1.3", "1.1"], "1.2 first, which two findings want"
    assert list(replayed["F3"]["torch"]) == ["1.0", "1.4", "1.7"], "only findings that it tells something about"


def test_a_bisection_asks_first_and_goes_around_what_cannot_be_had(corpus: Path, index: list[str], monkeypatch, capsys):
    with Store.open(corpus) as store:
        add(store, "stage:-:a", broken_on(*VERSIONS[3:]))
    options = ("replay", "--torch=1.0", "--torch=1.4", "--json", "--runs=1", "--bisect")
    assert call(*options) == 0
    out, err = capsys.readouterr()
    assert "up to 3 releases (1.1 to 1.3)" in err and "add --yes" in err and json.loads(out)["affected_since"] == "1.4"

    there = replaying.obtain

    def obtain(version: str, say: object) -> Torch:
        if version == "1.2":
            raise EnvironmentUnfit("1.2 was withdrawn.")
        return there(version, say)

    monkeypatch.setattr(replaying, "obtain", obtain)
    assert call(*options, "--yes") == 0
    out, err = capsys.readouterr()
    assert "1.2 was withdrawn." in err and json.loads(out)["affected_since"] == "1.3"
    assert json.loads(out)["torch"]["1.1"] == "not affected" and "1.2" in json.loads(out)["notes"][0]

    def full(version: str, say: object) -> Torch:
        if version in ("1.0", "1.4"):
            return there(version, say)
        raise NoDisk("No room.")

    monkeypatch.setattr(replaying, "obtain", full)
    assert call(*options, "--yes") == 0
    out, err = capsys.readouterr()
    assert err.count("No room.") == 1 and json.loads(out)["affected_since"] == "1.4"


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (("--select", "F9"), 2, "no such finding"),
        (("--torch", "newest"), 2, "write a version"),
        (("--bisect", "--torch", "1.0"), 2, "two versions"),
        (("--select", "status=fixed"), 3, "no finding to replay"),
        (("--junit", "/nowhere/x.xml"), 2, "--junit"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(corpus: Path, capsys, options, status: int, said: str):
    with Store.open(corpus) as store:
        add(store, "stage:-:a", broken_on())
    assert call("replay", *options) == status
    assert said in sentence(capsys)


def test_a_corpus_is_needed(corpus: Path, capsys):
    assert call("replay") == 3
    assert "corpus" in sentence(capsys)


def test_an_interrupt_keeps_what_is_stored(corpus: Path, torches, monkeypatch, capsys):
    with Store.open(corpus) as store:
        add(store, "stage:-:a", broken_on("1.0"))
        add(store, "stage:-:b", broken_on("1.0"))
    kept = replaying.ReplayRun._keep

    def keep(self, record, version, result):
        kept(self, record, version, result)
        raise KeyboardInterrupt

    monkeypatch.setattr(replaying.ReplayRun, "_keep", keep)
    assert call("replay", "--runs=1", f"--torch={torches['1.0'].python}") == 130
    assert "Interrupted; what is shown is stored. 2 findings" in capsys.readouterr().out
    with Store.open(corpus) as store:
        assert len(store.replays()) == 1


@pytest.mark.slow
def test_a_real_reproducer_on_the_torch_at_hand(corpus: Path, capsys):
    with Store.open(corpus) as store:
        script = (COMMITTED / "times-one-returns-input" / "repro.py").read_text()
        add(store, "joint_graph:torch/_inductor/fx_passes/joint_graph.py:uniform", script, "aliasing")
    assert call("replay", "--runs=1", "--json") == 0
    assert list(json.loads(capsys.readouterr().out)["torch"].values()) == ["failing"]


@pytest.mark.slow
def test_releases_come_from_pip(corpus: Path, tmp_path: Path, monkeypatch, capsys):
    for version in ("1.0.0", "1.1.0", "1.2.0", "1.3.0"):
        wheel(tmp_path / "index", version)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    monkeypatch.setenv("FUZZCOMPILE_CACHE", str(tmp_path / "cache"))
    with Store.open(corpus) as store:
        add(store, "stage:-:a", broken_on("1.0.0", "1.1.0"))
    options = ("--torch=1.0.0", "--torch=1.3.0", "--torch=9.9.9", "--bisect", "--yes", "--json", "--runs=1")
    assert call("replay", *options) == 3
    out, err = capsys.readouterr()
    assert json.loads(out)["fixed_in"] == "1.2.0" and "pip finds no torch==9.9.9" in err
    assert [is_made(Version(version)) for version in ("1.0.0", "1.1.0", "1.2.0", "9.9.9")] == [True, True, True, False]
