"""Lines of a file of the compiler. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

END = 10**9
"""The last line of a file, however long it is."""


@dataclass(frozen=True, order=True)
class Span:
    """Lines of a file of the compiler.

    Attributes:
        file: relative to the folder that holds torch: ``torch/_inductor/ir.py``.
        first: the first line, from 1.
        last: the last line, included.
    """

    file: str
    first: int = 1
    last: int = END

    def __str__(self) -> str:
        if (self.first, self.last) == (1, END):
            return self.file
        return f"{self.file}:{self.first}" + (f"-{self.last}" if self.last != self.first else "")

    def holds(self, file: str | None, line: int | None) -> bool:
        """Return whether it has that line of that file."""
        return file == self.file and line is not None and self.first <= line <= self.last

    def meets(self, span: Span) -> bool:
        """Return whether the two have a line in common."""
        return self.file == span.file and self.first <= span.last and span.first <= self.last
