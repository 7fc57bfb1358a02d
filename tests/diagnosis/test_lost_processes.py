"""A case that takes its process down: the part of the compiler without which a new process survives is the culprit."""

from __future__ import annotations

import pytest

from fuzzcompile.diagnosis.worker.file_triage import triage_files
from fuzzcompile.model.conditions import Conditions, Limits

# Each ends the process where it is reached: while a graph is traced, while it is lowered, in code that runs, and where
# code for loops of different ranges under one outer loop is generated.
KILLERS = """
import os, signal
import torch
from torch._inductor import decomposition, lowering
from torch._inductor.codegen import cpp

def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGSEGV)

decomposition.decompositions[torch.ops.aten.hardswish.default] = die
lowering.lowerings[torch.ops.aten.erfinv.default] = die
cpp.CppVecOverrides.tan = staticmethod(lambda x: f"(std::abort(), {x})")
cpp.CppScheduling.codegen_outer_loop_node = die
"""
CASE = """
import torch

def func(x):
    return CALL(x.sin()) + 1

def make():
    return func, (torch.randn(32, 64),)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "stage", "family", "workaround"),
    [
        ("torch.nn.functional.hardswish", "decomposition", "hardswish", 'torch.compile(..., backend="aot_eager")'),
        ("torch.erfinv", "lowering", "erfinv", 'torch.compile(..., backend="aot_eager_decomp_partition")'),
        ("torch.tan", "codegen", "tan", "torch._inductor.config.cpp.simdlen = 1"),
        ("torch.nn.Softmax(-1)", "codegen", "fusion", "torch._inductor.config.max_fusion_size = 1"),
    ],
)
def test_what_takes_the_process_down_is_named_and_proved(write_case, call, stage, family, workaround):
    # Each trial is a process of its own: the answer must not hang on how busy the machine is.
    conditions = Conditions(device="cpu", plants=(write_case(KILLERS, "killers.py"),), limits=Limits(seconds=900))
    (answer,) = triage_files([write_case(CASE.replace("CALL", call))], conditions)
    report = answer.report
    assert report is not None and report["verdict"] == "crash"
    # What decides that loops are fused may be at fault as well.
    assert report["confidence"] == ("low" if family == "fusion" else "high")
    culprit = report["culprit"]
    assert culprit is not None and (culprit["stage"], culprit["family"]) == (stage, family)
    assert culprit["necessary"] and any(row["repairs"] for row in report["ablations"])
    assert report["workaround"] is not None and report["workaround"]["how"] == workaround
