"""Programs drawn over aliased tensors: inputs, statements, what is returned, and what is done behind the call."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from string import Template
from typing import Literal

from fuzzcompile.fuzz.aliased_programs.layouts import VIEWS, Layout, View
from fuzzcompile.fuzz.generation.spec import AliasedProgram, Pen
from fuzzcompile.model.package_files import read_rows

Kind = Literal["int", "float", "differentiated"]
Other = Literal["any", "equal"]
"""What a second operand is: one that the first takes, or one of the same shape and dtype."""


@dataclass(frozen=True, kw_only=True)
class Write:
    """A row of ``writes.toml``, where each entry is explained."""

    name: str
    lines: tuple[str, ...]
    weight: int
    of: Other | None = None
    apart: bool = False
    kinds: tuple[Kind, ...] = ("int", "float", "differentiated")
    rank: int = 1


@dataclass(frozen=True, kw_only=True)
class Read:
    """A row of ``reads.toml``, where each entry is explained."""

    name: str
    form: str
    weight: int
    gives: Literal["alike", "number", "joined"]
    of: Other | None = None


@cache
def load_writes() -> tuple[Write, ...]:
    """The rows of ``writes.toml``, in order."""
    return read_rows(__package__, "writes", Write)


@cache
def load_reads() -> tuple[Read, ...]:
    """The rows of ``reads.toml``, in order."""
    return read_rows(__package__, "reads", Read)


def list_alias_names() -> Iterator[tuple[str, str, int, str]]:
    """Name, kind, weight and summary of all that can be drawn more or less often."""
    yield from ((row.name, "alias_write", row.weight, "; ".join(row.lines)) for row in load_writes())
    yield from ((row.name, "alias_read", row.weight, row.form) for row in load_reads())
    yield from ((row.name, "alias_view", row.weight, row.form) for row in VIEWS)


_INTEGERS = (("int64", 66), ("int32", 24), ("uint8", 10))
# Percentages: programs of floating-point numbers, and those of them through which gradients flow.
_FLOATING, _DIFFERENTIATED = 40, 35
_SIZES = (6, 8, 12, 15, 24)
_LENGTHS = ((2, 10), (3, 22), (4, 26), (5, 20), (6, 14), (7, 8))
_STEPS = (("write", 46), ("view", 30), ("read", 24))
# Percentages: inputs that are a view of the first one's memory, programs that are a module which holds that memory, and
# programs that are driven: called again, or whose results are written to.
_SHARED, _MODULE, _DRIVEN = 78, 20, 55
_NAMES = "defghijlmnopqrstuvwxyz"
_NUMBERS = ("2", "3", "5", "-1", "7")
# Tries to find operands that fit a statement.
_TRIES = 6


@dataclass(frozen=True)
class _Value:
    name: str
    layout: Layout


@dataclass(frozen=True)
class _Statement:
    row: str
    lines: tuple[str, ...]
    makes: str | None


Check = Callable[[Mapping[str, Layout]], Mapping[str, Layout] | None]
"""What a statement makes of where values lie; None if it depends there on the order of elements."""


@dataclass
class _Draft:
    """A program while it is drawn. ``checks`` are those of its statements, made again for other inputs."""

    pen: Pen
    values: list[_Value]
    differentiated: bool = False
    statements: list[_Statement] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)

    def get_kind(self, layout: Layout) -> Kind:
        return "int" if not layout.is_floating else "differentiated" if self.differentiated else "float"

    def get_layouts(self) -> dict[str, Layout]:
        return {value.name: value.layout for value in self.values}

    def pick(self, holds: Callable[[Layout], bool] = lambda layout: True) -> _Value | None:
        fitting = [value for value in reversed(self.values) if holds(value.layout)]
        return self.pen.one_of(fitting) if fitting else None

    def add(self, name: str, lines: Sequence[str], check: Check, made: _Value | None = None) -> bool:
        """Add a statement, unless it depends on the order of elements as things lie now."""
        if check(self.get_layouts()) is None:
            return False
        self.statements.append(_Statement(name, tuple(lines), None if made is None else made.name))
        self.checks.append(check)
        self.values += [made] if made is not None else []
        return True

    def is_defined(self, inputs: Mapping[str, Layout]) -> bool:
        """Return whether the program depends on no order of elements for inputs that lie so."""
        layouts: Mapping[str, Layout] | None = dict(inputs)
        for check in self.checks:
            layouts = None if layouts is None else check(layouts)
        return layouts is not None

    def make_name(self) -> str:
        taken = {value.name for value in self.values}
        return next(letter for letter in _NAMES if letter not in taken)


def draw_aliased(pen: Pen, floating: str, *, gradients: bool) -> AliasedProgram:
    """A program that reads and writes tensors which share memory, of integers or of the ``floating`` dtype.

    With ``gradients`` they flow through some of the latter.
    """
    dtype = floating if pen.chance(_FLOATING) else pen.draw_weighted(_INTEGERS)
    size = pen.one_of(_SIZES)
    base = Layout.of_new("base", dtype, (size,))
    held, differentiated = pen.chance(_MODULE), pen.chance(_DIFFERENTIATED, "aliased_gradients")
    differentiated = differentiated and gradients and base.is_floating and not held
    draft = _Draft(pen, [], differentiated)
    inputs = [_draw_input(draft, name, base) for name in "abc"[: 1 + pen.number(2)]]
    draft.values += [_Value(name, layout) for name, (_, layout) in zip("abc", inputs, strict=False)]
    draft.values += [_Value("self.base", base)] if held else []
    given = draft.get_layouts()
    for _ in range(pen.draw_weighted(_LENGTHS)):
        step, draws = pen.draw_weighted(_STEPS), _DRAWS
        any(draws[step](draft) for _ in range(_TRIES))
    outputs = _draw_outputs(draft, len(given))
    run = _draw_run(draft, outputs, given, len(inputs)) if pen.chance(_DRIVEN) else ()
    texts = tuple(text for text, _ in inputs)
    run = _differentiate(run, texts) if differentiated else run
    statements = _prune(draft.statements, outputs)
    return AliasedProgram(
        names=tuple(dict.fromkeys(statement.row for statement in statements)),
        base=_write_base(dtype, size, differentiated=differentiated),
        inputs=texts,
        statements=tuple(line for statement in statements for line in statement.lines),
        outputs=outputs,
        run=run,
        held=held,
        differentiated=differentiated,
    )


def _prune(statements: Sequence[_Statement], outputs: Sequence[str]) -> list[_Statement]:
    """The statements without those that make a value which nothing uses."""
    kept: list[_Statement] = []
    used = set(outputs)
    for statement in reversed(statements):
        if statement.makes is None or statement.makes in used:
            kept.append(statement)
            used |= set(re.findall(r"\w+", " ".join(statement.lines)))
    return kept[::-1]


def _write_base(dtype: str, size: int, *, differentiated: bool) -> str:
    if "float" in dtype:
        options = ("" if dtype == "float32" else f", dtype=torch.{dtype}") + ", requires_grad=True" * differentiated
        return f"torch.randn({size}{options})"
    return f"torch.arange({size}{'' if dtype == 'int64' else f', dtype=torch.{dtype}'})"


def _draw_input(draft: _Draft, name: str, base: Layout) -> tuple[str, Layout]:
    """The expression of an input, over ``base``, and where it lies."""
    pen = draft.pen
    shared = name == "a" or pen.chance(_SHARED)
    text, layout = ("base", base) if shared else ("base.clone()", Layout.of_new(name, base.dtype, base.shape))
    for _ in range(pen.draw_weighted([(0, 30), (1, 48), (2, 22)])):
        found = _draw_view(pen, layout, draft.get_kind(layout))
        if found is not None and found[0].name not in ("view_set", "view_detached", "view_alike"):
            text, layout = Template(found[0].form).substitute(a=text), found[1]
    return text, layout


def _draw_view(pen: Pen, of: Layout, kind: Kind) -> tuple[View, Layout] | None:
    allowed = (view for view in VIEWS if view.differentiable or kind != "differentiated")
    fitting = [(view.name, view.weight) for view in allowed if view.place(of) is not None]
    if not fitting:
        return None
    name = pen.draw_named(fitting)
    view = next(view for view in VIEWS if view.name == name)
    placed = view.place(of)
    return None if placed is None else (view, placed)


def _add_view(draft: _Draft) -> bool:
    of = draft.pick(lambda layout: layout.rank > 0)
    found = None if of is None else _draw_view(draft.pen, of.layout, draft.get_kind(of.layout))
    if of is None or found is None:
        return False
    view, layout = found
    name = draft.make_name()

    def check(layouts: Mapping[str, Layout]) -> Mapping[str, Layout] | None:
        placed = view.place(layouts[of.name])
        return None if placed is None else {**layouts, name: placed}

    line = f"{name} = {Template(view.form).substitute(a=of.name)}"
    return draft.add(view.name, [line], check, _Value(name, layout))


def _fits(other: Other, layout: Layout, to: Layout) -> bool:
    """Return whether a value can be the second operand of a statement on ``to``."""
    if other == "equal":
        return (layout.shape, layout.dtype) == (to.shape, to.dtype)
    return layout.shape in (to.shape, to.shape[1:], ()) and layout.is_floating <= to.is_floating


def _add_write(draft: _Draft) -> bool:
    pen, rows = draft.pen, load_writes()
    name = pen.draw_named([(row.name, row.weight) for row in rows])
    row = next(row for row in rows if row.name == name)

    def takes(layout: Layout) -> bool:
        return layout.rank >= row.rank and layout.is_writable and draft.get_kind(layout) in row.kinds

    a = draft.pick(takes)
    if a is None:
        return False
    to, other = a.layout, row.of
    b = draft.pick(lambda layout: _fits(other, layout, to)) if other is not None else None
    if other is not None and b is None:
        return False

    def check(layouts: Mapping[str, Layout]) -> Mapping[str, Layout] | None:
        written = layouts[a.name]
        read = None if b is None else layouts[b.name]
        if read is None:
            return layouts if written.is_writable else None
        apart = written.is_apart(read)
        fits = apart if row.apart else apart or written.is_same(read)
        both = not row.apart or read.is_writable
        return layouts if written.is_writable and fits and both else None

    texts = {"a": a.name, "b": "" if b is None else b.name, "k": _draw_number(pen, to), "j": _draw_number(pen, to)}
    return draft.add(row.name, [Template(line).substitute(texts) for line in row.lines], check)


def _draw_number(pen: Pen, to: Layout) -> str:
    number = pen.one_of(_NUMBERS)
    return number.lstrip("-") if to.dtype == "uint8" else number


def _add_read(draft: _Draft) -> bool:
    pen, rows = draft.pen, load_reads()
    name = pen.draw_named([(row.name, row.weight) for row in rows])
    row = next(row for row in rows if row.name == name)
    a = draft.pick(lambda layout: layout.rank > 0 and (row.gives != "joined" or layout.rank == 1))
    if a is None:
        return False
    other = row.of
    b = draft.pick(lambda layout: _fits(other, layout, a.layout)) if other is not None else None
    if other is not None and b is None:
        return False
    made = draft.make_name()
    shape = {"alike": a.layout.shape, "number": (), "joined": (2 * a.layout.shape[0],)}[row.gives]
    # Sums and counts of integers are int64.
    dtype = "int64" if row.gives == "number" and not a.layout.is_floating else a.layout.dtype
    dtype = "int64" if row.name in ("read_equal", "read_cumsum") and "float" not in dtype else dtype
    dtype = "int64" if row.name == "read_equal" else a.layout.dtype if row.name == "read_largest" else dtype
    layout = Layout.of_new(made, dtype, shape)
    texts = {"a": a.name, "b": "" if b is None else b.name, "k": _draw_number(pen, a.layout)}
    line = f"{made} = {Template(row.form).substitute(texts)}"
    return draft.add(row.name, [line], lambda layouts: {**layouts, made: layout}, _Value(made, layout))


_DRAWS: Mapping[str, Callable[[_Draft], bool]] = {"write": _add_write, "view": _add_view, "read": _add_read}


def _draw_outputs(draft: _Draft, given: int) -> tuple[str, ...]:
    """The youngest value, and others: inputs and views of them among them, one of them twice at times."""
    made = [value.name for value in draft.values[given:]]
    outputs = made[-1:] or [draft.values[0].name]
    for _ in range(draft.pen.draw_weighted([(0, 25), (1, 40), (2, 25), (3, 10)])):
        outputs.append(draft.pen.one_of(draft.values).name)
    return tuple(outputs)


def _draw_run(draft: _Draft, outputs: Sequence[str], given: Mapping[str, Layout], count: int) -> tuple[str, ...]:
    """The statements of ``run``: calls with the inputs as they are or otherwise aliased, and writes behind them."""
    pen, layouts, lines = draft.pen, draft.get_layouts(), list[str]()
    calls = [", ".join(f"inputs[{at}]" for at in range(count))]
    other = _draw_other_call(draft, given, count)
    if other is not None:
        calls = [other, calls[0]] if pen.chance(50) else [calls[0], other]
    for number, call in enumerate(calls):
        out = ("first", "second")[number]
        lines.append(f"{out} = model({call})")
        writable = [at for at, name in enumerate(outputs) if layouts[name].is_writable]
        if writable and pen.chance(55):
            lines.append(f"{out}[{pen.one_of(writable)}].add_(1)")
        elif pen.chance(30) and layouts["a"].is_writable:
            lines.append("inputs[0].mul_(2)")
    return (*lines, f"return {', '.join(('first', 'second')[: len(calls)])}")


def _differentiate(run: Sequence[str], inputs: Sequence[str]) -> tuple[str, ...]:
    """The statements of ``run`` with views of a tensor that is no leaf: autograd refuses writes to one.

    It is given back as well: whatever is detached, a gradient flows through what was written to it.
    """
    plain = f"return model({', '.join(f'given[{at}]' for at in range(len(inputs)))})"
    *calls, returned = [line.replace("inputs[", "given[") for line in run] or [plain]
    return ("base = inputs[0] * 1", f"given = ({_write_tuple(inputs)})", *calls, f"{returned}, base")


def _write_tuple(texts: Sequence[str]) -> str:
    return ", ".join(texts) + "," * (len(texts) == 1)


def _draw_other_call(draft: _Draft, given: Mapping[str, Layout], count: int) -> str | None:
    """Other inputs of the same sizes, whose memory is shared in another way, for which the program is defined too."""
    names, forms = "abc"[:count], list[tuple[str, dict[str, Layout]]]()
    alike = [name for name in names[1:] if _has_form(given[name], given["a"])]
    if alike:
        at = names.index(alike[0])
        order = list(range(count))
        order[0], order[at] = at, 0
        swapped = {**given, "a": given[alike[0]], alike[0]: given["a"]}
        forms.append((", ".join(f"inputs[{number}]" for number in order), swapped))
        twice = [f"inputs[{0 if number == at else number}]" for number in range(count)]
        forms.append((", ".join(twice), {**given, alike[0]: given["a"]}))
    for at, name in enumerate(names[1:], 1):
        if given[name].is_contiguous:
            alone = Layout.of_new(f"copy of {name}", given[name].dtype, given[name].shape)
            texts = [f"inputs[{number}]{'.clone()' if number == at else ''}" for number in range(count)]
            forms.append((", ".join(texts), {**given, name: alone}))
    forms.append((", ".join(f"inputs[{number}]" for number in range(count)), dict(given)))
    defined = [text for text, layouts in forms if draft.is_defined(layouts)]
    return draft.pen.one_of(defined) if defined and draft.pen.chance(70) else None


def _has_form(first: Layout, second: Layout) -> bool:
    return (first.dtype, first.shape, first.strides) == (second.dtype, second.shape, second.strides)


def render_aliased(program: AliasedProgram, seed: int, settings: Sequence[tuple[str, str]]) -> str:
    """The source of a case, whose settings are names and the text of their values."""
    arguments = ", ".join("abc"[: len(program.inputs)])
    returned = ", ".join(program.outputs) if len(program.outputs) > 1 else f"({program.outputs[0]},)"
    body = [*program.statements, f"return {returned}"]
    lines = ["import torch", *(["from torch import nn"] * program.held)]
    lines += ["", *(f"{name} = {value}" for name, value in settings)] if settings else []
    if program.held:
        lines += ["", "", "class Model(nn.Module):", "    def __init__(self, base):"]
        lines += ["        super().__init__()", '        self.register_buffer("base", base)', ""]
        lines += [f"    def forward(self, {arguments}):", *(f"        {line}" for line in body)]
    else:
        lines += ["", "", f"def program({arguments}):", *(f"    {line}" for line in body)]
    if program.run:
        lines += ["", "", "def run(model, inputs):", *(f"    {line}" for line in program.run)]
    made = _write_tuple(["base"] if program.differentiated else program.inputs)
    lines += ["", "", "def make():", f"    torch.manual_seed({seed})", f"    base = {program.base}"]
    lines += [f"    return {'Model(base).eval()' if program.held else 'program'}, ({made})", ""]
    return "\n".join(lines)
