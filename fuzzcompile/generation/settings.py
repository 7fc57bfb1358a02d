"""What a case file says beside its program: how it is compiled and called, and what it is made of."""

from __future__ import annotations

import textwrap
from typing import Any

from fuzzcompile.generation.inputs import inputs_of
from fuzzcompile.generation.spec import CaseSpec, Dims
from fuzzcompile.generation.toggles import config, options


def description(spec: CaseSpec) -> str:
    """The names of all that made the case, for its docstring."""
    lines = ["A generated case.", ""]
    for title, found in (("Idioms", spec.idioms), ("Near misses", spec.near_misses), ("Choices", spec.choices)):
        text = f"{title}: {', '.join(found) or 'none'}."
        lines += textwrap.wrap(text, 99, break_long_words=False)
    return "\n".join([*lines, ""])


def settings_of(spec: CaseSpec) -> list[tuple[str, str]]:
    """What stands at the top of the file and says how the case is compiled and called."""
    how = spec.compile
    given, around = options(how.toggles), config(how.toggles)
    settings = [
        ("GRAD", f'"{how.grad}"' if how.grad else ""),
        ("BACKWARD", "True" if spec.backward else ""),
        ("OPTIONS", _dictionary(given, "") if given else ""),
        ("CONFIG", _dictionary({"inductor": around}, "") if around else ""),
        ("MODE", f'"{how.mode}"' if how.mode else ""),
        ("DYNAMIC", "" if how.dynamic is None else str(how.dynamic)),
        ("FULLGRAPH", "True" if how.fullgraph else ""),
    ]
    return [(name, expression) for name, expression in settings if expression]


def _dictionary(values: dict[str, Any], indent: str) -> str:
    """A dictionary with one entry a line."""
    if not values:
        return "{}"
    inner = indent + "    "
    entries = [
        f'{inner}"{key}": {_dictionary(value, inner) if isinstance(value, dict) else repr(value)},\n'
        for key, value in values.items()
    ]
    return "{\n" + "".join(entries) + indent + "}"


def calls_of(spec: CaseSpec) -> str:
    """The inputs of the second call."""
    if spec.compile.second is None:
        return ""
    batch, sequence = spec.compile.second
    made = inputs_of(spec, Dims(batch, sequence, spec.dims.heads, spec.dims.head_dim, spec.dims.source))
    if len(made) == 1:
        return f"[\n    ({made[0][1]},),\n]"
    names = dict(made)
    entries = [f"        {names.get(expression, expression)},\n" for _, expression in made]
    return "[\n    (\n" + "".join(entries) + "    ),\n]"


def driver_of(spec: CaseSpec) -> str:
    """The body of ``run``, where the case is not simply called."""
    if spec.compile.autocast is None:
        return ""
    where = "inputs[0].device.type"
    return f"with torch.autocast({where}, dtype=torch.{spec.compile.autocast}):\n    return model(*inputs)"
