"""Faults of eager mode on the CPU that were reported and mended upstream, as torch 2.13 shows them.

The numbers are pull requests of pytorch/pytorch that mended a fault between torch 2.11 and 2.15 (#168357: by 2.11), as
torch's release notes, or its Python files and formulas of these versions, say. What is mended in the installed torch is
put back, under the dispatch key where it was; what is not is there already.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import FunctionType
from typing import Any, Literal, NamedTuple

import torch
from torch._higher_order_ops.scan import scan_autograd
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function_unary

aten = torch.ops.aten
Kernel = Callable[..., Any]
COMPOSITE = "CompositeImplicitAutograd"
Plant = Callable[[], AbstractContextManager[object]]
Where = Literal["kernel", "composite", "formula", "Python"]
"""What was wrong: a kernel, an operator composed of others, autograd's formula, or a function in Python."""

_SOURCE = """
import torch
import torch.nn.functional as F

BACKWARD = {backward}


def make():
    torch.manual_seed(0)

    def program({names}):
        return {body}

    return program, ({inputs},)
"""


class MendedFault(NamedTuple):
    """A fault, a program that shows it, and what puts it back; ``operator`` is what an answer should name."""

    number: int
    mended: str
    where: Where
    operator: str
    circumstance: str
    body: str
    inputs: str
    plant: Plant | None = None
    backward: bool = False
    # of a composite operator: the same for eager mode alone, by a kernel for the CPU
    apart: Plant | None = None

    def __str__(self) -> str:
        return f"#{self.number} {self.operator}"

    def install(self) -> AbstractContextManager[object]:
        """A block in which torch has the fault."""
        return nullcontext() if self.plant is None else self.plant()

    def write_program(self) -> str:
        """The case that shows it."""
        names = ", ".join("xyz"[: self.inputs.count(";") + 1])
        inputs = ", ".join(map(str.strip, self.inputs.split(";")))
        return _SOURCE.format(backward=self.backward, names=names, body=self.body, inputs=inputs)


@contextlib.contextmanager
def override(operator: torch._ops.OpOverload, key: str, wrong: Kernel) -> Iterator[None]:
    """In the block, ``operator`` is ``wrong``, which gets what it was before the arguments."""
    kernel = torch.library.get_kernel(operator, key)
    namespace, _, name = operator._schema.name.partition("::")
    overload = operator._schema.overload_name

    def run(keys: torch._C.DispatchKeySet, *args: object, **kwargs: object) -> object:
        return wrong(functools.partial(kernel.call_boxed, keys), *args, **kwargs)

    library = torch.library.Library(namespace, "IMPL")
    library.impl(f"{name}.{overload}" if overload else name, run, key, with_keyset=True, allow_override=True)
    try:
        yield
    finally:
        library._destroy()


@contextlib.contextmanager
def replace_composite(operator: torch._ops.OpOverload, key: str, wrong: Kernel) -> Iterator[None]:
    """In the block, an operator that is composed of others is ``wrong``, for all devices or for eager mode on the CPU.

    The compiler composes operators as eager mode does, but for those that have a kernel for the ``CPU``.
    """
    library = torch.library.Library("aten", "IMPL")
    library.impl(operator._schema.name.partition("::")[2], wrong, key, allow_override=True)
    try:
        yield
    finally:
        library._destroy()


# The faults, as they were.


def _trace_backward(grad: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """Steps along the diagonal that do not end with it."""
    flat = grad.new_zeros(sizes[0] * sizes[1])
    indices = torch.arange(0, flat.numel(), sizes[1] + 1)
    return flat.index_fill(0, indices, grad).view(sizes)


class _Det(torch.autograd.Function):
    """The derivative det(A) A⁻ᵀ, taken for 0 where A is singular, which a 1×1 matrix may be and have 1."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch._C._AutoDispatchBelowAutograd():
            det, lu, pivots = aten._linalg_det.default(a)
        ctx.save_for_backward(a, det)
        ctx.mark_non_differentiable(lu, pivots)
        return det, lu, pivots

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        a, det = ctx.saved_tensors
        singular = (det == 0)[..., None, None]
        inverse = torch.linalg.inv(torch.where(singular, torch.eye(a.shape[-1], dtype=a.dtype), a))
        return torch.where(singular, 0, (grad * det)[..., None, None] * inverse.mT)


# These run with the global names of torch.nn.functional, in the place of its own code.


def _lp_pool1d(input, norm_type, kernel_size, stride=None, ceil_mode=False):  # type: ignore[no-untyped-def] # noqa: A002
    """The form for finite norms, whatever the norm."""
    if has_torch_function_unary(input):
        pool = torch.nn.functional.lp_pool1d
        return handle_torch_function(pool, (input,), input, norm_type, kernel_size, stride, ceil_mode)
    out = torch.nn.functional.avg_pool1d(input.pow(norm_type), kernel_size, stride, 0, ceil_mode)
    return (torch.sign(out) * torch.relu(torch.abs(out))).mul(kernel_size).pow(1.0 / norm_type)


def _lp_pool2d(input, norm_type, kernel_size, stride=None, ceil_mode=False):  # type: ignore[no-untyped-def] # noqa: A002
    """The same of two dimensions."""
    if has_torch_function_unary(input):
        pool = torch.nn.functional.lp_pool2d
        return handle_torch_function(pool, (input,), input, norm_type, kernel_size, stride, ceil_mode)
    out = torch.nn.functional.avg_pool2d(input.pow(norm_type), kernel_size, stride, 0, ceil_mode)
    return (torch.sign(out) * torch.relu(torch.abs(out))).mul(kernel_size**2).pow(1.0 / norm_type)


def _lp_pool3d(input, norm_type, kernel_size, stride=None, ceil_mode=False):  # type: ignore[no-untyped-def] # noqa: A002
    """The same of three."""
    if has_torch_function_unary(input):
        pool = torch.nn.functional.lp_pool3d
        return handle_torch_function(pool, (input,), input, norm_type, kernel_size, stride, ceil_mode)
    out = torch.nn.functional.avg_pool3d(input.pow(norm_type), kernel_size, stride, 0, ceil_mode)
    return (torch.sign(out) * torch.relu(torch.abs(out))).mul(kernel_size**3).pow(1.0 / norm_type)


@contextlib.contextmanager
def replace_code(function: FunctionType, wrong: FunctionType) -> Iterator[None]:
    """In the block, a function of torch's runs other code: whoever holds the function calls that."""
    code = function.__code__
    function.__code__ = wrong.__code__
    try:
        yield
    finally:
        function.__code__ = code


def _ldexp(kernel: Kernel, x: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """As x times a power of 2, which overflows where the product does not."""
    return x * torch.pow(2.0, exponent).to(x.dtype) if x.dtype is torch.float16 else kernel(x, exponent)


def _sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Zeros where there is nothing to compare queries and keys by; equal weights are right."""
    if query.shape[-1]:
        return aten._scaled_dot_product_attention_math.default(query, key, value, *args, **kwargs)[0]
    return value.new_zeros(*query.shape[:-1], value.shape[-1])


def _lstsq(kernel: Kernel, *args: Any, **kwargs: Any) -> Any:
    """Pivots of one matrix of a batch are left to the next: all have the first one's rank."""
    solution, residuals, rank, values = kernel(*args, **kwargs)
    return solution, residuals, rank[:1].expand_as(rank).clone() if rank.dim() else rank, values


# This runs with the global names of torch._higher_order_ops.scan.


def _scan_autograd(combine_fn, init, xs, additional_inputs):  # type: ignore[no-untyped-def]
    """One step is differentiated as the first one: a carry that has no gradient there has none in the others."""
    with disable_proxy_modes_tracing():  # type: ignore[name-defined]  # noqa: F821
        graph = HopGraphMinCutPartitioner.create_partitioned_graph(  # type: ignore[name-defined]  # noqa: F821
            combine_fn, (*init, *[x[0] for x in xs], *additional_inputs), always_recompute_complex_exprs=True
        )
    lengths = len(init), len(xs), len(additional_inputs)
    return ScanAutogradOp.apply(graph, *lengths, *init, *xs, *additional_inputs)  # type: ignore[name-defined]  # noqa: F821


def _stale(kernel: Kernel, x: torch.Tensor, n: torch.Tensor) -> Any:
    """What was in the memory of the result, where the recurrence is left at its first NaN."""
    return torch.where(x.isnan(), 0.25, kernel(x, n))


_POINTS = "torch.tensor([0.3, float('nan'), -0.7, float('nan'), 0.5, 0.1, -0.2, 0.9])"
_ORDERS = "torch.tensor([5.0] * 8)"


def _polynomial(operator: torch._ops.OpOverload) -> Plant:
    return lambda: override(operator, "CPU", _stale)


FAULTS = (
    MendedFault(
        175068,
        "2.12",
        "composite",
        "aten.trace_backward.default",
        "more rows than columns and one",
        "torch.trace(x) * 2",
        "torch.randn(5, 2, requires_grad=True)",
        lambda: replace_composite(aten.trace_backward.default, COMPOSITE, _trace_backward),
        backward=True,
        apart=lambda: replace_composite(aten.trace_backward.default, "CPU", _trace_backward),
    ),
    MendedFault(
        171225,
        "2.12",
        "formula",
        "aten._linalg_det.default",
        "gradient of a 1×1 matrix that is 0",
        "torch.linalg.det(x) * 3",
        "torch.zeros(1, 1, requires_grad=True)",
        lambda: override(aten._linalg_det.default, "AutogradCPU", lambda _, a: _Det.apply(a)),
        backward=True,
    ),
    MendedFault(
        184914,
        "2.13",
        "composite",
        "aten.scaled_dot_product_attention.default",
        "queries and keys of size 0",
        "F.scaled_dot_product_attention(x, y, z)",
        "torch.randn(1, 2, 3, 0); torch.randn(1, 2, 4, 0); torch.randn(1, 2, 4, 5)",
        lambda: replace_composite(aten.scaled_dot_product_attention.default, COMPOSITE, _sdpa),
        apart=lambda: replace_composite(aten.scaled_dot_product_attention.default, "CPU", _sdpa),
    ),
    *(
        MendedFault(
            183997,
            "2.13",
            "Python",
            f"F.{wrong.__name__[1:]}",
            "norm of infinite order",
            f"{wrong.__name__[1:].replace('lp_', 'F.lp_')}(x, float('inf'), 2)",
            f"torch.randn({shape}) * 3",
            functools.partial(replace_code, getattr(functional, wrong.__name__[1:]), wrong),
        )
        for wrong, shape in ((_lp_pool1d, "1, 2, 8"), (_lp_pool2d, "1, 2, 4, 6"), (_lp_pool3d, "1, 2, 4, 2, 6"))
    ),
    MendedFault(
        168357,
        "by 2.11",
        "composite",
        "aten.ldexp.Tensor",
        "float16, and a power of 2 beyond it",
        "torch.ldexp(x, y)",
        "torch.randn(8).mul(2.0**-10).half(); torch.tensor([20, 3] * 4)",
        lambda: override(aten.ldexp.Tensor, "CPU", _ldexp),
    ),
    MendedFault(
        186566,
        "2.14",
        "formula",
        "aten.ldexp.Tensor",
        "gradient for negative exponents",
        "torch.ldexp(x, y)",
        "torch.randn(4, requires_grad=True); torch.tensor([-1, -2, 3, 0])",
        backward=True,
    ),
    MendedFault(
        184529,
        "2.13",
        "Python",
        "scan",
        "a carry that has no gradient at first",
        "torch._higher_order_ops.scan(lambda carry, step: (carry * step, (carry * step).clone()), y, x)[1]",
        "torch.rand(5, 1, requires_grad=True); torch.ones(1)",
        lambda: replace_code(scan_autograd, _scan_autograd),
        backward=True,
    ),
    *(
        MendedFault(
            189872,
            "2.15",
            "formula",
            f"aten.{name}.default",
            "no gradient, without an error",
            f"torch.special.{name.removeprefix('special_')}(x) + x",
            "torch.rand(4, requires_grad=True)",
            backward=True,
        )
        for name in ("special_bessel_j0", "special_modified_bessel_k1")
    ),
    *(
        MendedFault(
            192667,
            "2.15",
            "formula",
            operator,
            "derivative of a forward-mode derivative",
            body,
            "torch.tensor([[1.3, 0.4], [-0.7, 0.9]], requires_grad=True); torch.randn(2, 2)",
            backward=True,
        )
        for operator, body in (
            ("aten._linalg_det.default", "torch.func.jvp(torch.linalg.det, (x,), (y,))[1]"),
            ("aten._linalg_solve_ex.default", "torch.func.jvp(lambda a: torch.linalg.solve(a, y), (x,), (y,))[1]"),
        )
    ),
    MendedFault(
        191142,
        "2.14",
        "formula",
        "aten.maximum.default",
        "forward-mode derivative, infinite where another argument is larger",
        "torch.func.jvp(torch.maximum, (x, y), (z, x))[1]",
        "torch.ones(2); torch.ones(2) * 2; torch.full((2,), float('inf'))",
    ),
    MendedFault(
        186779,
        "2.14",
        "formula",
        "aten.native_batch_norm.default",
        "third derivative, which raises since",
        "(lambda derive: derive(derive(F.batch_norm(x, None, None, training=True) ** 2)))"
        "(lambda value: torch.autograd.grad((value * y).sum(), x, create_graph=True)[0])",
        "torch.randn(8, 3, requires_grad=True); torch.randn(8, 3)",
        backward=True,
    ),
    MendedFault(
        194664,
        "2.15",
        "Python",
        "torch.optim.Muon",
        "a momentum of bfloat16 is written to",
        "(torch.optim._muon._zeropower_via_newtonschulz(x, (3.4445, -4.775, 2.0315), 5, 1e-7), x + 0)",
        "torch.randn(4, 4).bfloat16()",
    ),
    MendedFault(
        198006,
        "2.15",
        "Python",
        "torch.distributions.Multinomial",
        "entropy in float64, of a factorial in float32",
        "torch.distributions.Multinomial(1000, x).entropy()",
        "torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)",
    ),
    MendedFault(
        185812,
        "2.14",
        "kernel",
        "aten.arange.start_step",
        "whole numbers to an end that is none: one is missing",
        "torch.arange(0, 2.5, 1, dtype=torch.int64) * x",
        "torch.ones(1)",
    ),
    MendedFault(
        181297,
        "2.14",
        "kernel",
        "aten.logit.default",
        "eps above 0.5, and a stride",
        "torch.logit(x[:, :32], 0.6)",
        "torch.rand(4, 34)",
    ),
    MendedFault(
        187506,
        "2.14",
        "kernel",
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        "keys whose last dimension has a stride",
        "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(x, y.mT, z)[0]",
        "torch.randn(1, 2, 8, 16); torch.randn(1, 2, 16, 8); torch.randn(1, 2, 8, 16)",
    ),
    MendedFault(
        186414,
        "2.14",
        "kernel",
        "aten.native_group_norm_backward.default",
        "a gradient that is transposed",
        "torch.ops.aten.native_group_norm_backward("
        "x.mT, y, *torch.ops.aten.native_group_norm(y, None, None, 2, 4, 6, 2, 1e-5)[1:], z, 2, 4, 6, 2, [True] * 3)",
        "torch.randn(2, 6, 4); torch.randn(2, 4, 6); torch.randn(4)",
    ),
    MendedFault(
        187436,
        "2.14",
        "kernel",
        "aten.linalg_lstsq.default",
        "rank of a batch by gelsy",
        "torch.linalg.lstsq(x, y, driver='gelsy').rank",
        "torch.stack([torch.ones(4, 3), torch.eye(4, 3)]); torch.randn(2, 4, 1)",
        lambda: override(aten.linalg_lstsq.default, "CPU", _lstsq),
    ),
    *(
        MendedFault(
            number,
            "2.14",
            "kernel",
            f"aten.{name}.default",
            "NaN",
            f"torch.special.{name.removeprefix('special_')}(x, y)",
            f"{_POINTS}; {_ORDERS}",
            _polynomial(getattr(aten, name).default),
        )
        for number, name in (
            (187767, "special_chebyshev_polynomial_u"),
            (187767, "special_shifted_chebyshev_polynomial_t"),
            (188027, "special_laguerre_polynomial_l"),
            (188027, "special_legendre_polynomial_p"),
        )
    ),
    MendedFault(
        186358,
        "2.14",
        "kernel",
        "aten.softshrink.default",
        "bfloat16 at its threshold",
        "F.softshrink(x, 0.1)",
        "torch.tensor([0.1001, 0.1, -0.1001, 0.0996] * 8, dtype=torch.bfloat16)",
    ),
)
