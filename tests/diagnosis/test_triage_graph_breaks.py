"""A program that dynamo captures in several graphs is judged as a whole, and told why it is several."""

from __future__ import annotations

import contextlib
import importlib
import re

import behind_plants
import planting
import pytest
import torch
from torch._dynamo.variables.tensor import TensorVariable
from torch._inductor.fx_passes import post_grad

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.refusals import CannotJudge
from fuzzcompile.programs.casefiles.case_module import load_case

pytestmark = pytest.mark.usefixtures("no_workarounds")

CPU = torch.device("cpu")
MAKE = "\ndef make():\n    torch.manual_seed(0)\n    return program, (torch.randn(8),)\n"
PROGRAMS = {
    "print": ("    y = x.sin(); print(end=''); return y.cos()", "`print`", 2),
    "item": ("    y = x.sin(); return y * 2 if y.sum().item() > -100 else y", "Tensor.item()", 2),
    "branch": ("    y = x.sin()\n    if y.sum() > -100: return y * 2\n    return y", "branch", 2),
    "loop": ("    for _ in range(int(x.abs().sum().item())): x = x + 1\n    return x", "Tensor.item()", 2),
    "asked for": ("    y = x.sin(); torch._dynamo.graph_break(); return y.cos()", "graph_break()", 2),
    "disabled": ("    return disabled(x.sin()).cos()", "torch.compiler.disable", 2),
}
HEAD = "import torch\n\n@torch._dynamo.disable\ndef disabled(x):\n    return x + 1\n\ndef program(x):\n"


@pytest.mark.parametrize("body, reason, graphs", PROGRAMS.values(), ids=PROGRAMS)
def test_graphs_are_counted_and_each_break_is_told_in_one_line(write_case, body: str, reason: str, graphs: int):
    path = write_case(HEAD + body + MAKE)
    report = triage(load_case(path), CPU)
    assert not report.is_bug
    assert report.graphs == graphs
    (line,) = report.graph_breaks
    assert reason in line
    assert re.search(r"\(case\.py:\d+: .+\)$", line)
    assert "\n" not in line and str(path.parent) not in line and "0x" not in line
    assert report.to_json()["evidence"]["graph_breaks"] == [line]


def test_one_graph_has_no_breaks(write_case):
    report = triage(load_case(write_case(HEAD + "    return x.sin()" + MAKE)), CPU)
    assert (report.graphs, report.graph_breaks) == (1, ())


def test_what_dynamo_refuses_on_one_way_and_captures_on_another_is_no_break(write_case, monkeypatch):
    exc = importlib.import_module("torch._dynamo.exc")

    def refused(*_: object) -> None:
        with contextlib.suppress(exc.Unsupported):
            raise exc.Unsupported("one way to trace a negation")

    monkeypatch.setattr(TensorVariable, "method_neg", refused, raising=False)
    report = triage(load_case(write_case(HEAD + "    return x.neg()" + MAKE + "FULLGRAPH = True\n")), CPU)
    assert (report.verdict, report.graphs, report.graph_breaks) == ("equal", 1, ())


@pytest.mark.slow
def test_a_bug_in_the_second_graph_is_found(write_case):
    case = load_case(write_case(HEAD + "    y = x.cos(); print(end=''); return y.sin() * 3" + MAKE))
    with planting.handler(post_grad.pass_patterns[1], planting.aten.sin.default, planting.sin_off):
        report = triage(case, CPU)
    assert report.attribution.culprit.rewrite == "sin_off"
    assert len(report.graph_breaks) == 1


@pytest.mark.parametrize("body, reason", [(body, reason) for body, reason, _ in PROGRAMS.values()], ids=PROGRAMS)
def test_fullgraph_that_cannot_be_honoured_is_refused_with_the_reason(write_case, body: str, reason: str):
    path = write_case(HEAD + body + MAKE + "FULLGRAPH = True\n")
    with pytest.raises(CannotJudge, match=r"asks for FULLGRAPH, which dynamo cannot honour: .+case\.py:\d+") as refused:
        triage(load_case(path), CPU)
    message = str(refused.value)
    assert reason in message or "data-dependent" in message
    assert "\n" not in message and str(path.parent) not in message


def test_every_line_that_breaks_the_graph_is_listed(write_case):
    body = "    y = x.sin(); print(end='')\n    if y.sum() > -100: y = y * 2\n    return y * y.sum().item()"
    with pytest.raises(CannotJudge, match=r"without FULLGRAPH, the graph breaks at: ") as refused:
        triage(load_case(write_case(HEAD + body + MAKE + "FULLGRAPH = True\n")), CPU)
    places = re.findall(r"case\.py:(\d+):", str(refused.value))
    assert sorted(map(int, places)) == [8, 9, 10]


def raising(original, *args, **kwargs):
    raise NotImplementedError("planted")


@pytest.mark.slow
def test_an_error_that_fullgraph_has_no_part_in_is_a_bug(write_case):
    body = "    y = x.sin()\n    return (y * y.sum().item()).cos()"
    case = load_case(write_case(HEAD + body + MAKE + "FULLGRAPH = True\n"))
    with behind_plants.lowering(torch.ops.aten.cos.default, raising):
        report = triage(case, CPU)
    assert (report.verdict, report.failure.message) == ("compile_error", "NotImplementedError: planted")


def test_an_error_that_comes_with_unknown_sizes_alone_is_refused_with_their_lines(write_case):
    body = "    n = x.abs().argmax().item()\n    y = torch.stack((x, x))\n    y[:, n] = 1.0\n    return y.cos()"
    with pytest.raises(CannotJudge, match=r"cannot honour: .+ graph breaks at: .+case\.py:8: n = ") as refused:
        triage(load_case(write_case(HEAD + body + MAKE + "FULLGRAPH = True\n")), CPU)
    assert "instead of reading a number from a tensor" in str(refused.value)


def test_a_program_that_compiles_too_often_says_what_to_pass_instead(write_case):
    program = "import torch\n\ndef program(x, scale):\n    return x * len(scale)\n"
    calls = "FULLGRAPH = True\nCALLS = [(torch.randn(8), 'aa')]\nCONFIG = {'dynamo': {'recompile_limit': 1}}\n"
    case = load_case(write_case(program + MAKE.replace("(torch.randn(8),)", "(torch.randn(8), 'a')") + calls))
    with pytest.raises(CannotJudge, match=r"recompile limit .+ pass it as a tensor.+recompile_limit\)\.$"):
        triage(case, CPU)


def test_a_break_in_a_loop_names_its_line(write_case):
    body = "    for n in (1, 2):\n        x = x * x[n].item()\n    return x"
    with pytest.raises(
        CannotJudge, match=r"in a loop, so that all of program runs uncompiled \(case\.py:9: .+function of"
    ):
        triage(load_case(write_case(HEAD + body + MAKE)), CPU)


def test_what_is_not_compiled_at_all_says_why(write_case):
    body = "    for _ in range(3):\n        x = x.sin(); print(end='')\n    return x"
    with pytest.raises(CannotJudge, match=r"captures no graph of it"):
        triage(load_case(write_case(HEAD + body + MAKE)), CPU)
