"""What makes two findings the same bug, taken apart (ARCHITECTURE.md, "Contracts"). Needs no torch.

A signature is ``stage:source:family`` (coarse) or ``stage:source:family:fingerprint`` (refined: what must change for
the case to pass is known). An error without a culprit is ``stage:ErrorType:message``, and what gives wrong results
without a proved culprit ``stage:-:program-KEY``: neither is ever refined. Neither stage, nor source, nor family holds a
colon; what comes last may.
"""

from __future__ import annotations

PROGRAM = "program-"
UNKNOWN = "-"
UNATTRIBUTED = "unattributed"
_PARTS = 4


def stage(signature: str) -> str:
    """The stage at fault, ``unattributed`` where none could be named."""
    return signature.partition(":")[0]


def coarse(signature: str) -> str:
    """The signature without its fingerprint: the place in the compiler."""
    parts = signature.split(":", _PARTS - 1)
    return ":".join(parts[: _PARTS - 1]) if _names_a_place(parts) else signature


def fingerprint(signature: str) -> str | None:
    """What must change for the case to pass; None where the signature does not say."""
    parts = signature.split(":", _PARTS - 1)
    return parts[-1] if len(parts) == _PARTS and _names_a_place(parts) else None


def is_provisional(signature: str) -> bool:
    """Whether its fingerprint is a program's, in place of a cause that nobody has looked for yet."""
    return (fingerprint(signature) or "").startswith(PROGRAM)


def refined(signature: str, cause: str | None) -> str:
    """The signature of a place with a fingerprint, or as it is where there is none or it names no place."""
    place = coarse(signature)
    return f"{place}:{cause}" if cause and _names_a_place(place.split(":")) else place


def same_place(left: str, right: str) -> bool:
    """Whether both name the same place in the compiler, or are the same."""
    return coarse(left) == coarse(right)


def may_be_one(left: str, right: str) -> bool:
    """Whether nothing shows that they are two bugs: the same place, and not two causes."""
    fingerprints = {fingerprint(name) for name in (left, right) if not is_provisional(name)} - {None}
    return same_place(left, right) and len(fingerprints) < 2


def is_unproved(signature: str) -> bool:
    """Whether it rests on the program or on nothing, because no culprit was proved: what is known later replaces it."""
    own_stage, _, rest = signature.partition(":")
    return rest.startswith(f"{UNKNOWN}:{PROGRAM}") or (own_stage == UNATTRIBUTED and rest.startswith(f"{UNKNOWN}:"))


def _names_a_place(parts: list[str]) -> bool:
    """Whether the second part is a file or unknown, not the type of an error, and the third no program."""
    if len(parts) < _PARTS - 1:
        return False
    source, family = parts[1:3]
    return not source.isidentifier() and not family.startswith(PROGRAM)
