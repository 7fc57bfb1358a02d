"""The table of torch's operators that keep the form of an activation, and of calls that eager refuses.

``operators.json`` is made by ``tools/operator_table.py`` from torch's own tables; reading it needs no torch.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from importlib import resources

from fuzzcompile.generation.drawing import Pen


@dataclass(frozen=True)
class Operator:
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

    elementwise: tuple[Operator, ...]
    of_two: tuple[Operator, ...]
    along: tuple[Operator, ...]
    refused: tuple[Operator, ...]
    torch: str
    version: str

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each operator, once."""
        parts = (*self.elementwise, *self.of_two, *self.along, *self.refused)
        return tuple(sorted({operator.name for operator in parts}))


@cache
def operator_table() -> OperatorTable:
    """The table that comes with the package."""
    text = resources.files(__package__).joinpath("operators.json").read_text(encoding="utf-8")
    data = json.loads(text)
    lists = {
        kind: tuple(Operator(**{**row, "calls": tuple(row["calls"])}) for row in data[kind])
        for kind in ("elementwise", "of_two", "along", "refused")
    }
    return OperatorTable(**lists, torch=data["torch"], version=hashlib.sha256(text.encode()).hexdigest()[:8])


def drawn_call(pen: Pen, operators: tuple[Operator, ...]) -> tuple[Operator, str]:
    """An operator, each as likely as the next unless names are steered, and one of its calls."""
    name = pen.named([(name, 1) for name in dict.fromkeys(operator.name for operator in operators)])
    return pen.one_of([(row, call) for row in operators if row.name == name for call in row.calls])
