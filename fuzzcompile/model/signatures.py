"""Signatures as text: what makes two findings the same bug (docs/machines.md). Needs no torch.

They are ``stage:source:family``, with ``:fingerprint`` behind it where the cause is known, ``stage:ErrorType:message``
for an error without a culprit, and ``stage:-:program-KEY`` for wrong results without a proved one.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fuzzcompile.model.culprit_contract import read_details
from fuzzcompile.model.stages import DECOMPOSITION, FAKE_TENSOR, FUNCTIONALIZATION, GRAPH_STAGES
from fuzzcompile.model.thresholds import ROUNDING_FACTOR
from fuzzcompile.model.verdicts import AGREEING, ERRORS, Verdict

if TYPE_CHECKING:
    from fuzzcompile.model.contract import OutputJson, ReportJson
    from fuzzcompile.model.culprit_contract import DetailsJson


UNATTRIBUTED = "unattributed"
PROGRAM = "program-"
# Hexadecimal digits of a program's key that a signature shows.
_DIGITS = 12
_FINGERPRINTED = (*GRAPH_STAGES, DECOMPOSITION, FAKE_TENSOR, FUNCTIONALIZATION)
# An error's signature has its type in the place of the file, and its message may hold anything.
_PARTS = re.compile(rf"((?:{'|'.join(_FINGERPRINTED)}):(?:-|[^:]*\.py):(?!{PROGRAM})[^:]+)(?::(.+))?")
_ERROR = re.compile(r"\w+(?:Error|Exception)\b: [^;\n]*")
_TYPES = re.compile(r"(?:\w+(?:Error|Exception)\b:? *)+")
_STRIDES = re.compile(r"stride \(([\d, ]*?),?\) became \(([\d, ]*?),?\)")
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")
# What makes the kernels of all operators: an error there is one bug, whichever of them were fused.
_OF_ALL_OPERATORS = ("torch/_inductor/codegen/", "torch/_inductor/scheduler.py")
# What every program passes: an assertion there is one bug, whatever keeps a program from it.
_OF_ALL_PROGRAMS, _ASSERTED = "torch/_functorch/_aot_autograd/", "AssertionError: "


def has_fingerprints(stage: str | None) -> bool:
    """Return whether causes distinguish bugs of this stage; lowering and codegen go by operator or kind of kernel."""
    return stage in _FINGERPRINTED


def parse_stage(signature: str) -> str:
    """The stage at fault, ``unattributed`` where none could be named."""
    return signature.partition(":")[0]


def parse_file(signature: str) -> str | None:
    """Return the file of the compiler that a signature names; None where it names none."""
    parts = signature.split(":")
    return parts[1] if len(parts) > 1 and parts[1].endswith(".py") else None


def drop_fingerprint(signature: str) -> str:
    """The signature without the fingerprint of its cause: the place in the compiler."""
    return replace_fingerprint(signature, None)


def parse_fingerprint(signature: str) -> str | None:
    """Return the change that makes the case pass; None where the signature does not say."""
    match = _PARTS.fullmatch(signature)
    return match[2] if match is not None else None


# What is the matter with a result, where one place in the compiler is one bug whatever change of the program avoids it.
SHARING, LAYOUT, DTYPE, MARK, OVERLAP = "sharing", "layout", "dtype", "requires_grad", "overlap"
LOST, MADE, PRECISION = "nonfinite lost", "nonfinite made", "precision"
_SHOWS_AS = {
    **dict.fromkeys((LAYOUT, DTYPE, MARK), Verdict.METADATA),
    **dict.fromkeys((LOST, MADE), Verdict.NONFINITE),
    PRECISION: Verdict.PRECISION_LOSS,
}


def find_symptom(verdict: str, outputs: Iterable[OutputJson], details: DetailsJson) -> str | None:
    """The fingerprint of a bug that its symptom settles; None where the cause has to be found.

    Memory that is shared otherwise, results of other strides, another dtype or ``requires_grad``, lost precision, and
    NaN or infinity lost or made among elements that are right: a place that does so is at fault once, and several
    changes of a program keep it from doing so. ``details`` are the culprit's: where a rewrite at fault has something
    written in place or, moving no value, share memory, a later read or write makes values wrong, and where a view is at
    fault that an analysis overlooked, that is a copy in compiled code, or that a write is seen through, a copy anywhere
    makes them right. A rewrite that writes where elements overlap in memory is one bug, and so is an output that is
    made anew as a view of the wrong tensor, or by the wrong strides, whether that raises, has other metadata or shows
    in values.
    """
    if details.get("kind") == "regenerated":
        return LAYOUT if details.get("way") == "as_strided" else SHARING
    overlaps = details.get("writes to overlap") or _makes_overlap(details.get("changed") or "")
    if overlaps and Verdict(verdict).kind == "values":
        return OVERLAP
    overlooked = any(" view of " in shown for shown in details.get("a run shows") or ())
    in_place = details.get("writes in place") and not details.get("changed")
    shares = in_place or details.get("shares") or details.get("written through") or details.get("kind") == "alias"
    if verdict == Verdict.ALIASING or ((shares or overlooked) and Verdict(verdict).kind == "values"):
        return SHARING
    if verdict == Verdict.PRECISION_LOSS:
        return PRECISION
    wrong = [output for output in outputs if output.get("finding") not in (None, *AGREEING)]
    findings = {output.get("finding") for output in wrong}
    if verdict == Verdict.METADATA and len(findings) == 1:
        return {"stride": LAYOUT, "dtype": DTYPE, "requires_grad": MARK}.get(findings.pop() or "")
    if verdict != Verdict.NONFINITE or findings != {"nonfinite"} or not all(map(_is_right_elsewhere, wrong)):
        return None
    worst = [output.get("at") or {} for output in wrong]
    for symptom, finite, other in ((LOST, "compiled", "eager"), (MADE, "eager", "compiled")):
        if all(_is_finite(at.get(finite)) and not _is_finite(at.get(other)) for at in worst):
            return symptom
    return None


def _makes_overlap(changed: str) -> bool:
    """Return whether a rewrite gave a result a stride of 0, so that several elements are one in memory."""
    strides = _STRIDES.search(changed)
    return strides is not None and "0" not in strides[1].split(", ") and "0" in strides[2].split(", ")


def _is_right_elsewhere(output: OutputJson) -> bool:
    error, usual = output.get("rms_error_compiled"), (output.get("rms_error_eager"), output.get("noise_floor"))
    return error is not None and error <= ROUNDING_FACTOR * max(
        (value for value in usual if value is not None), default=0.0
    )


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def can_show_as(signature: str, verdict: str) -> bool:
    """Return whether a report of the verdict without a fingerprint may be of the bug: not if a symptom is all of it.

    What AOTAutograd lays out otherwise (tangents, views made anew) shows in values and errors as well.
    """
    if parse_stage(signature) == FUNCTIONALIZATION:
        return True
    return _SHOWS_AS.get(parse_fingerprint(signature) or "", verdict) == verdict


def is_provisional(signature: str) -> bool:
    """Return whether its fingerprint is a program's, in place of a cause that has not been searched for yet."""
    return (parse_fingerprint(signature) or "").startswith(PROGRAM)


def replace_fingerprint(signature: str, cause: str | None) -> str:
    """The signature with another fingerprint, or with none; as it is where none belongs there."""
    match = _PARTS.fullmatch(signature)
    if match is None:
        return signature
    return f"{match[1]}:{cause}" if cause else match[1]


def name_by_case(signature: str, case: str) -> str:
    """The signature with its case (SHA-256) for a fingerprint, until the cause is known; as is where none belongs."""
    return replace_fingerprint(signature, f"{PROGRAM}{case[:_DIGITS]}")


def make_program_signature(stage_at_fault: str, key: str) -> str:
    """The signature of wrong values without a proved culprit, by the key of the program that shows them."""
    return f"{stage_at_fault}:-:{PROGRAM}{key[:_DIGITS]}"


def is_unproved(signature: str) -> bool:
    """Return whether it rests on the program or on nothing, because no culprit was proved: a later one replaces it."""
    own_stage, _, rest = signature.partition(":")
    return rest.startswith(f"-:{PROGRAM}") or (own_stage == UNATTRIBUTED and rest.startswith("-:"))


def name_same_place(left: str, right: str) -> bool:
    """Return whether both name the same place in the compiler, or are the same."""
    return drop_fingerprint(left) == drop_fingerprint(right)


def agree(wanted: str, reached: str) -> bool:
    """Return whether two signatures may mean the same bug.

    They name the same stage and file and a family in common (a smaller case may show fewer of a culprit's siblings),
    and the same cause, where both know it.
    """
    *place, families = drop_fingerprint(wanted).rsplit(":", 1)
    *reached_place, reached_families = drop_fingerprint(reached).rsplit(":", 1)
    causes = {parse_fingerprint(signature) for signature in (wanted, reached) if not is_provisional(signature)} - {None}
    common = set(families.split("+")) & set(reached_families.split("+"))
    return wanted == reached or (place == reached_place and bool(common) and len(causes) < 2)


def raise_alike(left: ReportJson, right: ReportJson) -> bool:
    """Return whether two reports show one bug that makes the compiler or the program raise alike.

    That is: the same function of the compiler raises, or the messages differ in numbers and names only; both, where the
    culprit is proved in one report and neither so nor refuted in the other, whose program may have another fault. The
    causes of two such errors may be put into different words, because several changes keep a program from a check that
    fails. Where a code generator or the scheduler raises, whose functions serve every operator, the function and the
    message (names included) say it all, whichever operators are blamed; so they do where AOTAutograd asserts something.
    """
    if any(report.get("verdict") not in ERRORS or not report.get("signature") for report in (left, right)):
        return False
    functions, errors = _raised_in(left, right)
    said = [_NUMBER.sub("N", error) for error in errors]
    if functions[0] == functions[1] and said[0] and said[0] == said[1]:
        asserted = said[0].startswith(_ASSERTED) and functions[0][0].startswith(_OF_ALL_PROGRAMS)
        if asserted or functions[0][0].startswith(_OF_ALL_OPERATORS):
            return True
    proved = [(report.get("culprit") or {}).get("necessary") for report in (left, right)]
    if False in proved or True not in proved:
        return False
    if drop_fingerprint(left["signature"] or "") != drop_fingerprint(right["signature"] or ""):
        return False
    messages = [normalise_message(error) for error in errors]
    alike = [any(first) and first == second for first, second in (functions, messages)]
    return any(alike) if all(proved) else all(alike)


def raise_otherwise(left: ReportJson, right: ReportJson) -> bool:
    """Return whether two errors have nothing in common: neither the function that raises nor the message.

    One rewrite may be at fault in several ways, each of which raises in its own. Where one culprit is not proved, an
    error that differs in either is another. What a report does not say (a function outside the compiler, an error that
    is nothing but types) tells nothing apart.
    """
    if any(report.get("verdict") not in ERRORS for report in (left, right)):
        return False
    functions, errors = _raised_in(left, right)
    messages = [normalise_message(error) for error in errors]
    known = [first != second for first, second in (functions, messages) if any(first) and any(second)]
    proved = all((report.get("culprit") or {}).get("necessary") for report in (left, right))
    return bool(known) and (all(known) if proved else any(known))


def _raised_in(left: ReportJson, right: ReportJson) -> tuple[list[tuple[str, str]], list[str]]:
    """The functions of the compiler that raise in two reports, by file and name, and their errors; empty if unknown."""
    raised = [read_details(report.get("culprit")).get("raised") for report in (left, right)]
    functions = [(frames[0]["source"] or "", frames[0]["function"]) if frames else ("", "") for frames in raised]
    errors = [find_error(report) or "" for report in (left, right)]
    # An error that is nothing but types says nothing.
    return functions, ["" if _TYPES.fullmatch(error) else error for error in errors]


def find_error(report: ReportJson) -> str | None:
    """Type and message of the error that a report is about; None for another kind of bug."""
    error = _ERROR.search(str(report.get("detail") or ""))
    return None if error is None else error.group()


def normalise_message(message: str) -> str:
    """An error message without what changes from case to case: numbers, symbols and lists of them, names, buffers."""
    text = re.sub(r"0x[0-9a-fA-F]+", "ADDR", message)
    text = re.sub(r"\b(buf|arg|primals_|tangents_|op)\d+\w*", r"\1N", text)
    text = re.sub(r"'[^']*'|\"[^\"]*\"|‘[^’]*’", "'…'", text)
    text = _NUMBER.sub("N", text)
    text = re.sub(r"\b[su]N\b", "N", text)  # sizes that are symbols
    text = re.sub(r"([\[(])N(?:, ?N)*,?([\])])", r"\1N\2", text)
    return " ".join(text.split())[:160]


def renew(signature: str) -> str:
    """A signature that an earlier version wrote, with its error's message normalised as it is now."""
    own_stage, _, rest = signature.partition(":")
    kind, _, message = rest.partition(":")
    return f"{own_stage}:{kind}:{normalise_message(message)}" if _TYPES.fullmatch(kind) else signature


def hash_source(source: str) -> str:
    """SHA-256 of a program's source, whatever characters it holds, in hexadecimal: what identifies a case."""
    return hashlib.sha256(source.encode(errors="surrogatepass")).hexdigest()
