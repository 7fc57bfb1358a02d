"""The title and the first paragraph of an issue, made only of the facts of a finding."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fuzzcompile.model.contract import OutputJson
from fuzzcompile.model.privacy import fold_lines
from fuzzcompile.model.verdicts import VALUES, Verdict
from fuzzcompile.report.effects import condition_of, effect_of, error_in, in_users_words, pair, refusal, reordering
from fuzzcompile.report.facts import IssueFacts
from fuzzcompile.report.scope import reach, since
from fuzzcompile.report.told import meaning_for

_LONGEST = 140  # characters of a title
_NAMED = re.compile(r"^\w+ of (?!\d)")  # "mask of bool", "x of shape (1, 2)"; not "size of 1"
_BENIGN = {
    Verdict.EQUAL: "eager and compiled agree bit for bit",
    Verdict.ROUNDING: "eager and compiled differ within what rounding explains",
    Verdict.UNSTABLE: "ill-conditioned or discontinuous: eager itself has no correct digits there",
    Verdict.PRECISION_CASTS: "the program's own low-precision casts are left out; with "
    "`torch._inductor.config.emulate_precision_casts = True` the results agree",
    Verdict.INVALID: "the program raises in eager and compiled alike",
}


def title(facts: IssueFacts) -> str:
    """The user's operation and what goes wrong: never the pass, which is no word of the user's."""
    return one_line_title(_claim(facts, "torch.compile") + _on(facts))


def summary(facts: IssueFacts) -> str:
    """The first paragraph: what goes wrong, by how much, for whom, and since which version."""
    return " ".join(part for part in _sentences(facts) if part)


def why_not(facts: IssueFacts) -> str:
    """Why there is nothing to file."""
    reason = next((text for verdict, text in _BENIGN.items() if verdict == facts.verdict), "it is no bug")
    return f"no bug: {reason}"


def one_line_title(text: str) -> str:
    """A title on one line, cut at a length that GitHub's lists show."""
    flat = " ".join(text.split())
    if len(flat) <= _LONGEST:
        return flat
    cut = flat[: _LONGEST - 2].rstrip(" `") + "…"
    return cut + "`" * (cut.count("`") % 2)


def _sentences(facts: IssueFacts) -> Iterator[str]:
    yield _claim(facts, "`torch.compile`") + "."
    if facts.without_compiler:
        yield from _without_compiler(facts)
        yield since(facts)
        return
    if facts.target is not None and facts.verdict in VALUES:
        yield f"{_capital(meaning_for(facts.report, ''))}."
    yield _observed(facts)
    yield _right_with(facts)
    yield reach(facts)
    yield since(facts)


def _without_compiler(facts: IssueFacts) -> Iterator[str]:
    side = "eager mode gives it" if facts.eager_is_wrong else "compiled programs give it"
    yield f"No compiler is involved: the operator itself is wrong, on inputs that {side}."
    if not facts.eager_is_wrong:
        yield f"The table is of {_subject(facts)} under `torch.compile`."
        return
    if facts.verdict == Verdict.WRONG_GRADIENT:
        yield f"Autograd in eager mode makes that call in the backward of {_subject(facts)}."
    else:
        yield f"Eager mode makes that call in {_subject(facts)}."
    if facts.proved:
        yield "Backends that compute it in another way match the operator called on contiguous copies."
    yield "In the table, what agrees with eager mode is wrong."


def _claim(facts: IssueFacts, compiler: str) -> str:
    effect = effect_of(facts)
    if facts.without_compiler and facts.kernel:
        return f"`torch.ops.{facts.kernel.removesuffix('.default')}` {effect.does}{effect.then}"
    # An error of the compiler needs no "under torch.compile".
    bare = facts.without_compiler or facts.verdict == Verdict.COMPILE_ERROR or facts.target is not None
    under = "" if bare else f" under {compiler}"
    subject = f"A program with {_subject(facts)}" if effect.of_program and facts.expression else _subject(facts)
    return f"{subject} {effect.does}{under}{condition_of(facts)}{effect.then}"


def _subject(facts: IssueFacts) -> str:
    return f"`{facts.expression}`" if facts.expression else "A program"


def _on(facts: IssueFacts) -> str:
    return f" (compiled for {facts.target}, no GPU used)" if facts.target is not None else ""


def _right_with(facts: IssueFacts) -> str:
    """The nearest case that passes, without names of tensors: the script may call them otherwise."""
    cause = facts.cause or {}
    before, after = (_NAMED.sub("", str(cause.get(side) or "")) for side in ("before", "after"))
    if not before or not after:
        return ""
    fine = "it compiles" if facts.verdict == Verdict.COMPILE_ERROR else "the result is correct"
    if cause.get("kind") == "layout" and after.startswith("contiguous "):
        return f"With a contiguous input {fine}."
    if not in_users_words(facts, before, after):
        return (
            f"With {reordered} in their usual order the result is correct." if (reordered := reordering(facts)) else ""
        )
    return f"With {_quoted(after)} instead of {_quoted(before)} {fine}."


def _quoted(text: str) -> str:
    """Code in backticks, words as they are."""
    flat = fold_lines(text, 80)
    if re.search(r"\w \(", flat):  # "shape (1, 2)"
        return flat
    try:
        ast.parse(f"call({flat})")
    except (SyntaxError, ValueError):
        return flat
    return f"`{flat}`"


def _observed(facts: IssueFacts) -> str:
    """What was measured, of the worst output."""
    if facts.verdict == Verdict.ACCEPTS_INVALID:
        message = refusal(facts)[1]
        return f"Eager's error: `{message}`." if message else ""
    if facts.verdict in (Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR):
        whole = error_in(facts, 300)
        return f"The error: {whole}." if whole != error_in(facts) else ""
    if not facts.wrong:
        return f"{fold_lines(facts.detail)}." if facts.detail else ""
    entry = facts.measured or facts.wrong[0]
    return f"{_measured(facts, entry) if facts.measured else _differs(facts, entry)}."


def _measured(facts: IssueFacts, entry: OutputJson) -> str:
    at = entry.get("at") or {}
    where = f" at {entry['where']}" if entry.get("where") else ""
    eager, compiled = _number(at.get("eager")), _number(at.get("compiled")) or str(at.get("non_finite") or "")
    pairs = f"{_name(facts, entry)}{where} is {eager} in eager and {compiled} compiled" if eager and compiled else ""
    errors = [_number(entry.get(key)) for key in ("max_abs_error_compiled", "max_abs_error_eager")]
    against = f"{errors[0]} away from float64, eager {errors[1]}" if all(errors) else ""
    if not pairs:
        return (
            f"{_name(facts, entry)} is {against}"
            if against
            else f"{_name(facts, entry)} is NaN or infinite in other elements than in eager"
        )
    return f"{pairs} (at worst {against})" if against else pairs


def _differs(facts: IssueFacts, entry: OutputJson) -> str:
    if facts.shares_wrongly:
        return _shared(facts, entry)
    values = pair(entry)
    if entry.get("finding") == "stride" and values:
        return f"Its strides are {values[0]} in eager and {values[1]} compiled"
    return f"{_name(facts, entry)}: {fold_lines(str(entry.get('detail') or entry.get('finding')), 160)}"


def _shared(facts: IssueFacts, entry: OutputJson) -> str:
    eager, _, compiled = fold_lines(str(entry.get("detail")), 160).removeprefix("eager: ").partition("; compiled: ")
    if not compiled:
        return "The values are the same"
    is_or = "is " if compiled.startswith("a copy") else ""
    subject = _name(facts, entry)
    what = eager.removeprefix(f"{entry.get('name')} ")
    return f"{subject} {what} in eager, and {is_or}{compiled} when compiled; the values are the same"


def _name(facts: IssueFacts, entry: OutputJson) -> str:
    """A name for an output: the only one needs none."""
    name = str(entry.get("name"))
    if name.startswith("gradient of "):
        return f"The {name.replace('input', 'input ', 1) if name[-1].isdigit() else name}"
    return "The result" if len(facts.outputs) == 1 else f"`{name}`"


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) and not isinstance(value, bool) else ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
