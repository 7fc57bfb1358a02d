"""The state of a compile that is watched behind its graph passes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fuzzcompile.compiler.kernels.control import Control
from fuzzcompile.compiler.kernels.kernel_calls import forget
from fuzzcompile.compiler.kernels.lowered import Lowered
from fuzzcompile.compiler.kernels.statements import Statement
from fuzzcompile.compiler.recorder import Recorder
from fuzzcompile.compiler.unseen import Unseen, reason
from fuzzcompile.stage_names import CODEGEN, LOWERING, SCHEDULER

if TYPE_CHECKING:
    from torch import fx
    from torch._inductor.scheduler import BaseSchedulerNode


@dataclass
class Watch:
    """State of one watched compile; the graphs go to ``recorder.ledger.lowered``.

    ``values`` says whether what kernels write is kept.
    """

    recorder: Recorder
    control: Control
    values: bool
    pending: dict[str, tuple[BaseSchedulerNode, ...]] = field(default_factory=dict)
    keys: dict[int, int] = field(default_factory=dict)
    compiled: dict[int, int] = field(default_factory=dict)
    operators: list[str] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    raised_in: str | None = None

    def of(self, graph: object) -> Lowered | None:
        """Return the record of a graph that is lowered; None for the body of a higher-order operator."""
        return next((lowered for lowered in reversed(self.recorder.ledger.lowered) if lowered.graph is graph), None)

    def current(self) -> Lowered | None:
        """Return the record of the graph that code is generated for now."""
        from torch._inductor.virtualized import V

        return self.of(V.graph)

    @contextlib.contextmanager
    def writing(self, operator: str) -> Iterator[None]:
        """Code for an operator of a loop is written in this block; they may be nested."""
        self.operators.append(operator)
        try:
            yield
        except Exception:  # re-raised: only noted here
            self.raised_in = self.raised_in or operator
            raise
        finally:
            self.operators.pop()

    def missed(self, unseen: Unseen, error: BaseException | None = None) -> None:
        """Record a missed observation."""
        self.recorder.missed(unseen, error)

    def note(self, error: Exception) -> None:
        """Write down an error of the watching, which the compile is kept from."""
        self.missed(Unseen("kernels", reason(error), (LOWERING, SCHEDULER, CODEGEN), "values of kernels"), error)

    def close(self) -> None:
        """Keep nothing of further calls."""
        for key in self.keys.values():
            forget(key)


def operators_of(nodes: Sequence[BaseSchedulerNode]) -> tuple[str, ...]:
    """Names of the FX nodes behind scheduler nodes, in the order of their graph."""
    origins: dict[fx.Node, None] = {}
    for scheduled in nodes:
        for part in scheduled.get_nodes() if hasattr(scheduled, "get_nodes") else ():
            for origin in getattr(getattr(part, "node", None), "origins", ()):
                if origin.op == "call_function":
                    origins[origin] = None
    return tuple(node.name for node in sorted(origins))
