"""The parts of a case file beside its program: how it is compiled and called, and what it is made of."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from dataclasses import replace

from fuzzcompile.generation.inputs import inputs_of
from fuzzcompile.generation.spec import Call, CaseSpec
from fuzzcompile.generation.toggles import config, options
from fuzzcompile.sides import COMPILE


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
    compile_options = options(how.toggles)
    configs = {"inductor": config(how.toggles), "dynamo": dict.fromkeys(_CAPTURE, True) if how.captured else {}}
    configs = {name: entries for name, entries in configs.items() if entries}
    settings = [
        ("GRAD", f'"{how.grad}"' if how.grad else ""),
        ("BACKWARD", "True" if spec.backward else ""),
        ("OPTIONS", _dictionary(compile_options, "") if compile_options else ""),
        ("CONFIG", _dictionary(configs, "") if configs else ""),
        ("MODE", f'"{how.mode}"' if how.mode else ""),
        ("DYNAMIC", "" if how.dynamic is None else str(how.dynamic)),
        ("FULLGRAPH", "True" if how.fullgraph else ""),
        ("PATH", f'"{how.path}"' if how.path != COMPILE else ""),
    ]
    return [(name, expression) for name, expression in settings if expression]


def _constant(value: object) -> str:
    """A constant in Python, with the quotes that a formatter would give it."""
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _dictionary(values: Mapping[str, object], indent: str) -> str:
    """A dictionary with one entry a line."""
    if not values:
        return "{}"
    inner = indent + "    "
    entries = [
        f'{inner}"{key}": {_dictionary(value, inner) if isinstance(value, Mapping) else _constant(value)},\n'
        for key, value in values.items()
    ]
    return "{\n" + "".join(entries) + indent + "}"


def calls_of(spec: CaseSpec) -> str:
    """The inputs of the further calls."""
    if not spec.compile.calls:
        return ""
    return "[\n" + "".join(_call(spec, call) for call in spec.compile.calls) + "]"


def _call(spec: CaseSpec, call: Call) -> str:
    """The inputs of one call, as an entry of a list."""
    spec = replace(spec, inputs=call.inputs, backward=spec.backward or call.grad)
    inputs = inputs_of(spec, call.dims(spec.dims))
    if len(inputs) == 1:
        return f"    ({inputs[0][1]},),\n"
    names = dict(inputs)
    entries = [f"        {names.get(expression, expression)},\n" for _, expression in inputs]
    return "    (\n" + "".join(entries) + "    ),\n"


def driver_of(spec: CaseSpec) -> str:
    """The body of ``run``, where the case is not simply called."""
    how, call = spec.compile, "return model(*inputs)"
    if how.autocast is not None:
        call = f"with torch.autocast(inputs[0].device.type, dtype=torch.{how.autocast}):\n    {call}"
    if how.mark is not None:
        call = f"torch._dynamo.decorators.{how.mark}(inputs[0], 0)\n{call}"
    return "" if call == "return model(*inputs)" else call


# Numbers, and tensors of sizes, that depend on what a tensor holds stay in the graph.
_CAPTURE = ("capture_scalar_outputs", "capture_dynamic_output_shape_ops")
