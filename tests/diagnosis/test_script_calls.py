"""Each call of a script is looked at: the first in full, later ones beside eager mode and, where they part, anew."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from plants.guards import FAULTS
from torch._inductor import lowering

from fuzzcompile.diagnosis.probe import SignatureLock
from fuzzcompile.diagnosis.worker.judge import judge_file
from fuzzcompile.diagnosis.worker.minimization import CandidateTools, make_job
from fuzzcompile.diagnosis.worker.minimize_task import LocalAsker
from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.judge_task import JudgeTask
from fuzzcompile.programs.capture.script_text import makes_one_call
from fuzzcompile.programs.shrink.minimize import minimize
from fuzzcompile.programs.shrink.search import SearchBudget

pytestmark = pytest.mark.usefixtures("no_workarounds")

SCALED = """
import torch
from torch import nn

class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.linear = 2.0, nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x) * self.scale

torch.manual_seed(0)
model = Scaled()
compiled = torch.compile(model)
x = torch.randn(3, 4)
"""
LOOPED = SCALED + "for scale in (2.0, 2.0, {scale}):\n    model.scale = scale\n    print(compiled(x).sum())\n"


def judge(write_case: Any, source: str) -> dict[str, Any]:
    return judge_file(JudgeTask(path=str(write_case(source, "script.py")))).report


@pytest.mark.slow
def test_a_later_call_that_runs_a_stale_graph_is_the_answer(write_case):
    with FAULTS[0].plant():
        report = judge(write_case, LOOPED.format(scale=5.0))
    assert (report["verdict"], report["confidence"], report["culprit"]["rewrite"]) == ("stale", "high", "EQUALS_MATCH")
    assert report["culprit"]["details"]["between_calls"] == ["scale: 2.0, then 5.0"]
    assert any("judged: call 3 of the script" in note for note in report["evidence"]["notes"])


def test_calls_that_are_right_are_counted(write_case):
    report = judge(write_case, LOOPED.format(scale=5.0))
    assert not report["is_bug"]
    assert any(note.startswith("looked at 3 calls of the script") for note in report["evidence"]["notes"])


def test_the_other_callables_of_a_script_are_listed_with_the_call_that_judges_each(write_case):
    others = "doubled = torch.compile(lambda x: x + x)\nfor _ in range(2): doubled(compiled(x))\n"
    notes = judge(write_case, SCALED + others)["evidence"]["notes"]
    assert notes[0].startswith("judged: call 1 of the script, Scaled")
    assert notes[1].endswith("to judge another in full: lambda (line 17) by --call 2")


@pytest.mark.slow
def test_two_closures_of_one_function_share_its_graphs(write_case):
    """Dynamo keeps graphs with the code, whichever callable was compiled."""
    source = (
        "import torch\n\ndef scaled(by):\n    def program(x):\n        return torch.sin(x) * by\n    return program\n\n"
        "x = torch.ones(3)\nprint(torch.compile(scaled(2.0))(x))\nprint(torch.compile(scaled(3.0))(x))\n"
    )
    assert not judge(write_case, source)["is_bug"]
    with FAULTS[0].plant():
        report = judge(write_case, source)
    assert report["verdict"] == "stale"
    assert report["culprit"]["details"]["between_calls"] == ["by: 2.0, then 3.0"]


def plant_doubled_sine(monkeypatch: Any, is_wrong: Callable[[Any], bool]) -> None:
    sine = torch.ops.aten.sin.default
    original = lowering.lowerings[sine]

    def double(x: Any) -> Any:
        return original(lowering.mul(x, 2) if is_wrong(x) else x)

    monkeypatch.setitem(lowering.lowerings, sine, double)


@pytest.mark.slow
def test_a_later_call_that_is_wrong_by_itself_is_judged_in_full(write_case, monkeypatch):
    plant_doubled_sine(monkeypatch, lambda x: x.get_size()[0] == 5)
    source = (
        "import torch\n\ncompiled = torch.compile(torch.sin, dynamic=False)\n"
        "for size in (3, 4, 5):\n    print(compiled(torch.linspace(0, 1, size)))\n"
    )
    report = judge(write_case, source)
    assert report["verdict"] == "miscompile"
    assert any("judged: call 3 of the script" in note for note in report["evidence"]["notes"])


# A sine that is compiled for the second size of a script, which dynamo leaves open.
TWO_SIZES = (
    "import torch\n\ncompiled = torch.compile(torch.sin)\nfor size in (6, 9):\n    print(compiled(torch.ones(size)))\n"
)


@pytest.mark.slow
def test_a_later_call_that_is_wrong_with_open_sizes_alone_is_judged_with_them(write_case, monkeypatch):
    plant_doubled_sine(monkeypatch, lambda x: not all(size.is_number for size in x.get_size()))
    report = judge(write_case, TWO_SIZES)
    assert (report["verdict"], report["culprit"]["rewrite"]) == ("miscompile", "aten.sin.default")


@pytest.mark.slow
def test_a_later_call_whose_result_shares_memory_is_judged(write_case, monkeypatch):
    clone = torch.ops.aten.clone.default
    original = lowering.lowerings[clone]

    def forget(x: Any, **options: Any) -> Any:
        return x if x.get_size()[0] == 9 else original(x, **options)

    monkeypatch.setitem(lowering.lowerings, clone, forget)
    report = judge(
        write_case, TWO_SIZES.replace("torch.compile(torch.sin)", "torch.compile(torch.clone, dynamic=False)")
    )
    assert (report["verdict"], report["culprit"]["rewrite"]) == ("aliasing", "aten.clone.default")


@pytest.mark.slow
def test_a_later_call_is_minimized_with_the_sizes_that_it_was_judged_with(write_case, monkeypatch):
    plant_doubled_sine(monkeypatch, lambda x: not all(size.is_number for size in x.get_size()))
    report = cast(ReportJson, judge(write_case, TWO_SIZES))
    tools = CandidateTools(LocalAsker(), SignatureLock.of(report), report)
    outcome = minimize(make_job(TWO_SIZES, report, None), tools, SearchBudget(30))
    assert outcome.how == "graph" and "DYNAMIC = True" in outcome.source and "for size" not in outcome.source
    assert outcome.report["culprit"]["rewrite"] == "aten.sin.default"


@pytest.mark.slow
def test_a_later_call_that_is_wrong_in_a_second_compile_alone_is_told_with_low_confidence(write_case, monkeypatch):
    def is_second(x: Any) -> bool:
        now = torch._guards.CompileContext.current_compile_id()
        return now is not None and bool(now.frame_compile_id)

    plant_doubled_sine(monkeypatch, is_second)
    report = judge(write_case, TWO_SIZES)
    assert (report["verdict"], report["confidence"]) == ("miscompile", "low")
    assert "not in that call compiled alone" in report["detail"]


def test_a_training_loop_is_followed_without_a_false_alarm(write_case):
    source = SCALED + (
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(4):\n    loss = compiled(x).pow(2).mean()\n    optimizer.zero_grad()\n"
        "    loss.backward()\n    optimizer.step()\n"
    )
    report = judge(write_case, source)
    assert not report["is_bug"]
    assert any(note.startswith("looked at 4 calls") for note in report["evidence"]["notes"])


def test_a_script_with_one_call_runs_once(write_case, tmp_path: Path):
    count = tmp_path / "count"
    source = f"{SCALED}\nprint(compiled(x))\nopen({str(count)!r}, 'a').write('x')\n"
    judge(write_case, f"open({str(count)!r}, 'a').write('.')\n{source}")
    assert count.read_text(encoding="utf-8") == "."


@pytest.mark.parametrize(
    ("use", "once"),
    [
        ("print(compiled(x))", True),
        ("def check(f):\n    return f(x), f(x)\n\ncheck(compiled)", False),
        ("print(compiled(x))\nprint(compiled(x))", False),
        ("for _ in range(3):\n    compiled(x)", False),
        ("print([compiled(x) for _ in range(2)])", False),
    ],
    ids=["one", "given to a function", "two", "loop", "comprehension"],
)
def test_what_a_text_shows_of_the_number_of_calls(use, once):
    assert makes_one_call(f"import torch\n\ncompiled = torch.compile(torch.sin)\n{use}\n") == once


@pytest.mark.parametrize(
    ("text", "once"),
    [
        ("print(torch.compile(torch.sin)(x).sum())", True),
        ("torch.compile(torch.sin)(x)\ntorch.compile(torch.cos)(x)", False),
        ("for _ in range(2):\n    torch.compile(torch.sin)(x)", False),
        ("torch.compile(dynamic=True)(torch.sin)(x)", False),
    ],
    ids=["one", "two", "loop", "of a decorator"],
)
def test_what_is_called_where_it_is_compiled_is_called_once(text, once):
    assert makes_one_call(f"import torch\n\n{text}\n") == once


def test_a_script_that_ends_itself_behind_its_calls_is_a_case_like_another(write_case):
    """Its function ``make`` is a helper, and no make() of a case file."""
    source = (
        "import torch\n\ndef make(kind='sin'):\n    return torch.compile(getattr(torch, kind))\n\n"
        "x = torch.ones(3)\nbad = not torch.allclose(make()(x), torch.sin(x))\nraise SystemExit(bad)\n"
    )
    assert judge(write_case, source)["verdict"] in ("equal", "rounding")


@pytest.mark.slow
def test_a_script_that_goes_on_for_long_behind_its_calls_is_left(write_case, monkeypatch):
    """It is not waited for; what was looked at until then stands in the answer."""
    monkeypatch.setattr("fuzzcompile.diagnosis.worker.judge._LOOKING_SECONDS", 8.0)
    began = time.monotonic()
    report = judge(write_case, LOOPED.format(scale=2.0) + "import time\ntime.sleep(600)\n")
    assert time.monotonic() - began < 300
    assert any("further calls were not looked at" in note for note in report["evidence"]["notes"])


TWO_PROGRAMS = """
import torch

def make(scale):
    @torch.compile
    def scaled(x):
        return x.sin() * scale
    return scaled

x = torch.ones(4)
for scale in (2.0, 3.0):
    print(make(scale)(x))
"""
CACHES = {
    "enable_autograd_cache": (
        "torch._functorch._aot_autograd.autograd_cache",
        "autograd_cache_key",
        "functionalization",
    ),
    "fx_graph_cache": ("torch._inductor.codecache", "compiled_fx_graph_hash", "codegen"),
}


@pytest.mark.parametrize("entry", CACHES)
def test_a_graph_that_a_cache_on_disk_keeps_of_another_program_is_stale(write_case, monkeypatch, entry: str):
    module, name, stage = CACHES[entry]
    original = getattr(importlib.import_module(module), name)
    monkeypatch.setattr(f"{module}.{name}", lambda *args, **kwargs: ("a" * 52, original(*args, **kwargs)[1]))
    report = judge(write_case, TWO_PROGRAMS)
    assert (report["verdict"], report["confidence"]) == ("stale", "high")
    assert (report["culprit"]["stage"], report["culprit"]["rewrite"]) == (stage, name)
    assert report["workaround"]["how"].endswith(f"{entry} = False") and "on disk" in report["detail"]


def test_two_programs_whose_graphs_come_from_the_caches_are_right(write_case):
    assert judge(write_case, TWO_PROGRAMS)["verdict"] in ("equal", "rounding")


def test_a_script_that_switches_the_caches_off_has_none(write_case, monkeypatch):
    module, name, _ = CACHES["fx_graph_cache"]
    monkeypatch.setattr(f"{module}.{name}", lambda *args, **kwargs: pytest.fail("a key was made"))
    source = TWO_PROGRAMS.replace("x = torch", "torch._inductor.config.force_disable_caches = True\nx = torch")
    assert judge(write_case, source)["verdict"] in ("equal", "rounding")


HOOKED = """
import torch

layer = torch.nn.Linear(3, 3)

@torch.compile(backend="aot_eager", fullgraph=True)
def program(x):
    return layer(x)

for hooked in (False, True):
    if hooked:
        layer.register_full_backward_hook(lambda module, given, grads: [grad * 2 for grad in given])
    x = torch.randn(2, 3, requires_grad=True)
    program(x).sum().backward()
"""


def test_gradients_of_later_calls_are_compared_where_the_script_asks_for_any(write_case):
    report = judge(write_case, HOOKED)
    assert (report["verdict"], report["severity"]) == ("stale", "silent")
    assert any("hook" in change for change in report["culprit"]["details"]["between_calls"])
    kinds = {output["finding"] for output in report["evidence"]["outputs"] if output["name"].startswith("grad")}
    assert kinds - {"same", "close"}
