"""Eager mode on the paths of compiled programs: which places ask, and what is put back."""

from __future__ import annotations

import pytest
import torch

from fuzzcompile.compiler.compiling_predicate import pretend_compiling


def make_optimizer(name: str = "Adamax", **settings) -> torch.optim.Optimizer:
    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(4))
    parameter.grad = torch.randn(4)
    return getattr(torch.optim, name)([parameter], lr=1e-2, **settings)


def step(optimizer: torch.optim.Optimizer) -> torch.Tensor:
    optimizer.step()
    return optimizer.param_groups[0]["params"][0].detach().clone()


def test_a_step_takes_the_branch_for_capturable_optimizers_as_dynamo_traces_it():
    plain, compiled = step(make_optimizer()), make_optimizer()
    with pretend_compiling() as asked:
        pretended = step(optimizer := make_optimizer())
    assert "_set_capturable" in {place.function for place in asked}
    assert optimizer.param_groups[0]["capturable"] is False
    traced = torch.compile(lambda: compiled.step(), backend="eager")
    traced()
    assert torch.equal(pretended, compiled.param_groups[0]["params"][0])
    torch.testing.assert_close(pretended, plain)


def test_places_that_are_left_out_stay_as_they_are():
    with pretend_compiling() as asked:
        step(make_optimizer())
    rest = [place for place in asked if place.function != "_set_capturable"]
    with pretend_compiling(rest) as heard:
        step(optimizer := make_optimizer())
    assert optimizer.state[optimizer.param_groups[0]["params"][0]]["step"] == 1
    assert "_get_value" in {place.function for place in heard}  # which the other branch has no use for


def test_a_step_that_raises_leaves_the_setting_as_it_was():
    optimizer = make_optimizer()
    with pretend_compiling() as asked:
        step(make_optimizer())
    only = [place for place in asked if place.function == "_set_capturable"]
    with pretend_compiling(only), pytest.raises(AssertionError, match="capturable"):  # the check is not left out
        optimizer.step()
    assert optimizer.param_groups[0]["capturable"] is False
    optimizer.step()


def test_optimizers_without_the_setting_are_not_asked():
    with pretend_compiling() as asked:
        step(make_optimizer("SGD"))
        step(make_optimizer("Adamax", capturable=True))
    assert "_set_capturable" not in {place.function for place in asked}


def test_whoever_calls_a_function_that_only_asks_is_the_place():
    def is_traced_or_compiling() -> bool:
        return bool(torch.compiler.is_compiling())

    def stack_if_compiling() -> str:
        return "stacked" if is_traced_or_compiling() else "listed"

    with pretend_compiling() as asked:
        assert stack_if_compiling() == "stacked"
    assert [place.function for place in asked] == ["stack_if_compiling"]
