"""What the source of a reproducer says of a program: its settings, and the operation that it shows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_LONGEST = 70  # characters of an expression in a title
# Settings that make eager and compiled comparable, and change nothing else.
_NEUTRAL = ("fallback_random",)


@dataclass(frozen=True)
class Setting:
    """How a case is compiled and run, as its module-level names say (ARCHITECTURE.md, "Contracts")."""

    opt_ins: tuple[str, ...] = ()
    backward: bool = False
    grad: str | None = None
    calls: bool = False


def setting_of(source: str | None) -> Setting | None:
    """The settings of a case file; None for a user's own script, and for what cannot be read."""
    module = _parsed(source or "")
    if module is None or not any(isinstance(node, ast.FunctionDef) and node.name == "make" for node in module):
        return None
    values = dict(_constants(module))
    return Setting(
        tuple(_opt_ins(values)),
        backward=bool(values.get("BACKWARD")),
        grad=str(values["GRAD"]) if values.get("GRAD") else None,
        calls="CALLS" in values,
    )


def expression_of(source: str | None, operator: str | None = None) -> str | None:
    """The last short expression of a reproducer's function ``program``; of those that call ``operator``, if any do."""
    for node in _parsed(source or "") or ():
        if isinstance(node, ast.FunctionDef) and node.name == "program":
            codes = [code for part in node.body if (code := short(ast.unparse(part))) and not code.isidentifier()]
            return next(
                (code for code in reversed(codes) if operator and operator in code), codes[-1] if codes else None
            )
    return None


def short(code: str) -> str | None:
    """The expression of a line of code, without what it is assigned to; None if it is long or is none."""
    text = re.sub(r"^(return\s+|[\w., ]+ = )", "", code.strip())
    return text if text and "\n" not in text and len(text) <= _LONGEST else None


def case_part(source: str | None) -> str:
    """The source of a reproducer without its docstring and without the part that runs and checks it."""
    body, _, _ = (source or "").partition("\nif __name__ == ")
    return re.sub(r'\A\s*("""|\'\'\').*?\1\n', "", body, flags=re.DOTALL).strip()


def _parsed(source: str) -> list[ast.stmt] | None:
    try:
        return ast.parse(source).body
    except (SyntaxError, ValueError):
        return None


def _constants(module: list[ast.stmt]) -> Iterator[tuple[str, object]]:
    for node in module:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper():
            try:
                yield node.targets[0].id, ast.literal_eval(node.value)
            except ValueError:
                yield node.targets[0].id, True  # tensors, as in CALLS


def _opt_ins(values: Mapping[str, object]) -> Iterator[str]:
    """What a user writes to get these settings."""
    for key, value in _items(values.get("OPTIONS")):
        yield f"options={{{key!r}: {value!r}}}"
    for area, settings in _items(values.get("CONFIG")):
        yield from (f"torch._{area}.config.{key} = {value!r}" for key, value in _items(settings))
    if values.get("MODE"):
        yield f"mode={values['MODE']!r}"
    if values.get("PATH"):
        yield {"export": "torch.export.export", "aoti": "torch._inductor.aoti_compile_and_package"}.get(
            str(values["PATH"]), "torch.compile"
        )
    if values.get("DYNAMIC"):
        yield "dynamic=True"


def _items(value: object) -> list[tuple[str, object]]:
    return [(str(key), item) for key, item in value.items() if key not in _NEUTRAL] if isinstance(value, dict) else []
