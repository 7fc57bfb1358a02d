"""Cells of a sweep over torch's operators: operator, form, dtype, layout, gradient and samples, as plain data."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

CallForm = Literal["function", "in_place", "error"]
SizeClass = Literal["given", "long", "single"]
"""Sizes of the tables' samples, or one of them, wherever it stands, made `LONGER` times as long, or 1."""
ValueClass = Literal["given", "extreme"]
"""Values of the tables' samples, or half of the elements at the ends of what the dtype holds, infinite, or NaN."""

DTYPES = (
    "float32", "bfloat16", "float16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64",
)  # fmt: skip
LAYOUTS = ("contiguous", "transposed", "expanded", "offset", "gaps", "channels_last")
# Samples of one case. They are outputs of one program, so that a compile's fixed cost is paid once for all of them.
SAMPLES = 6
# Of elementwise operators that share a case, samples of each: such a case is one kernel.
SHARED_SAMPLES = 2
# Past the length of a vector register, and no multiple of it.
LONGER = 13


@dataclass(frozen=True)
class OpInfoOperator:
    """An entry of torch's tables."""

    name: str  # as the table has it, such as ``nn.functional.gelu``
    variant: str  # the entry's variant where an operator has several; else empty
    dtypes: tuple[str, ...]  # those of `DTYPES` that it takes
    differentiable: tuple[str, ...]  # those of them in which it has a gradient
    in_place: bool  # it has a form that writes to its first operand
    samples: int  # how many sample inputs it has in the first of its dtypes
    errors: int  # how many calls the table says that eager refuses
    elementwise: bool = False  # each element of its result depends on one of each operand


@dataclass(frozen=True, slots=True)
class OpInfoCell:
    """One case of a sweep.

    ``chunk`` counts groups of `SAMPLES` sample inputs, each spread over the table, or single error inputs where
    ``form`` is ``error``; the dtype of these is that of the table, and ``dtype`` is empty. ``others`` are further
    operators, by name and variant, whose samples share the case.
    """

    name: str
    variant: str
    form: CallForm
    dtype: str = ""
    layout: str = "contiguous"
    backward: bool = False
    chunk: int = 0
    eager: bool = False  # held against a second reference, nothing compiled
    cotangent: str = "contiguous"  # the layout of what the backward pass starts from
    size: SizeClass = "given"
    values: ValueClass = "given"
    others: tuple[tuple[str, str], ...] = ()

    @property
    def parts(self) -> Sequence[OpInfoCell]:
        """The cell of each operator that shares the case; itself where it is alone."""
        if not self.others:
            return (self,)
        named = ((self.name, self.variant), *self.others)
        return [replace(self, name=name, variant=variant, chunk=0, others=()) for name, variant in named]

    @property
    def label(self) -> str:
        """Name and variant of the operator, or of all that share the case."""
        named = ((self.name, self.variant), *self.others)
        return " ".join(f"{name}.{variant}" if variant else name for name, variant in named)

    @property
    def features(self) -> tuple[str, ...]:
        """Features under which the corpus stores it: operator, form, dtype, layout, gradient."""
        more = (f"cotangent_{self.cotangent}" if self.backward and self.eager else "", self.size if self.eager else "")
        values = self.values if self.values != "given" else ""
        form = (self.form, self.dtype, self.layout, "backward" if self.backward else "", values)
        parts = (*self.label.split(), *form, "shared" if self.others else "", *more)
        return tuple(part for part in parts if part)


@dataclass(frozen=True)
class CellSource:
    """A cell as a case file that a worker wrote."""

    # The case file; None where the cell has no sample that can be spelled and runs in eager mode.
    source: str | None = None
    samples: int = 0  # how many samples the case has
    left_out: Mapping[str, int] = field(default_factory=dict)  # how many samples it lacks, by reason


def iter_cells(operator: OpInfoOperator) -> Iterator[OpInfoCell]:
    """All cases of one operator."""
    name, variant = operator.name, operator.variant
    for chunk, dtype, layout in itertools.product(range(-(-operator.samples // SAMPLES)), operator.dtypes, LAYOUTS):
        yield OpInfoCell(name, variant, "function", dtype, layout, chunk=chunk)
        if dtype in operator.differentiable:
            yield OpInfoCell(name, variant, "function", dtype, layout, backward=True, chunk=chunk)
        if operator.in_place:
            yield OpInfoCell(name, variant, "in_place", dtype, layout, chunk=chunk)
    for chunk, dtype in itertools.product(range(-(-operator.samples // SAMPLES)), operator.dtypes):
        backward = dtype in operator.differentiable
        yield OpInfoCell(name, variant, "function", dtype, backward=backward, chunk=chunk, values="extreme")
    yield from (OpInfoCell(name, variant, "error", chunk=chunk) for chunk in range(operator.errors))


def iter_eager_cells(operator: OpInfoOperator) -> Iterator[OpInfoCell]:
    """All cases of one operator that eager mode alone is judged on.

    A backward pass shows the values of the forward pass too. Its cotangent has each layout where the operands are
    contiguous, and theirs where they are not.
    """
    name, variant = operator.name, operator.variant
    for chunk, dtype in itertools.product(range(-(-operator.samples // SAMPLES)), operator.dtypes):
        backward = dtype in operator.differentiable
        make = functools.partial(
            OpInfoCell, name, variant, "function", dtype, backward=backward, chunk=chunk, eager=True
        )
        yield from (make(layout, cotangent=layout if backward else "contiguous") for layout in LAYOUTS)
        yield from (make(size="long", layout=layout) for layout in ("contiguous", "transposed"))
        sides = ("contiguous", "transposed") if backward else ("contiguous",)
        yield from (make(size="single", cotangent=cotangent) for cotangent in sides)
        if backward:
            yield from (make(cotangent=layout) for layout in LAYOUTS[1:])
        if operator.in_place:
            yield from (OpInfoCell(name, variant, "in_place", dtype, x, chunk=chunk, eager=True) for x in LAYOUTS)


def order_cells(operators: Iterable[OpInfoOperator], seed: int, *, eager: bool = False) -> Sequence[OpInfoCell]:
    """The cases of all operators in the order of a seed: first the first samples of each, then the next ones.

    Error inputs, which are single and cheap, are spread among the first samples.
    """
    listed = iter_eager_cells if eager else iter_cells
    cells = [cell for operator in operators for cell in listed(operator)]
    random.Random(f"fuzzcompile opinfo {seed}").shuffle(cells)
    return sorted(cells, key=lambda cell: 0 if cell.form == "error" else cell.chunk)
