"""Partings: the graph, operator and kernel from which on bits differ, and torch's promise for that place."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fuzzcompile.attribution.culprit import Culprit
from fuzzcompile.contract import PartingJson, PromiseJson
from fuzzcompile.contracts.bits import Difference


@dataclass(frozen=True)
class Parting:
    """A place in a compiled program from which on bits differ.

    Attributes:
        graph: number of dynamo's graph; ``direction`` says which graph was made of it.
        stage: the stage of the compiler that made the difference.
        operator: the operator (``aten.mul.Tensor``), or the rewrite; None if no operator could be singled out.
        node: the operator's node in the graph.
        kernel: the kernel that computes it, as Inductor calls it; None where no kernel is concerned.
        site: the user's line (``model.py:14 #1``).
        source: the file of the compiler that is at work there, with ``line``.
        difference: how the bits differ there.
        unpromised: why torch promises nothing there; None where it does.
        position: its place in the order of execution, as far as it is known.
        detail: what was seen, in a few words.
    """

    graph: int
    direction: str
    stage: str
    operator: str | None
    difference: Difference
    detail: str
    node: str | None = None
    kernel: str | None = None
    site: str | None = None
    source: str | None = None
    line: int | None = None
    unpromised: str | None = None
    position: int = 0

    @property
    def promised(self) -> bool:
        """Return whether torch promises equal bits there."""
        return self.unpromised is None

    def __str__(self) -> str:
        kernel = f" in kernel {self.kernel}" if self.kernel else ""
        at = f" at {self.site}" if self.site else ""
        return (
            f"{self.operator or 'no single operator'}{at}{kernel} (graph {self.graph} {self.direction}, {self.stage})"
        )

    def to_json(self) -> PartingJson:
        """The form of the triage contract."""
        return {
            "graph": self.graph,
            "direction": self.direction,
            "operator": self.operator,
            "node": self.node,
            "kernel": self.kernel,
            "stage": self.stage,
            "site": self.site,
            "source": self.source,
            "line": self.line,
            "promised": self.promised,
            "why": self.unpromised or self.detail,
            "differing": self.difference.differing,
            "elements": self.difference.elements,
            "max_ulps": self.difference.max_ulps,
        }

    def culprit(self, **proof: Any) -> Culprit:
        """The parting as a culprit."""
        return Culprit.of_operator(
            self.stage,
            self.operator,
            nodes=(self.node,) if self.node else (),
            source=self.source,
            line=self.line,
            site=self.site,
            details={"kernel": self.kernel, "graph": self.direction, "parting": self.detail},
            **proof,
        )


def in_order(partings: Iterable[Parting]) -> list[Parting]:
    """Partings in the order of execution: graphs forward, then backward in reverse; places within a graph."""

    def key(parting: Parting) -> tuple[bool, int, int]:
        backward = parting.direction == "backward"
        return backward, -parting.graph if backward else parting.graph, parting.position

    return sorted(partings, key=key)


@dataclass(frozen=True)
class Promise:
    """Outcome of checking one promise.

    Attributes:
        name: ``eager``, ``batch`` or ``run_to_run``.
        holds: whether bits are equal; None where they part and nothing is promised, and where it was not looked at.
        why: one sentence.
        partings: where bits part, in the order of execution.
        outputs: how the outputs differ.
        unsure: the look was not complete, so that a better informed one might say otherwise.
    """

    name: str
    holds: bool | None
    why: str
    partings: tuple[Parting, ...] = ()
    outputs: tuple[Difference, ...] = ()
    unsure: bool = False
    notes: tuple[str, ...] = field(default=())

    @property
    def first(self) -> Parting | None:
        """The first parting where equal bits are promised; if there is none, the first of all."""
        return next((parting for parting in self.partings if parting.promised), next(iter(self.partings), None))

    def to_json(self) -> PromiseJson:
        """The form of the triage contract."""
        return {
            "promise": self.name,
            "holds": self.holds,
            "why": self.why,
            "first": self.first.to_json() if self.first is not None else None,
            "unpromised": [parting.to_json() for parting in self.partings if not parting.promised][:_SHOWN],
            "outputs": [
                {
                    "name": output.name,
                    "differing": output.differing,
                    "elements": output.elements,
                    "max_ulps": output.max_ulps,
                    "zero_signs": output.zero_signs,
                    "nan_payloads": output.nan_payloads,
                    "detail": output.detail,
                }
                for output in self.outputs
            ],
        }


_SHOWN = 20  # partings without a promise that a report lists
