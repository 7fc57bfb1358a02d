"""Stage of the compiler: the interface that each of them implements, its suspects, and shared proofs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fuzzcompile.compiler.compile_changes import CompileChange, GraphBreak
from fuzzcompile.compiler.graph_breaks import find_captured_calls
from fuzzcompile.compiler.watch.patch_table import AnyPatch, list_patches
from fuzzcompile.diagnosis.attribution.ablation import Ablator, Divergence
from fuzzcompile.diagnosis.attribution.culprit import Attribution, Culprit
from fuzzcompile.diagnosis.attribution.veto_proof import MAX_SUSPECTS
from fuzzcompile.model.facts import facts

_MAX_CALLS = 2


@dataclass(frozen=True)
class Found:
    """A culprit that a run shows, ``certain`` beyond rounding or not; the change to a compile without it; its proof."""

    culprit: Culprit
    without: CompileChange | None = None
    prove: Proof | None = None
    certain: bool = False


Proof = Callable[[Ablator, Found], Attribution | None]
"""Proves a finding by compiles, which raise OutOfTime once none may be begun; None if they do not."""


@dataclass(frozen=True)
class Suspect:
    """Possible culprit in a stage, seen in a failing compile; nothing is proved yet.

    ``stage``, ``family`` and ``source`` are what a signature holds, so that two suspects of the same bug compare equal.
    ``finding`` is what the stage saw, and ``certain`` says that it leaves no room for rounding.
    """

    stage: str
    family: str
    source: str | None = None
    finding: object = field(default=None, compare=False, repr=False)
    certain: bool = field(default=False, compare=False)

    @classmethod
    def from_found(cls, found: Found) -> Suspect:
        """The culprit that was found as a suspect."""
        culprit = found.culprit
        return cls(culprit.stage, culprit.family, culprit.source, found, found.certain)


class Stage(ABC):
    """One stage of the compiler: all that fuzzcompile knows of it.

    Triage, the shortcut for known bugs and the lock of a reduction ask the stages; nothing else knows their names. A
    stage is stateless, so that one object serves every case.
    """

    name: str
    """As in the JSON contract (:mod:`fuzzcompile.model.stages`)."""
    settings: tuple[Mapping[str, object], ...] = ()
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
        return suspect.finding.without if isinstance(suspect.finding, Found) else None

    def culprit(self, suspect: Suspect) -> Culprit:
        """The suspect as a culprit of which nothing is proved."""
        if isinstance(suspect.finding, Found):
            return suspect.finding.culprit
        return Culprit(self.name, None, suspect.family, suspect.family, source=suspect.source)

    def prove(self, ablator: Ablator, suspects: Sequence[Suspect]) -> Attribution | None:
        """The culprit among the stage's suspects, proved by ablations as far as it can be; None if none holds.

        By default as :func:`prove_in_turn` does.
        """
        found = [Found(self.culprit(each), self.without(each), certain=each.certain) for each in suspects]
        return prove_in_turn(ablator, found)

    def workarounds(self, culprit: Culprit, given: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
        """Settings that may work around the culprit, the narrowest first; ``given`` are the case's own."""
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


def prove_in_turn(ablator: Ablator, found: Sequence[Found]) -> Attribution | None:
    """The first culprit without which the divergence is gone, or all that are certain together; None if none is."""

    def repairs(found: Sequence[Found]) -> bool:
        return ablator.attempt_under(*(each.without for each in found if each.without is not None))[1]

    tried = [each for each in found if each.without is not None][:MAX_SUSPECTS]
    for each in tried:
        if repairs([each]):
            return Attribution(replace(each.culprit, necessary=True))
    certain = [each for each in tried if each.certain]
    if len(certain) < 2 or not repairs(certain):
        return None
    first, *rest = (each.culprit for each in certain)
    if all((other.rewrite, other.source, other.site) == (first.rewrite, first.source, first.site) for other in rest):
        # One function is at fault, which several stages take for what the operator is.
        return Attribution(replace(first, necessary=True))
    return Attribution(replace(first, confidence="low"), [replace(culprit, confidence="low") for culprit in rest])


def attempt_backend(ablator: Ablator, *changes: CompileChange, toggle: str = "") -> bool:
    """Return whether another backend, which needs no ledger, with further changes repairs the divergence."""
    how = replace(ablator.how.under(*changes), record=False)
    return ablator.attempt(how, toggle or ", ".join(change.text for change in changes))[1]


def prove_at_call(ablator: Ablator, found: Found) -> Attribution | None:
    """The culprit, proved by a compile that leaves its call to eager mode; None if that does not repair.

    Such a compile also keeps apart what stands before and behind the call, so it proves only what was seen otherwise to
    be wrong with the call itself.
    """
    calls = find_captured_calls(ablator.trial.ledger, found.culprit.site, found.culprit.nodes)
    if not calls or len(calls) > _MAX_CALLS:
        return None
    repaired = ablator.attempt_under(GraphBreak(tuple(calls.items())))[1]
    return Attribution(replace(found.culprit, necessary=True, confidence="high")) if repaired else None
