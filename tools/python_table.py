"""Make the generator's table of calls of Python's own types.

    python tools/python_table.py [OUT.json]

For values of each type: its public methods, operators, builtins and statements, on arguments of a small pool, each
called here. A call is listed with the error that it raises, if any, and whether it changes its value; of those of one
method that end alike, the first. Left out are arguments of the wrong type (TypeError), results that differ from one
process to the next (addresses, hashes of strings, the identity of constants), and results that are no plain values.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import math
import os
import subprocess
import sys
import warnings
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Iterator
from functools import reduce
from operator import itemgetter
from pathlib import Path
from typing import Any

OUT = Path(__file__).parent.parent / "fuzzcompile" / "fuzz" / "stateful_programs" / "python_calls.json"
Size = namedtuple("Size", "rows columns")
# Expressions of values, by type.
VALUES = {
    "list": ("[3, 1, 2, 1]", "[]", '["key", "value"]'),
    "dict": ('{"scale": 2, "shift": 1}', "{}", "{1: 2, True: 3, (1, 2): 4}"),
    "set": ("{3, 1, 2}", "set()"),
    "frozenset": ("frozenset({3, 1, 2})",),
    "tuple": ("(3, 1, 2, 1)", "()", "(1, (2, 3))"),
    "str": ('"self_attn.q_proj"', '""', '"Layer 12"'),
    "bytes": ('b"abca"',),
    "int": ("7", "-3", "0"),
    "float": ("2.5", "-0.0", 'float("inf")'),
    "bool": ("True", "False"),
    "complex": ("1 + 2j",),
    "range": ("range(7)", "range(5, -5, -3)"),
    "slice": ("slice(1, 5, 2)",),
    "deque": ("deque([3, 1, 2])", "deque([1, 2], maxlen=2)"),
    "OrderedDict": ("OrderedDict(scale=2, shift=1)",),
    "defaultdict": ("defaultdict(list, scale=[2])",),
    "Counter": ('Counter("abca")',),
    "Size": ("Size(2, 3)",),
}
ARGUMENTS = ("", "1", "-1", "0", "7", '"scale"', '"a"', "None", "[1, 2]", "(1, 4)", "{2, 5}",
             '{"shift": 5}', '"1, 3"', '1, "a"', "0, 9", '"shift", 5', '".", 1', '"q", "k"', "1.5",
             "2, 3, 4", "10, 3", "{v}")  # fmt: skip
SYMBOLS = ("+", "-", "*", "/", "//", "%", "**", "<<", ">>", "&", "|", "^", "==", "!=", "<", "<=", "in",
           "not in", "is", "and", "or", "@")  # fmt: skip
OPERANDS = ("{v}", "1", "-2", "2.5", "True", '"a"', "[1, 2]", "(3, 1)", "{1, 4}", '{"scale": 5}',
            "None", "0")  # fmt: skip
SINGLE = ("None", "True", "{o}")
UNARY = ("-{o}", "+{o}", "~{o}", "not {o}", "abs({o})", "len({o})", "bool({o})", "str({o})",
         "repr({o})", "list({o})", "tuple({o})", "sorted({o})", "sorted({o}, reverse=True)",
         "sum({o})", "min({o})", "max({o}, default=-1)", "any({o})", "all({o})", "list(reversed({o}))",
         "list(enumerate({o}, 1))", "list(zip({o}, {o}))", "dict.fromkeys({o}, 1)", "next(iter({o}))",
         "next(iter({o}), None)", "int({o})", "float({o})", "complex({o})", "round({o})",
         "round({o}, 1)", "divmod({o}, 3)", "pow({o}, 2, 5)", "hash({o}) == hash({o})",
         "type({o}).__name__", "callable({o})", "isinstance({o}, (int, list))",
         "isinstance({o}, type({o}))", "issubclass(type({o}), tuple)", 'f"{{{o}}}"',
         'f"{{{o}!r:>12}}"', 'f"{{{o}:.3f}}"', 'f"{{{o}:04d}}"', '"%s and %s" % ({o}, 1)',
         '"{{}}-{{}}".format({o}, 2)', "[each for each in {o}]", "{{each for each in {o}}}",
         "{{each: 1 for each in {o}}}", "[each for each in {o} if each != 1]", "[*{o}, 9]",
         "{{**{o}, 'more': 1}}", "list(map(str, {o}))", "list(filter(None, {o}))",
         "reduce(lambda a, b: a + b, {o})", "sorted({o}, key=lambda each: -each)",
         "list(map(lambda a, b: a + b, {o}, {o}))", "list(itertools.chain({o}, [1]))", "list(itertools.islice({o}, 2))",
         "list(itertools.accumulate({o}))", "list(itertools.product({o}, repeat=2))", "{o}[0]", "{o}[-1]", "{o}[1:]",
         "{o}[::-1]", '{o}["scale"]', "{o}[9]", "{o}[0:2] == {o}[:2]",
         "(lambda first, *rest: rest)(*{o})", "dict(zip({o}, range(4)))", "copy.copy({o}) == {o}",
         "copy.deepcopy({o}) == {o}", "getattr({o}, 'missing', 5)", "hasattr({o}, '__len__')",
         "math.prod({o})", "math.isfinite({o})", "math.floor({o})", "math.gcd({o}, 6)",
         "itemgetter(0)({o})", "set({o})", "frozenset({o})", "str({o}).upper()",
         "(1 if {o} else 2)", "{o} == copy.copy({o})", "{o} is {o}")  # fmt: skip
STATEMENTS = ("{o} += {a}", "{o} -= {a}", "{o} *= {a}", "{o} |= {a}", "{o} &= {a}", "{o} ^= {a}",
              "{o} //= {a}", "{o} %= {a}", "{o} **= {a}", "{o}[0] = {a}", "{o}['scale'] = {a}",
              "{o}[1:3] = {a}", "del {o}[0]", "del {o}['scale']", "del {o}[:2]", "{o}['new'] = {a}",
              "{o}[::2] = {a}")  # fmt: skip
TAKEN = ("1", "-2", "[1, 2]", "(5,)", "{1, 4}", '{"shift": 5}', '"ab"', "2.5")
LEFT_OUT = {"__dict__", "from_bytes", "to_bytes", "fromhex", "hex", "encode", "decode", "maketrans", "translate"}
MOST = 3
HASH_SEEDS = range(6)
PLAIN = (int, float, bool, str, bytes, complex, type(None), list, tuple, dict, set, frozenset, range, slice, deque)


def main() -> None:
    """Make the table and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", default=OUT)
    parser.add_argument("--print", action="store_true", help="print the rows, for a process with another hash seed")
    given = parser.parse_args()
    if given.print:
        print(json.dumps(list(iter_rows())))
        return
    runs = [printed(seed) for seed in HASH_SEEDS]
    rows = formatted([row for row in runs[0] if all(row in others for others in runs[1:])])
    given.out.write_text(written(rows), encoding="utf-8")
    sys.stderr.write(f"{len(rows)} calls of {len(VALUES)} types\n")


def printed(seed: int) -> list[dict[str, Any]]:
    """The rows as a process with that hash seed makes them."""
    command, environment = [sys.executable, __file__, "--print"], {**os.environ, "PYTHONHASHSEED": str(seed)}
    again = subprocess.run(command, capture_output=True, check=True, text=True, env=environment)
    rows: list[dict[str, Any]] = json.loads(again.stdout)
    return rows


def formatted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, with their lines as ruff formats them."""
    text = "\n".join(row["line"].replace("{o}", "OBJECT") for row in rows)
    ruff = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", "200", "-"]
    lines = subprocess.run(ruff, input=text, capture_output=True, check=True, text=True).stdout.splitlines()
    return [{**row, "line": line.replace("OBJECT", "{o}")} for row, line in zip(rows, lines, strict=True)]


def written(rows: list[dict[str, Any]]) -> str:
    """JSON with a call a line, by value."""
    parts = []
    for (kind, value), calls in itertools.groupby(rows, key=lambda row: (row["type"], row["value"])):
        told = ({key: call[key] for key in ("line", "raises", "changes", "statement") if call[key]} for call in calls)
        lines = ",\n  ".join(map(json.dumps, told))
        parts.append(f'{{"type": {json.dumps(kind)}, "value": {json.dumps(value)}, "calls": [\n  {lines}]}}')
    return "[\n" + ",\n".join(parts) + "\n]\n"


def iter_rows() -> Iterator[dict[str, Any]]:
    """Each call: the type, the expression of its value, the line (``{o}`` is the value), what it raises and changes."""
    for kind, values in VALUES.items():
        for value in values:
            ended: Counter[tuple[str, str]] = Counter()
            for method, line in iter_lines(value):
                row = called(kind, value, line)
                key = (method, row["gives"].partition(" ")[0]) if row is not None else ("", "")
                if row is not None and not ended[key] and sum(ended[m, e] for m, e in ended if m == method) < MOST:
                    ended[key] += 1
                    yield row


def iter_lines(value: str) -> Iterator[tuple[str, str]]:
    """What is called, and the line."""
    for name in sorted(set(dir(evaluate(value))) - LEFT_OUT):
        if not name.startswith("_"):
            yield from ((name, f"{{o}}.{name}({argument})") for argument in ARGUMENTS)
    for symbol in SYMBOLS:
        # Whether equal constants are one object is left to Python.
        for operand in SINGLE if symbol == "is" else OPERANDS:
            yield symbol, f"{{o}} {symbol} {operand}"
            yield f"{symbol} of another", f"{operand} {symbol} {{o}}"
    yield from ((form, form) for form in UNARY)
    for statement in STATEMENTS:
        yield from ((statement, statement.replace("{a}", argument)) for argument in TAKEN)


def names() -> dict[str, Any]:
    """What the lines may name."""
    types = (OrderedDict, defaultdict, deque, Counter, Size)
    functions = {"copy": copy, "itertools": itertools, "math": math, "itemgetter": itemgetter, "reduce": reduce}
    return {**{each.__name__: each for each in types}, **functions}


def evaluate(text: str) -> Any:
    """The value of an expression."""
    return eval(text, names())


def called(kind: str, value: str, line: str) -> dict[str, Any] | None:
    """The row of a line; None where it is refused by Python's grammar or its result cannot be compared."""
    known, is_statement = names(), line in _STATED
    text = line.replace("{v}", value).replace("{{", "{").replace("}}", "}").replace("{o}", "OBJECT")
    known["OBJECT"] = evaluate(value)
    before, raises, result = repr(known["OBJECT"]), None, None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if is_statement:
                exec(text, known)
            else:
                result = eval(text, known)
    except (SyntaxError, TypeError):
        return None
    except Exception as error:  # it is what the line gives
        raises = type(error).__name__
    if not is_plain(result) or not is_ordered(known["OBJECT"]) or not is_ordered(result):
        return None
    changes = is_statement or repr(known["OBJECT"]) != before
    gives = raises or f"{type(result).__name__} {result!r}"
    return {"type": kind, "value": value, "line": text.replace("OBJECT", "{o}"), "raises": raises, "changes": changes,
            "statement": is_statement, "gives": gives}  # fmt: skip


_STATED = {statement.replace("{a}", argument) for statement in STATEMENTS for argument in TAKEN}


def is_plain(value: Any) -> bool:
    """Whether a value, and all in it, is of a type that can be compared."""
    if isinstance(value, dict):
        return all(map(is_plain, (*value, *value.values())))
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return len(value) < 40 and all(map(is_plain, value))
    return type(value) in PLAIN


def is_ordered(value: Any) -> bool:
    """Whether the text of a value is the same in each process: a set of several strings has any order."""
    if isinstance(value, (set, frozenset)) and len(value) > 1 and any(isinstance(item, str) for item in value):
        return False
    items = (*value, *value.values()) if isinstance(value, dict) else value
    return not isinstance(items, (list, tuple, set, frozenset, deque)) or all(map(is_ordered, items))


if __name__ == "__main__":
    main()
