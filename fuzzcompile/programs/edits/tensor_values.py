"""Values and memory layouts of inputs: the tables that near misses and variations share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from fuzzcompile.model.package_files import read_table

InputLayout = Literal["contiguous", "transposed", "outer_last", "sliced", "offset", "expanded", "channels_last"]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Values:
    """Values for an input, as an expression (`values.toml`), and how often they are drawn."""

    weight: int
    expression: str
    summary: str


VALUES = {name: Values(**entry) for name, entry in read_table(__package__, "values").items()}
_LARGE = {"float16": "1e2"}
_DENORMAL = {"float16": "1e-6", "float64": "1e-310"}
# The functions that expressions call.
_FUNCTIONS = {
    "spoiled": """
def spoiled(x, value):
    x.view(-1)[0] = value
    return x
""",
    "repeated": """
def repeated(shape, *values, dtype):
    size = torch.Size(shape)
    return torch.tensor(values, dtype=dtype)[torch.arange(size.numel()) % len(values)].view(size)
""",
    "nearly_tied": """
def nearly_tied(x):
    return x.round() + x * 1e-6
""",
}


def fill_expression(name: str, x: str, fresh: str, *, shape: str, like: str, option: str, dtype: str) -> str:
    """The expression of a tensor with the values ``name`` of `VALUES`, over expressions.

    ``x`` is a tensor of ordinary values, ``fresh`` one that may be written to, ``like`` what ``Tensor.to`` is given to
    reach the dtype, ``option`` further arguments of a factory function, with the comma before them.
    """
    large, denormal = _LARGE.get(dtype, "1e4"), _DENORMAL.get(dtype, "1e-40")
    return VALUES[name].expression.format(
        x=x, fresh=fresh, shape=shape, dtype=like, option=option, large=large, denormal=denormal
    )


def find_functions(expressions: list[str]) -> list[str]:
    """The source of the functions that these expressions call."""
    return [
        source.strip()
        for name, source in _FUNCTIONS.items()
        if any(f"{name}(" in expression for expression in expressions)
    ]


@dataclass(frozen=True)
class MemoryLayout:
    """Memory layout of an input.

    ``base`` is the shape of the tensor that holds the elements, for the shape of the input; the calls ``view`` make the
    input of that tensor, and the expression ``packed`` makes such a tensor of an input ``{x}``. ``weight`` is as for
    :class:`Values`.
    """

    base: Callable[[Shape], Shape]
    view: str
    packed: str
    ranks: range = range(2, 65)
    weight: int = 0
    summary: str = ""


LAYOUTS: dict[InputLayout, MemoryLayout] = {
    "transposed": MemoryLayout(
        lambda shape: (*shape[:-2], shape[-1], shape[-2]),
        ".transpose(-1, -2)",
        "{x}.transpose(-1, -2).contiguous()",
        weight=3,  # operands that a rewrite copies, views or passes on have other strides than it was traced with
        summary="The inputs' last two axes are swapped in memory.",
    ),
    "outer_last": MemoryLayout(
        lambda shape: (*shape[1:], shape[0]), ".movedim(-1, 0)", "{x}.movedim(0, -1).contiguous()"
    ),
    "sliced": MemoryLayout(
        lambda shape: (*shape[:-1], 2 * shape[-1]),
        "[..., ::2]",
        "{x}.repeat_interleave(2, -1)",
        range(1, 65),
        3,
        "The inputs are every second feature of a wider tensor: no axis has stride 1.",
    ),
    "offset": MemoryLayout(
        lambda shape: (prod(shape) + 1,),
        "[1:].view({shape})",
        "torch.cat([{x}.flatten()[:1], {x}.flatten()])",
        range(1, 65),
        2,
        "The inputs begin at the second element of their storage, and so are not aligned for vectors.",
    ),
    # Elements overlap: all samples are the first one.
    "expanded": MemoryLayout(
        lambda shape: (1, *shape[1:]),
        ".expand({shape})",
        "{x}[:1]",
        weight=3,
        summary="The inputs are one sample expanded over the batch: their first stride is 0, their elements overlap.",
    ),
    "channels_last": MemoryLayout(
        lambda shape: shape,
        ".to(memory_format=torch.channels_last)",
        "{x}",
        range(4, 5),
        2,
        "Query, key and value are in the memory format that convolutions like: axis 1 is the innermost.",
    ),
}


def join_sizes(shape: Sequence[int | str]) -> str:
    """Sizes as arguments."""
    return ", ".join(map(str, shape))


def format_tuple(shape: Sequence[int | str]) -> str:
    """Sizes as the text of a tuple."""
    return f"({join_sizes(shape)}{',' if len(shape) == 1 else ''})"
