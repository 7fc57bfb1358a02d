"""The state of a compile that is watched behind its graph passes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fuzzcompile.compiler.kernels.control import Control, chooses
from fuzzcompile.compiler.kernels.lowered import Lowered
from fuzzcompile.compiler.kernels.statements import Statement
from fuzzcompile.compiler.recorder import Recorder


@dataclass
class Watch:
    """State of one watched compile; the graphs go to ``recorder.ledger.lowered``."""

    recorder: Recorder
    control: Control
    values: bool
    pending: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    keys: dict[int, int] = field(default_factory=dict)
    compiled: dict[int, int] = field(default_factory=dict)
    operators: list[str] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    raised_in: str | None = None

    def of(self, graph: Any) -> Lowered | None:
        """What is kept of a graph that is lowered; None for the body of a higher-order operator."""
        return next((one for one in reversed(self.recorder.ledger.lowered) if one.graph is graph), None)

    def current(self) -> Lowered | None:
        """What is kept of the graph that code is generated for now."""
        from torch._inductor.virtualized import V

        return self.of(V.graph)

    def wants(self, chosen: Sequence[str], label: str | None) -> bool:
        """Whether an operator is among the chosen ones."""
        return chooses(chosen, label)

    @contextlib.contextmanager
    def writing(self, operator: str) -> Iterator[None]:
        """Code for an operator of a loop is written in this block; they may be nested."""
        self.operators.append(operator)
        try:
            yield
        except Exception:
            self.raised_in = self.raised_in or operator
            raise
        finally:
            self.operators.pop()

    def note(self, error: Exception) -> None:
        """What goes wrong in the watching is no matter of the compile."""
        self.recorder.ledger.trouble.append(f"kernels: {type(error).__name__}: {error}"[:300])


def operators_of(nodes: Sequence[Any]) -> tuple[str, ...]:
    """Names of the FX nodes behind scheduler nodes, in the order of their graph."""
    found: dict[Any, None] = {}
    for scheduled in nodes:
        for one in scheduled.get_nodes() if hasattr(scheduled, "get_nodes") else ():
            for origin in getattr(getattr(one, "node", None), "origins", ()):
                if origin.op == "call_function":
                    found[origin] = None
    return tuple(node.name for node in sorted(found))
