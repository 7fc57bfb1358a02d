"""Calls of a running program: taken down, sent, and judged in place without a trace."""

from __future__ import annotations

import errno
import random
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from fuzzcompile.front.api.triage import triage
from fuzzcompile.model.errors import EnvironmentUnfit, UsageError
from fuzzcompile.programs.capture.invocation import Unsendable, capture_invocation, receive, run_parts_uncompiled, send
from fuzzcompile.run.case import Arguments

CPU = torch.device("cpu")
FACTOR = 2.0


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        self.calls += 1
        return self.linear(x) * scale


def doubled(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.mul.Tensor(x, FACTOR)


@dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor


def sent(tmp_path: Path, model: object, *args: object, **kwargs: object):
    path = tmp_path / "model.call"
    send(capture_invocation(model, Arguments(args, kwargs)), path)
    return receive(path, CPU)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_module_is_judged_under_its_own_settings(in_place):
    module = Counting()
    compiled: nn.Module = module
    if in_place:
        module.compile(options={"max_fusion_size": 3}, dynamic=True, fullgraph=True)
    else:
        compiled = torch.compile(module, options={"max_fusion_size": 3}, dynamic=True, fullgraph=True)
    call = capture_invocation(compiled, Arguments((torch.ones(2, 4),)))
    assert call.target is module and call.settings.options == {"max_fusion_size": 3}
    assert call.settings.dynamic is True and call.settings.fullgraph


def test_a_compiled_function_is_judged_under_its_own_backend():
    call = capture_invocation(torch.compile(doubled, backend="eager"), Arguments((torch.ones(2),)))
    assert call.target is doubled and call.settings.backend == "eager"


def test_gradients_are_compared_where_a_program_would_use_them():
    x, module = torch.ones(2, 4), Counting()

    def backward(model: object, *args: object) -> bool:
        return capture_invocation(model, Arguments(args)).backward

    assert backward(module, x) and backward(doubled, x.clone().requires_grad_())
    assert not backward(module.eval(), x) and not backward(doubled, x)
    with torch.no_grad():
        assert not backward(Counting(), x)


def test_parts_that_are_compiled_run_as_written():
    model = nn.Sequential(torch.compile(nn.Linear(4, 4)), nn.Linear(4, 4))
    model[1].compile()
    part, call = model[0], model[1]._compiled_call_impl
    assert "compiled on its own" in capture_invocation(model, Arguments((torch.ones(4),))).notes[0]
    with run_parts_uncompiled(model):
        assert type(model[0]) is nn.Linear and model[1]._compiled_call_impl is None
    assert model[0] is part and model[1]._compiled_call_impl is call


def test_a_sent_call_keeps_aliases_gradients_and_leaves(tmp_path):
    module, base = Counting(), torch.randn(8, requires_grad=True)
    module.linear.weight.grad = torch.ones(4, 4)
    result = base * 1
    call = sent(tmp_path, module, base, result, Pair(base.detach()[:4], base.detach()[2:]), scale=3.0)
    leaf, product, pair = call.arguments.args
    assert leaf.is_leaf and not product.is_leaf and torch.equal(product, result)
    assert pair.left.untyped_storage().data_ptr() == pair.right.untyped_storage().data_ptr() == leaf.data_ptr()
    assert torch.equal(call.target.linear.weight.grad, torch.ones(4, 4)) and call.arguments.kwargs == {"scale": 3.0}


def test_a_local_function_goes_with_its_closure(tmp_path):
    offset = torch.ones(3)
    call = sent(tmp_path, lambda x: x * FACTOR + offset, torch.zeros(3))
    assert torch.equal(call.target(*call.arguments.args), torch.ones(3))


class Step:
    """A step whose optimizer has a hook, and one that needs what its own ``__getstate__`` leaves out."""

    def __init__(self) -> None:
        self.weight = nn.Parameter(torch.ones(2))
        self.optimizer = torch.optim.SGD([self.weight], lr=1.0)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)
        self.searching = torch.optim.LBFGS([self.weight], max_iter=1)
        self.optimizer.register_step_pre_hook(self.clip)

    def clip(self, *_: object) -> None:
        nn.utils.clip_grad_value_([self.weight], 0.5)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.grad = x.clone()
        self.optimizer.step()
        self.scheduler.step()
        self.searching.step(lambda: self.weight.sum())
        return self.weight.detach().clone()


def test_optimizers_go_with_their_hooks_and_schedulers(tmp_path):
    step, x = Step(), torch.ones(2)
    call = sent(tmp_path, step, x)
    assert torch.equal(call.target(x), torch.zeros(2)) and torch.equal(step(x), torch.zeros(2))  # -0.5 each, clipped
    copy = call.target
    assert copy.scheduler.optimizer is copy.optimizer and copy.optimizer.param_groups[0]["params"][0] is copy.weight
    assert copy.optimizer.param_groups[0]["lr"] == step.optimizer.param_groups[0]["lr"]


def test_operators_go_by_name(tmp_path):
    operators = torch.ops, torch.ops.aten, torch.ops.aten.mul, torch.ops.aten.mul.Tensor
    call = sent(tmp_path, lambda x: (x, operators), torch.ones(2))
    assert all(ours is theirs for ours, theirs in zip(operators, call.target(0)[1], strict=True))


def test_configs_of_the_process_go_along(tmp_path):
    with torch._inductor.config.patch(max_fusion_size=7):
        path = tmp_path / "model.call"
        send(capture_invocation(doubled, Arguments((torch.ones(2),))), path)
    assert receive(path, CPU).settings.inductor == {"max_fusion_size": 7}


def test_a_call_that_holds_a_lock_is_not_sent(tmp_path):
    lock = threading.Lock()
    with pytest.raises(Unsendable, match="lock"):
        sent(tmp_path, lambda x: x if lock else None, torch.ones(2))


def test_a_full_disk_is_one_sentence(monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "whatever")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(EnvironmentUnfit, match="No space left on device; set TMPDIR"):
        triage(doubled, torch.ones(2))


@pytest.mark.slow
def test_judged_in_place_a_model_stays_as_it_was():
    module, lock = Counting(), threading.Lock()
    module.lock = lock
    module.linear.weight.grad = gradient = torch.ones(4, 4)
    handle = module.register_forward_hook(lambda *_: None)
    memory, flat = module.linear.weight.data_ptr(), module.calls.detach()
    x = torch.randn(2, 4)
    states = torch.get_rng_state(), random.getstate()
    with torch.no_grad():
        report = triage.options(grad=True)(module, x, scale=2.0)
        assert not torch.is_grad_enabled()
    assert not report.is_bug and report.where == "in place" and "lock" in report.why_in_place
    assert {"gradient of parameter linear.weight"} <= {output["name"] for output in report.json["evidence"]["outputs"]}
    assert module.linear.weight.data_ptr() == memory and module.linear.weight.grad is gradient
    assert module.calls.item() == 0 and flat.item() == 0 and module.training
    assert handle.id in module._forward_hooks and module.lock is lock
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]


def test_wrong_use_is_one_sentence():
    with pytest.raises(UsageError, match="takes a module or a function"):
        triage(3)
    with pytest.raises(UsageError, match="has no dynamc"):
        triage.options(dynamc=True)
    with pytest.raises(UsageError, match="Cannot use the plant"):
        triage.options(plants=("missing.py",))(doubled, torch.ones(2))
    with pytest.raises(UsageError, match="needs a worker"):
        triage.options(target="cuda:sm_90", in_place=True)(doubled, torch.ones(2))
