"""Plain scripts: a case's program, inputs, compile and check as straight code."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.culprit_contract import read_details
from fuzzcompile.model.evidence import ObservableName
from fuzzcompile.model.package_files import get_template
from fuzzcompile.programs.ir.case_source import format_literal
from fuzzcompile.programs.ir.case_text import find_bound_names, get_assigned_name
from fuzzcompile.programs.scripts.script_plan import (
    SINGLE_RTOL,
    ComparedValue,
    ScriptPlan,
    find_expression,
    format_number,
    is_flat,
    share_apart,
)
from fuzzcompile.programs.scripts.straight_code import (
    WIDTH,
    Pieces,
    call_directly,
    find_names,
    fold_values,
    get_variable,
    rename_for_users,
    split_case,
    tidy,
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
# Most lines of a tensor that a script prints.
_MOST_ROWS = 5
# What makes modules, whose parameters ask for gradients.
_MODULES = re.compile(r"\bnn\.(?!functional|Module\b)")


# The last lines: what they call, and the one observable that they compare.

ACCEPTED = "compiled:"
# A result or the inputs of one call of several.
_CALL = re.compile(r"\b(outs|calls)\[\d+\]")
# The names in an observable's expression that a script has other ones for.
_OBSERVABLE = re.compile(r"(?<![\w.\"'])(?:out|model(?:\.(?P<attribute>\w+))?|inputs\[(?P<index>\d+)\])(?!\w)")


@dataclass(frozen=True)
class ScriptCheck:
    """The way a script shows the bug.

    ``kind`` is one of those of `fuzzcompile.programs.scripts.issue_script.classify_output`. ``lines`` use ``compiled``
    and the names of the program and its inputs; ``setup`` are lines before the program is compiled. ``seeded`` is
    whether the values of the inputs matter.
    """

    kind: str
    lines: Sequence[str]
    setup: Sequence[str]
    seeded: bool


@dataclass(frozen=True)
class _Call:
    """A script's call of its program, and what the template of its checks says in the script's names.

    ``eager`` is the name of the callee, ``arguments`` are the expressions of what it gets: with ``star`` one that holds
    them all (" ": as it is). ``held`` are variables of the script that were attributes of the module.
    """

    plan: ScriptPlan
    eager: str
    arguments: Sequence[str]
    star: str
    held: frozenset[str]
    accepted = ACCEPTED

    def list_checks(self) -> list[ScriptCheck]:
        """The ways to show what is compared, the plainest first; each call of several is checked as it is made."""
        made: list[ScriptCheck] = []

        def check(kind: str = "asserts", *, caller: Callable[[], str], setup: str = "", seeded: bool = True) -> str:
            lines = caller().splitlines()
            if self.plan.calls:
                lines = ["for inputs in [inputs, *CALLS]:", *(f"    {line}" for line in lines)]
            made.append(ScriptCheck(kind, lines, setup.splitlines(), seeded))
            return ""

        get_template("reports/plain_checks.py.j2").render(s=self.plan, t=self, check=check)
        return made

    def call(self, function: str, replaced: Mapping[str, str] | None = None) -> str:
        arguments = [(replaced or {}).get(name, name) for name in self.arguments]
        if self.plan.probe.case.run is None:
            return f"{function}({self.star.strip()}{', '.join(arguments)})"
        whole = arguments[0] if self.star else f"({', '.join(arguments)}{',' if len(arguments) == 1 else ''})"
        return f"run({function}, {whole})"

    def reach(self, expression: str, call: str = "out") -> str:
        """An observable's expression, with ``call`` for the result, and the script's names for inputs and module."""

        def put(found: re.Match[str]) -> str:
            if found["index"]:
                return found[0] if self.star else self.arguments[int(found["index"])]
            if found[0] == "out":
                return call
            attribute = found["attribute"] or ""
            return attribute if attribute in self.held else found[0].replace("model", self.eager, 1)

        return _OBSERVABLE.sub(put, expression)

    def observe(self, target: ComparedValue, function: str, replaced: Mapping[str, str] | None = None) -> str:
        return self.reach(target.expression, self.call(function, replaced))

    def outputs(self, function: str) -> str:
        """The compared outputs of a call: all of them, if `torch.testing.assert_close` takes them as returned."""
        leaves, targets = tree_leaves(self.output), self.plan.targets
        comparable = is_flat(self.output) and all(torch.is_tensor(leaf) for leaf in leaves)
        if not targets or not self.plan.probe.outputs or (comparable and len(leaves) == len(targets)):
            return self.call(function, self.clones)
        return self.observe(targets[0], function, self.clones)

    def shares(self, target: ComparedValue, result: str) -> str:
        parts = (self.reach(part, result) for part in (target.expression, target.partner))
        return " == ".join(f"{part}.untyped_storage().data_ptr()" for part in parts)

    @property
    def output(self) -> object:
        return self.plan.probe.outputs[0] if self.plan.probe.outputs else None

    @property
    def kinds(self) -> dict[str, ComparedValue]:
        """The first value of each kind that is compared."""
        return {target.kind: target for target in reversed(self.plan.targets)}

    @cached_property
    def clones(self) -> dict[str, str]:
        """Copies in place of the inputs that the program writes to."""
        probe = self.plan.probe
        written = [name for name, seen in probe.observables.items() if seen.kind == "mutation"]
        reached = [self.reach(text) for name in written if (text := find_expression(name, probe))]
        return {name: f"{name}.clone()" for name in reached if name in self.arguments}

    @property
    def shown(self) -> torch.Tensor | None:
        """The value that is compared first, or one of its shape; None if it is no tensor."""
        target = self.plan.targets[0] if self.plan.targets else None
        leaf = ObservableName.parse(target.observable.name).leaf if target is not None else None
        of_output = leaf is not None and leaf.kind == "out"
        values = tree_leaves(self.output) if of_output else self.plan.probe.tensor_inputs
        value = values[leaf.index] if leaf is not None and leaf.index < len(values) else None
        return value if isinstance(value, torch.Tensor) else None

    @property
    def prints(self) -> bool:
        """Return whether a reader sees the difference in a few printed rows."""
        value, probe = self.shown, self.plan.probe
        if value is None or self.plan.calls or probe.random or self.clones or self.passes_by_default or self.doubled:
            return False
        narrow = value.dtype in (torch.float16, torch.bfloat16)  # rounding would show in what is printed
        return not narrow and not value.requires_grad and self._is_small(value)

    @staticmethod
    def _is_small(value: torch.Tensor) -> bool:
        return value.numel() <= _MOST_ROWS * 8 and len(str(value).splitlines()) <= _MOST_ROWS

    @property
    def prints_gradient(self) -> bool:
        value = self.shown
        return value is not None and bool(self.cotangent) and self._is_small(value.detach())

    @property
    def summed(self) -> str:
        """Code that makes a scalar of the only output, for its gradient."""
        return "" if isinstance(self.output, torch.Tensor) and not self.output.dim() else ".sum()"

    @property
    def backward(self) -> str:
        whole = self.plan.probe.case.backward and isinstance(self.output, torch.Tensor)
        return ".sum().backward()" if whole else ""

    @property
    def cotangent(self) -> str:
        """The arguments of ``torch.randn`` for the gradient of the only output; empty if more is needed."""
        output = self.output
        if not isinstance(output, torch.Tensor) or self.plan.probe.random or self.plan.calls:
            return ""
        kind = "" if output.dtype is torch.get_default_dtype() else f", dtype={output.dtype}"
        return (", ".join(map(str, output.shape)) or "()") + kind

    @property
    def share(self) -> str:
        return format_number(share_apart(self.plan.targets[:1]))

    @property
    def passes_by_default(self) -> bool:
        """Return whether the tolerance of `torch.testing.assert_close` hides a difference."""
        return any(target.evidence.get("within_default_tolerance") for target in self.plan.targets)

    @property
    def doubled(self) -> list[str]:
        """What turns all that is compared into float64."""
        probe = self.plan.probe
        if self.plan.form != "apart in float64":
            return []
        pairs = zip(self.arguments, probe.tensor_inputs, strict=False)
        inputs = [f"{name} = {name}.double()" for name, value in pairs if value.is_floating_point()]
        return inputs + [f"{self.eager}.double()"] * probe.is_module

    @property
    def converts(self) -> bool:
        """Return whether a run in float64 can be written in a line."""
        probe = self.plan.probe
        return bool(self.plan.form == "values" and probe.tensor_inputs and not (probe.is_module and self.held))

    @property
    def exact(self) -> str:
        """What is compared, of a call in float64."""
        pairs = zip(self.arguments, tree_leaves(self.plan.probe.inputs[0]), strict=False)
        wide = {name: f"{name}.double()" for name, x in pairs if torch.is_tensor(x) and x.is_floating_point()}
        program = f"copy.deepcopy({self.eager}).double()" if self.plan.probe.is_module else self.eager
        return self.observe(self.plan.targets[0], program, wide)

    @property
    def bound(self) -> str:
        single = f"10 * error_eager + {format_number(SINGLE_RTOL)} * exact.abs().max().item()"
        return single if self.plan.several else self.plan.bound


@dataclass(frozen=True)
class PlainScript:
    """A script for an issue: straight code that ends in one check.

    ``chosen`` says how the case is run and what is compared; ``check`` how this script shows it, of the program
    ``callee``. With ``cuda`` it runs on a GPU.
    """

    chosen: ScriptPlan
    pieces: Pieces
    callee: str
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
        settings, whole = self.chosen.probe.case.settings, backend == "inductor"
        options = format_literal(dict(settings.options)).replace("'", '"')
        wide = len(options) + 30 > _WIDTH
        arguments = {
            "disable=True": backend == "off",
            f'backend="{backend}"': not whole and backend != "off",
            f'mode="{settings.mode}"': whole and settings.mode,
            "options=options" if wide else f"options={options}": whole and settings.options,
            f"dynamic={settings.dynamic}": settings.dynamic is not None,
            "fullgraph=True": settings.fullgraph,
        }
        lines = [f"options = {options}"] if wide and whole else []
        return (
            lines,
            f"torch.compile({', '.join([self.callee, *(text for text, given in arguments.items() if given)])})",
        )

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
            if any(re.search(rf"(?<![\w.]){name}\b", text) for name in find_bound_names(ast.unparse(node)))
        ]
        entries = [(name, key, value) for name, held in configs.items() for key, value in held.items()]
        if self.chosen.probe.random and self.check.kind == "asserts":
            entries.append(("inductor", "fallback_random", True))
        copied = ["import copy"] if "copy." in text else []
        torch_first = [] if "import torch" in made else ["import torch"]
        checked = "\n".join([*self.check.setup, *self.check.lines])
        trees = [name for name in ("tree_leaves", "tree_structure") if f"{name}(" in checked]
        settings = [f"torch._{name}.config.{key} = {format_literal(value)}" for name, key, value in entries]
        imports = [*copied, *torch_first, *made, *(f"from torch.utils._pytree import {t}" for t in trees)]
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
    for number, shape in enumerate((call_directly(_fold_long(tidy(renamed))), renamed, pieces)):
        if number == 2:  # what names and values cannot mend, a state of its own for each side may
            yield from _generate_made_twice(chosen)
        call, shaped = _make_call(chosen, shape, pieces)
        for check in call.list_checks()[: 1 if number == 1 else None]:
            plain = PlainScript(chosen, shaped, call.eager, check)
            if (text := plain.text()) not in made:
                made.add(text)
                yield plain


# Statements of a program beyond which values are written where they are used, whatever their names say.
_FEW_BODY = 3


def _fold_long(pieces: Pieces) -> Pieces:
    folded = fold_values(pieces)
    function = folded.function
    return fold_values(pieces, WIDTH) if function is not None and len(function.body) > _FEW_BODY else folded


def _generate_made_twice(chosen: ScriptPlan) -> Iterator[PlainScript]:
    """Of a case that drives its program itself: each side gets what ``make()`` makes, and starts from one state."""
    if chosen.probe.case.run is None or chosen.calls:
        return
    pieces = split_case(chosen.source, inline=False)
    twice = replace(pieces, setup=[*ast.parse("expected = run(*make())").body, *pieces.setup])
    call, shaped = _make_call(chosen, twice, twice)
    expected, result = "expected", call.call("compiled")
    if len(chosen.targets) == 1 and chosen.targets[0].kind == "output":
        expected, result = (call.reach(chosen.targets[0].expression, side) for side in (expected, result))
    check = ScriptCheck("asserts", [f"torch.testing.assert_close({result}, {expected})"], (), seeded=True)
    yield PlainScript(chosen, shaped, call.eager, check)


def choose_input_kinds(chosen: ScriptPlan) -> list[str]:
    """Return base names for inputs without a name of their own: "" for any letter."""
    first = chosen.probe.inputs[0]
    kinds = {torch.bool: "mask", torch.int64: "index", torch.int32: "index"}
    values = first if isinstance(first, tuple) else ()
    return [kinds.get(value.dtype, "") if isinstance(value, torch.Tensor) else "" for value in values]


def _make_call(chosen: ScriptPlan, pieces: Pieces, original: Pieces) -> tuple[_Call, Pieces]:
    arguments, setup = pieces.arguments, list(pieces.setup)
    held = frozenset(map(get_variable, setup)) - frozenset(map(get_variable, original.setup)) - {""}
    callee = pieces.callee.id if isinstance(pieces.callee, ast.Name) else "model"
    if not isinstance(pieces.callee, ast.Name):
        setup.append(_assign("model", pieces.callee))
    if chosen.calls or not isinstance(arguments, ast.Tuple):
        if not (isinstance(arguments, ast.Name) and arguments.id == "inputs"):
            setup.append(_assign("inputs", arguments))
        call = _Call(_compare_one_call(chosen), callee, ["inputs"], chosen.probe.star or " ", held)
        return call, replace(pieces, setup=setup)
    names, taken = [], find_names([*pieces.imports, *pieces.definitions, *setup])
    fresh = (name for name in "xyzwuvabcdefgh" if name not in taken)
    new = []
    for place, value in enumerate(arguments.elts):
        if isinstance(value, ast.Name | ast.Constant):
            names.append(ast.unparse(value))
            continue
        names.append(pieces.parameters[place] if place < len(pieces.parameters) else next(fresh))
        new.append((names[-1], value))
    setup = _join_inputs([*setup, *(_assign(*pair) for pair in new)])
    return _Call(chosen, callee, names, "", held), replace(pieces, setup=setup)


def _compare_one_call(plan: ScriptPlan) -> ScriptPlan:
    def rename(expression: str) -> str:
        return _CALL.sub(lambda match: "out" if match[1] == "outs" else "inputs", expression)

    one = [replace(t, expression=rename(t.expression), partner=rename(t.partner)) for t in plan.targets]
    return replace(plan, targets=tuple(one)) if plan.calls else plan


def _join_inputs(setup: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The same with neighbouring tensors that do not need each other made in one line, as far as they fit there."""
    lines: list[list[ast.stmt]] = []
    for statement in setup:
        if lines and _join([*lines[-1], statement]) is not None:
            lines[-1].append(statement)
        else:
            lines.append([statement])
    return [_join(line) or line[0] for line in lines]


def _join(line: Sequence[ast.stmt]) -> ast.stmt | None:
    """One assignment for all of those of a line; None if they are no tensors, need each other, or are too long."""
    pairs = [(name, node.value) for node in line if isinstance(node, ast.Assign) and (name := get_assigned_name(node))]
    names, values = [name for name, _ in pairs], [ast.unparse(value) for _, value in pairs]
    made = all(re.match(r"\(?torch\.(?!nn)", value) for value in values)
    if not 1 < len(pairs) == len(line) or not made or find_names([value for _, value in pairs]) & set(names):
        return None
    text = f"{', '.join(names)} = {', '.join(values)}"
    if len(text) > _ASSIGNED_WIDTH and len(set(values)) == 1:
        text = f"{', '.join(names)} = ({values[0]} for _ in range({len(line)}))"
    return ast.parse(text).body[0] if len(text) <= _ASSIGNED_WIDTH else None


def _unparse_lines(node: ast.AST) -> list[str]:
    text = ast.unparse(node)
    assigned = re.fullmatch(r"([\w, ]+) = \((.*, .*)\)", text)
    if assigned and "," in assigned[1] and " for _ in " not in assigned[2]:
        text = f"{assigned[1]} = {assigned[2]}"
    returned = node.body[-1] if isinstance(node, ast.FunctionDef) else None
    if isinstance(returned, ast.Return) and isinstance(returned.value, ast.Tuple) and len(returned.value.elts) > 1:
        text = f"{text.rpartition('return ')[0]}return {ast.unparse(returned.value)[1:-1]}"
    lines = re.sub(r"'([^'\"\\\n]*)'", r'"\1"', text).splitlines()
    return [part for line in lines for part in _wrap(line)]


def _wrap(line: str) -> list[str]:
    """A line that is too long in two, if it is a call with many arguments."""
    opened, place, depth = line.find("("), 0, 0
    for number, character in enumerate(line[:_WIDTH]):
        depth += (character in "([{") - (character in ")]}")
        place = number + 1 if character == "," and depth == 1 else place
    indent = " " * (opened + 1)
    if len(line) <= _WIDTH or not opened < place or opened + len(line) - place > _WIDTH:
        return [line]
    return [line[:place], indent + line[place:].lstrip()]


def _assign(name: str, value: ast.expr) -> ast.stmt:
    return ast.fix_missing_locations(ast.Assign([ast.Name(name, ast.Store())], value, lineno=0))
