"""The table of torch's operators that keep the form of an activation, and of calls that eager refuses.

``tools/operator_table.py`` makes ``operators.json`` from torch's own tables; ``composed.json`` adds calls of several
functions that keep the form of whole rows together. Reading them needs no torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True)
class TableOperator:
    """An operator and calls of it."""

    name: str  # the function as it is called: ``torch.lerp``, ``F.celu``, ``Tensor.expand_as``
    # Expressions; ``{x}`` is the activation, ``{y}`` a tensor of its shape, ``{rows}`` the activation as (N, C, L),
    # ``{a}`` a parameter.
    calls: tuple[str, ...]
    gradient: bool = True  # a gradient flows
    alike: bool = False  # both operands must have one dtype
    cast: bool = False  # the result may have another dtype than the activation


@dataclass(frozen=True)
class OperatorTable:
    """All operators, by what they are: of each element alone, of two tensors, of whole rows, refused.

    ``torch`` is the version whose tables it was made from; ``version`` identifies its text.
    """

    elementwise: tuple[TableOperator, ...]
    of_two: tuple[TableOperator, ...]
    along: tuple[TableOperator, ...]
    refused: tuple[TableOperator, ...]
    torch: str
    version: str

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each operator, once."""
        parts = (*self.elementwise, *self.of_two, *self.along, *self.refused)
        return tuple(sorted({operator.name for operator in parts}))


@cache
def load_operator_table() -> OperatorTable:
    """The table that comes with the package."""
    text, composed = (_read_text(name) for name in ("operators.json", "composed.json"))
    data = json.loads(text)
    return OperatorTable(
        elementwise=_read_rows(data["elementwise"]),
        of_two=_read_rows(data["of_two"]),
        along=_read_rows([*data["along"], *json.loads(composed)]),
        refused=_read_rows(data["refused"]),
        torch=data["torch"],
        version=hashlib.sha256(text.encode()).hexdigest()[:8],
    )


def _read_text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _read_rows(rows: Iterable[Mapping[str, Any]]) -> tuple[TableOperator, ...]:
    return tuple(TableOperator(**{**row, "calls": tuple(row["calls"])}) for row in rows)
