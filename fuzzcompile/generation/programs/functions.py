"""Functions of torch by the form of their operands: elementwise, of two, along the last axis."""

from __future__ import annotations


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
# Functions without a derivative.
FLAT = ("floor_divide", "heaviside", "torch.eq", "signbit", "searchsorted", "bucketize")


def needs_alike(function: str) -> bool:
    """Whether a function of two takes only operands of one dtype and shape."""
    return any(name in function for name in _ALIKE)
