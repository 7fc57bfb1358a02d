"""What identifies a run: hashes that depend on values alone, and sentences that say what differs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn

from fuzzcompile.analyses.profile.recordings import RunFacts, check_same, collect_facts
from fuzzcompile.model.errors import CaseError
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run.case import Case
from fuzzcompile.run.case_program import CaseProgram, build

CPU = torch.device("cpu")
CASE = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.register_buffer("scale", torch.full((1,), 2.0))
    def forward(self, x, flag=True):
        return x + self.inner(x) * self.scale

def make():
    torch.manual_seed(3)
    return nn.Sequential(*(Block() for _ in range(3))).eval(), (torch.randn(2, 6),)
"""


@pytest.fixture
def case(tmp_path: Path) -> Case:
    path = tmp_path / "blocks.py"
    path.write_text(CASE)
    return load_case(path)


def facts(case: Case, *, model=None, inputs=None, device: torch.device = CPU) -> RunFacts:
    program = build(case, device)
    calls = program.calls if inputs is None else (inputs,)
    changed = dataclasses.replace(program, model=program.model if model is None else model, calls=calls)
    return collect_facts(case, changed, "eager", device)


def differing(recorded: RunFacts, present: RunFacts) -> str:
    with pytest.raises(CaseError) as raised:
        check_same(recorded, present)
    return str(raised.value)


def test_the_same_run_is_the_same(case):
    assert check_same(facts(case), facts(case)) == []
    assert facts(case) == facts(case)


def test_a_hash_depends_on_values_and_not_on_strides(case):
    model = build(case, CPU).model
    linear = model[1].inner
    linear.weight = nn.Parameter(linear.weight.detach().t().contiguous().t())
    assert linear.weight.stride() == (1, 6)
    assert facts(case, model=model).weights == facts(case).weights


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.bool, torch.int64])
def test_every_dtype_is_hashed(case, dtype):
    recorded, changed = (facts(case, inputs=(torch.tensor(x).to(dtype),)).inputs["in0"] for x in ([1, 0], [0, 1]))
    assert recorded.sha256 and recorded.dtype == str(dtype)[6:] and recorded.shape == (2,)
    assert changed.sha256 != recorded.sha256


def test_a_lazily_conjugated_tensor_is_hashed_by_value(case):
    tensor = torch.tensor([1 + 2j, 3 - 4j])
    assert tensor.conj().is_conj()
    lazily, eagerly = (facts(case, inputs=(x,)).inputs for x in (tensor.conj(), tensor.conj().resolve_conj()))
    assert lazily == eagerly != facts(case, inputs=(tensor,)).inputs


def test_the_weights_that_differ_are_named(case):
    model = build(case, CPU).model
    with torch.no_grad():
        model[2].inner.bias[4] += 1e-6
        model[1].scale *= 2
    said = differing(facts(case), facts(case, model=model))
    assert "2 of 9 weights differ: buffer 1.scale (values), parameter 2.inner.bias (values)" in said
    assert "modules" not in said and "inputs" not in said and "source" not in said


def test_many_differences_are_counted(case):
    said = differing(facts(case), facts(case, model=build(case, CPU).model.double()))
    assert "9 of 9 weights differ" in said and "(float32 recorded, float64 here)" in said and "and 5 more" in said


def test_other_inputs_are_named_by_leaf(case):
    x = torch.ones(2, 6)
    recorded = facts(case, inputs=(x, {"mask": x.bool(), "scale": 2.0}))
    said = differing(recorded, facts(case, inputs=(x, {"mask": x.bool(), "scale": 2.5})))
    assert "1 of 3 inputs differ: in2 (values)" in said
    assert "in0 (shape [2, 6] recorded, [3, 6] here)" in differing(recorded, facts(case, inputs=(torch.ones(3, 6),)))
    assert "in1 (only recorded)" in differing(recorded, facts(case, inputs=(x,)))


def test_an_added_input_that_changes_no_other_is_seen(case):
    x = torch.ones(2, 6)
    assert "in1 (only here)" in differing(facts(case, inputs=(x,)), facts(case, inputs=(x, None)))


def test_another_module_in_the_tree_is_named(case):
    model = build(case, CPU).model
    model[1].inner = nn.Identity()
    said = differing(facts(case), facts(case, model=model))
    assert "1 of 7 modules differ: 1.inner (Linear recorded, Identity here)" in said


def test_another_source_is_said(case, tmp_path):
    changed = tmp_path / "changed.py"
    changed.write_text(CASE.replace("self.inner(x) *", "self.inner(x) /"))
    said = differing(facts(case), facts(load_case(changed)))
    assert "the source differs (SHA-256 " in said and "weights" not in said


def test_another_machine_is_noted_and_accepted(case):
    present = facts(case)
    environment = {**present.environment, "torch": "2.99.0", "torch_git": "0" * 40, "device_name": "Radeon"}
    notes = check_same(dataclasses.replace(present, environment=environment, side="inductor"), present)
    assert f"torch: 2.99.0 recorded, {torch.__version__} here" in notes
    assert "device name: Radeon recorded, absent here" in notes and len(notes) == 2


def test_what_cannot_be_hashed_is_noted(case):
    inputs = (torch.eye(3).to_sparse(), object())
    notes = check_same(facts(case, inputs=inputs), facts(case, inputs=inputs))
    assert notes == ["not compared, because the values of such inputs cannot be hashed: in0 (float32), in1 (object)"]


def test_a_plain_callable_has_facts_as_well(case):
    def scaled(x):
        return x * table

    table = torch.arange(6.0)
    program = CaseProgram(scaled, ((torch.ones(6),),))
    recorded = collect_facts(case, program, "eager", CPU)
    assert list(recorded.weights) == ["tensor table"] and recorded.modules[""].endswith("scaled")
    table += 1
    assert "tensor table (values)" in differing(recorded, collect_facts(case, program, "eager", CPU))
