"""Code generators of Inductor: the interface that an adapter for one of them implements."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from fuzzcompile.compiler.kernels.codegen_operators import LoopNode, code_operators, defined_at
from fuzzcompile.compiler.kernels.control import Control
from fuzzcompile.compiler.kernels.statements import Statement

# What is written for a loop as such, in place of an operator's name.
LOOPS = ("loop", "load")
# The variables that Inductor makes, whatever stands around their names.
_VARIABLE = re.compile(r"tmp(?:_acc)?\d+")
_SHORTEST = 4


@dataclass(frozen=True)
class Code:
    """Function of Inductor that writes the code of an operator: its name for the reader, its file and line."""

    name: str
    source: str | None = None
    line: int | None = None


class CodeGenerator(ABC):
    """One code generator of Inductor: how to recognise its kernels, read them, and change what it generates.

    Operators are those of Inductor's loop bodies (``exp``), a reduction (``reduction:sum``), or one of ``LOOPS``.
    """

    name: ClassVar[str]
    """The language of the kernels, for the reader."""
    scheduling: ClassVar[str]
    """The class of Inductor that defines the kernels."""
    devices: ClassVar[tuple[str, ...]] = ()
    """The types of devices whose kernels it generates unless a setting says otherwise."""
    settings: ClassVar[tuple[Mapping[str, object], ...]] = ()
    """Entries of ``torch._inductor.config`` that may work around wrong code, the narrowest first."""
    scalars: ClassVar[Mapping[str, object]] = {}
    """Entries with which no loop is vectorised; empty if the code generator has no vectors."""
    all_vectors: ClassVar[Mapping[str, object]] = {}
    """Entries with which a loop is vectorised however little it computes."""
    assignment: ClassVar[re.Pattern[str]]
    """A line of a kernel that assigns an expression (second group) to a variable (first group)."""

    def is_vectorised(self, source: str) -> bool:
        """Return whether the generated source of a kernel uses vectors, so that ``scalars`` changes it."""
        return False

    def in_scalars(self, operators: Sequence[str]) -> Control | None:
        """Do these operators of vectorised loops element by element; None if the code generator has no vectors."""
        return None

    def rewritten(self) -> Mapping[str, Control]:
        """Operators whose code can be written in another form that means the same, in all kernels, and how."""
        return {}

    def operators(self, scheduled: Sequence[LoopNode], buffer: str) -> list[str]:
        """The operators of the loop that writes ``buffer``, most telling first; ``scheduled`` are a kernel's nodes.

        By default those of the loop body, which Inductor's own code generators write one by one.
        """
        return code_operators(scheduled, buffer)

    @abstractmethod
    def code_of(self, operator: str, *, vectorised: bool = False) -> Code:
        """Return the function that writes the code of an operator, of a reduction, or of a loop as such."""

    @abstractmethod
    def fused_loops(self) -> Code:
        """Return the function that writes the loops that one kernel computes together."""

    def stores(self) -> Code:
        """Return the function that writes the stores of a kernel whose programs race."""
        return Code("race between programs")

    @abstractmethod
    def refused_lines(self, message: str) -> Iterator[str]:
        """The lines of a kernel that a compiler's error message names, in its order."""

    @abstractmethod
    def complaint(self, message: str) -> str | None:
        """The first error of a compiler's message, without the name of a file; None if there is none."""

    def refused_operators(self, statements: Sequence[Statement], message: str) -> tuple[str, ...]:
        """The operators whose statements a compiler refused, that of its first complaint first."""
        names = (self.operator_of(statements, line) for line in self.refused_lines(message))
        return tuple(dict.fromkeys(name for name in names if name is not None))

    def operator_of(self, statements: Sequence[Statement], line: str) -> str | None:
        """The operator that a line of a kernel was written for; None if none of the statements stands there.

        The expression decides, else the variable of a reduction or a value.
        """
        assigned = self.assignment.match(line)
        text = (assigned[2] if assigned is not None else line).strip().rstrip(";")
        if len(text) >= _SHORTEST:
            for statement in statements:
                if text == statement.expression.strip() or (assigned is None and text in statement.expression):
                    return statement.operator
        variables = sorted(_VARIABLE.findall(line), key=lambda name: "acc" not in name)
        return next(
            (statement.operator for name in variables for statement in statements if statement.variable == name), None
        )

    def _defined(self, name: str, place: str) -> Code:
        return Code(name, *defined_at(place))
