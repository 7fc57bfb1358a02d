"""Productions by name: each adds a statement, or a few that belong together, to a program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.programs.scope import Scope

# Adds to the program; False if no value fits.
Produce = Callable[[Pen, Scope], object]


@dataclass(frozen=True)
class Production:
    """One way to go on with a program: its name, what it adds, and how often it is drawn among the others."""

    name: str
    summary: str
    weight: int
    produce: Produce


PRODUCTIONS: dict[str, Production] = {}


def production(weight: int) -> Callable[[Produce], Produce]:
    """Register the decorated function under its own name.

    It returns a false value, and has said nothing, where no value of the program fits.
    """

    def decorate(produce: Produce) -> Produce:
        register_production(Production(produce.__name__, (produce.__doc__ or "").strip(), weight, produce))
        return produce

    return decorate


def register_production(added: Production) -> None:
    """Make a production known.

    Raises:
        ValueError: a production of that name is registered.
    """
    if added.name in PRODUCTIONS:
        raise ValueError(f"two productions are called {added.name}")
    PRODUCTIONS[added.name] = added
