"""The title of an issue: operation, effect, condition and what has to be switched on, in at most 80 characters."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from fuzzcompile.report.finding_facts import IssueFacts
from fuzzcompile.report.wording import Claim, list_opt_ins, make_claim

LONGEST = 80
# What each part costs that a title leaves out or names in fewer words: the cheapest title that fits is taken.
_SHORT_NAME, _NO_CONDITION, _SHORT_THEN, _NO_THEN, _NO_COMPILER, _NO_OPT_IN = 1, 6, 2, 6, 3, 9
_FIRST_KIND = re.compile(r"^(\w+):(?: |$)")
_KIND = re.compile(r"^(\w+(?:Error|Exception)):(?: |$)")
# Errors that say nothing without their message.
_GENERAL = ("RuntimeError", "AssertionError")
# Words with which no title ends.
_OPEN = frozenset(
    ("a", "an", "and", "are", "be", "does", "for", "has", "in", "is", "no", "not", "of", "on", "one", "or", "than",
     "the", "to", "was", "with", "!=")
)  # fmt: skip


def title(facts: IssueFacts) -> str:
    """The user's operation and what goes wrong, on one line: never the pass, which is no word of the user's.

    Of what does not fit, whole parts are left out; nothing is cut off in the middle of a word.
    """
    claim = make_claim(facts)
    titles = list(_iter_titles(facts, claim))
    fitting = [(cost, text) for cost, text in titles if len(text) <= LONGEST]
    return min(fitting, key=lambda each: each[0])[1] if fitting else _cut(min((text for _, text in titles), key=len))


def _iter_titles(facts: IssueFacts, claim: Claim) -> Iterator[tuple[int, str]]:
    """Titles with what they leave out, counted."""
    tag = _tag(facts)
    parts = itertools.product(
        [(0, tag), *([(_NO_OPT_IN, "")] if tag and facts.target is None else [])],
        [(_SHORT_NAME * number, name) for number, name in enumerate(claim.subjects)],
        [(0, claim.under), *([(_NO_COMPILER, "")] if claim.under else [])],
        [(0, claim.condition), *([(_NO_CONDITION, "")] if claim.condition else [])],
        list(_iter_endings(claim.then)),
    )
    for chosen in parts:
        (tags, prefix), (names, subject), (unders, under), (conditions, condition), (thens, then) = chosen
        text = f"{prefix}{subject} {claim.does}{under}{condition}{then}"
        yield tags + names + unders + conditions + thens, " ".join(text.split())


def _iter_endings(then: str) -> Iterator[tuple[int, str]]:
    """What follows the effect: whole, the innermost message of an error, its type, and nothing."""
    kind, message = "", then[2:].strip("`")
    while then.startswith(": ") and (match := (_KIND if kind else _FIRST_KIND).match(message)):
        kind, message = match[1], message[match.end() :]
    if not then.endswith(("…", "…`")) and (not kind or message not in ("", kind)):
        yield 0, then
    if then.startswith(": "):
        message = message if message != kind else ""
        words = [word for word in message.split() if not word.endswith("…")]
        if len(words) > 2 and words == message.split():
            yield _SHORT_THEN, f": {message}"
        if kind:
            counts = [count for count in range(len(words), 2, -1) if words[count - 1] not in _OPEN]
            yield from ((_SHORT_THEN + 1, f": {kind}: {' '.join(words[:count])}") for count in counts)
            yield _NO_THEN - (1 if kind in _GENERAL else 2), f" with {kind}"
            yield from ((_NO_THEN - 2, f": {' '.join(words[:count])}") for count in counts)
    yield _NO_THEN, ""


def _tag(facts: IssueFacts) -> str:
    """What is off by default and has to be on, before a title."""
    target = f"[{facts.target}, no GPU used] " if facts.target is not None else ""
    names = list(dict.fromkeys(name for name, _ in list_opt_ins(facts) if name))
    return target or (f"[opt-in {names[-1]}] " if names else "")


def _cut(text: str) -> str:
    words: Sequence[str] = text.split()
    while len(" ".join(words)) > LONGEST and len(words) > 1:
        words = words[:-1]
    cut = " ".join(words).rstrip(" ,:;(")
    return cut + "`" * (cut.count("`") % 2)
