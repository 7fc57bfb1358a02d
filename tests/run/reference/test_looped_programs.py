"""The looped programs of ``corpus/references`` compute what their references do, eager and compiled with breaks."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest
import torch

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.refusals import CannotJudge
from fuzzcompile.programs.casefiles.case_module import load_case

FOLDER = Path(__file__).parents[3] / "corpus" / "references"
CASES = sorted(FOLDER.glob("[!_]*.py"))
# The largest error of an output, which is below 4.5 in size. Programs in bfloat16 round scores and weights as well:
# 6 times its eps, where rounding the output alone takes 2.
FORWARD = {torch.float32: 5e-7, torch.bfloat16: 6 * torch.finfo(torch.bfloat16).eps}
GRADIENT = 1e-5
# Dynamo leaves a function to Python whose loop breaks the graph: nothing of these is compiled.
UNCOMPILED = ("kv_cache_ragged", "kv_cache_ring", "prefix_lm_looped")
# What takes minutes to compile where the machine is busy.
SLOW = ("kv_cache_dynamic", "kv_cache_static", "prefix_lm_grouped_bfloat16", "prefix_lm_training")
SLOW_AS_ONE_GRAPH = ("kv_cache_shifted", "prefix_lm_grouped_bfloat16", "prefix_lm_looped", "prefix_lm_training")
# A prefix too short, a mask off by one, a slot too late, a ring that wraps too early: text of a case, and its mistake.
PLANTS = {
    "prefix_lm_looped": ("later[:, :prefix] = False", "later[:, : max(prefix - 1, 0)] = False"),
    "prefix_lm_training": ("position[None, :] <= position[:, None]", "position[None, :] < position[:, None] + 2"),
    "prefix_lm_grouped_bfloat16": ("mask[:, :prefix] = 0.0", "mask[:, : start + prefix] = 0.0"),
    "kv_cache_static": ("end = start + query.shape[2]", "start += start == 6\n        end = start + query.shape[2]"),
    "kv_cache_ragged": ("slot = int(self.lengths[row])", "slot = int(self.lengths.max())"),
    "kv_cache_dynamic": ("torch.cat((self.keys, key), 2)", "torch.cat((key, self.keys), 2)"),
    "kv_cache_ring": ("slot = position % WINDOW", "slot = position % (WINDOW - 1)"),
    "kv_cache_shifted": ("cache[:, :, 1:], token", "cache[:, :, :1], cache[:, :, 2:], token"),
}


def as_written(path, double=False):
    """The program of a case, its reference, and the inputs of all calls, in float64 if ``double``."""
    case = load_case(path)
    model, first = case.make()
    calls = [first, *(case.calls or ())]
    if double:
        calls = [[t.double() if t.is_floating_point() else t for t in inputs] for inputs in calls]
    return case, model, sys.modules[case.make.__module__].reference, calls


def errors(path, compiled=False):
    """The largest error of outputs and of gradients against the reference in float64, and the states that differ."""
    case, model, _, calls = as_written(path)
    target = torch.compile(model) if compiled else model
    _, _, reference, exact_calls = as_written(path, double=True)
    with contextlib.nullcontext() if case.backward else torch.no_grad():
        outputs, (expected, exact_state) = [target(*inputs) for inputs in calls], reference(exact_calls)
    forward = max(apart(ours, right) for ours, right in zip(outputs, expected, strict=True))
    backward = 0.0
    if case.backward:
        backward = max(
            apart(ours, right)
            for ours, right in zip(gradients(outputs, calls), gradients(expected, exact_calls), strict=True)
        )
    dtype = outputs[0].dtype
    wrong = [name for name, right in exact_state.items() if not same_bits(getattr(model, name), right, dtype)]
    return forward, backward, wrong


def apart(ours, right):
    assert ours.shape == right.shape
    assert right.detach().abs().max() < 4.5
    return float((ours.detach().double() - right.detach()).abs().max())


def same_bits(ours, right, dtype):
    """Whether a tensor of a cache holds what the reference in float64 holds, which is exact."""
    return torch.equal(ours, right.to(dtype) if right.is_floating_point() else right)


def gradients(outputs, calls):
    generator = torch.Generator().manual_seed(3)
    tangents = [torch.randn(output.shape, generator=generator).to(output.dtype) for output in outputs]
    leaves = [tensor for inputs in calls for tensor in inputs if tensor.requires_grad]
    return torch.autograd.grad(outputs, leaves, tangents)


def accepted(path, **how):
    forward, backward, wrong = errors(path, **how)
    dtype = torch.bfloat16 if "bfloat16" in path.stem else torch.float32
    return forward <= FORWARD[dtype] and backward <= GRADIENT and not wrong


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_eager_computes_what_the_reference_computes(path):
    assert accepted(path), errors(path)


@pytest.mark.parametrize("name", PLANTS)
def test_a_mistake_shows(name, write_case):
    right, wrong = PLANTS[name]
    source = (FOLDER / f"{name}.py").read_text()
    assert source.count(right) == 1
    assert not accepted(write_case(source.replace(right, wrong), f"{name}.py"))


def test_every_program_is_tried_with_a_mistake():
    assert set(PLANTS) == {path.stem for path in CASES}


def marked(slow):
    return [pytest.param(p, id=p.stem, marks=[pytest.mark.slow] if p.stem in slow else []) for p in CASES]


@pytest.mark.slow
@pytest.mark.parametrize("path", marked(SLOW))
def test_compiled_with_graph_breaks_computes_it_too(path):
    torch._dynamo.reset()
    breaks = torch._dynamo.utils.counters["unimplemented"], torch._dynamo.utils.counters["graph_break"]
    before = sum(sum(counter.values()) for counter in breaks)
    assert accepted(path, compiled=True), errors(path, compiled=True)
    assert sum(sum(counter.values()) for counter in breaks) > before


@pytest.mark.slow
@pytest.mark.parametrize("path", [p for p in CASES if p.stem not in UNCOMPILED], ids=lambda path: path.stem)
def test_triage_finds_no_bug_and_says_why_there_are_several_graphs(path):
    report = triage(load_case(path), torch.device("cpu"))
    assert report.verdict in ("equal", "rounding"), report.detail
    assert report.graph_breaks and all(f"({path.name}:" in line for line in report.graph_breaks)


@pytest.mark.parametrize("name", UNCOMPILED)
def test_triage_says_which_line_leaves_a_loop_to_python(name):
    path = FOLDER / f"{name}.py"
    with pytest.raises(CannotJudge, match=rf"in a loop.*{name}\.py:\d+: .*item|in a loop.*{name}\.py:\d+: .*int\("):
        triage(load_case(path), torch.device("cpu"))


@pytest.mark.parametrize("path", marked(SLOW_AS_ONE_GRAPH))
def test_one_graph_is_refused_with_the_lines_that_read_numbers(path, write_case):
    asking = write_case(path.read_text() + "\nFULLGRAPH = True\n", path.name)
    with pytest.raises(CannotJudge, match=r"asks for FULLGRAPH, which .+ cannot honour: ") as refused:
        triage(load_case(asking), torch.device("cpu"))
    message = str(refused.value)
    assert f"{path.name}:" in message and "instead of reading a number from a tensor" in message
    assert any(read in message for read in ("item()", "tolist()", "int("))
