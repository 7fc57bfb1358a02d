"""A backend or a pass of the user's own is a suspect like any other."""

from __future__ import annotations

import dataclasses
from unittest import mock

import planting
import pytest
import torch
from torch import fx
from torch._inductor.fx_passes import post_grad

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.programs.casefiles.case_module import load_case

CPU = torch.device("cpu")
SOURCE = """
import torch
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.pattern_matcher import CallFunction, KeywordArg, PatternMatcherPass, register_graph_pattern

aten = torch.ops.aten


def wrong(model, inputs):
    for node in model.graph.find_nodes(op="call_method", target="sin"):
        node.target = "cos"
    model.recompile()
    return model


def right(model, inputs):
    return model.forward


def wrong_before_inductor(model, inputs):
    from torch._inductor.compile_fx import compile_fx

    return compile_fx(wrong(model, inputs), inputs)


def right_before_inductor(model, inputs):
    from torch._inductor.compile_fx import compile_fx

    return compile_fx(model, inputs)


def tidies(model, inputs):
    model.graph.eliminate_dead_code()
    model.recompile()
    return model


def raises(model, inputs):
    raise ValueError("this backend raises")


class Backend:
    def __call__(self, model, inputs):
        return wrong(model, inputs)


backend = Backend()


def spoil(graph):
    for target, other in ((aten.sin.default, aten.cos.default), (torch.sin, torch.cos)):
        for node in graph.find_nodes(op="call_function", target=target):
            node.target = other
    for node in graph.find_nodes(op="call_method", target="sin"):
        node.target = "cos"


def keep(graph):
    pass


def fail(graph):
    raise ValueError("this pass raises")


class Spoiler(CustomGraphPass):
    def __call__(self, graph):
        spoil(graph)

    def uuid(self):
        return None


table = PatternMatcherPass()


@register_graph_pattern(CallFunction(aten.sin.default, KeywordArg("x")), pass_dict=table)
def spoil_match(match, x):
    match.replace_by_example(lambda x: torch.cos(x), [x])


class Tabled(Spoiler):
    def __call__(self, graph):
        table.apply(graph)


def drop_nodes(nodes):
    return nodes[:0]


def keep_nodes(nodes):
    return nodes


def program(x):
    return x.sin().exp().sum(-1)


def make():
    torch.manual_seed(0)
    return program, (torch.randn(4, 16, 32),)
"""


def line_of(text: str) -> int:
    return next(n for n, line in enumerate(SOURCE.splitlines(), 1) if text in line)


@pytest.fixture
def judged(write_case):
    def judge(backend: str = "", options: str = ""):
        case = load_case(write_case(SOURCE + (f"OPTIONS = {options}\n" if options else "")))
        if backend:
            given = case.make.__globals__.get(backend, backend)
            case = dataclasses.replace(case, settings=dataclasses.replace(case.settings, backend=given))
        return triage(case, CPU)

    return judge


# -- backends -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend, name, line, verdict",
    [
        ("wrong", "wrong", "def wrong(", "miscompile"),
        ("wrong_before_inductor", "wrong_before_inductor", "def wrong_before_inductor(", "miscompile"),
        ("raises", "raises", "def raises(", "compile_error"),
        ("backend", "Backend", "def __call__(self, model", "miscompile"),
    ],
)
def test_a_wrong_backend_is_the_culprit(judged, backend: str, name: str, line: str, verdict: str):
    report = judged(backend)
    culprit = report.attribution.culprit
    assert report.verdict == verdict
    assert (culprit.stage, culprit.rewrite, culprit.source, culprit.line) == (
        "lowering", name, "case.py", line_of(line),
    )  # fmt: skip
    assert culprit.necessary is True
    assert report.confidence == "high"
    repaired = {ablation.toggle for ablation in report.attribution.ablations if ablation.repairs}
    assert f"veto {name}" in repaired
    assert culprit.sufficient is True
    assert report.graphs == (verdict != "compile_error")


@pytest.mark.parametrize("backend", ["right", "tidies", "right_before_inductor", "eager", "aot_eager"])
def test_a_right_backend_is_judged_and_clean(judged, backend: str):
    report = judged(backend)
    assert report.verdict in ("equal", "rounding")
    assert report.graphs == 1


def test_a_wrong_rewrite_of_inductor_behind_the_backend_is_inductors(judged):
    with planting.handler(post_grad.pass_patterns[1], planting.aten.sin.default, planting.sin_off):
        culprit = judged("right_before_inductor").attribution.culprit
    assert (culprit.stage, culprit.rewrite, culprit.necessary) == ("post_grad", "sin_off", True)


def test_a_wrong_function_of_torch_that_the_backend_calls_is_torchs(judged):
    original = fx.Graph.eliminate_dead_code

    def remove_too_much(graph, *args, **kwargs):
        for node in graph.find_nodes(op="call_method", target="sin"):
            node.replace_all_uses_with(node.args[0])
        return original(graph, *args, **kwargs)

    with mock.patch.object(fx.Graph, "eliminate_dead_code", remove_too_much):
        culprit = judged("tidies").attribution.culprit
    assert (culprit.stage, culprit.rewrite) == ("pre_grad", "eliminate_dead_code")
    assert (culprit.necessary, culprit.sufficient) == (True, True)


# -- passes -------------------------------------------------------------------------------------------

_PASSES = [
    ("pre_grad_custom_pass", "spoil", "pre_grad", "spoil", "def spoil("),
    ("joint_custom_pre_pass", "Spoiler()", "joint_graph", "Spoiler", "def __call__(self, graph)"),
    ("joint_custom_post_pass", "table.apply", "joint_graph", "spoil_match", "@register_graph_pattern"),
    ("post_grad_custom_pre_pass", "[keep, Spoiler()]", "post_grad", "Spoiler", "def __call__(self, graph)"),
    ("post_grad_custom_post_pass", "spoil", "post_grad", "spoil", "def spoil("),
    ("post_grad_custom_post_pass", "Tabled()", "post_grad", "spoil_match", "@register_graph_pattern"),
    ("post_grad_custom_post_pass", "fail", "post_grad", "fail", "def fail("),
    ("_pre_fusion_custom_pass", "drop_nodes", "scheduler", "drop_nodes", "def drop_nodes("),
]


@pytest.mark.parametrize("setting, given, stage, name, line", _PASSES, ids=[f"{p[0]}={p[1]}" for p in _PASSES])
def test_a_wrong_pass_is_the_culprit(judged, setting: str, given: str, stage: str, name: str, line: str):
    report = judged(options=f"{{'{setting}': {given}}}")
    culprit = report.attribution.culprit
    assert report.is_bug
    assert (culprit.stage, culprit.pass_name, culprit.rewrite) == (stage, setting, name)
    assert (culprit.source, culprit.line) == ("case.py", line_of(line))
    assert (culprit.necessary, culprit.sufficient) == (True, True)
    assert report.confidence == "high"


@pytest.mark.parametrize(
    "options",
    [
        "{'post_grad_custom_post_pass': keep}",
        "{'joint_custom_pre_pass': [keep]}",
        "{'_post_fusion_custom_pass': keep_nodes}",
    ],
)
def test_a_pass_that_does_no_harm_is_no_suspect(judged, options: str):
    report = judged(options=options)
    assert not report.is_bug
    assert report.attribution.changed_bits == []
