"""Plain scripts: a case's program, inputs, compile and check as straight code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.culprit_contract import read_details
from fuzzcompile.programs.ir.case_source import format_literal
from fuzzcompile.programs.ir.case_text import find_bound_names
from fuzzcompile.programs.scripts.plain_checks import CallText, ScriptCheck, generate_checks
from fuzzcompile.programs.scripts.script_plan import ScriptPlan
from fuzzcompile.programs.scripts.straight_code import (
    Pieces,
    call_directly,
    find_names,
    fold_values,
    get_variable,
    rename_for_users,
    split_case,
    unwrap_module,
)

# Sources of code that runs on a CPU only, by words of their paths.
_CPU_SOURCES = ("cpp", "mkldnn", "onednn", "/cpu")


def may_show_on_cuda(report: ReportJson) -> bool:
    """Return whether the culprit of a report may be at work on a GPU too."""
    culprit = report.get("culprit") or {}
    named = f"{culprit.get('source') or ''} {culprit.get('rewrite') or ''} {culprit.get('family') or ''}".lower()
    return not any(word in named for word in _CPU_SOURCES) and "aten_kernel" not in read_details(culprit)


_WIDTH = 100
_ASSIGNED_WIDTH = 76
# What makes modules, whose parameters ask for gradients.
_MODULES = re.compile(r"\bnn\.(?!functional|Module\b)")


@dataclass(frozen=True)
class PlainScript:
    """A script for an issue: straight code that ends in one check.

    ``chosen`` says how the case is run and what is compared; ``check`` how this script shows it. With ``cuda`` it runs
    on a GPU.
    """

    chosen: ScriptPlan
    pieces: Pieces
    calls: CallText
    check: ScriptCheck
    cuda: bool = False

    def text(self, backend: str = "inductor") -> str:
        """The script; compiled with another backend than Inductor ("off": not at all)."""
        definitions = [part for node in self.pieces.definitions for part in ("", *_unparse_lines(node))]
        before, compiled = self._format_compile(backend)
        lines = self._enclose(self.check.lines)
        used = [line for line in lines if re.search(r"\bcompiled\(", line)]
        looped = any(line.lstrip().startswith("for ") for line in lines)
        if len(used) == 1 and not looped and len(used[0]) + len(compiled) < _WIDTH:
            lines = [re.sub(r"\bcompiled\(", lambda _: f"{compiled}(", line) for line in lines]
        else:
            before.append(f"compiled = {compiled}")
        moved = ["", 'torch.set_default_device("cuda")'] if self.cuda else []
        body = [*self._format_setup(), *before, *lines]
        return "\n".join([*self._imports([*definitions, *body]), *moved, *definitions, "", *body]) + "\n"

    def _format_compile(self, backend: str) -> tuple[list[str], str]:
        """The call of ``torch.compile``, and the lines that it needs before it."""
        settings, lines = self.chosen.probe.case.settings, []
        arguments = [self.calls.callee]
        if backend != "inductor":
            arguments.append("disable=True" if backend == "off" else f'backend="{backend}"')
        elif settings.mode:
            arguments.append(f'mode="{settings.mode}"')
        if settings.options and backend == "inductor":
            options = format_literal(dict(settings.options)).replace("'", '"')
            wide = len(options) + 30 > _WIDTH
            lines = [f"options = {options}"] if wide else []
            arguments.append("options=options" if wide else f"options={options}")
        if settings.dynamic is not None:
            arguments.append(f"dynamic={settings.dynamic}")
        if settings.fullgraph:
            arguments.append("fullgraph=True")
        return lines, f"torch.compile({', '.join(arguments)})"

    def _enclose(self, check: Sequence[str]) -> list[str]:
        probe, grad = self.chosen.probe, self.chosen.probe.case.grad
        recorded = [*probe.tensor_inputs, *(probe.model.parameters() if isinstance(probe.model, nn.Module) else ())]
        records = any(x.requires_grad for x in recorded) or _MODULES.search(self.chosen.source) is not None
        if grad == "enabled" or (grad == "no_grad" and not records):
            return list(check)
        return [f"with torch.{grad}():", *(f"    {line}" for line in check)]

    def _imports(self, lines: Sequence[str]) -> list[str]:
        configs = self.chosen.probe.case.settings.config_patches
        text = "\n".join(lines)
        made = [
            ast.unparse(node)
            for node in self.pieces.imports
            if any(re.search(rf"\b{name}\b", text) for name in find_bound_names(ast.unparse(node)))
        ]
        entries = [(name, key, value) for name, held in configs.items() for key, value in held.items()]
        if self.chosen.probe.random and self.check.kind == "asserts":
            entries.append(("inductor", "fallback_random", True))
        copied = ["import copy"] if "copy." in text else []
        torch_first = [] if "import torch" in made else ["import torch"]
        modules = [f"import torch._{name}.config" for name, *_ in entries]
        settings = [f"torch._{name}.config.{key} = {format_literal(value)}" for name, key, value in entries]
        imports = [*copied, *torch_first, *made, *modules, *self.check.imports]
        return [*dict.fromkeys(imports), *([""] if settings else []), *settings]

    def _format_setup(self) -> list[str]:
        lines = [line for node in self.pieces.setup for line in _unparse_lines(node)]
        lines += self.check.setup
        drawn = self.chosen.probe.is_module or any(re.search(r"\brand|nn\.|normal_|uniform_", x) for x in lines)
        seeds = [line for line in lines if line.startswith("torch.manual_seed(")]
        if not (drawn and self.check.seeded):
            return [line for line in lines if line not in seeds]
        # Before anything that draws: modules may stand in front of the line that seeded the inputs.
        return [*(seeds[:1] or ["torch.manual_seed(0)"]), *(line for line in lines if line not in seeds[:1])]


def generate_plain_scripts(chosen: ScriptPlan) -> Iterator[PlainScript]:
    """The plain scripts of a case, the shortest first: not every one of them shows the bug."""
    pieces = split_case(chosen.source)
    renamed = rename_for_users(unwrap_module(pieces), choose_input_kinds(chosen))
    made = set()
    for number, shape in enumerate((call_directly(fold_values(renamed)), renamed, pieces)):
        calls, shaped = _make_calls(chosen, shape, pieces)
        for check in generate_checks(chosen, calls):
            plain = PlainScript(chosen, shaped, calls, check)
            text = plain.text()
            if text not in made:
                made.add(text)
                yield plain
            if number == 1:
                break


def choose_input_kinds(chosen: ScriptPlan) -> list[str]:
    """Return base names for inputs without a name of their own: "" for any letter."""
    first = chosen.probe.inputs[0]
    kinds = {torch.bool: "mask", torch.int64: "index", torch.int32: "index"}
    values = first if isinstance(first, tuple) else ()
    return [kinds.get(value.dtype, "") if isinstance(value, torch.Tensor) else "" for value in values]


def _make_calls(chosen: ScriptPlan, pieces: Pieces, original: Pieces) -> tuple[CallText, Pieces]:
    arguments, setup, probe = pieces.arguments, list(pieces.setup), chosen.probe
    runs = probe.case.run is not None
    held = frozenset(map(get_variable, setup)) - frozenset(map(get_variable, original.setup)) - {""}
    callee = pieces.callee.id if isinstance(pieces.callee, ast.Name) else "model"
    if not isinstance(pieces.callee, ast.Name):
        setup.append(_assign("model", pieces.callee))
    if chosen.calls or not isinstance(arguments, ast.Tuple):
        if not (isinstance(arguments, ast.Name) and arguments.id == "inputs"):
            setup.append(_assign("inputs", arguments))
        return CallText(callee, ["inputs"], probe.star or " ", runs, held), replace(pieces, setup=setup)
    names, taken = [], find_names([*pieces.imports, *pieces.definitions, *setup])
    fresh = (name for name in "xyzwuvabcdefgh" if name not in taken)
    new = []
    for place, value in enumerate(arguments.elts):
        if isinstance(value, ast.Name | ast.Constant):
            names.append(ast.unparse(value))
            continue
        names.append(pieces.parameters[place] if place < len(pieces.parameters) else next(fresh))
        new.append((names[-1], value))
    return CallText(callee, names, "", runs, held), replace(pieces, setup=[*setup, *_assign_inputs(new)])


def _assign_inputs(new: Sequence[tuple[str, ast.expr]]) -> list[ast.stmt]:
    """Assignments of some inputs: on one line if that is short."""
    names, values = ", ".join(name for name, _ in new), [ast.unparse(value) for _, value in new]
    line = f"{names} = {', '.join(values)}"
    if len(line) > _ASSIGNED_WIDTH and len(set(values)) == 1:
        line = f"{names} = ({values[0]} for _ in range({len(new)}))"
    if len(new) > 1 and len(line) <= _ASSIGNED_WIDTH:
        return ast.parse(line).body
    return [_assign(*pair) for pair in new]


def _unparse_lines(node: ast.AST) -> list[str]:
    text = ast.unparse(node)
    assigned = re.fullmatch(r"([\w, ]+) = \((.*, .*)\)", text)
    if assigned and "," in assigned[1] and " for _ in " not in assigned[2]:
        text = f"{assigned[1]} = {assigned[2]}"
    returned = node.body[-1] if isinstance(node, ast.FunctionDef) else None
    if isinstance(returned, ast.Return) and isinstance(returned.value, ast.Tuple) and len(returned.value.elts) > 1:
        text = f"{text.rpartition('return ')[0]}return {ast.unparse(returned.value)[1:-1]}"
    return re.sub(r"'([^'\"\\\n]*)'", r'"\1"', text).splitlines()


def _assign(name: str, value: ast.expr) -> ast.stmt:
    return ast.fix_missing_locations(ast.Assign([ast.Name(name, ast.Store())], value, lineno=0))
