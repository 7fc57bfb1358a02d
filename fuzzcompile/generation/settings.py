"""The parts of a case file beside its program: how it is compiled and called, and what it is made of."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from fuzzcompile.generation.inputs import inputs_of
from fuzzcompile.generation.spec import CaseSpec, Dims
from fuzzcompile.generation.toggles import config, options


def description(spec: CaseSpec) -> str:
    """The names of the idioms, near misses and choices in the case, for its docstring."""
    lines = ["A generated case.", ""]
    parts = (("Idioms", spec.idioms), ("Near misses", spec.near_misses), ("Operators", spec.operators))
    for title, names in (*parts, ("Choices", spec.choices)):
        text = f"{title}: {', '.join(names) or 'none'}."
        lines += textwrap.wrap(text, 99, break_long_words=False)
    return "\n".join([*lines, ""])


def settings_of(spec: CaseSpec) -> list[tuple[str, str]]:
    """The names and expressions at the top of the file that say how the case is compiled and called."""
    how = spec.compile
    compile_options, inductor = options(how.toggles), config(how.toggles)
    settings = [
        ("GRAD", f'"{how.grad}"' if how.grad else ""),
        ("BACKWARD", "True" if spec.backward else ""),
        ("OPTIONS", _dictionary(compile_options, "") if compile_options else ""),
        ("CONFIG", _dictionary({"inductor": inductor}, "") if inductor else ""),
        ("MODE", f'"{how.mode}"' if how.mode else ""),
        ("DYNAMIC", "" if how.dynamic is None else str(how.dynamic)),
        ("FULLGRAPH", "True" if how.fullgraph else ""),
    ]
    return [(name, expression) for name, expression in settings if expression]


def _dictionary(values: Mapping[str, object], indent: str) -> str:
    """A dictionary with one entry a line."""
    if not values:
        return "{}"
    inner = indent + "    "
    entries = [
        f'{inner}"{key}": {_dictionary(value, inner) if isinstance(value, Mapping) else repr(value)},\n'
        for key, value in values.items()
    ]
    return "{\n" + "".join(entries) + indent + "}"


def calls_of(spec: CaseSpec) -> str:
    """The inputs of the second call."""
    if spec.compile.second is None:
        return ""
    batch, sequence = spec.compile.second
    inputs = inputs_of(spec, Dims(batch, sequence, spec.dims.heads, spec.dims.head_dim, spec.dims.source))
    if len(inputs) == 1:
        return f"[\n    ({inputs[0][1]},),\n]"
    names = dict(inputs)
    entries = [f"        {names.get(expression, expression)},\n" for _, expression in inputs]
    return "[\n    (\n" + "".join(entries) + "    ),\n]"


def driver_of(spec: CaseSpec) -> str:
    """The body of ``run``, where the case is not simply called."""
    if spec.compile.autocast is None:
        return ""
    where = "inputs[0].device.type"
    return f"with torch.autocast({where}, dtype=torch.{spec.compile.autocast}):\n    return model(*inputs)"
