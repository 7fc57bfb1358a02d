"""The table of torch's operators that keep the form of an activation, and of calls that eager refuses.

``operators.json`` is made by ``tools/operator_table.py`` from torch's own tables; reading it needs no torch.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True)
class TableOperator:
    """An operator and calls of it.

    Attributes:
        name: the function as it is called: ``torch.lerp``, ``F.celu``, ``Tensor.expand_as``.
        calls: expressions; ``{x}`` is the activation, ``{y}`` a tensor of its shape, ``{rows}`` the activation as
            (N, C, L), ``{a}`` a parameter.
        gradient: whether a gradient flows.
        alike: whether both operands must have one dtype.
        cast: whether the result may have another dtype than the activation.
    """

    name: str
    calls: tuple[str, ...]
    gradient: bool = True
    alike: bool = False
    cast: bool = False


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
    text = resources.files(__package__).joinpath("operators.json").read_text(encoding="utf-8")
    data = json.loads(text)
    lists = {
        kind: tuple(TableOperator(**{**row, "calls": tuple(row["calls"])}) for row in data[kind])
        for kind in ("elementwise", "of_two", "along", "refused")
    }
    return OperatorTable(**lists, torch=data["torch"], version=hashlib.sha256(text.encode()).hexdigest()[:8])
