"""Culprits, ablations and workarounds: the result of an attribution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict, Unpack

from fuzzcompile.compiler.graph_text import diff_graphs, find_changed_nodes, list_user_lines
from fuzzcompile.compiler.operators.decompositions import get_operator_family
from fuzzcompile.compiler.watch.ledger import Label
from fuzzcompile.compiler.watch.rule_labels import get_family
from fuzzcompile.diagnosis.attribution.steps import Step
from fuzzcompile.model.culprit_contract import AblationJson, CulpritJson, DetailsJson, FrameJson, WorkaroundJson

UNKNOWN = "unknown"
"""The family of a culprit of which the place alone is known."""


class Proof(TypedDict, total=False):
    """Fields of a culprit that say how sure it is (:class:`Culprit`)."""

    necessary: bool | None
    sufficient: bool | None
    siblings: tuple[str, ...]
    confidence: str


class CulpritFields(Proof, total=False):
    """Fields of a culprit beside its stage and its names (:class:`Culprit`)."""

    nodes: tuple[str, ...]
    source: str | None
    line: int | None
    site: str | None
    step: float | None
    details: DetailsJson


@dataclass(frozen=True)
class Culprit:
    """Part of the compiler at fault, with its proof (fields as in the triage contract).

    ``necessary`` and ``sufficient`` are None where they were not tested. ``siblings`` are rewrites that take the
    culprit's place when it is vetoed: it is necessary together with them. ``details`` is what else a reader wants to
    see of this kind of culprit (a diff of the graph, the source of a kernel), as JSON.
    """

    stage: str
    pass_name: str | None
    rewrite: str | None
    family: str
    nodes: tuple[str, ...] = ()
    source: str | None = None
    line: int | None = None
    site: str | None = None
    step: float | None = None
    necessary: bool | None = None
    sufficient: bool | None = None
    siblings: tuple[str, ...] = ()
    confidence: str = "high"
    details: DetailsJson = field(default_factory=lambda: DetailsJson())

    @classmethod
    def from_step(cls, step: Step, **proof: Unpack[Proof]) -> Culprit:
        """The rewrite behind a step."""
        return replace(
            cls.from_label(step.label, nodes=step.rewrite.nodes, details=_describe_step(step), **proof),
            site=str(step.rewrite.site) if step.rewrite.site else None,
            step=step.float64 if step.float64 is not None else step.native,
        )

    @classmethod
    def from_label(
        cls, label: Label, *, nodes: tuple[str, ...] = (), details: DetailsJson | None = None, **proof: Unpack[Proof]
    ) -> Culprit:
        """A rewrite of which no application could be measured (it raised, or was refused)."""
        return cls(
            label.stage,
            label.pass_name,
            label.rewrite,
            get_family(label.rewrite),
            nodes=nodes,
            source=label.source,
            line=label.line,
            details=details or {},
            **proof,
        )

    @classmethod
    def from_operator(cls, stage: str, operator: str | None, **known: Unpack[CulpritFields]) -> Culprit:
        """An operator at fault in a stage; its family is its name without namespace and overload.

        ``operator`` is its name with both, None if no operator could be singled out.
        """
        return cls(stage, None, operator, get_operator_family(operator) if operator else UNKNOWN, **known)

    @property
    def is_named(self) -> bool:
        """Return whether a rewrite or an operator is known, and not the place alone."""
        return self.rewrite is not None or self.family != UNKNOWN

    @property
    def signature(self) -> str:
        """Identity of the bug that findings share: stage, source file and family."""
        return ":".join((self.stage, self.source or "-", self.family))

    def to_json(self) -> CulpritJson:
        """The form of the triage contract, in which a report's confidence is that of its culprit."""
        return {
            "stage": self.stage,
            "pass": self.pass_name,
            "rewrite": self.rewrite,
            "family": self.family,
            "nodes": list(self.nodes),
            "source": self.source,
            "line": self.line,
            "site": self.site,
            "step": self.step,
            "necessary": self.necessary,
            "sufficient": self.sufficient,
            "siblings": list(self.siblings),
            "details": self.details,
        }


@dataclass(frozen=True)
class Ablation:
    """One toggle that was tried, and whether the divergence was gone with it."""

    toggle: str
    repairs: bool
    error: float | None

    def to_json(self) -> AblationJson:
        """The form of the triage contract."""
        return {"toggle": self.toggle, "repairs": self.repairs, "error": self.error}


@dataclass(frozen=True)
class Workaround:
    """Setting that avoids the bug, as a user types it, with the result of a compile under it.

    ``config`` patches ``torch._inductor.config``; without it, ``how`` says all there is to do. ``cost_ratio`` is the
    run time with it in units of that without it (the least of several rounds each; None where it could not be
    measured, as where the program does not compile without it). ``error`` is the largest distance from the reference.
    ``compiles`` and ``seconds`` are what finding it took, out of the cost of the whole answer.
    """

    how: str
    config: Mapping[str, Any] = field(default_factory=dict)
    error: float | None = None
    cost_ratio: float | None = None
    verified: bool = True
    compiles: int = 0
    seconds: float = 0.0

    def to_json(self) -> WorkaroundJson:
        """The form of the triage contract."""
        return {
            "how": self.how,
            "config": dict(self.config),
            "verified": self.verified,
            "error": self.error,
            "cost_ratio": self.cost_ratio,
            "found_in": {"compiles": self.compiles, "seconds": round(self.seconds, 3)},
        }


@dataclass
class Attribution:
    """Culprit, what else is needed for the bug, and what was tried.

    ``known``: the culprit was not proved because an earlier case proved it. ``cut_off``: the time was over before every
    stage had been looked at.
    """

    culprit: Culprit | None = None
    contributors: list[Culprit] = field(default_factory=list)
    ablations: list[Ablation] = field(default_factory=list)
    changed_bits: list[Culprit] = field(default_factory=list)
    workaround: Workaround | None = None
    known: bool = False
    cut_off: bool = False


def frames_to_json(frames: Sequence[tuple[str, int, str]]) -> list[FrameJson]:
    """Frames of the compiler (file, line and function) as ``details`` of a culprit hold them."""
    return [{"source": file, "line": line, "function": name} for file, line, name in frames]


def _describe_step(step: Step) -> DetailsJson:
    """Return the step's sizes, the program lines that the rewrite matched, and the graph before and after it.

    ``native_noise`` is what rounding alone does to the native result.
    """
    snapshots = step.record.snapshots
    before, after = snapshots[step.rewrite.before], snapshots[step.rewrite.after]
    return {
        "direction": step.record.direction,
        "float64": step.float64,
        "native": step.native,
        "native_noise": step.native_noise,
        "changed": step.raised or step.metadata or step.stride,
        "matched": list_user_lines(before, step.rewrite.nodes or find_changed_nodes(before, after)),
        "diff": "\n".join(diff_graphs(before, after)),
    }
