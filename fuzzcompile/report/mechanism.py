"""The mechanism of a bug in one sentence: what it computed and what it should have, from evidence alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.culprit_contract import CulpritJson, DetailsJson, read_details
from fuzzcompile.model.privacy import fold_lines, scrub
from fuzzcompile.model.verdicts import VALUES, Verdict
from fuzzcompile.report.circumstances import WORDS, several
from fuzzcompile.report.proof import get_diff

_LONGEST = 160  # characters of a value that is quoted
_CODE = 100  # characters of the user's lines that are quoted in place of many operators
_MOST = 3  # calls that are written out, and their keywords
_CALL = re.compile(r"^[-+]\s*\w+(?:: [^=]*)? = ([\w.]+(?: \w+)?)\((.*?)(?:\)| \.\.\.)$")
_KEYWORD = re.compile(r"\b(\w+)=(\[[^\]]*\]|\([^)]*\)|'[^']*'|[^,()\[\]]+)")
_BECAME = re.compile(r"(output \d+): (?:its own (?=became)|(\w+) (?=\())?")
_FLOAT = re.compile(r"-?\d+\.\d{5,}(?:e-?\d+)?")
# A value of which no text was kept.
_UNREADABLE = re.compile(r"\bobject\b|\?")
# What only arranges the values of other calls.
_ARRANGING = frozenset(
    ("getitem", "permute", "expand", "view", "reshape", "transpose", "unsqueeze", "squeeze", "alias", "t", "detach")
)
# Keywords that say where and how a result is stored, not what it is.
_STORAGE = frozenset(("layout", "device", "type", "index", "pin_memory", "memory_format"))
_MOVED = 1e-10  # in units of a result's size: beyond rounding in float64


class _Call(NamedTuple):
    """A call in a graph: the name of what is called, and its arguments that are constants."""

    name: str
    keywords: tuple[str, ...]
    is_lowering: bool = False

    def __str__(self) -> str:
        given = ["…", *self.keywords[:_MOST], *["…"] * (len(self.keywords) > _MOST)]
        return f"`{self.name}({', '.join(given)})`"


def tell_mechanism(report: ReportJson) -> str:
    """Return the sentence; empty where no culprit is proved, or the evidence has no more than its name and place."""
    culprit = report.get("culprit") or None
    if culprit is None or not culprit.get("necessary") or report.get("verdict") in (Verdict.EAGER_WRONG, Verdict.STALE):
        return ""
    details = read_details(culprit)
    if details.get("diff"):
        return _tell_rewrite(report, culprit)
    if details.get("kernel") and details.get("code_generator"):
        return _tell_kernel(details)
    kind, way = details.get("kind"), details.get("way")
    forms = WORDS["mechanism"]
    form = next((forms[key] for key in (f"{way} {kind}", str(way), str(kind)) if key in forms), None)
    if form is None or kind is None or (kind == "values" and details.get("backward")):
        return ""  # a value of a backward pass is that for one gradient, which the reader's script may not have
    values = _Evidence(name=_name(culprit), what=WORDS["parted"].get(kind, kind))
    for key, value in details.items():
        if value and key in _QUOTED:
            text = several([str(each) for each in value], ", ") if isinstance(value, list) else str(value)
            values[key.replace(" ", "_")] = _shorten(text)
    same = "got" in values and values["got"] == values.get("expected")
    if same or any(_UNREADABLE.search(text) for text in values.values()):
        return ""  # a place in the program that is the same on both sides, or a value without text
    sentence = str(form).format_map(values)
    return "" if values.lacks else sentence


_QUOTED = (
    "expected",
    "got",
    "call",
    "differs",
    "read",
    "written through",
    "a run shows",
    "effects",
    "eager",
    "compiled",
)


class _Evidence(dict[str, str]):
    """The values that a form may use; one that asks for another makes no sentence."""

    lacks = False

    def __missing__(self, key: str) -> str:
        self.lacks = True
        return ""


def _shorten(text: str) -> str:
    """A value of the evidence on one line, its numbers with four digits, "nan at [0]" for "result 0[0] = nan"."""
    text = fold_lines(scrub(_FLOAT.sub(lambda number: f"{float(number[0]):.4g}", text)), _LONGEST)
    at = re.fullmatch(r"result \d+(\[[^\]]*\])? = (.*)", text)
    return (f"{at[2]} at {at[1]}" if at[1] else at[2]) if at else text.removeprefix("result 0: ")


def _name(culprit: CulpritJson) -> str:
    return f"`{scrub(str(culprit.get('rewrite') or culprit.get('family') or culprit.get('stage')))}`"


def _tell_kernel(details: DetailsJson) -> str:
    names = dict.fromkeys(_shorten_name(name.partition("@")[0]) for name in details.get("fused") or ())
    shown = [f"`{name}`" for name in names if name not in _ARRANGING]
    text = f"The {details['code_generator']} kernel generated for {several(shown, ', ') or 'it'} computes other values"
    if details.get("right_in_scalars"):
        return f"{text}; with `{details['right_in_scalars']}` in scalars it is right."
    if details.get("vectorised"):
        return f"{text}; in scalars it is right."
    return f"{text}, in float64 too." if details.get("shown_in_float64") else ""


# What a rewrite put in place of what, read off the graphs before and after it.


def _tell_rewrite(report: ReportJson, culprit: CulpritJson) -> str:
    details, lines, name = read_details(culprit), get_diff(culprit), _name(culprit)
    removed, added = (list(_iter_calls(lines, sign)) for sign in "-+")
    if not removed or "more lines" in lines[-1]:
        return ""
    before, after = _list_calls(removed, details), _list_calls(added, None)
    if added and all(call.is_lowering for call in added):
        sentence = f"{name} puts a lowering of its own in place of {before}"
    elif {str(call) for call in removed} == {str(call) for call in added}:
        sentence = f"{name} changes the order or the operands of {before}"
    else:
        sentence = f"{name} puts {after} in place of {before}" if added else f"{name} removes {before}"
    result = "; ".join(_iter_results(report, details, removed, added))
    return f"{sentence}{': ' * bool(result)}{result}."


def _iter_results(
    report: ReportJson, details: DetailsJson, removed: Sequence[_Call], added: Sequence[_Call]
) -> Iterator[str]:
    """Tell what became of the result thereby, as far as it is what the verdict is about."""
    verdict, cause = report["verdict"], report.get("cause") or {}
    if verdict in VALUES:
        if lost := _list_lost(report, removed, added):
            yield f"{_join([f'`{word}`' for word in lost])} {'is' if len(lost) == 1 else 'are'} gone"
        moved = details.get("float64")
        if moved is None and details.get("non_finite"):
            yield "in float64, one of the two results is NaN or infinite where the other is not"
        elif cause.get("computes") == "neighbour" and cause.get("before") and cause.get("after"):
            yield f"that computes what eager mode gives with `{cause['after']}` in place of `{cause['before']}`"
        elif isinstance(moved, float) and moved > _MOVED:
            share = f"{moved:.0%}" if moved >= 0.01 else f"{moved:.1e}"
            yield f"in float64, the results of the two differ by {share} of their size"
    change = details.get("changed" if verdict == Verdict.METADATA else "shares")
    if change and verdict in (Verdict.METADATA, Verdict.ALIASING):
        yield _BECAME.sub(lambda own: f"{own[2]} of {own[1]} " if own[2] else f"{own[1]} ", scrub(str(change)))


def _iter_calls(lines: Sequence[str], sign: str) -> Iterator[_Call]:
    for line in lines:
        match = _CALL.match(line) if line.startswith(sign) else None
        if match is not None and match[1] not in ("constant", "input"):
            named = [f"{key}={value.strip()}" for key, value in _KEYWORD.findall(match[2]) if key not in _STORAGE]
            yield _Call(_shorten_name(match[1]), tuple(named), match[1].startswith("lowering "))


def _shorten_name(target: str) -> str:
    """The operator of an overload, ``F.dropout`` of a function, any other name as it stands."""
    words = target.split(".")
    if words[0] in ("aten", "prims", "quantized_decomposed") and len(words) > 1:
        return words[1]
    return target.replace("torch.nn.functional.", "F.").replace("torch.functional.", "torch.").removeprefix("lowering ")


def _is_arranging(call: _Call) -> bool:
    return call.name.rpartition(".")[2] in _ARRANGING


def _list_calls(calls: Sequence[_Call], details: DetailsJson | None) -> str:
    """Calls in words: each, where there are few; else the user's lines that they come from, or their names."""
    telling = [call for call in calls if not _is_arranging(call)] or list(calls)
    if len(distinct := list(dict.fromkeys(map(str, telling)))) <= _MOST:
        return _join(distinct)
    codes = [f"`{line['code']}`" for line in (details or {}).get("matched") or () if line["code"]]
    if codes and sum(map(len, codes)) <= _CODE:
        return f"the {len(calls)} operators of {_join(codes)}"
    names = [f"`{name}`" for name in dict.fromkeys(call.name for call in telling)]
    return f"{len(calls)} operators ({several(names, ', ', _MOST)})"


def _list_lost(report: ReportJson, removed: Sequence[_Call], added: Sequence[_Call]) -> list[str]:
    """Constant arguments of a call that is made without them afterwards, or that the nearest case that passes changes.

    Of another call in its place it is not known whether it does without them, unless that case says so.
    """
    named = re.match(r"(\w+)\((\w+)\)$", str((report.get("cause") or {}).get("fingerprint")))
    lost = []
    for call in removed:
        kept = [after for after in added if after.name == call.name]
        own = {word for after in kept or added for word in after.keywords}
        for word in call.keywords:
            blamed = named is not None and (call.name.rpartition(".")[2], word.partition("=")[0]) == named.groups()
            if word not in own and added and (kept or blamed):
                lost.append(word)
    return list(dict.fromkeys(lost))


def _join(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1] if words else "nothing")))
