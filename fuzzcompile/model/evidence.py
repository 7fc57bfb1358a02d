"""Evidence as the report words it: names of observables, and the details of comparisons, written and read here alone.

The JSON report holds text (``call1.gradient of input0``, ``eager (4, 1), compiled (1, 4)``): the classes below write
it and read it back, and nothing else takes it apart (``tests/model/test_evidence.py``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

JUDGED, ALSO_COMPILED = "judged: ", "also compiled: "
"""Beginnings of the notes on which part of a script a report is about, and which it is not."""
_OBSERVABLE = re.compile(
    r"(?:rank(?P<rank>\d+)\.)?(?:call(?P<call>\d+)\.)?"
    r"(?:(?P<derivative>gradient|tangent) of )?(?P<what>.+?)(?P<after> after the call)?",
    re.DOTALL,
)
_LEAF = re.compile(r"(?P<kind>out|input|argument)(?P<index>\d+)(?:\.(?P<path>.+))?", re.DOTALL)


# How the name of an effect of a call on a Python object begins.
EFFECT = "change of "


Derivative = Literal["gradient", "tangent"]


@dataclass(frozen=True)
class ObservableName:
    """One thing that a run of a program shows: an output, a gradient, or what a call left in an input or the module."""

    what: str  # ``out0``, ``input1.key``, ``parameter weight``, ``buffer running_mean``, ``attribute steps``,
    call: int | None = None  # number of the call, from 0; None where there is only one
    derivative: Derivative | None = None  # the gradient of ``what``, or in forward mode its tangent
    after: bool = False  # the state of ``what`` after the call
    rank: int | None = None  # the process that it is of, where several run the program; None for the first

    def __str__(self) -> str:
        prefix = ("" if self.rank is None else f"rank{self.rank}.") + ("" if self.call is None else f"call{self.call}.")
        derivative = "" if self.derivative is None else f"{self.derivative} of "
        return f"{prefix}{derivative}{self.what}{' after the call' * self.after}"

    @classmethod
    def parse(cls, name: str) -> Self:
        """Return the observable that the report calls ``name``."""
        match = _OBSERVABLE.fullmatch(name)
        if match is None:  # an empty name
            return cls(name)
        rank, call = (None if match[name] is None else int(match[name]) for name in ("rank", "call"))
        derivative: Any = match["derivative"]
        return cls(match["what"], call, derivative, match["after"] is not None, rank)

    @property
    def is_effect(self) -> bool:
        """Return whether it is how far a call moves what functions, classes and containers hold."""
        return self.after and self.what.startswith(EFFECT)

    @property
    def leaf(self) -> LeafName | None:
        """The leaf of a call's outputs or inputs; None for parts of the module and for states of the process."""
        match = _LEAF.fullmatch(self.what)
        path = tuple(match["path"].split(".")) if match is not None and match["path"] is not None else ()
        return None if match is None else LeafName(match["kind"], int(match["index"]), path)


@dataclass(frozen=True)
class LeafName:
    """A leaf of a call: ``kind`` is out, input or argument; ``path`` leads on into a dataclass or the like."""

    kind: str
    index: int
    path: tuple[str, ...] = ()


RANDOM_STATE = str(ObservableName("random state", after=True))

# The detail of an observable that only one of the two runs has.
ONLY_EAGER, ONLY_COMPILED = "only eager has it", "only compiled has it"

_PAIR = re.compile(r"eager (?P<eager>.+?)[,;] compiled (?P<compiled>.+)$")
_STRIDES = re.compile(r"\([\d, ]*\)")


@dataclass(frozen=True)
class ValuePair:
    """The same property of both runs, as text: a dtype, a shape, strides."""

    eager: str
    compiled: str

    def __str__(self) -> str:
        return f"eager {self.eager}, compiled {self.compiled}"

    @classmethod
    def parse(cls, detail: str) -> Self | None:
        """Return the two sides of a detail; None if it does not speak of both."""
        match = _PAIR.search(detail)
        return None if match is None else cls(match["eager"], match["compiled"])

    @property
    def strides(self) -> tuple[list[int], list[int]] | None:
        """The strides of both; None if the sides are not tuples of whole numbers."""
        texts = [match[0] for side in (self.eager, self.compiled) if (match := _STRIDES.match(side))]
        if len(texts) < 2:
            return None
        eager, compiled = ([int(part) for part in text[1:-1].split(",") if part.strip()] for text in texts)
        return eager, compiled


class _Sentence:
    """A detail that states the fields of a dataclass in the words of ``said``, and can be read back."""

    said: ClassVar[str]

    def __str__(self) -> str:
        return self.said.format(**vars(self))

    @classmethod
    def parse(cls, detail: str) -> Self | None:
        """Return what a report's detail states; None if it states something else."""
        pattern = re.sub(r"\\{(\w+)\\}", r"(?P<\1>.*)", re.escape(cls.said))
        match = re.fullmatch(pattern, detail, re.DOTALL)
        return None if match is None else cls(**match.groupdict())


_ERROR = re.compile(r"(?P<kind>[\w.]+)(?:: (?P<message>.*))?", re.DOTALL)


@dataclass(frozen=True)
class EagerRefusal(_Sentence):
    """The error with which eager refuses a program that runs compiled: its type and message in one text."""

    said = "eager raises {error}; compiled runs"

    error: str

    @property
    def parts(self) -> tuple[str, str] | None:
        """The type and the message; None if the text has no type."""
        match = _ERROR.fullmatch(self.error)
        return None if match is None else (match["kind"], match["message"] or "")


@dataclass(frozen=True)
class InternalError(_Sentence):
    """The error of the compiler's own on a program that eager refuses too, and the one with which it does."""

    said = "{compiled}, an error of the compiler's own, whatever eager raises: {eager}"

    compiled: str
    eager: str


@dataclass(frozen=True)
class UnlikeErrors(_Sentence):
    """Two errors with which eager mode and the compiled program refuse one program, of which nothing says why."""

    said = (
        "both raise unlike errors, and nothing tells whether compiled is at fault: eager {eager}; compiled {compiled}"
    )

    eager: str
    compiled: str


_SHOWN = 3
_SHARES = "shares memory with "
_SHARING = re.compile(r"eager: (?P<eager>.*?); compiled: (?P<compiled>.*)", re.DOTALL)
_MORE = re.compile(r" and \d+ more$")


@dataclass(frozen=True)
class AliasDifference:
    """The values that one value shares memory with in either run, as the report words them."""

    eager: str  # the sentence on the eager run, which begins with the value's name
    compiled: str  # the sentence on the compiled run

    def __str__(self) -> str:
        return f"eager: {self.eager}; compiled: {self.compiled}"

    @classmethod
    def of(cls, name: str, eager: Sequence[str], compiled: Sequence[str]) -> Self:
        """Word the partners of the value ``name`` in both runs, those that only one run has first."""
        return cls(
            _word_partners(f"{name} ", eager, set(eager) - set(compiled)),
            _word_partners("", compiled, set(compiled) - set(eager)),
        )

    @classmethod
    def parse(cls, detail: str) -> Self | None:
        """Return the sharing that a comparison's detail states; None if it states something else."""
        match = _SHARING.fullmatch(detail)
        return None if match is None else cls(match["eager"], match["compiled"])

    @property
    def copied_by_eager(self) -> bool:
        """True if eager makes a copy."""
        return self.eager.endswith(" is a copy")

    @property
    def copied_when_compiled(self) -> bool:
        """Return whether the compiled program makes a copy."""
        return self.compiled == "a copy"

    @property
    def lost(self) -> tuple[str, ...]:
        """The partners that only eager has, at most three."""
        return _read_partners(self.eager)

    @property
    def gained(self) -> tuple[str, ...]:
        """The partners that only the compiled program has, at most three."""
        return _read_partners(self.compiled)


def _word_partners(subject: str, partners: Sequence[str], own: set[str]) -> str:
    if not partners:
        return f"{subject}is a copy" if subject else "a copy"
    shown = [name for name in partners if name in own] or list(partners)
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return f"{subject}{_SHARES}{', '.join(shown[:_SHOWN])}{more}{'' if own else ' only'}"


def _read_partners(sentence: str) -> tuple[str, ...]:
    _, _, names = sentence.partition(_SHARES)
    if not names or names.endswith(" only"):  # all of them are partners in the other run as well
        return ()
    return tuple(_MORE.sub("", names).split(", "))


def count_noun(number: int, noun: str) -> str:
    """Return ``number`` and a ``noun`` with a regular plural: "1 case", "2 cases"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
