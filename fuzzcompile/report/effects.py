"""What a bug does, in the words of a user who meets it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass

from fuzzcompile.model.contract import CauseJson, OutputJson
from fuzzcompile.model.privacy import fold_lines
from fuzzcompile.model.severity import Severity
from fuzzcompile.model.verdicts import VALUES, Verdict
from fuzzcompile.report.facts import IssueFacts

# How the judge names what the program has changed.
_AFTERWARDS = " after the call"
_ERROR = 90  # characters of an error's message in a title
_REFUSED = re.compile(r"eager raises (?P<kind>[\w.]+)(?:: (?P<message>.*))?; compiled runs$", re.DOTALL)
_PAIR = re.compile(r"eager (?P<eager>.+?)[,;] compiled (?P<compiled>.+)$")
_NAMESPACES = re.compile(r"(?:[A-Za-z_]\w*::)+")
_DTYPE = re.compile(r"\b(?:b?float|u?int|complex)\d+\w*|\bbool\b")
# What a change of an input's layout takes away, as an adjective; the first that the text calls.
_LAYOUTS = {
    "transpose": "transposed",
    ".mT": "transposed",
    ".T": "transposed",
    ".t()": "transposed",
    "permute": "permuted",
    "expand": "expanded",
    "[": "sliced",
}


# Names of values, not of functions, attributes or keywords.
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?![\w.(]|\s*=)")


@dataclass(frozen=True)
class Effect:
    """``does`` follows the operation; ``then`` follows the words "under torch.compile".

    ``of_program``: it is the program around the operation that does it.
    """

    does: str
    then: str = ""
    of_program: bool = False


def effect_of(facts: IssueFacts) -> Effect:
    """What the compiled program does instead of what eager does."""
    if facts.without_compiler:
        return Effect(_OF_KERNELS.get(facts.verdict, "gives wrong values"), " for inputs that are not contiguous")
    if facts.promise is not None and facts.promise.startswith("fallback_random"):
        return Effect("draws other random numbers than eager", " with `fallback_random = True`")
    if written := _written(facts):
        return written
    if facts.verdict in VALUES and (ignores := _computes_its_neighbour(facts.cause, facts)):
        return Effect(ignores)
    if facts.shares_wrongly:
        return _sharing(facts)
    if facts.target is not None and facts.verdict in VALUES:
        return Effect("is compiled into a program with other values")
    special: dict[str, Callable[[IssueFacts], Effect]] = {
        Verdict.MISCOMPILE: _wrong_values,
        Verdict.NONFINITE: _non_finite,
        Verdict.METADATA: _metadata,
        Verdict.COMPILE_ERROR: _compile_error,
        Verdict.RUNTIME_ERROR: lambda facts: Effect("raises", f": {error_in(facts)}"),
        Verdict.ACCEPTS_INVALID: lambda facts: Effect("is accepted", f", where eager raises {refusal(facts)[0]}"),
    }
    if facts.verdict in special:
        return special[Verdict(facts.verdict)](facts)
    return _PLAIN.get(facts.verdict, Effect("behaves differently"))


_PLAIN: dict[str, Effect] = {
    Verdict.WRONG_GRADIENT: Effect("gives wrong gradients"),
    Verdict.PRECISION_LOSS: Effect("loses precision"),
    Verdict.ALIASING: Effect("changes other tensors than in eager"),
    Verdict.CRASH: Effect("crashes the process"),
    Verdict.TIMEOUT: Effect("does not finish", ", where eager does"),
    Verdict.NONDETERMINISTIC: Effect("gives other results from run to run"),
}


# What a kernel does that is wrong by itself; the script compares it with contiguous copies of its inputs.
_OF_KERNELS: dict[str, str] = {
    Verdict.RUNTIME_ERROR: "raises",
    Verdict.CRASH: "crashes the process",
    Verdict.METADATA: "returns another layout",
}


def condition_of(facts: IssueFacts) -> str:
    """On which inputs, as far as a title can say it; begins with a space, or is empty."""
    cause: CauseJson = (not facts.without_compiler and facts.cause) or {}
    kind, before = cause.get("kind"), str(cause.get("before") or "")
    if kind == "layout" and str(cause.get("after") or "").endswith((".clone()", ".contiguous()")):
        return ""  # of a value inside the program, which the repair that is quoted shows
    if kind == "layout":
        form = next((word for text, word in _LAYOUTS.items() if text in before), "non-contiguous")
        return f" for {'an' if form[0] in 'aeiou' else 'a'} {form} input"
    if kind == "sharing" and before.isidentifier():
        return " when one tensor is used twice"
    if kind == "dtype" and (names := _DTYPE.findall(before)):
        return f" for {' and '.join(dict.fromkeys(names))}"
    if kind == "size" and str(cause.get("fingerprint")).startswith("size of "):
        return f" for a {cause['fingerprint']}"
    return ""


def refusal(facts: IssueFacts) -> tuple[str, str]:
    """The type and the message of the error with which eager refuses a program that runs compiled."""
    parts = _REFUSED.match(facts.detail)
    return (parts["kind"], fold_lines(parts["message"] or "")) if parts else ("an error", fold_lines(facts.detail))


def error_in(facts: IssueFacts, limit: int = _ERROR) -> str:
    """The error of a program that eager runs, on one line; as code where Markdown would read it otherwise."""
    text = fold_lines(_said_by_the_compiler(facts) or facts.detail, limit) or "an error"
    return f"`{text}`" if re.search(r"[<*_]", text) else text


def _said_by_the_compiler(facts: IssueFacts) -> str | None:
    """The type of the error with the first message of g++, clang++ or the like, which says more than torch's own."""
    message = re.search(r": error: (.+)", facts.shown.get("error_log") or "")
    kind = facts.detail.partition(":")[0]
    if message is None or not kind.isidentifier():
        return None
    return f"{kind}: {_NAMESPACES.sub('', message[1])}"


def pair(entry: OutputJson) -> tuple[str, str] | None:
    """What eager has and what compiled has, where the judge tells of both."""
    parts = _PAIR.search(str(entry.get("detail") or ""))
    return (parts["eager"], parts["compiled"]) if parts else None


def _computes_its_neighbour(cause: CauseJson | None, facts: IssueFacts) -> str | None:
    """What is ignored, if the compiled program computes what eager computes on the nearest case that passes."""
    if cause is None or cause.get("computes") != "neighbour" or cause.get("kind") not in ("argument", "value"):
        return None
    before, after = str(cause.get("before") or ""), str(cause.get("after") or "")
    argument = re.search(r"\((\w+)\)$", str(cause.get("fingerprint") or ""))
    if argument and re.search(rf"\b{argument[1]}\s*=", before):
        return f"ignores `{argument[1]}`"
    if not before or not after:
        return None
    if not in_users_words(facts, before, after):
        return f"ignores the order of {reordered}" if (reordered := reordering(facts)) else None
    whole = facts.expression
    if whole and before in whole:
        return f"is computed as `{whole.replace(before, after)}`"
    return f"computes `{after}` instead of `{before}`"


def in_users_words(facts: IssueFacts, *texts: str) -> bool:
    """Whether every name in texts that are code stands in the script or the expression that the reader sees."""
    plain = facts.shown.get("plain") or ""
    seen = f"{plain}\n{facts.expression or ''}"
    names = [name for text in texts if _is_composed(text) for name in _NAME.findall(text)]
    return not plain or all(re.search(rf"\b{name}\b", seen) for name in names)


def _is_composed(text: str) -> bool:
    """Whether a text is code that calls or indexes something, not a name or words such as "shape (1, 2)"."""
    if re.search(r"\w \(", text):
        return False
    try:
        tree = ast.parse(f"call({text})")
    except (SyntaxError, ValueError):
        return False
    return any(isinstance(node, ast.Call | ast.Subscript | ast.List) for node in list(ast.walk(tree))[3:])


def reordering(facts: IssueFacts) -> str | None:
    """The argument whose parts the nearest case that passes has in another order; None if it differs otherwise."""
    cause = facts.cause or {}
    before, after = (sorted(_NAME.findall(str(cause.get(side) or ""))) for side in ("before", "after"))
    argument = re.search(r"\((\w+)\)$", str(cause.get("fingerprint") or ""))
    return f"its `{argument[1]}`" if argument and before == after and len(before) > 1 else None


def _written(facts: IssueFacts) -> Effect | None:
    """Inputs or parts of the module that only one of both runs changes: what else differs follows from it."""
    written = [entry for entry in facts.wrong if str(entry.get("name")).endswith(_AFTERWARDS)]
    details = {entry.get("detail") for entry in written}
    what = "input" if all("input" in str(entry.get("name")) for entry in written) else "state"
    if details == {"only eager has it"}:
        return Effect(f"does not change its {what}", ", as eager does", of_program=True)
    if details == {"only compiled has it"}:
        return Effect(f"changes its {what}", ", which eager leaves as it is", of_program=True)
    return None


def _wrong_values(facts: IssueFacts) -> Effect:
    at = (facts.measured or {}).get("at") or {}
    if at.get("compiled") == 0 and at.get("eager"):
        return Effect("gives 0", f" instead of {at['eager']:.3g}" if isinstance(at["eager"], float) else "")
    return Effect("gives wrong values")


def _non_finite(facts: IssueFacts) -> Effect:
    entry = facts.measured or {}
    at = entry.get("at") or {}
    what = str(at.get("non_finite") or entry.get("non_finite") or "")
    name = "NaN" if "nan" in what else what if what else "NaN or infinity"
    # The judge names what is not finite on either side; only a finite value of eager's makes it the compiled side.
    return Effect(f"returns {name}", ", where eager is finite") if at.get("eager") is not None else Effect(_WRONG)


_WRONG = "returns other infinities or NaNs than eager"


def _metadata(facts: IssueFacts) -> Effect:
    if facts.severity is Severity.RAISING_LAYOUT:
        return Effect("returns a non-contiguous tensor", ", so `.view()` raises")
    if facts.severity is Severity.LAYOUT:
        return Effect("returns a tensor with other strides", " than in eager")
    for entry in facts.wrong:
        values = pair(entry)
        if entry.get("finding") in ("dtype", "shape") and values:
            what = "" if entry["finding"] == "dtype" else "shape "
            return Effect(f"returns {what}{values[1]}", f" instead of {values[0]}")
    return Effect("returns another dtype or shape", " than in eager")


def _compile_error(facts: IssueFacts) -> Effect:
    return Effect("fails to compile", f": {error_in(facts)}")


def _sharing(facts: IssueFacts) -> Effect:
    details = [str(entry.get("detail") or "") for entry in facts.wrong]
    if all(detail.endswith("compiled: a copy") for detail in details):
        return Effect("returns a copy", ", where eager returns a view")
    if all(" is a copy; " in detail for detail in details):
        partners = {found[1] for detail in details if (found := re.search(r"memory with ([a-z]+)", detail))}
        return Effect(f"shares memory with {'its input' if partners == {'input'} else 'another tensor'}")
    return Effect("shares other memory", " than in eager")
