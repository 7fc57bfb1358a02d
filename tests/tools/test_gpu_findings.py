"""What a GPU says of findings for targets, with the GPU's answers made up."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fuzzcompile.corpus.records import CaseRecord
from fuzzcompile.corpus.store import Store
from fuzzcompile.diagnosis.worker.file_triage import FileAnswer
from fuzzcompile.model.errors import UsageError

TOOL = Path(__file__).parents[2] / "tools" / "gpu_findings.py"
TARGET = {"device": "cuda:sm_90", "stages": {"joint_graph": "real code, fake device"}, "confirmed_on_device": False}
SIGNATURE = "joint_graph:torch/_inductor/fx_passes/fuse_attention.py:sfdp"
CASE = "import torch\n\ndef make():\n    return torch.relu, (torch.ones(3),)\n"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_findings", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look up their types
    spec.loader.exec_module(module)
    return module


def bug(signature: str = SIGNATURE, **fields: Any) -> dict[str, Any]:
    culprit = {"stage": "joint_graph", "rewrite": "_sfdp_pattern_28_inference", "necessary": True}
    report = {"torch": "2.13.0", "device": "cpu", "verdict": "miscompile", "is_bug": True, "confidence": "high"}
    return report | {"signature": signature, "culprit": culprit, "evidence": {"outputs": []}} | fields


def record(store: Store, report: dict[str, Any], source: str = CASE) -> None:
    environment = {"torch": "2.13.0", "device": "cpu", "target": (report.get("target") or {}).get("device")}
    store.record(None, CaseRecord(f"{hash(source):064x}"[-64:], source, "generated"), environment, report)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A corpus with a finding for a target, F1, and one of a device that ran, F2."""
    with Store.open(tmp_path / "corpus.db") as store:
        record(store, bug(target=TARGET))
        record(store, bug("joint_graph:elsewhere.py:x", target=None), CASE + "# 2\n")
        store.export("F1", tmp_path / "exports" / "F1")
        store.export("F2", tmp_path / "exports" / "F2")
    return tmp_path / "corpus.db"


@pytest.mark.parametrize("form", ["corpus.db", "exports"])
def test_only_findings_for_targets_are_taken(form, corpus, tool):
    (taken,) = tool.taken_from(str(corpus.with_name(form)))
    assert (taken.name, taken.source, taken.report["signature"]) == ("F1", CASE, SIGNATURE)


def test_without_one_that_is_said(tmp_path, tool):
    with pytest.raises(UsageError, match="holds no finding for a target"):
        tool.taken_from(str(tmp_path))


@pytest.mark.parametrize(
    ("there", "alone", "outcome"),
    [
        (bug(device="cuda:0"), 1, "confirmed"),
        (bug("joint_graph:elsewhere.py:x"), 1, "another bug"),
        (bug(verdict="rounding", is_bug=False, signature=None), 0, "refuted"),
        (bug(verdict="rounding", is_bug=False, signature=None), 1, "confirmed by its reproducer alone"),
        (bug(verdict="invalid", is_bug=False, signature=None), None, "not judged"),
        (bug(verdict="invalid", is_bug=False, signature=None), 0, "refuted"),
        (None, None, "not judged"),
    ],
)
def test_both_verdicts_are_compared(there, alone, outcome, tool):
    answer = FileAnswer(Path("F1.py"), there, None if there is not None else "out of memory")
    row = tool.compared(tool.Taken("F1", bug(target=TARGET), CASE), answer, alone)
    assert (row.outcome, row.target, row.on_target) == (outcome, "cuda:sm_90", "miscompile")
    text = tool.table([row], "cuda:0")
    assert f"| {outcome} |" in text and f"{int(outcome.startswith('confirmed'))} of 1 confirmed" in text


def test_the_table_is_written_as_answers_come(corpus, tmp_path, tool, monkeypatch):
    def judged(files, conditions):
        assert conditions.device == "cpu" and conditions.target is None
        for path in files:
            assert path.read_text() == CASE
            yield FileAnswer(path, bug(device="cuda:0"))

    monkeypatch.setattr(tool, "triage_files", judged)
    assert tool.main([str(corpus), str(tmp_path / "out"), "--device", "cpu"]) == 0
    (row,) = json.loads((tmp_path / "out" / "confirmed.json").read_text())
    assert (row["finding"], row["outcome"], row["alone"]) == ("F1", "confirmed", None)
    assert "1 of 1 confirmed, 0 refuted." in (tmp_path / "out" / "confirmed.md").read_text()


def test_a_machine_without_a_gpu_is_refused_in_one_sentence(corpus, tmp_path, tool, monkeypatch, capsys):
    monkeypatch.setattr("fuzzcompile.run.device._cuda_count", lambda: 0)
    assert tool.main([str(corpus), str(tmp_path / "out")]) == 3
    assert capsys.readouterr().err.startswith("gpu_findings: torch ")
