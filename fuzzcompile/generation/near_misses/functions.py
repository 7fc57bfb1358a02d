"""Detours through one torch function: elementwise, of two operands, along the sequence, or with invalid arguments."""

from __future__ import annotations

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.near_misses.detour_registry import detour, never
from fuzzcompile.generation.spec import Choices, Part


def calls_of(space: str, operands: str, names: str) -> tuple[str, ...]:
    """Calls of functions of a module by their names, which spaces separate."""
    return tuple(f"{space}.{name}({operands})" for name in names.split())


# Functions of {x}; a module's parameter, where it has one, is {a}.
ELEMENTWISE = (
    "F.celu({x}, {a})",
    "F.elu({x}, {a})",
    "F.leaky_relu({x}, {a})",
    "F.softplus({x}, {a}, 2.0)",
    "F.threshold({x}, {a}, -1.0)",
    "F.softshrink({x}, 0.5)",
    "F.hardshrink({x}, {a})",
    *calls_of("F", "{x}", "selu relu6 hardswish hardsigmoid mish softsign tanhshrink logsigmoid"),
    *calls_of(
        "torch",
        "{x}",
        "sigmoid sinh cosh tan asinh atanh acosh asin atan exp2 expm1 log1p log2 erf erfc erfinv digamma lgamma",
    ),
    "torch.polygamma(1, {x})",
    "torch.sinc({x})",
    "torch.logit({x}, {a})",
    "torch.sgn({x})",
    "torch.signbit({x})",
    "torch.rsqrt({x})",
    "torch.special.entr({x})",
    "torch.special.i0e({x})",
    "torch.special.xlog1py({x}, {a})",
    "torch.nan_to_num({x}, {a})",
    "torch.deg2rad({x})",
)
# Functions of {x} and {y}, a tensor that broadcasts with it.
OF_TWO = (
    "torch.lerp({x}, {y}, 0.3)",
    "torch.lerp({x}, {y}, {x})",
    *calls_of("torch", "{x}, {y}", "copysign hypot atan2 xlogy fmod remainder floor_divide"),
    'torch.div({x}, {y}, rounding_mode="floor")',
    'torch.div({x}, {y}, rounding_mode="trunc")',
    *calls_of(
        "torch", "{x}, {y}", "true_divide ldexp nextafter maximum minimum fmax fmin logaddexp logaddexp2 heaviside"
    ),
    "torch.addcmul({x}, {y}, {y}, value=0.5)",
    "torch.addcdiv({x}, {x}, {y}, value=0.5)",
    "torch.rsub({x}, {y}, alpha=2)",
    "torch.sub({x}, {y}, alpha=0.5)",
    "torch.pow({x}, {y})",
    "torch.float_power({x}, {y})",
    "torch.where({x} > {y}, {x}, {y})",
    "torch.eq({x}, {y})",
    "torch.dist({x}, {y}, 1) + {x}",
    'F.smooth_l1_loss({x}, {y}, reduction="none", beta=0.5)',
    'F.huber_loss({x}, {y}, reduction="none", delta=0.5)',
    'F.mse_loss({x}, {y}, reduction="none")',
    'F.kl_div({x}, {y}, reduction="none", log_target=True)',
    'F.binary_cross_entropy_with_logits({x}, {y}, reduction="none")',
    'F.poisson_nll_loss({x}, {y}, reduction="none")',
    "F.cosine_similarity({x}, {y}, -1)[..., None] + {x}",
)
# Their second operand must have the dtype and shape of {x}.
_ALIKE = ("lerp", "heaviside", "huber", "kl_div", "cross_entropy", "dist", "cosine", "addcdiv")
SAME_FORM = (
    "{x}.flip(-1)",
    "{x}.transpose(-1, -2).contiguous().transpose(-1, -2)",
    "{x}.round()",
    "torch.zeros_like({x})",
    "-torch.zeros_like({x})",
    'torch.full_like({x}, float("inf"))',
    "{x}",
)
OTHER_FORM = (
    "{x}[..., :1]",
    "{x}.to(torch.int32)",
    "{x}.double()",
    "torch.tensor(2.0, device={x}.device)",
)
# Functions of {rows}, (N, C, L), that keep this shape.
ALONG = (
    "F.avg_pool1d({rows}, 3, 1, 1)",
    "F.avg_pool1d({rows}, 3, 1, 1, count_include_pad=False)",
    "F.max_pool1d({rows}, 3, 1, 1)",
    "F.max_pool1d({rows}, 2, 1, 1, dilation=1)[..., 1:]",
    "F.adaptive_avg_pool1d({rows}, {rows}.shape[-1])",
    "F.adaptive_max_pool1d({rows}, 1) + {rows}",
    "F.lp_pool1d({rows}, 2, 1, 1)",
    'F.interpolate({rows}, scale_factor=2.0, mode="nearest")[..., ::2]',
    'F.interpolate({rows}, scale_factor=2.0, mode="linear", align_corners=True)[..., 1::2]',
    'F.interpolate({rows}, scale_factor=2, mode="linear")[..., 1::2]',
    "F.instance_norm({rows}.repeat(1, 1, 2))[..., : {rows}.shape[-1]]",
    "F.batch_norm({rows}.repeat(2, 1, 1), None, None, training=True)[: {rows}.shape[0]]",
    "F.local_response_norm({rows}, 2)",
    "F.normalize({rows}, p=1.0, dim=1)",
    "F.normalize({rows}, dim=-1)",
    "F.unfold({rows}[:, None], (1, 1)).view({rows}.shape)",
    "F.dropout1d({rows}, 0.5, training=False)",
    "F.channel_shuffle({rows}, 1)",
    "torch.cumprod({rows}, -1)",
    "torch.logcumsumexp({rows}, -1)",
    "torch.diff({rows}, dim=-1, prepend={rows}[..., :1])",
    "torch.renorm({rows}, 2, 1, 1.0)",
    "torch.cdist({rows}.float(), {rows}.float())[..., :1] + {rows}",
    "torch.bmm({rows}, ({rows}.transpose(1, 2) @ {rows}).tril())",
    "torch.rot90({rows}, 2, (1, 2))",
    "torch.take_along_dim({rows}, {rows}.argsort(-1, descending=True), -1)",
    "torch.searchsorted({rows}.sort(-1).values, {rows})",
    "torch.bucketize({rows}, {rows}.new_tensor([-0.5, 0.0, 0.5]), right=True)",
    "torch.repeat_interleave({rows}, 2, dim=-1)[..., ::2]",
    "torch.tensor_split({rows}, 3, dim=-1)[0].sum(-1, keepdim=True) + {rows}",
)
# Expressions whose eager result is {x} itself, or a view of all of it.
SAME = (
    "F.dropout({x}, 0.3, training=False)",
    "{x}.contiguous()",
    "{x}.to({x}.dtype)",
    "{x}.reshape({x}.shape)",
    "{x}.expand_as({x})",
    "{x}.view({x}.shape)",
    "{x}[:]",
    "{x}.narrow(-1, 0, {x}.shape[-1])",
    "{x}.detach()",
    "{x}.type_as({x})",
    "{x}.flatten(0, -1).view({x}.shape)",
    "torch.broadcast_to({x}, {x}.shape)",
    "nn.Identity()({x})",
)
WRITES = ("add", "fill", "copied", "masked", "index")
# Functions without a derivative.
FLAT = ("floor_divide", "heaviside", "torch.eq", "signbit", "searchsorted", "bucketize")
# Calls that eager refuses.
REFUSED = (
    "torch.index_select({x}, -1, torch.tensor([-1], device={x}.device)) + {x}",
    "torch.index_add({x}, -1, torch.tensor([0], device={x}.device), {x})",
    "torch.index_copy({x}, -1, torch.tensor([-2], device={x}.device), {x}[..., :1])",
    "torch.index_fill({x}, -1, torch.tensor([{width}], device={x}.device), 0.5)",
    "torch.addmm({x}.new_zeros(3, 1), {x}.new_ones(1, 2), {x}.new_ones(2, 1)).sum() + {x}",
    "torch.baddbmm({x}.new_zeros(2, 3, 1), {x}.new_ones(2, 1, 2), {x}.new_ones(2, 2, 1)).sum() + {x}",
    "F.celu({x}, 0.0)",
    'F.smooth_l1_loss({x}, {x}.flip(-1), reduction="none", beta=-0.5)',
    'F.huber_loss({x}, {x}.flip(-1), reduction="none", delta=-0.5)',
    "F.binary_cross_entropy({x}.sigmoid() + 1.0, {x}.sigmoid()) + {x}",
    "torch.gather({x}, -1, torch.full({x}.shape, -1, device={x}.device))",
    "torch.repeat_interleave({x}, torch.tensor([1, 1, 1], device={x}.device), dim=0).sum() + {x}",
    "F.nll_loss({x}[..., 0].flatten()[None], {x}.new_full((1,), -1, dtype=torch.int64)) + {x}",
    "F.embedding(torch.tensor([-1], device={x}.device), {x}.flatten(0, -2)).sum() + {x}",
    "F.linear({x}, {x}.new_ones({width}, {width}, dtype=torch.float64))",
    "torch.dot({x}.flatten()[:2], {x}.flatten()[:1].double()) + {x}",
    "F.dropout({x}, 1.5)",
    "F.group_norm({x}.flatten(0, -2), {width} + 1)",
    "torch.cat([{x}, {x}[..., None]])",
    "{x}.view(-1, {width} + 1)",
    "{x}.scatter(-1, torch.full({x}.shape, {width}, device={x}.device), 0.5)",
    "F.softshrink({x}, -0.5)",
    'F.pad({x}, (1, 1), mode="reflect", value=1.0)',
    "torch.lerp({x}, {x}.double(), 0.5)",
    "F.one_hot(torch.tensor([3], device={x}.device), 3).sum() + {x}",
)


def needs_alike(function: str) -> bool:
    """Whether a function of two takes only operands of one dtype and shape."""
    return any(name in function for name in _ALIKE)


def has_gradient(part: Part) -> bool:
    """Whether the part's function has a derivative."""
    return not any(flat in str(part["function"]) for flat in FLAT)


@detour(20, has_gradient=has_gradient)
def elementwise(pen: Pen) -> Choices:
    """An elementwise function near where it overflows, vanishes or changes its branch.

    Decomposed, lowered or vectorised, it must agree with its eager kernel there too.
    """
    return {
        "function": pen.one_of(ELEMENTWISE),
        "parameter": pen.one_of((1.0, 0.5, -1.0, 1e-3)),
        "scale": pen.one_of((1.0, -1.0, 4.0, 1e-4, 30.0, 89.0, 3e4, 1e-30)),
    }


@detour(20, has_gradient=has_gradient)
def of_two(pen: Pen) -> Choices:
    """A function of two operands, the second in another layout or dtype, smaller, constant, or the same tensor.

    Dtype and layout of the result depend on both, and so do signs of zero and division by zero.
    """
    function, at, swapped = pen.one_of(OF_TWO), pen.number(len(SAME_FORM + OTHER_FORM) - 1), pen.chance(30)
    if needs_alike(function):
        at %= len(SAME_FORM)
    return {"function": function, "other": (SAME_FORM + OTHER_FORM)[at], "swapped": swapped}


@detour(14, has_gradient=has_gradient)
def along(pen: Pen) -> Choices:
    """A function along the sequence or the features: pooling, resizing, norms, scans, sorting, searching."""
    return {"function": pen.one_of(ALONG), "transposed": pen.chance(50)}


@detour(6, has_gradient=never, writes=True)
def same_written(pen: Pen) -> Choices:
    """The unchanged result of an operator is written to.

    In eager mode it is the operand itself, so the write changes that as well; a copy in its place hides the write.
    """
    return {"by": pen.one_of(SAME), "write": pen.one_of(WRITES)}


@detour(1)
def refused(pen: Pen) -> Choices:
    """A call that eager refuses: an index out of range, shapes or dtypes that do not go together, a wrong parameter.

    The checks belong to the operator; its replacement must refuse the call as well.
    """
    return {"call": pen.one_of(REFUSED)}
