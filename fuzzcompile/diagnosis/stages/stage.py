"""Stage of the compiler: the interface that each of them implements, its suspects, and shared proofs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from fuzzcompile.compiler.compile_changes import CompileChange, GraphBreak
from fuzzcompile.compiler.graph_breaks import find_captured_calls
from fuzzcompile.compiler.watch.patch_table import AnyPatch, list_patches
from fuzzcompile.diagnosis.attribution.ablation import Ablator, Divergence
from fuzzcompile.diagnosis.attribution.culprit import Attribution, Culprit
from fuzzcompile.diagnosis.attribution.veto_proof import MAX_SUSPECTS
from fuzzcompile.model.facts import facts


@dataclass(frozen=True)
class Suspect:
    """Possible culprit in a stage, seen in a failing compile; nothing is proved yet.

    ``stage``, ``family`` and ``source`` are what a signature holds, so that two suspects of the same bug compare equal.

    Attributes:
        finding: what the stage saw (a step, a fault of an operator, a wrong kernel); only that stage reads it.
        certain: whether the finding leaves no room for rounding.
        rank: sorts the suspects of stages that are looked at together, the most telling first.
    """

    stage: str
    family: str
    source: str | None = None
    finding: object = field(default=None, compare=False, repr=False)
    certain: bool = field(default=False, compare=False)
    rank: tuple[int, ...] = field(default=(), compare=False, repr=False)


class Stage(ABC):
    """One stage of the compiler: all that fuzzcompile knows of it.

    Triage, the shortcut for known bugs and the lock of a reduction ask the stages; nothing else knows their names. A
    stage is stateless, so that one object serves every case.
    """

    name: str
    """As in the JSON contract (:mod:`fuzzcompile.model.stages`)."""
    settings: ClassVar[tuple[Mapping[str, object], ...]] = ()
    """Entries of ``torch._inductor.config`` that work around the whole stage, the narrowest first."""

    @property
    def patches(self) -> tuple[AnyPatch, ...]:
        """Hooks that observe this stage, each with its probe."""
        return list_patches(self.name)

    @abstractmethod
    def suspects(self, divergence: Divergence) -> list[Suspect]:
        """List the suspects that one compile shows, strongest evidence first; compiles nothing."""

    def without(self, suspect: Suspect) -> CompileChange | None:
        """Return the change that leaves the suspect out; None if the compiler cannot do without it."""
        return None

    def culprit(self, suspect: Suspect) -> Culprit:
        """The suspect as a culprit of which nothing is proved."""
        return Culprit(self.name, None, suspect.family, suspect.family, source=suspect.source)

    def prove(self, ablator: Ablator, suspects: Sequence[Suspect]) -> Attribution | None:
        """The culprit among the stage's suspects, proved by ablations as far as it can be; None if none holds.

        Raises:
            OutOfTime: no further compile may be begun.
        """
        return prove_in_turn(ablator, [(self, suspect) for suspect in suspects])

    def workarounds(self, culprit: Culprit, given: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
        """Settings that may work around the culprit, the narrowest first; none is tried yet.

        Args:
            culprit: what is at fault in this stage.
            given: the entries of ``torch._inductor.config`` that the case sets itself.
        """
        own = facts().settings.switching_off
        yield from (own[name] for name in list_names(culprit) if name in own)
        yield from self._narrower(culprit, given)
        yield from self.settings

    def tracing_settings(self, culprit: Culprit) -> Mapping[str, object]:
        """Entries of ``torch._functorch.config`` that may work around the culprit; none by default."""
        return {}

    def _narrower(self, culprit: Culprit, given: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
        """Settings of this kind of stage that leave out the culprit's pass alone."""
        yield from ()


def list_names(culprit: Culprit) -> list[str]:
    """The names that a setting may know a culprit by: its rule's, and its pass's."""
    return [name for name in (culprit.rewrite, culprit.pass_name) if name]


def prove_in_turn(ablator: Ablator, suspects: Sequence[tuple[Stage, Suspect]]) -> Attribution | None:
    """The first suspect without which the divergence is gone, or all that are certain together; None if none is.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    tried = [(stage, suspect) for stage, suspect in suspects if stage.without(suspect) is not None][:MAX_SUSPECTS]
    for stage, suspect in tried:
        if _repairs(ablator, [(stage, suspect)]):
            return Attribution(replace(stage.culprit(suspect), necessary=True))
    certain = [(stage, suspect) for stage, suspect in tried if suspect.certain]
    if len(certain) > 1 and _repairs(ablator, certain):
        culprits = [stage.culprit(suspect) for stage, suspect in certain]
        if len({(culprit.rewrite, culprit.source, culprit.site) for culprit in culprits}) == 1:
            # One function is at fault, which several stages take for what the operator is.
            return Attribution(replace(culprits[0], necessary=True))
        first, *rest = (replace(culprit, confidence="low") for culprit in culprits)
        return Attribution(first, rest)
    return None


def _repairs(ablator: Ablator, suspects: Sequence[tuple[Stage, Suspect]]) -> bool:
    changes = [stage.without(suspect) for stage, suspect in suspects]
    return ablator.attempt_under(*(change for change in changes if change is not None))[1]


def attempt_backend(ablator: Ablator, *changes: CompileChange, toggle: str = "") -> bool:
    """Return whether another backend, which needs no ledger, repairs the divergence.

    Args:
        ablator: compiles the case.
        changes: the backend, and further changes.
        toggle: what the table of ablations calls them; their own texts by default.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    how = replace(ablator.how.under(*changes), record=False)
    return ablator.attempt(how, toggle or ", ".join(change.text for change in changes))[1]


# Proof by a graph break: the call at fault is left to eager mode, and all else is compiled.

_MAX_CALLS = 2


def prove_by_break(ablator: Ablator, culprit: Culprit) -> Attribution | None:
    """The culprit, proved by a compile that breaks the graph at its call; None if that does not repair.

    Such a compile also keeps apart what stands before and behind the call, so it proves only what was seen otherwise to
    be wrong with the call itself.

    Raises:
        OutOfTime: no further compile may be begun.
    """
    calls = find_captured_calls(ablator.trial.ledger, culprit.site, culprit.nodes)
    if not calls or len(calls) > _MAX_CALLS:
        return None
    repaired = ablator.attempt_under(GraphBreak(tuple(calls.items())))[1]
    return Attribution(replace(culprit, necessary=True, confidence="high")) if repaired else None
