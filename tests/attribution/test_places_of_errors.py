"""An error of the compiler is placed in the file that raised it, though no compile without that file can be made."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fuzzcompile.case import load_case
from fuzzcompile.compiler.recompiling import ROOT, replaced
from fuzzcompile.judging.triage import triage

pytestmark = pytest.mark.usefixtures("no_workarounds")

CPU = torch.device("cpu")
FAKE = "torch/_subclasses/fake_impls.py"
WRAPPERS = "torch/_prims_common/wrappers.py"
PARTITION = "torch/_functorch/partitioners.py"


def case(body: str, settings: str = "") -> str:
    return f"import torch\n{settings}\n\ndef make():\n    x = torch.linspace(-1, 1, 12).reshape(3, 4)\n    {body}\n"


@contextlib.contextmanager
def planted(file: str, before: str, after: str) -> Iterator[int]:
    """The first ``before`` in a file of torch, an expression or a statement, is ``after``; gives its line."""
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    line, text = next((n, text) for n, text in enumerate(lines, 1) if before in text)
    column = text.index(before)
    change = replaced(file, (line, column), (line, column + len(before)), after, lambda: None)
    change.install()
    try:
        yield line
    finally:
        change.remove()


def report(write_case: Any, source: str) -> dict[str, Any]:
    path: Path = write_case(source)
    return triage(load_case(path), CPU).to_json()


def test_an_error_of_a_fake_tensor_is_placed_in_its_rule(write_case):
    source = case("return (lambda x: torch.add(torch.special.expit(x), x)), (x,)", "DYNAMIC = True")
    with planted(FAKE, "op.device != common_device", "op.device.planted") as line:
        answer = report(write_case, source)
    culprit = answer["culprit"]
    assert (culprit["stage"], culprit["source"], culprit["line"]) == ("fake_tensor", FAKE, line)
    assert answer["confidence"] == "low"
    assert culprit["details"]["raised"][0]["function"] == "fast_binary_impl"


def test_an_error_that_python_turned_into_another_is_seen_in_the_operator_alone(write_case):
    """``*`` answers a TypeError of a fake tensor with one of its own, which has no frame of the compiler."""
    source = case("return (lambda x: x * 2.0), (x,)")
    with planted(WRAPPERS, "isinstance(out, (tuple, list))", "out is None") as line:
        answer = report(write_case, source)
    raised = answer["culprit"]["details"]["raised"]
    assert answer["verdict"] == "compile_error"
    assert (raised[0]["source"], raised[0]["function"]) == (WRAPPERS, "_fn")
    assert raised[0]["line"] == line + 1
    assert answer["culprit"]["necessary"] is not True or answer["confidence"] == "low"
