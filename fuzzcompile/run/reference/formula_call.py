"""What a formula is given: the arguments of one call of an operator, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]


class FormulaCall:
    """The arguments of a call by name; one that the overload does not have is None."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getattr__(self, name: str) -> Any:
        return self._values.get(name)

    def given(self, name: str) -> Any:
        """The argument of that name, which may be one of a property's."""
        return self._values.get(name)

    def with_default(self, name: str, default: Any) -> Any:
        """The argument, or ``default`` where it is None."""
        value = self._values.get(name)
        return default if value is None else value

    @property
    def x(self) -> Any:
        """The first tensor of most operators."""
        return self._values["self"]

    @property
    def axes(self) -> tuple[int, ...]:
        """The dimensions of a reduction; all of them where none is given."""
        dim = self._values.get("dim")
        dims = [] if dim is None else [dim] if isinstance(dim, int) else list(dim)
        return tuple(dims) or tuple(range(self.x.ndim))

    @property
    def keepdim(self) -> bool:
        """Whether a reduction keeps its dimensions at size 1."""
        return bool(self._values.get("keepdim"))


Formula: TypeAlias = Callable[[FormulaCall], Any]
