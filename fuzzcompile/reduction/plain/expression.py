"""The operation at fault, as a user writes it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fuzzcompile.contract import ReportJson
from fuzzcompile.reduction.plain.folding import inlined, last_grown, renamed, unwrapped
from fuzzcompile.reduction.plain.pieces import Pieces, pieces_of
from fuzzcompile.reduction.plain.script import kinds_of
from fuzzcompile.reduction.scripts.comparing import Script

_WIDTH = 76
_LINE = re.compile(r":(\d+)")


def expression_at_fault(source: str, chosen: Script, report: ReportJson) -> str | None:
    """Return the expression at the culprit's site, else one that its name mentions, of at most some 76 characters.

    Without either it is the expression that is returned.

    Args:
        source: the text that was judged; the culprit's site is a line of it.
        chosen: how its case is run.
        report: the report.
    """
    pieces = pieces_of(chosen.drive.source)
    number = _statement_of(pieces, source, str((report.get("culprit") or {}).get("site") or ""))
    function = renamed(unwrapped(pieces), kinds_of(chosen)).function
    if function is None:
        return None
    body = list(function.body)
    place = number if number is not None and _computes(body[number]) else _named(body, report)
    return next((text for text in _expressions(body, place) if len(text) <= _WIDTH), None)


def _expressions(body: list[ast.stmt], place: int) -> Iterator[str]:
    """Texts for the statement at ``place``, the longest first."""
    whole = inlined(body)
    if len(whole) == 1:
        yield _value(whole[0])
    yield _value(last_grown(body[: place + 1], _WIDTH + len("return ")))
    plain = _value(body[place])
    yield plain
    calls = [node for node in ast.walk(body[place]) if isinstance(node, ast.Call)]
    if calls:
        yield f"{ast.unparse(calls[0].func)}(...)"
    yield f"{plain[: _WIDTH - 3]}..."


def _named(body: list[ast.stmt], report: ReportJson) -> int:
    """The number of the last statement that calls something by a name out of the culprit's; else of the last one."""
    culprit = report.get("culprit") or {}
    said = f"{culprit.get('rewrite')} {culprit.get('family')} {culprit.get('pass')}".lower()
    for place in reversed(range(len(body))):
        calls = [
            ast.unparse(node.func).rpartition(".")[2] for node in ast.walk(body[place]) if isinstance(node, ast.Call)
        ]
        if any(len(name) > 2 and name.lower() in said for name in calls):
            return place
    return len(body) - 1


def _computes(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Call | ast.BinOp | ast.AugAssign) for node in ast.walk(statement))


def _value(statement: ast.stmt) -> str:
    value = getattr(statement, "value", None)
    text = ast.unparse(value if isinstance(value, ast.expr) and not isinstance(statement, ast.AugAssign) else statement)
    return text[1:-1] if isinstance(value, ast.Tuple) and value.elts else text


def _statement_of(pieces: Pieces, source: str, site: str) -> int | None:
    """The number of the compiled function's statement at a site; None if it is not in that function."""
    line = _LINE.search(site)
    lines = source.splitlines()
    function = unwrapped(pieces).function
    if line is None or function is None or not 0 < int(line[1]) <= len(lines):
        return None
    try:
        wanted = ast.unparse(ast.parse(lines[int(line[1]) - 1].strip().replace("self.", "")))
    except SyntaxError:
        return None
    texts = [ast.unparse(statement).replace("self.", "") for statement in function.body]
    return texts.index(wanted) if wanted in texts else None
