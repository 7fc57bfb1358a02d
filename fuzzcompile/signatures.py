"""Signatures as text: what makes two findings the same bug (ARCHITECTURE.md, "Contracts"). Needs no torch.

A signature is ``stage:source:family``. Where the cause of a bug in a graph pass, a decomposition, a fake tensor or
functionalization is known, it ends in that cause's fingerprint: ``stage:source:family:fingerprint``. Without it the
signature is *coarse*: two coarse signatures that agree may still be two bugs. An error without a culprit is
``stage:ErrorType:message``, and what gives wrong results without a proved culprit ``stage:-:program-KEY``: neither
takes a fingerprint.
"""

from __future__ import annotations

import hashlib
import re

from fuzzcompile.stage_names import DECOMPOSITION, FAKE_TENSOR, FUNCTIONALIZATION, GRAPH_STAGES

UNATTRIBUTED = "unattributed"
PROGRAM = "program-"
# Hexadecimal digits of a program's key that a signature shows.
_DIGITS = 12
_FINGERPRINTED = (*GRAPH_STAGES, DECOMPOSITION, FAKE_TENSOR, FUNCTIONALIZATION)
# An error's signature has its type in the place of the file, and its message may hold anything.
_PARTS = re.compile(rf"((?:{'|'.join(_FINGERPRINTED)}):(?:-|[^:]*\.py):(?!{PROGRAM})[^:]+)(?::(.+))?")


def has_fingerprints(stage: str | None) -> bool:
    """Whether causes tell bugs of this stage apart; lowering and code generation go by operator or kind of kernel."""
    return stage in _FINGERPRINTED


def stage(signature: str) -> str:
    """The stage at fault, ``unattributed`` where none could be named."""
    return signature.partition(":")[0]


def coarse(signature: str) -> str:
    """The signature without the fingerprint of its cause: the place in the compiler."""
    match = _PARTS.fullmatch(signature)
    return match[1] if match is not None else signature


def fingerprint(signature: str) -> str | None:
    """What must change for the case to pass; None where the signature does not say."""
    match = _PARTS.fullmatch(signature)
    return match[2] if match is not None else None


def is_provisional(signature: str) -> bool:
    """Whether its fingerprint is a program's, in place of a cause that nobody has looked for yet."""
    return (fingerprint(signature) or "").startswith(PROGRAM)


def refined(signature: str, cause: str | None) -> str:
    """The signature with another fingerprint, or with none; as it is where none belongs there."""
    match = _PARTS.fullmatch(signature)
    if match is None:
        return signature
    return f"{match[1]}:{cause}" if cause else match[1]


def of_program(stage_at_fault: str, key: str) -> str:
    """The signature of wrong values without a proved culprit, by the key of the program that shows them."""
    return f"{stage_at_fault}:-:{PROGRAM}{key[:_DIGITS]}"


def is_unproved(signature: str) -> bool:
    """Whether it rests on the program or on nothing, because no culprit was proved: what is known later replaces it."""
    own_stage, _, rest = signature.partition(":")
    return rest.startswith(f"-:{PROGRAM}") or (own_stage == UNATTRIBUTED and rest.startswith("-:"))


def same_place(left: str, right: str) -> bool:
    """Whether both name the same place in the compiler, or are the same."""
    return coarse(left) == coarse(right)


def agree(wanted: str, reached: str) -> bool:
    """Whether two signatures may mean the same bug.

    They name the same stage and file and a family in common (a smaller case may show fewer of a culprit's siblings),
    and the same cause, where both know it.
    """
    *place, families = coarse(wanted).rsplit(":", 1)
    *reached_place, reached_families = coarse(reached).rsplit(":", 1)
    causes = {fingerprint(signature) for signature in (wanted, reached) if not is_provisional(signature)} - {None}
    common = set(families.split("+")) & set(reached_families.split("+"))
    return wanted == reached or (place == reached_place and bool(common) and len(causes) < 2)


def normalised(message: str) -> str:
    """An error message without what changes from run to run: numbers, addresses, quoted names, buffers."""
    text = re.sub(r"0x[0-9a-fA-F]+", "ADDR", message)
    text = re.sub(r"\b(buf|arg|primals_|tangents_|op)\d+\w*", r"\1N", text)
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "'…'", text)
    text = re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", "N", text)
    return " ".join(text.split())[:160]


def source_hash(source: str) -> str:
    """SHA-256 of a program's source, in hexadecimal: what identifies a case."""
    return hashlib.sha256(source.encode()).hexdigest()
