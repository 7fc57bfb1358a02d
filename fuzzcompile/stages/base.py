"""What a stage of the compiler is to fuzzcompile."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from fuzzcompile.attribution.ablating import Ablator
from fuzzcompile.attribution.culprit import Attribution, Culprit
from fuzzcompile.attribution.divergence import Divergence
from fuzzcompile.compiler.session import Compilation

Finding = TypeVar("Finding")


@dataclass(frozen=True)
class Suspect(Generic[Finding]):
    """Something in a stage that a failing compile speaks against; nothing is proved yet.

    ``family`` and ``source`` are what a signature holds, so that two suspects of the same bug compare equal.
    ``finding`` is what the stage saw (a step, a fault of an operator, a wrong kernel): only that stage reads it.
    ``certain`` says that the finding leaves no room for rounding.
    """

    stage: str
    family: str
    source: str | None = None
    finding: Finding | None = field(default=None, compare=False, repr=False)
    certain: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Without:
    """A compile without a suspect, and what the table of ablations calls it."""

    toggle: str
    how: Compilation


class Stage(ABC, Generic[Finding]):
    """One stage of the compiler: all that fuzzcompile knows of it.

    Triage, the shortcut for known bugs and the lock of a reduction ask the stages; nothing else knows their names. A
    stage is stateless, so that one object serves every case.
    """

    name: ClassVar[str]
    """As in the JSON contract (:mod:`fuzzcompile.stage_names`)."""
    component: ClassVar[str]
    """What a report calls the part of PyTorch at fault, as its issue titles do: ``inductor``, ``dynamo``."""
    settings: ClassVar[tuple[Mapping[str, object], ...]] = ()
    """Entries of ``torch._inductor.config`` that work around the whole stage, the narrowest first."""

    @abstractmethod
    def suspects(self, divergence: Divergence) -> list[Suspect[Finding]]:
        """What one compile speaks against, most telling first; compiles nothing."""

    @abstractmethod
    def without(self, suspect: Suspect[Finding], how: Compilation) -> Without | None:
        """How to compile without the suspect; None where no compile can do without it."""

    @abstractmethod
    def prove(self, ablator: Ablator, suspects: Sequence[Suspect[Finding]]) -> Attribution | None:
        """The culprit among the stage's suspects, proved by ablations as far as it can be; None if none holds.

        Raises:
            OutOfTime: no further compile may be begun.
        """

    def workarounds(self, culprit: Culprit) -> Iterator[Mapping[str, object]]:
        """Settings that may work around the culprit, the narrowest first; none is tried yet."""
        yield from self.settings
