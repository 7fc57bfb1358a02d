"""A user's own passes and backend: named on the command line, installed, judged, and at fault where they are wrong."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fuzzcompile.compiler import custom_code
from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.probe import probe_case
from fuzzcompile.diagnosis.triage_report import TriageReport
from fuzzcompile.model.custom import Custom
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.judge_task import JudgeTask
from fuzzcompile.programs.capture.case_loader import load
from fuzzcompile.programs.scripts.reproducer import build_reproducer, confirm_reproducer

CPU = torch.device("cpu")
PAGE = Path(__file__).parents[2] / "docs" / "custom-passes.md"
PROGRAM = """
import torch


def program(x, residual, weight):
    total = x + residual
    wide = total.float()
    normal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
    return weight * normal.to(x.dtype), total


def make():
    torch.manual_seed(0)
    x, residual = (torch.randn(SHAPE, dtype=torch.DTYPE) / 16 for _ in range(2))
    return program, (x, residual, torch.randn(8, dtype=torch.DTYPE))
"""


def case(tmp_path: Path, *, eps: str = "1e-5", shape: str = "3, 5, 8", dtype: str = "float32") -> Path:
    path = tmp_path / "case.py"
    path.write_text(PROGRAM.replace("EPS", eps).replace("SHAPE", shape).replace("DTYPE", dtype))
    return path


@pytest.fixture
def installed(tmp_path, monkeypatch) -> Iterator[object]:
    """Install a pass or backend of a module with this text, for the time of the test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    number = 0

    def install(text: str, *passes: str, at: tuple[str, ...] = ("post_grad",), backend: str | None = None) -> str:
        nonlocal number
        number += 1
        name = f"own_{tmp_path.name}_{number}"
        (tmp_path / f"{name}.py").write_text(text)
        file = str(tmp_path / f"{name}.py")
        named = [f"{file}:{attribute}" for attribute in passes]
        custom_code.install_custom(
            Custom.parse(named, at if passes else (), None if backend is None else f"{file}:{backend}")
        )
        return name

    yield install
    custom_code.install_custom(Custom())


def example(number: str, *changes: tuple[str, str]) -> str:
    """The example's text, with operators of its own and these changes."""
    page = PAGE.read_text(encoding="utf-8")
    [text] = re.findall(r'```python title="fused_norm.py"\n(.*?)```', page, flags=re.DOTALL)
    text = text.replace("fused_norm", f"fused_norm_{number}")
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    return text


def judged(path: Path, *, screen: bool = True) -> TriageReport:
    return triage(load(path, CPU), CPU, JudgeTask(screen=screen, known=()))


def fired(report: TriageReport) -> list[str]:
    return [count.rewrite for count in report.coverage if count.outcome == "fired" and ":" in (count.pass_name or "")]


@pytest.mark.parametrize(
    ("eps", "dtype", "rule"),
    [
        ("1e-5", "float32", "add_rms_norm_float32_1e-05"),
        ("1e-6", "bfloat16", "add_rms_norm_bfloat16_1e-06"),
        ("1e-4", "float32", None),
    ],
)
def test_the_right_fusion_is_clean_and_each_pattern_is_a_rule(installed, tmp_path, eps, dtype, rule):
    name = installed(example(f"right_{eps[-1]}_{dtype}"), "fusion")
    report = judged(case(tmp_path, eps=eps, dtype=dtype))
    assert not report.is_bug and fired(report) == ([rule] if rule else [])
    [loaded] = custom_code.list_loaded()
    assert (loaded.name, loaded.place, loaded.setting) == (f"{name}:fusion", "post_grad", "post_grad_custom_post_pass")
    assert "add_rms_norm_float32_1e-05" in loaded.rules and len(loaded.rules) == 4


_KERNEL = "wide.pow(2).mean(-1, keepdim=True) + eps)\n    return"
_SUM = "total = x + residual\n    wide = total.to"
_FLAT = "total = x + residual.flatten().repeat(x.numel() // residual.numel()).view_as(x)\n    wide = total.to"
WRONG = {
    "drops eps": [(_KERNEL, _KERNEL.replace(" + eps", ""))],
    "wrong dim": [(_KERNEL, _KERNEL.replace("-1", "1"))],
    "ignores the sum's other user": [("* weight, total\n\n\n@", "* weight, residual.clone()\n\n\n@")],
    "mutates an input": [(_SUM, _SUM.replace("x + residual", "residual.add_(x).clone()"))],
    "wrong dtype": [("(wide * scale).to(total.dtype) * weight", "wide * scale * weight")],
    "matches a near miss": [("x.shape == residual.shape and ", ""), (_SUM, _FLAT)],
}
QUICK = "ignores the sum's other user"


@pytest.mark.parametrize("wrong", [QUICK, *(pytest.param(w, marks=pytest.mark.slow) for w in WRONG if w != QUICK)])
def test_a_wrong_fusion_is_found_and_its_pattern_named(installed, tmp_path, wrong):
    name = installed(example("_".join(wrong.replace("'", "").split()), *WRONG[wrong]), "fusion")
    dtype = "bfloat16" if wrong == "wrong dtype" else "float32"
    path = case(tmp_path, dtype=dtype)
    if wrong == "matches a near miss":  # its kernel takes the residual as it lies in memory
        path.write_text(path.read_text().replace("return program, (x, residual", "return program, (x, residual[:, :1]"))
    report = judged(path)
    assert report.is_bug
    culprit = report.attribution.culprit
    assert culprit is not None and culprit.necessary
    rule = (culprit.rewrite, culprit.pass_name, culprit.stage)
    assert rule == (f"add_rms_norm_{dtype}_1e-05", f"{name}:fusion", "post_grad")
    assert report.attribution.workaround is not None
    assert report.attribution.workaround.config == {"post_grad_custom_post_pass": None}


OWN = """
import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, CustomInferenceAwareGraphPass
from torch._inductor.pattern_matcher import CallFunction, KeywordArg, PatternMatcherPass, register_graph_pattern

aten = torch.ops.aten


def shift(graph):
    for node in graph.find_nodes(op="call_function", target=aten.rsqrt.default):
        node.target = aten.sqrt.default


def nothing(graph):
    pass


class Aware(CustomInferenceAwareGraphPass):
    def __call__(self, graph, is_inference):
        if is_inference:
            shift(graph)

    def uuid(self):
        return None


class Manager:
    def __init__(self):
        table = PatternMatcherPass()
        for _ in range(2):
            @register_graph_pattern(CallFunction(aten.rsqrt.default, KeywordArg("x")), pass_dict=table)
            def to_sqrt(match, x):
                match.replace_by_example(lambda x: torch.sqrt(x), [x])
        self.passes = [table]

    def __call__(self, graph):
        for table in self.passes:
            table.apply(graph)


manager = Manager()
torch_level = PatternMatcherPass()
register_graph_pattern(CallFunction(torch.rsqrt, KeywordArg("x")), pass_dict=torch_level)(lambda match, x: None)
number = 3


def keep(module, inputs):
    return module.forward


def spoil(module, inputs):
    for node in module.graph.find_nodes(op="call_function", target=torch.rsqrt):
        node.target = torch.sqrt
    module.recompile()
    return module.forward
"""


def outcomes(path: Path, *vetoes: str) -> set[tuple[str, str]]:
    """What became of the matches of rules of post-grad, from one screen."""
    seen = probe_case(load(path, CPU), CPU, vetoes=vetoes, screen=True).outcomes
    return {(family, how) for stage, family, how in seen if stage == "post_grad"}


def test_a_graph_pass_is_one_rule_that_is_vetoed_by_its_name(installed, tmp_path):
    name = installed(OWN, "shift")
    assert ("shift", "fired") in outcomes(case(tmp_path))
    assert ("shift", "vetoed") in outcomes(case(tmp_path), f"{name}:shift")


def test_patterns_of_one_name_are_told_apart_in_the_tables_that_an_object_holds(installed, tmp_path):
    name = installed(OWN, "manager")
    [loaded] = custom_code.list_loaded()
    assert loaded.rules == ("to_sqrt", "to_sqrt#2")
    assert ("to_sqrt", "fired") in outcomes(case(tmp_path))
    assert ("to_sqrt", "fired") not in outcomes(case(tmp_path), f"{name}:manager")


@pytest.mark.parametrize(("attribute", "place"), [("Aware", "post_grad"), ("torch_level", "pre_grad")])
def test_the_stage_is_known_where_only_one_can_run_the_pass(installed, attribute, place):
    installed(OWN, attribute, at=())
    assert [loaded.place for loaded in custom_code.list_loaded()] == [place]


@pytest.mark.parametrize(
    ("attribute", "at", "said"),
    [
        ("nothing", (), "add --at pre_grad|joint_graph|post_grad"),
        ("number", ("post_grad",), "is a int; name a function of a graph"),
        ("shft", ("post_grad",), "the nearest are shift"),
        ("Aware", ("pre_grad",), "takes is_inference"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_hint(installed, attribute, at, said):
    with pytest.raises(UsageError, match="--pass") as refused:
        installed(OWN, attribute, at=at)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("passes", "places", "said"),
    [
        (["one"], [], "write module:attribute"),
        (["no/such.py:one"], [], "there is no file"),
        (["m:one", "m:two", "m:three"], ["pre_grad", "post_grad"], "given 2 times for 3 passes"),
        (["m:one@late"], [], "there is no stage 'late'"),
        (["m:one", "m:one"], [], "the same name"),
        ([], ["pre_grad"], "there is none without a stage"),
    ],
)
def test_names_and_stages_that_do_not_fit_are_refused(passes, places, said):
    with pytest.raises(UsageError, match=said.replace("(", ".")):
        Custom.parse(passes, places, None)


def test_stages_belong_to_passes_in_their_order():
    parsed = Custom.parse(["m:a", "m:b@joint_graph", "m:c"], ["pre_grad", "post_grad"], None)
    assert [str(each) for each in parsed.passes] == ["m:a@pre_grad", "m:b@joint_graph", "m:c@post_grad"]
    assert [each.at for each in Custom.parse(["m:a", "m:b"], ["post_grad"], None).passes] == ["post_grad"] * 2


def test_a_backend_is_judged_and_blamed_where_inductor_is_right(installed, tmp_path):
    name = installed(OWN, backend="spoil")
    report = judged(case(tmp_path), screen=False)
    assert report.is_bug and report.attribution.culprit is not None
    assert (report.attribution.culprit.rewrite, report.attribution.culprit.stage) == (f"{name}:spoil", "lowering")
    installed(OWN, backend="keep")
    assert not judged(case(tmp_path), screen=False).is_bug


def test_a_backend_that_torch_does_not_have_is_refused():
    with pytest.raises(UsageError, match="it has aot_eager"):
        custom_code.install_custom(Custom.parse([], [], "aot_eagr"))


@pytest.mark.slow
@pytest.mark.parametrize("at_fault", ["pass", "backend"])
def test_a_reproducer_imports_what_is_at_fault_and_shows_the_bug_alone(installed, tmp_path, at_fault):
    if at_fault == "pass":
        installed(OWN, "shift", "manager")
    else:
        installed(OWN, backend="spoil")
    path = case(tmp_path)
    script = build_reproducer(path.read_text(), judged(path, screen=False).to_json())
    assert "# No part of PyTorch: own_" in script and confirm_reproducer(script).confirmed
