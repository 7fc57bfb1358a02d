"""``fuzzcompile doctor`` says where the facts of another version of torch are used."""

from __future__ import annotations

import pytest
import torch

from fuzzcompile.front import machine_checks as doctor


@pytest.mark.parametrize("version", ["2.14.0", "2.16.0"])
def test_doctor_names_the_version_whose_facts_stand_in(monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr("fuzzcompile.model.facts.installed_torch", lambda: version)
    check = doctor._check_torch()
    assert check.name == "torch" and f"{version}, only for" in check.found and "that of 2.15 is used" in check.found
