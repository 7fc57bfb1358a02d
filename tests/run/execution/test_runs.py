"""Runs of one case: what they leave alone, what they observe, and whose exceptions they report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fuzzcompile.diagnosis.oracle.judgement import Observations, have_same_bits, judge
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run import runs
from fuzzcompile.run.case import Case, CompileSettings
from fuzzcompile.run.case_program import build
from fuzzcompile.run.observation import Observation
from fuzzcompile.run.tensors import StorageCopier, copy_tree

CPU = torch.device("cpu")


class Calls(nn.Module):
    """A module around a function."""

    def __init__(self, function, **attributes):
        super().__init__()
        self.function = function
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, *args):
        return self.function(self, *args)


def case(make, *, backward: bool = False) -> Case:
    grad = "enabled" if backward else "no_grad"
    return Case("case", Path("case.py"), "", make, grad, backward, CompileSettings(), None, None)


def program(function, *inputs: torch.Tensor, backward: bool = False, **attributes) -> Case:
    def make():
        torch.manual_seed(0)
        return Calls(function, **attributes), inputs or (torch.randn(4, 6),)

    return case(make, backward=backward)


def eager(made: Case) -> Observation:
    observation = runs.run_eager(made, CPU)
    assert observation.failure is None, observation.failure
    return observation


def float64(made: Case) -> Observation:
    observation, _ = runs.run_float64(made, CPU)
    assert observation.failure is None, observation.failure
    return observation


def near(one: Observation, other: Observation, tolerance: float = 1e-5) -> bool:
    named = other.index_by_name()
    return set(named) == {value.name for value in one.values} and all(
        float((value.value.double() - named[value.name].value).abs().max()) < tolerance for value in one.values
    )


def test_module_that_outlives_a_run_is_left_alone():
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
    made = case(lambda: (model, (torch.ones(4, 6),)))
    first = eager(made)
    assert float64(made).values[0].value.dtype == torch.float64
    assert model[0].weight.dtype == torch.float32
    assert have_same_bits(first, eager(made))
    assert int(model[1].num_batches_tracked) == 0


def test_module_that_cannot_be_copied_is_run_itself():
    leaf = torch.ones(3, requires_grad=True)
    made = program(lambda self, x: x * self.made.sum(), made=leaf * 2)
    assert eager(made).values[0].value.shape == (4, 6)


@pytest.mark.parametrize("double", [False, True])
def test_parameter_that_is_an_input_too_stays_one_tensor(double: bool):
    def make():
        model = nn.Linear(3, 3)
        return model, (model.weight,)

    built = build(case(make), CPU, double=double)
    assert built.calls[0][0] is built.model.weight


def test_tied_parameters_stay_tied():
    def make():
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model[1].weight = model[0].weight
        return model, (torch.ones(3),)

    built = build(case(make), CPU, double=True)
    assert built.model[0].weight is built.model[1].weight


@dataclass
class Result:
    logits: torch.Tensor
    rest: tuple
    count: int = 0


class Plain:
    def __init__(self, x):
        self.x = x


OUTPUTS = {
    "sparse": lambda self, x: x.to_sparse(),
    "numpy": lambda self, x: x.numpy(),
    "dataclass": lambda self, x: Result(x, (x + 1, [x]), 3),
    "plain class": lambda self, x: [x, Plain(x)],
    "number": lambda self, x: (x.sum().item(), 3, True, None, "a"),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_of_every_kind_are_observed(name: str):
    made = program(OUTPUTS[name])
    first, again, reference = eager(made), eager(made), float64(made)
    assert judge(Observations(first, again, reference, (), again)).verdict is Verdict.EQUAL


def test_fields_of_dataclasses_are_named():
    values = eager(program(OUTPUTS["dataclass"])).index_by_name()
    assert set(values) == {"out0.logits", "out0.rest0", "out0.rest1", "out0.count"}


def test_gradients_flow_through_dataclasses():
    made = program(lambda self, x: Result(x * 2, ()), torch.randn(3, requires_grad=True), backward=True)
    assert "gradient of input0" in eager(made).index_by_name()


def test_wrong_value_in_a_dataclass_is_seen():
    first = eager(program(OUTPUTS["dataclass"]))
    other = eager(program(lambda self, x: Result(x + 1, (x + 1, [x]), 3)))
    assert judge(Observations(first, first, first, (), other)).verdict is Verdict.MISCOMPILE


def test_sparse_inputs_are_observed():
    made = program(lambda self, s: s.to_dense() * 2, torch.eye(4).to_sparse())
    assert len(eager(made).values) == 1
    assert float64(made).values[0].value.dtype == torch.float64


def test_sparse_gradients_are_observed():
    made = program(lambda self, t: self.e(t), torch.arange(3), backward=True, e=nn.Embedding(4, 2, sparse=True))
    assert eager(made).index_by_name()["gradient of parameter e.weight"].value.shape == (4, 2)


def test_exceptions_of_the_program_are_its_failure():
    def raising(self, x):
        raise StopIteration("ours")

    assert runs.run_eager(program(raising), CPU).failure.type_name == "StopIteration"
    assert runs.run_eager(program(lambda self, x: x, backward=True), CPU).failure.type_name == "RuntimeError"


def test_exceptions_of_the_observation_are_not(monkeypatch: pytest.MonkeyPatch):
    def broken(*_):
        raise RuntimeError("mine")

    monkeypatch.setattr(runs, "observe_outputs", broken)
    with pytest.raises(RuntimeError, match="mine"):
        runs.run_eager(program(lambda self, x: x), CPU)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_exhausted_memory_travels_on(error: Exception):
    def raising(*_):
        raise error

    with pytest.raises(MemoryError):
        runs.run_eager(program(raising), CPU)
    with pytest.raises(MemoryError):
        runs.run_eager(case(raising), CPU)


def test_exhausted_memory_behind_another_error_travels_on():
    def raising(self, x):
        raise ValueError("wrapped") from torch.OutOfMemoryError("no")

    with pytest.raises(MemoryError):
        runs.run_eager(program(raising), CPU)


def test_numbers_are_held_to_the_precision_of_the_program():
    made = program(lambda self, x: x.sum().item(), torch.randn(50, dtype=torch.bfloat16))
    assert eager(made).values[0].precision == torch.bfloat16
    assert float64(made).values[0].precision == torch.float64


def test_loss_is_the_same_in_every_dtype():
    def gradient(observation: Observation) -> torch.Tensor:
        return observation.index_by_name()["gradient of input0"].value

    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        made = program(lambda self, x: x.clone(), torch.zeros(1000, dtype=dtype, requires_grad=True), backward=True)
        observation, saw_cast = runs.run_float64(made, CPU)
        assert torch.equal(gradient(eager(made)).double(), gradient(observation))
        assert not saw_cast


def cached(self, x):
    self.cache[1:] = x[1:] * 2
    return torch.softmax(self.cache + x, -1)


def dropped(self, x):
    return F.dropout(torch.softmax(F.dropout(x, 0.3) + torch.rand_like(x), -1), 0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_reference_draws_what_the_program_draws(dtype: torch.dtype):
    made = program(
        lambda self, x: x + torch.randn_like(x) + torch.empty_like(x).uniform_(), torch.zeros(64, dtype=dtype)
    )
    assert near(eager(made), float64(made), 0.1 if dtype is torch.bfloat16 else 1e-5)


def test_reference_of_dropout_with_gradients():
    made = program(dropped, torch.randn(8, 16, requires_grad=True), backward=True)
    assert near(eager(made), float64(made))


def test_reference_of_writes_to_plain_attributes():
    def make():
        return Calls(cached, cache=torch.zeros(4, 6)), (torch.ones(4, 6),)

    assert near(eager(case(make)), float64(case(make)))


@pytest.mark.cuda
def test_layouts_survive_the_way_to_the_gpu():
    base = torch.arange(6.0)
    made = case(lambda: (lambda *xs: xs, (base, base[3:], base.view(6, 1).expand(6, 4))))
    whole, half, wide = build(made, torch.device("cuda")).calls[0]
    half.fill_(9)
    assert whole.tolist() == [0, 1, 2, 9, 9, 9]
    assert wide.stride() == (1, 0)


def test_a_view_of_an_input_stays_a_view_of_that_input():
    whole = torch.arange(16.0).view(4, 4).clone()
    copier = StorageCopier(double=True)
    turned, copied = copier(whole.t()), copier(whole)
    assert copied._base is None
    assert turned._base is copied
    copied[0, 1] = 7.0
    assert turned[1, 0] == 7.0


def test_an_update_through_an_input_that_another_one_views_compiles():
    def update(x, turned):
        x.add_(1)
        return turned * 2, x[0]

    x = torch.ones(4, 4)
    observations = []
    for wrap in (lambda f: f, lambda f: torch.compile(f, backend="aot_eager")):
        given = copy_tree((x, x.t()))
        observations.append(wrap(update)(*given))
    torch._dynamo.reset()
    assert all(torch.equal(a, b) for a, b in zip(*observations, strict=True))


def test_the_keys_of_a_modules_hooks_are_no_state():
    def hooked(model, x):
        model.act.register_forward_hook(lambda module, args, output: output * 2)
        model.count += 1
        return model.act(x)

    names = {value.name for value in runs.run_eager(program(hooked, act=nn.Tanh(), count=0), CPU).values}
    assert "attribute count after the call" in names
    assert not any("hooks" in name for name in names)


def test_a_float32_tensor_of_a_closure_is_observed_as_it_is_in_inference_mode(write_case):
    """What a reference reads of the state is no operator of the program, which it would convert."""
    source = (
        'import torch\nfrom torch import nn\n\nGRAD = "inference_mode"\n\ndef hold(held):\n    def get():\n'
        "        return held\n    return get\n\nclass Model(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.get = hold(torch.tensor([2.0, 0.5]))\n\n    def forward(self, x):\n"
        "        return x * self.get()\n\ndef make():\n    return Model(), (torch.ones(3, 2),)\n"
    )
    observed, _ = runs.run_float64(load_case(write_case(source)), torch.device("cpu"))
    assert observed.failure is None and observed.values[0].value.dtype is torch.float64


def test_a_perturbed_run_leaves_conditions_to_later_runs():
    """Dynamo skips under a mode, for good, what `torch.cond` has it capture in eager mode."""
    torch._dynamo.reset()

    def program(x):
        inner = lambda y: torch.cond(y.sum() > 3, lambda z: z * 2, lambda z: z.cos(), (y,))  # noqa: E731
        return torch.cond(x.sum() > 0, inner, lambda y: y * 3, (x,))

    made = case(lambda: (program, (torch.linspace(-1, 2, 8),)))
    for noise_seed in (1, None):
        assert runs.run_eager(made, CPU, noise_seed=noise_seed).failure is None
