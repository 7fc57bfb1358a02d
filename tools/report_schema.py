"""Write what docs say of the report from its types: docs/report.schema.json, and the tables of docs/machines.md.

    python tools/report_schema.py           # write both
    python tools/report_schema.py --check   # exit with 1 where one of them says something else

The types are those of fuzzcompile/model/contract.py and culprit_contract.py; the comment at a key says
what it means. A table stands between ``<!-- keys of TYPE -->`` and ``<!-- end of keys -->``.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from fuzzcompile.model import contract, culprit_contract

REPOSITORY = Path(__file__).resolve().parents[1]
SCHEMA, PAGE = REPOSITORY / "docs" / "report.schema.json", REPOSITORY / "docs" / "machines.md"
_TABLE = re.compile(r"(<!-- keys of (?P<type>\w+) -->\n).*?(<!-- end of keys -->)", re.DOTALL)


def read_meanings(kind: type) -> dict[str, str]:
    """Map each key of a type to its comment: that on its line, or on the lines above it.

    A key without one has that of the key above, unless some comment of the type tells of it by its name.
    """
    lines = inspect.getsource(sys.modules[kind.__module__]).splitlines()
    named = [node for node in ast.parse("\n".join(lines)).body if _defines(node, kind.__name__)]
    keys = {
        ast.literal_eval(key) if isinstance(key, ast.Constant) else ast.unparse(key): (
            key.lineno,
            value.end_lineno or 0,
        )
        for node in ast.walk(named[0])
        for key, value in _list_keys(node)
    }
    meanings: dict[str, str] = {}
    for key, (first, last) in keys.items():
        above = list(takewhile(lambda line: line.strip().startswith("#"), reversed(lines[: first - 1])))
        beside = lines[last - 1].partition("  # ")[2]
        text = beside or " ".join(line.strip("# ") for line in reversed(above))
        meanings[key] = f"{text}." if text and not text.endswith(".") else text
    told = " ".join([*meanings.values(), inspect.cleandoc(kind.__doc__ or "")])
    above_it = ""
    for key, text in meanings.items():
        above_it = text or ("" if f"``{key}``" in told else above_it)
        meanings[key] = above_it
    return {key: text for key, text in meanings.items() if text}


def _defines(node: ast.stmt, name: str) -> bool:
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    names = {node.name} if isinstance(node, ast.ClassDef) else {target.id} if isinstance(target, ast.Name) else set()
    return name in names


def _list_keys(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(node, ast.AnnAssign):
        yield node.target, node.annotation
    elif isinstance(node, ast.Dict):
        yield from ((key, value) for key, value in zip(node.keys, node.values, strict=True) if key is not None)


def make_schema() -> dict[str, Any]:
    """Return the JSON schema of a report, with the meaning of each key."""
    schema = msgspec.json.schema(contract.ReportJson, schema_hook=lambda _: {"description": "any JSON value"})
    for name, described in schema["$defs"].items():
        kind = find_type(name)
        described["description"] = inspect.cleandoc(kind.__doc__ or "").splitlines()[0]
        for key, meaning in read_meanings(kind).items():
            described["properties"][key]["description"] = meaning.replace("``", "`")
    schema["$defs"]["ReportJson"]["required"] = list(contract.CORE)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A report of fuzzcompile", **schema}


def find_type(name: str) -> type:
    """Return the type of the contract with this name."""
    kind: type = getattr(contract, name, None) or getattr(culprit_contract, name)
    return kind


def make_table(kind: type) -> str:
    """Return the keys of a type with their types and meanings as a table in Markdown."""
    meanings, rows = read_meanings(kind), ["| key | type | meaning |", "|---|---|---|"]
    for key, hint in get_type_hints(kind).items():
        rows.append(f"| `{key}` | {describe_type(hint)} | {meanings.get(key, '').replace('``', '`')} |")
    return "\n".join(rows)


def describe_type(hint: Any) -> str:
    """Return a type in the words of JSON."""
    text = str(hint) if not isinstance(hint, type) or hasattr(hint, "__args__") else hint.__name__
    text = re.sub(r"\b\w+(?:\.\w+)+\.(\w+)", r"\1", text).replace("collections.abc.", "").replace("NoneType", "None")
    words = {"None": "null", "str": "string", "int": "integer", "float": "number", "bool": "boolean", "dict": "object"}
    text = re.sub(r"Mapping", "dict", text)
    text = re.sub(r"\w+", lambda word: words.get(word[0], word[0]), text)
    return text.replace(" | ", " or ").replace("object[string, object]", "object").removesuffix("Json")


def make_page(text: str) -> str:
    """Return a page with its tables written anew."""
    return _TABLE.sub(lambda match: f"{match[1]}{make_table(find_type(match['type']))}\n{match[3]}", text)


def main() -> int:
    """Write both files, or compare them with what is there."""
    wanted = {
        SCHEMA: json.dumps(make_schema(), indent=1) + "\n",
        PAGE: make_page(PAGE.read_text(encoding="utf-8")),
    }
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(REPOSITORY)} is not what the types say; run python tools/report_schema.py")
        return int(bool(stale))
    for path in stale:
        path.write_text(wanted[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
