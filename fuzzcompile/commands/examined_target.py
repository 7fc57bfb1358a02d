"""Checks of a target on this machine: torch's places that answer for it, and how each stage is judged."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from fuzzcompile.commands.checks import Check
from fuzzcompile.commands.triage import triage_files
from fuzzcompile.compiler.target.described import missing_places, places
from fuzzcompile.contract import TargetJson
from fuzzcompile.errors import FuzzcompileError
from fuzzcompile.targets import target_of
from fuzzcompile.worker.conditions import Conditions, Question

_NOT_LOOKED_AT = "not looked at"
_LOOKED_AT = ("real code", "interpreted", "replayed")
_SMALL = """
import torch

def make():
    torch.manual_seed(0)
    return (lambda x: torch.softmax(x * 2 + 1, -1)), (torch.randn(8, 8),)
"""


def examine_target(name: str) -> Iterator[Check]:
    """Check that torch can be told of the target, and how each stage of a small program is examined for it."""
    missing, known = missing_places(target_of(name)), places(target_of(name))
    lines = [f"{len(known) - len(missing)} of {len(known)} answer for {name}"]
    lines += [f"{place} does not ({why})" for place, why in missing.items()]
    yield Check("places of torch", not missing, "; ".join(lines), "Reports say what was not looked at.", needed=False)
    looked, trouble = _stages_of_small_program(name)
    for stage, way in (looked["stages"] if looked is not None else {}).items():
        yield Check(f"{name} {stage}", not way.startswith(_NOT_LOOKED_AT), way, needed=False)
    count = sum(way.startswith(_LOOKED_AT) for way in looked["stages"].values()) if looked is not None else 0
    found = trouble or f"{count} stages of a small program can be looked at"
    yield Check(name, count > 0, found, "Install what the lines above ask for, or leave out --target.")


def _stages_of_small_program(name: str) -> tuple[TargetJson | None, str | None]:
    """Return how each stage was examined, or the reason why none was."""
    with tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder:
        path = Path(folder, "small.py")
        path.write_text(_SMALL, encoding="utf-8")
        try:
            (answer,) = triage_files([path], Conditions("cpu", target=name), Question())
        except FuzzcompileError as error:
            return None, str(error)
    trouble = answer.error.replace(str(path), "a small program") if answer.error is not None else None
    return (answer.report or {}).get("target"), trouble
