"""Detours through one torch function: elementwise, of two operands, along the sequence, or with invalid arguments."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.near_misses.detour_registry import detour, never
from fuzzcompile.generation.operator_table import Operator, drawn_call, operator_table
from fuzzcompile.generation.spec import Choices, Part

# Parameters that take the place of ``{a}`` in a call of the table.
PARAMETERS = (1.0, 0.5, -1.0, 1e-3)
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
# Calls of several functions that keep the form of {rows}, (N, C, L), together; the table has single functions.
COMPOSED = tuple(
    Operator(call.partition("(")[0], (call,), gradient="searchsorted" not in call and "bucketize" not in call)
    for call in (
        'F.interpolate({rows}, scale_factor=2.0, mode="nearest")[..., ::2]',
        'F.interpolate({rows}, scale_factor=2.0, mode="linear", align_corners=True)[..., 1::2]',
        'F.interpolate({rows}, scale_factor=2, mode="linear")[..., 1::2]',
        "F.max_pool1d({rows}, 2, 1, 1, dilation=1)[..., 1:]",
        "F.instance_norm({rows}.repeat(1, 1, 2))[..., : {rows}.shape[-1]]",
        "F.batch_norm({rows}.repeat(2, 1, 1), None, None, training=True)[: {rows}.shape[0]]",
        "F.unfold({rows}[:, None], (1, 1)).view({rows}.shape)",
        "torch.diff({rows}, dim=-1, prepend={rows}[..., :1])",
        "torch.cdist({rows}.float(), {rows}.float())[..., :1] + {rows}",
        "torch.bmm({rows}, ({rows}.transpose(1, 2) @ {rows}).tril())",
        "torch.take_along_dim({rows}, {rows}.argsort(-1, descending=True), -1)",
        "torch.searchsorted({rows}.sort(-1).values, {rows})",
        "torch.bucketize({rows}, {rows}.new_tensor([-0.5, 0.0, 0.5]), right=True)",
        "torch.repeat_interleave({rows}, 2, dim=-1)[..., ::2]",
        "torch.tensor_split({rows}, 3, dim=-1)[0].sum(-1, keepdim=True) + {rows}",
    )
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


@cache
def by_call() -> Mapping[str, Operator]:
    """The operator of each call that eager accepts."""
    table = operator_table()
    parts = (*table.elementwise, *table.of_two, *table.along, *COMPOSED)
    return {call: operator for operator in parts for call in operator.calls}


def has_gradient(part: Part) -> bool:
    """Whether the part's function has a derivative."""
    operator = by_call().get(str(part["function"]))
    return operator is None or operator.gradient


@detour(20, has_gradient=has_gradient)
def elementwise(pen: Pen) -> Choices:
    """An elementwise function near where it overflows, vanishes or changes its branch.

    Decomposed, lowered or vectorised, it must agree with its eager kernel there too.
    """
    return {
        "function": drawn_call(pen, operator_table().elementwise)[1],
        "parameter": pen.one_of(PARAMETERS),
        "scale": pen.one_of((1.0, -1.0, 4.0, 1e-4, 30.0, 89.0, 3e4, 1e-30)),
    }


@detour(20, has_gradient=has_gradient)
def of_two(pen: Pen) -> Choices:
    """A function of two operands, the second in another layout or dtype, smaller, constant, or the same tensor.

    Dtype and layout of the result depend on both, and so do signs of zero and division by zero.
    """
    operator, function = drawn_call(pen, operator_table().of_two)
    at, swapped = pen.number(len(SAME_FORM + OTHER_FORM) - 1), pen.chance(30)
    if operator.alike:
        at %= len(SAME_FORM)
    return {"function": function, "other": (SAME_FORM + OTHER_FORM)[at], "swapped": swapped}


@detour(14, has_gradient=has_gradient)
def along(pen: Pen) -> Choices:
    """A function along the sequence or the features: pooling, resizing, norms, scans, sorting, searching."""
    operators = (*operator_table().along, *COMPOSED)
    return {"function": drawn_call(pen, operators)[1], "transposed": pen.chance(50)}


@detour(6, has_gradient=never, writes=True)
def same_written(pen: Pen) -> Choices:
    """The unchanged result of an operator is written to.

    In eager mode it is the operand itself, so the write changes that as well; a copy in its place hides the write.
    """
    return {"by": pen.one_of(SAME), "write": pen.one_of(WRITES)}


@detour(1)
def refused(pen: Pen) -> Choices:
    """A call that eager refuses: an index out of range, shapes or dtypes that do not go together, a wrong parameter.

    The checks belong to the operator; its replacement must refuse the call as well. The calls are the error inputs of
    torch's own tables.
    """
    return {"call": drawn_call(pen, operator_table().refused)[1]}
