"""A torch that fuzzcompile was not tried on is probed once a process, before anything is judged on it."""

from __future__ import annotations

import pytest
import torch
from torch.torch_version import TorchVersion

from fuzzcompile.compiler.watch import conformance
from fuzzcompile.compiler.watch.conformance import probe_unknown_torch
from fuzzcompile.compiler.watch.unseen import gather_unseen
from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.model.judge_task import JudgeTask
from fuzzcompile.programs.casefiles.case_module import load_case

SINE = """
import torch

def make():
    return torch.sin, (torch.ones(3),)
"""


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The probes that ran, which find nothing."""
    ran: list[str] = []
    monkeypatch.setattr(conformance, "probe_patches", lambda: ran.append("patches") or {})
    monkeypatch.setattr(conformance, "probe_replaced", lambda: ran.append("replaced") or {})
    return ran


@pytest.mark.parametrize(
    "version", ["2.12.0", "2.12.1+cpu", "2.14.0", "2.13.0rc1", "2.14.0.dev20260801", "2.15.0a0+git1234", "2.16.0"]
)
def test_every_torch_without_a_table_and_every_pre_release_is_probed_once(version: str, probed, monkeypatch):
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    probe_unknown_torch()
    probe_unknown_torch()
    assert probed == ["patches", "replaced"]


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cu130", "2.15.0"])
def test_a_release_with_a_table_is_not_probed(version: str, probed, monkeypatch):
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    probe_unknown_torch()
    assert probed == []


def test_nothing_is_noted_where_all_holds(probed, monkeypatch):
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.16.0.dev1"))
    with gather_unseen() as unseen:
        probe_unknown_torch()
    assert unseen == [] and probed


def test_what_is_replaced_without_effect_is_a_note_in_every_report(write_case, probed, monkeypatch):
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.16.0.dev2"))
    monkeypatch.setattr(conformance, "probe_replaced", lambda: {"torch.compile": "takes no mode"})
    for _ in range(2):
        report = triage(load_case(write_case(SINE)), torch.device("cpu"), JudgeTask(screen=True)).to_json()
        assert report["confidence"] == "low" and not report["is_bug"]
        [note] = [note for note in report["evidence"]["notes"] if "torch.compile" in note]
        assert note == "not watched: torch.compile (takes no mode): effects of its replacement were not seen"
