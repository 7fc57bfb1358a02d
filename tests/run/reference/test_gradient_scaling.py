"""A gradient scaler's operators in float64, beside their kernels in float32."""

from __future__ import annotations

import pytest
import torch

from fuzzcompile.run.arithmetic_modes import Float64Mode

aten = torch.ops.aten
INFINITE = float("inf")


def find_operator(name: str) -> torch._ops.OpOverload:
    operator = getattr(aten, name, None)
    if operator is None:
        pytest.skip("this torch has no such operator")
    return operator.default


def copy_all(values):
    return [copy_all(x) if isinstance(x, list) else x.clone() if isinstance(x, torch.Tensor) else x for x in values]


def run_both(name, *arguments):
    """The arguments after the operator, and its results, by the kernel and in float64."""
    operator = find_operator(name)
    left, right = copy_all(arguments), copy_all(arguments)
    by_kernel = operator(*left)
    wide = [[x.double() for x in value] if isinstance(value, list) else value for value in right]
    wide = [x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in wide]
    with Float64Mode(keep_casts=True):
        exact = operator(*wide)
    return (left, by_kernel), (wide, exact)


def expect_equal(by_kernel, exact):
    if isinstance(by_kernel, torch.Tensor):
        torch.testing.assert_close(exact.to(by_kernel.dtype), by_kernel, equal_nan=True)
    elif isinstance(by_kernel, (list, tuple)):
        for left, right in zip(by_kernel, exact, strict=True):
            expect_equal(left, right)
    else:
        assert by_kernel == exact


@pytest.mark.parametrize("form", ["", "_"])
@pytest.mark.parametrize("values", [[1.0, -2.0], [1.0, INFINITE], [float("nan"), 3.0]])
def test_gradients_are_unscaled(form, values):
    gradients = [torch.tensor(values), torch.ones(2, 3)]
    expect_equal(
        *run_both(f"_amp_foreach_non_finite_check_and_unscale{form}", gradients, torch.zeros(1), torch.full((1,), 0.25))
    )


@pytest.mark.parametrize("form", ["", "_"])
@pytest.mark.parametrize("found", [0.0, 1.0])
@pytest.mark.parametrize(("scale", "tracker"), [(4.0, 0), (4.0, 1), (3e38, 1)])
def test_the_scale_is_updated(form, found, scale, tracker):
    state = torch.full((), scale), torch.full((), tracker, dtype=torch.int32)
    expect_equal(*run_both(f"_amp_update_scale{form}", *state, torch.full((), found), 2.0, 0.5, 2))


def test_what_overflows_in_the_program_is_infinite():
    unscale = find_operator("_amp_foreach_non_finite_check_and_unscale_")
    gradient, found = torch.full((2,), 1e39, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    with Float64Mode(keep_casts=True):
        unscale([gradient], found, torch.full((1,), 1e-3, dtype=torch.float64))
    assert found.item() == 1
    with Float64Mode(keep_casts=True, native=torch.float64):
        unscale([gradient], found.zero_(), torch.full((1,), 1e-3, dtype=torch.float64))
    assert found.item() == 0
