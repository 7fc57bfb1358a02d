"""An error of the compiler is placed in the file that raised it, though no compile without that file can be made."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pattern_tables import restored
from recalling.code_replacement import replace_code
from torch._inductor.fx_passes import joint_graph
from torch._inductor.pattern_matcher import Arg, CallFunction, Match, register_graph_pattern

from fuzzcompile.compiler.rule_catalogue import initialise_patterns
from fuzzcompile.compiler.source_probes import ROOT
from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.programs.casefiles.case_module import load_case

pytestmark = pytest.mark.usefixtures("no_workarounds")

CPU = torch.device("cpu")
CAPTURE = "torch/_functorch/_aot_autograd/graph_capture.py"
FAKE = "torch/_subclasses/fake_impls.py"
WRAPPERS = "torch/_prims_common/wrappers.py"
SCHEDULER = "torch/_inductor/scheduler.py"
CPP = "torch/_inductor/codegen/cpp.py"
WRAPPER = "torch/_inductor/codegen/wrapper.py"
PRODUCTS = "return (lambda x: (x @ x.T) @ ((x @ x.T) @ x)), (x,)"  # library calls alone: nothing is compiled by g++


def case(body: str, settings: str = "") -> str:
    return f"import torch\n{settings}\n\ndef make():\n    x = torch.linspace(-1, 1, 12).reshape(3, 4)\n    {body}\n"


@contextlib.contextmanager
def planted(file: str, before: str, after: str, on: str = "") -> Iterator[int]:
    """The first ``before`` in a file of torch (on a line that holds ``on``) is ``after``; gives its line."""
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    there = [(n, text) for n, text in enumerate(lines, 1) if before in text and on in text]
    if not there:
        pytest.skip(f"{file} of this torch has no {before}")
    line, text = there[0]
    column = text.index(before)
    initialise_patterns(CPU)
    change = replace_code(file, (line, column), (line, column + len(before)), after, lambda: None)
    change.install()
    try:
        yield line
    finally:
        change.remove()


def report(write_case: Any, source: str) -> dict[str, Any]:
    path: Path = write_case(source)
    return triage(load_case(path), CPU).to_json()


def test_an_error_without_a_rule_is_placed_in_the_file_that_raised_it(write_case):
    with planted(CAPTURE, "propagate_input_mutation_stacktraces(fw_module.graph)", "fw_module.planted") as line:
        answer = report(write_case, case("return (lambda x: x.cos()), (x,)"))
    culprit = answer["culprit"]
    assert (culprit["stage"], culprit["source"], culprit["line"]) == ("functionalization", CAPTURE, line)
    assert culprit["details"]["raised"][0]["function"] == "aot_dispatch_base_graph"
    assert answer["confidence"] == "low"
    assert answer["signature"].startswith("functionalization:AttributeError:")


def test_an_error_of_a_fake_tensor_says_where_in_its_rule_it_rose(write_case):
    with planted(FAKE, "dim if dim >= 0 else dim + ndim", "dim.planted") as line:
        answer = report(write_case, case("return (lambda x: x.select(0, 1) + 1), (x,)"))
    assert answer["culprit"]["rewrite"] == "aten.select.int"
    assert answer["culprit"]["details"]["raised"][0]["line"] == line


def test_an_error_that_python_turned_into_another_is_seen_in_the_operator_alone(write_case):
    """``*`` answers a TypeError of a fake tensor with one of its own, which has no frame of the compiler."""
    source = case("return (lambda x: x * 2.0), (x,)")
    with planted(WRAPPERS, "isinstance(out, (tuple, list))", "out is None") as line:
        answer = report(write_case, source)
    raised = answer["culprit"]["details"]["raised"]
    assert answer["verdict"] == "compile_error"
    assert (raised[0]["source"], raised[0]["function"]) == (WRAPPERS, "_fn")
    assert raised[0]["line"] == line + 1


@pytest.mark.parametrize(
    ("file", "before", "after", "error"),
    [
        (SCHEDULER, "used_buffers - future_used_buffers", "used_buffers", "UnboundLocalError"),
        pytest.param(
            WRAPPER, "name in V.graph.removed_buffers", "name.startswith('buf')", "NameError", marks=pytest.mark.slow
        ),
    ],
    ids=["deletes too early", "allocates nothing"],
)
def test_a_program_that_raises_by_itself_is_named_with_its_statement_and_nothing_else(
    write_case, file, before, after, error
):
    """Its text does not say which part of the compiler should have written it otherwise."""
    with planted(file, before, after):
        answer = report(write_case, case(PRODUCTS))
    culprit = answer["culprit"]
    assert (answer["verdict"], answer["confidence"]) == ("runtime_error", "low")
    assert (culprit["stage"], culprit["rewrite"], culprit["source"]) == ("codegen", None, None)
    assert "buf" in culprit["details"]["statement"] and answer["contributors"] == []
    assert answer["signature"].startswith(f"codegen:{error}:")


def test_a_program_that_is_no_python_is_named_for_the_operator_whose_name_is_none(write_case):
    """``from`` is a keyword of Python and an overload of ``random_``, which FX writes into a program as it is."""
    answer = report(write_case, case("return (lambda x: (x.clone().random_(0, 5), x * 2)[1]), (x,)", 'PATH = "export"'))
    culprit = answer["culprit"]
    assert (answer["verdict"], culprit["family"], culprit["necessary"]) == ("compile_error", "random", True)
    assert culprit["rewrite"].startswith("aten.random") and culprit["rewrite"] in culprit["details"]["statement"]
    assert any(culprit["rewrite"] in ablation["toggle"] for ablation in answer["ablations"])


@pytest.mark.slow
def test_a_program_that_returns_too_little_names_the_wrapper(write_case):
    with planted(WRAPPER, "output_refs", "not output_refs", on="if output_refs:"):
        answer = report(write_case, case(PRODUCTS))
    assert (answer["culprit"]["stage"], answer["culprit"]["source"]) == ("runtime", WRAPPER)
    assert answer["culprit"]["details"]["expected"] == 1


def test_an_error_is_cleared_where_only_shared_memory_differs_without_its_pattern(write_case):
    """Dropout that drops nothing gives its input back in eager mode, and a copy compiled: another bug."""
    raising = CallFunction(torch.ops.aten.erfc.default, Arg())
    initialise_patterns(CPU)
    with restored(joint_graph.pass_patterns[0]) as table:

        @register_graph_pattern(raising, pass_dict=table)
        def refuse(match: Match, x: torch.fx.Node) -> None:
            raise KeyError("planted")

        body = "return (lambda x: (torch.erfc(x), torch.nn.functional.dropout(x, training=False))), (x,)"
        answer = report(write_case, case(body))
    culprit = answer["culprit"]
    assert (answer["verdict"], answer["confidence"]) == ("compile_error", "high")
    assert (culprit["stage"], culprit["rewrite"], culprit["necessary"]) == ("joint_graph", "refuse", True)
