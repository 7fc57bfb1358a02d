"""The mechanism of a bug in one sentence: what it computed and what it should have, from evidence alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.culprit_contract import CulpritJson, DetailsJson, read_details
from fuzzcompile.model.privacy import fold_lines, scrub
from fuzzcompile.model.stages import CODEGEN, LOWERING
from fuzzcompile.model.verdicts import ERRORS, VALUES, Verdict
from fuzzcompile.report.circumstances import WORDS, several
from fuzzcompile.report.proof import get_diff

_LONGEST = 160  # characters of a value that is quoted
_CODE = 100  # characters of the user's lines that are quoted in place of many operators
_MOST = 3  # calls that are written out, and their keywords
_CALL = re.compile(r"^[-+]\s*\w+(?:: [^=]*)? = ([\w.]+(?: \w+)?)\((.*?)(?:\)| \.\.\.)$")
_KEYWORD = re.compile(r"\b(\w+)=(\[[^\]]*\]|\([^)]*\)|'[^']*'|[^,()\[\]]+)")
_BECAME = re.compile(r"(output \d+): (?:its own (?=became)|(\w+) (?=\())?")
_FLOAT = re.compile(r"-?\d+\.\d{5,}(?:e-?\d+)?")
# A value that is not known, or a place in the program.
_UNREADABLE = re.compile(r"\?|line \w+")
# What only arranges the values of other calls.
ARRANGING = frozenset(
    ("getitem", "permute", "expand", "view", "reshape", "transpose", "unsqueeze", "squeeze", "alias", "t", "detach")
)
# Keywords that say where and how a result is stored, not what it is.
_STORAGE = frozenset(("layout", "device", "type", "index", "pin_memory", "memory_format"))
# The compiler of generated code refused it; the kind of an error, the innermost that its message begins with.
_REFUSED = re.compile(r"\w*CompileError: (.+)", re.DOTALL)
_ERROR = re.compile(r"(?:\w+(?:Error|Exception): )*(\w+(?:Error|Exception))\b")
_NUMBER = re.compile(r"_\d+$")  # of a node, among those of one name
_ALIKE = re.compile(r" \(of \d+ changes before that call\)$")
_INSTEAD = " in its place"
_MOVED = 1e-10  # in units of a result's size: beyond rounding in float64


class _Call(NamedTuple):
    """A call in a graph: what is called, its arguments that are constants, and the names in all of them."""

    name: str
    keywords: tuple[str, ...]
    operands: tuple[str, ...]
    is_lowering: bool = False

    def __str__(self) -> str:
        given = ["…", *self.keywords[:_MOST], *["…"] * (len(self.keywords) > _MOST)]
        return f"`{self.name}({', '.join(given)})`"


def tell_mechanism(report: ReportJson) -> str:
    """Return the sentence; empty where no culprit is proved, or the evidence has no more than its name and place."""
    culprit, verdict = report.get("culprit") or None, report.get("verdict")
    if culprit is None or verdict == Verdict.EAGER_WRONG:
        return ""
    details = read_details(culprit)
    if (refused := _REFUSED.match(details.get("error") or "")) and details.get("operators"):
        written = f"The {details.get('code_generator')} code written for {_quote(details['operators'])}"
        return f"{written} does not compile: {_shorten(refused[1])}."  # nothing else has to prove that
    if not culprit.get("necessary"):
        return ""
    if verdict == Verdict.STALE:
        return _tell_guard(culprit)
    if details.get("diff"):
        return _tell_rewrite(report, culprit)
    told = _tell_kernel(culprit) if details.get("kernel") and verdict in VALUES else _tell_kind(report, culprit)
    return told or (_tell_error(report, culprit) if verdict in ERRORS else "")


def _tell_kind(report: ReportJson, culprit: CulpritJson) -> str:
    """Fill the form of the most special kind of evidence that there is one for."""
    details, forms = read_details(culprit), WORDS["mechanism"]
    kind, way = str(details.get("kind")), details.get("way")
    if kind == "values" and details.get("backward"):
        return ""  # a value of a backward pass is that for one gradient, which the reader's script may not have
    if "differs" in details and report["verdict"] == Verdict.WRONG_GRADIENT:
        return ""  # the functional graph was run for its values, and not differentiated
    if kind in ("value", "path") and not _is_of_one_call(details):
        return ""
    if kind == "numbers" and str(details.get("got")).startswith("result"):
        if (report.get("cause") or {}).get("computes") == "neighbour":
            return ""  # an argument is ignored, whatever was drawn
        kind = "drawn"  # and not the state of the generator after them
    special = [f"error {kind}"] if report["verdict"] in ERRORS else []
    special += [f"{way or culprit.get('stage')} {kind}", str(way), kind]
    form = next((forms[key] for key in special if key in forms), None)
    if form is None:
        return ""
    values = _Evidence(name=_name(culprit), what=WORDS["parted"].get(kind, kind), at=_name(culprit))
    if "written through" in details:  # the culprit is the view
        values["at"] = _quote(_NUMBER.sub("", node) for node in culprit.get("nodes") or ())
    if report["verdict"] in ERRORS and report.get("detail"):
        values["error"] = _shorten(report["detail"])
    for key in _QUOTED:
        if value := details.get(key) or (_ABSENT.get(key) if key in details else None):
            values[key.replace(" ", "_")] = _word_value(value)
    same = "got" in values and values["got"] == values.get("expected")
    sentence = str(form).format_map(values)
    return "" if values.lacks or same else sentence


def _is_of_one_call(details: DetailsJson) -> bool:
    """Return whether Python and dynamo are known to have something else in one call, and there is text of both."""
    texts = str(details.get("expected")), str(details.get("got"))
    return "traced call" in details and not any(map(_UNREADABLE.fullmatch, texts))


def _word_value(value: object) -> str:
    if isinstance(value, Mapping):
        return _join([f"{number} `{_shorten(name)}`" for name, number in value.items()])
    if not isinstance(value, list):
        return _shorten(str(value))
    if all(isinstance(each, int) for each in value):
        return str(tuple(value))
    return several([_shorten(str(each)) for each in value], ", ")


# What a form says where there are none.
_ABSENT = {"joint graph draws": "none", "its parts draw": "none"}
_QUOTED = (
    "expected",
    "got",
    "call",
    "differs",
    "a run shows",
    "effects",
    "saved",
    "shape",
    "strides",
    "joint graph draws",
    "its parts draw",
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


def _quote(names: Iterable[str]) -> str:
    return _join([f"`{scrub(name)}`" for name in names])


def list_fused(details: DetailsJson) -> list[str]:
    """List the operators in a kernel, each once, without those that only arrange values."""
    names = dict.fromkeys(_shorten_name(name.partition("@")[0]) for name in details.get("fused") or ())
    return [name for name in names if name not in ARRANGING]


def _tell_kernel(culprit: CulpritJson) -> str:
    """Tell what a kernel computes, with the value where it is worst, and without what it is right."""
    details = read_details(culprit)
    values, where = details.get("values") or {}, details.get("where")
    given = [f"{value:.4g}" if isinstance(value, float) else value for value in map(values.get, ("compiled", "eager"))]
    at = f" ({given[0]} for {given[1]}{f' at {where}' * bool(where)})" if None not in given else ""
    if not details.get("code_generator"):
        if culprit.get("stage") != CODEGEN:  # else it is a view that a library's kernel reads
            return ""
        reads = f"`{details['kernel']}` computes other values{at} from the view that {_name(culprit)} makes"
        return f"{reads}; from a copy of it, it is right."
    shown = [f"`{name}`" for name in list_fused(details)]
    text = f"The {details['code_generator']} kernel generated for {several(shown, ', ')} computes other values{at}"
    if culprit.get("stage") == LOWERING or not shown:  # the loops are wrong before they are code
        text = f"Lowered by Inductor, {_name(culprit)} gives other values{at}"
    if details.get("right_in_scalars"):
        return f"{text}; with `{details['right_in_scalars']}` in scalars it is right."
    if details.get("vectorised"):
        return f"{text}; in scalars it is right."
    if "dependences" in details:
        return f"{text}; with a kernel for each operator it is right."
    return f"{text}, in float64 too." if details.get("shown_in_float64") else f"{text}." if at else ""


def _tell_guard(culprit: CulpritJson) -> str:
    """Tell what changed between two calls, and what became of the guard that should have noticed."""
    details, forms = read_details(culprit), WORDS["guard"]
    changes = [_ALIKE.sub("", str(change)).partition(": ") for change in details.get("between_calls") or ()]
    guard = details.get("guard")
    if not changes or guard is None:
        return ""
    form = forms.get(guard) or forms["replaced"]
    changed = _join([f"`{scrub(name)}` ({_shorten(values)})" for name, _, values in changes])
    return str(form).format(guard=_name(culprit), instead=guard.removesuffix(_INSTEAD), changed=changed)


def _tell_error(report: ReportJson, culprit: CulpritJson) -> str:
    """Tell which function of the compiler raises, and what it was given."""
    details = read_details(culprit)
    error = _ERROR.match(details.get("error") or report.get("detail") or "")
    frames, name, given = details.get("raised"), culprit.get("rewrite"), ", ".join(details.get("given") or ())
    if error is None or not frames:
        return ""
    frame, functions = frames[0], [each["function"] for each in frames]
    caller = next((function for function in functions if function != functions[0]), None)
    return str(WORDS["mechanism"]["raised"]).format(
        error=f"`{error[1]}`",
        function=f"`{frame['function']}`",
        place=f"{scrub(frame['source'] or '?')}:{frame['line']}",
        given=f" with {_shorten(given)}" if given else "",
        caller=f", called from `{caller}`" if caller else "",
        during=f", for {_name(culprit)}" if name and name != frame["function"] else "",
    )


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
        moved = _tell_moved(lines, removed, added)
        sentence = f"{name} {moved}" if moved else f"{name} changes the order or the operands of {before}"
    else:
        sentence = f"{name} puts {after} in place of {before}" if added else f"{name} removes {before}"
    result = "; ".join(_iter_results(report, details, removed, added))
    return f"{sentence}{': ' * bool(result)}{result}."


_DTYPE = re.compile(r"^[-+ ]\s*(\w+): ([a-z]+)(\d+)\[")
_KINDS = {"f": "float", "bf": "bfloat", "i": "int", "u": "uint", "c": "complex"}


def _tell_moved(lines: Sequence[str], removed: Sequence[_Call], added: Sequence[_Call]) -> str:
    """The call that is made before another afterwards, which it followed, and dtypes of its operands that are new."""
    before, after = ([call.name for call in calls] for calls in (removed, added))
    orders = [(first, then) for at, first in enumerate(before) for then in before[at + 1 :] if then != first]
    last = {name: at for at, name in enumerate(after)}  # of each name
    moved = [pair for pair in orders if last[pair[1]] < after.index(pair[0])]
    if len(moved) != 1:
        return ""
    (first, then), defined = moved[0], [match for line in lines if (match := _DTYPE.match(line))]
    dtypes = {match[1]: _KINDS.get(match[2], "") + match[3] if match[2] != "b" else "bool" for match in defined}
    own, new = (
        {dtypes[name] for call in calls if call.name == then for name in call.operands if name in dtypes}
        for calls in (removed, added)
    )
    on = f", where it runs on {_join(sorted(new))} instead of {_join(sorted(own))}" if own and new - own else ""
    return f"puts `{then}(…)` before `{first}(…)`{on}"


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
            yield "the results of the two differ where they are infinite or NaN"
        elif cause.get("computes") == "neighbour" and cause.get("before") and cause.get("after"):
            yield f"that computes what eager mode gives with `{cause['after']}` in place of `{cause['before']}`"
        elif details.get("reordered"):
            yield "the result holds the same numbers in another order"
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
            operands = tuple(re.findall(r"\w+", match[2]))
            yield _Call(_shorten_name(match[1]), tuple(named), operands, match[1].startswith("lowering "))


def _shorten_name(target: str) -> str:
    """The operator of an overload, ``F.dropout`` of a function, any other name as it stands."""
    words = target.split(".")
    if words[0] in ("aten", "prims", "quantized_decomposed") and len(words) > 1:
        return words[1]
    return target.replace("torch.nn.functional.", "F.").replace("torch.functional.", "torch.").removeprefix("lowering ")


def _is_arranging(call: _Call) -> bool:
    return call.name.rpartition(".")[2] in ARRANGING


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
