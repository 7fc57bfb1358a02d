"""Signatures as text: what makes two findings the same bug. Needs no torch.

A signature is ``stage:source:family``. Where the cause of a bug in a graph pass, a decomposition, a fake tensor or
functionalization was found, it ends in that cause's fingerprint: ``stage:source:family:fingerprint``. Without the
fingerprint it is *coarse*: two coarse signatures that agree may still be two bugs.
"""

from __future__ import annotations

import re

from fuzzcompile.stage_names import DECOMPOSITION, FAKE_TENSOR, FUNCTIONALIZATION, GRAPH_STAGES

_FINGERPRINTED = (*GRAPH_STAGES, DECOMPOSITION, FAKE_TENSOR, FUNCTIONALIZATION)
# An error's signature has its type in the place of the file, and its message may hold anything.
_PARTS = re.compile(rf"((?:{'|'.join(_FINGERPRINTED)}):(?:-|[^:]*\.py):[^:]+)(?::([^:]+))?")
_PROGRAM = "program-"
# Hexadecimal digits of a program's key that a signature shows.
_DIGITS = 12


def has_fingerprints(stage: str | None) -> bool:
    """Whether causes tell bugs of this stage apart; lowering and code generation go by operator or kind of kernel."""
    return stage in _FINGERPRINTED


def refined(signature: str, fingerprint: str | None) -> str:
    """A coarse signature with the fingerprint of its cause; as it is if there is none, or none belongs there."""
    match = _PARTS.fullmatch(signature)
    return f"{signature}:{fingerprint}" if fingerprint and match is not None and match[2] is None else signature


def coarse(signature: str) -> str:
    """The signature without the fingerprint of its cause."""
    match = _PARTS.fullmatch(signature)
    return match[1] if match is not None else signature


def fingerprint_of(signature: str) -> str | None:
    """The fingerprint of the cause that a signature ends in; None if it has none."""
    match = _PARTS.fullmatch(signature)
    return match[2] if match is not None else None


def of_program(stage: str, key: str) -> str:
    """The signature of wrong values without a proved culprit, by the key of the program that shows them."""
    return f"{stage}:-:{_PROGRAM}{key[:_DIGITS]}"


def names_program(signature: str) -> bool:
    """Whether a signature rests on a program, which another program with the same bug does not share."""
    return signature.rpartition(":")[2].startswith(_PROGRAM)


def agree(wanted: str, reached: str) -> bool:
    """Whether two signatures may mean the same bug.

    They name the same stage and file and a family in common (a smaller case may show fewer of a culprit's siblings),
    and the same cause, where both know it.
    """
    *place, families = coarse(wanted).rsplit(":", 1)
    *reached_place, reached_families = coarse(reached).rsplit(":", 1)
    causes = {cause for signature in (wanted, reached) if (cause := fingerprint_of(signature)) is not None}
    common = set(families.split("+")) & set(reached_families.split("+"))
    return wanted == reached or (place == reached_place and bool(common) and len(causes) < 2)
