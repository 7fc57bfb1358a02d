"""The source of a stateful program: its imports, definitions, classes, and ``run``. Nothing is drawn here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from fuzzcompile.fuzz.generation.spec import ClassText, StatefulProgram
from fuzzcompile.fuzz.stateful_programs.rows import load_definitions


def uses_name(text: str, name: str) -> bool:
    """Return whether Python text uses a name on its own, and not as an attribute, a keyword or within a string."""
    return re.search(rf"(?<![\w.\"']){name}\b(?!=|[\"'])", text) is not None


def list_definitions(texts: Iterable[str]) -> list[str]:
    """The definitions that these texts use, and those that they use in turn, in the order of the table."""
    known, joined = load_definitions()[1], "\n".join(texts)
    needed: list[str] = []
    for name, text in reversed(known.items()):
        if uses_name(joined, name):
            joined += f"\n{text}"
            needed.append(text.strip())
    return needed[::-1]


def list_imports(texts: Iterable[str]) -> list[str]:
    """The lines that import what these texts use of Python's own library, sorted as ruff sorts them."""
    joined = "\n".join(texts)
    used = {name: module for name, module in load_definitions()[0].items() if uses_name(joined, name)}
    plain = sorted(f"import {name}" for name, module in used.items() if not module)
    modules: dict[str, list[str]] = {}
    for name, module in used.items():
        if module:
            modules.setdefault(module, []).append(name)
    for names in modules.values():
        names.sort(key=lambda name: (not name[0].isupper(), name))
    return [*plain, *(f"from {module} import {', '.join(modules[module])}" for module in sorted(modules))]


def render_state(
    state: StatefulProgram,
    arguments: Sequence[str],
    parameters: Sequence[str],
    statements: Sequence[str],
    outputs: Sequence[str],
) -> list[str]:
    """The definitions and classes of a case, each a text; the last is ``Model`` or the function ``program``.

    ``parameters`` are statements that make them, ``statements`` and ``outputs`` are those of the operator program that
    follows.
    """
    ends = [*state.model.forward, *statements, f"return {_format_outputs(state, outputs)}"]
    if state.plain:
        main = [f"def program({', '.join(arguments)}):", *_indent(separate(ends))]
    else:
        model = ClassText((*parameters, *state.model.init), state.model.body, state.model.methods, tuple(ends))
        main = _write_class("Model", model, arguments)
    layer = ClassText(*(state.layer.init, state.layer.body, state.layer.methods), (*state.layer.forward, "return x"))
    texts = ["\n".join(lines) for lines in state.module]
    if state.fields:
        texts.append("\n".join(["@dataclass", "class Config:", *_indent(state.fields)]))
    if state.layer.forward:
        texts.append("\n".join(_write_class("Layer", layer, ["x"])))
    texts.append("\n".join(main))
    if state.prepare:
        texts.append("\n".join(state.prepare))
    return [*list_definitions([*texts, *state.run, *state.reset]), *texts]


def _format_outputs(state: StatefulProgram, outputs: Sequence[str]) -> str:
    """What the forward pass returns, as models of transformers name it: the first output, and the others."""
    first, others = outputs[0], ", ".join(outputs[1:]) + "," * (len(outputs) == 2)
    if state.returns == "dataclass":
        return f"Output({first}, ({others}))" if others else f"Output({first})"
    if state.returns == "dict":
        return f'{{"last_hidden_state": {first}' + (f', "hidden_states": ({others})}}' if others else "}")
    return f"[{', '.join(outputs)}]" if state.returns == "list" else ", ".join(outputs)


def render_run(state: StatefulProgram) -> str:
    """The body of ``run``."""
    assigned = [name for name in state.globals if any(re.match(rf"\s*{name}\s*\W?=[^=]", line) for line in state.run)]
    return "\n".join([*(f"global {name}" for name in assigned), *state.run])


def render_reset(state: StatefulProgram) -> list[str]:
    """What ``make`` sets back: statements, the names of globals before them."""
    return [*(f"global {name}" for name in state.globals), *state.reset]


def _write_class(name: str, text: ClassText, arguments: Sequence[str]) -> list[str]:
    members: list[list[str]] = [list(text.body)] if text.body else []
    if text.init:
        members.append(["def __init__(self):", "    super().__init__()", *_indent(text.init)])
    if text.methods:
        members.append(list(text.methods))
    members.append([f"def forward(self, {', '.join(arguments)}):", *_indent(separate(text.forward))])
    lines = [line for number, member in enumerate(members) for line in ([""] if number else []) + member]
    return [f"class {name}(nn.Module):", *_indent(separate(lines))]


def _indent(lines: Iterable[str]) -> Iterator[str]:
    return (f"    {line}" if line else "" for line in lines)


def separate(lines: Iterable[str]) -> list[str]:
    """The lines with an empty one before and after each inner function or class, as ruff formats them."""
    kept: list[str] = []
    for line in lines:
        defines = line.lstrip().startswith(("def ", "class ", "@"))
        opened = not kept or kept[-1].endswith(":") or kept[-1].lstrip().startswith("@")
        if defines and not opened and kept[-1]:
            kept.append("")
        kept.append(line)
    return kept
