"""Stateful programs, drawn from the rows of their tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from string import Template

from fuzzcompile.fuzz.generation.spec import CaseSpec, ClassText, Container, Pen, StatefulProgram, Weights
from fuzzcompile.fuzz.stateful_programs.rows import (
    CALLS_WEIGHT,
    Lines,
    StateRow,
    ValueKind,
    draw_calls,
    list_types,
    load_kinds,
    load_rows,
)

# The tables whose rows are units of a program by themselves.
ROW_TABLES = ("changes", "effects", "constructs")


def name_read(kind: ValueKind, read: str) -> str:
    """The name by which a read of a kind is steered."""
    return f"read_{kind.name}_{read}"


def list_state_names() -> Iterator[tuple[str, str, int, str]]:
    """Name, kind, weight and summary of all that can be drawn more or less often."""
    for table in ("carriers", *ROW_TABLES):
        yield from ((row.name, f"state_{table[:-1]}", row.weight, row.summary) for row in load_rows(table))
    yield from ((name, "state_calls", CALLS_WEIGHT, f"Calls of a {kind}.") for name, kind in list_types().items())
    for kind in load_kinds():
        reads = ((name_read(kind, read), "; ".join(line.strip() for line in kind.reads[read])) for read in kind.reads)
        yield from ((name, "state_read", 10, f"A {kind.name}, read by: {text}") for name, text in reads)


# How many units a program has, and of which table. Many share the cost of a compile; few are read at once.
_UNITS = ((1, 14), (2, 20), (3, 18), (5, 26), (8, 22))
_TABLES = (("cells", 44), ("changes", 20), ("effects", 12), ("constructs", 24), ("calls", 14))
# So many changes are made between calls, each of which may be a compile; units beyond are drawn from the last tables.
_MOST_STEPS, _STILL = 4, _TABLES[2:]
_CONTAINERS: Weights[Container] = (("tuple", 60), ("dataclass", 16), ("dict", 14), ("list", 10))
_SITES = (("inline", 60), ("method", 22), ("inner", 18))
# Percentages: programs that are a function, units of a submodule, values with a local name, calls between two changes,
# values put back for a last call.
_PLAIN, _LAYER, _BOUND, _CALLED, _RESTORED = 14, 30, 20, 45, 22
# The longest line that reads a value where it is held.
_LONGEST = 80
# What a program without operators begins with: a graph needs one, whatever the state is.
_BEGINNINGS = ("x = x * 1.25", "x = x.tanh()", "x = x - x.mean(-1, keepdim=True)", "x = F.layer_norm(x, x.shape[-1:])")
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")


@dataclass
class _Step:
    """What ``run`` does before a call: statements, or a line that the call stands under."""

    lines: Lines = ()
    around: str = ""
    undo: Lines = ()
    after: Lines = ()


@dataclass
class _Owner:
    name: str
    reached: str
    init: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)
    forward: list[str] = field(default_factory=list)

    def to_text(self) -> ClassText:
        return ClassText(*map(tuple, (self.init, self.body, self.methods, self.forward)))


@dataclass
class _Draft:
    """A program while it is drawn; texts that two units share are kept once."""

    pen: Pen
    spec: CaseSpec
    plain: bool
    model: _Owner = field(default_factory=lambda: _Owner("Model", "model"))
    layer: _Owner = field(default_factory=lambda: _Owner("Layer", "model.layer"))
    fields: list[str] = field(default_factory=list)
    module: list[Lines] = field(default_factory=list)
    prepare: list[str] = field(default_factory=list)
    reset: list[str] = field(default_factory=list)
    globals: list[str] = field(default_factory=list)
    steps: list[_Step] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    closed: bool = False

    @staticmethod
    def _list_attributes(row: StateRow) -> set[str]:
        """The attributes that a row gives its owner: two rows of one attribute do not go together."""
        return set(re.findall(r"self\.(\w+) =", "\n".join(row.init)))

    def allows(self, row: StateRow) -> bool:
        """Return whether a row can be drawn beside what is there."""
        if row.name in self.taken or self._list_attributes(row) & self.taken or (self.plain and not row.plain):
            return False
        whole = self.spec.program
        accompanied = bool(self.names) or (whole is not None and bool(whole.statements))
        fits = not row.forward_only if self.spec.backward else not row.differentiated
        return fits and not (row.alone and accompanied)

    def add(self, row: StateRow, lines: Sequence[str], put: Mapping[str, str], owner: _Owner) -> None:
        """Add a row's texts, and the lines of the forward pass."""

        def fill(texts: Sequence[str]) -> list[str]:
            return [Template(text).substitute(put) for text in texts]

        places = ((owner.init, row.init), (owner.body, row.body), (self.fields, row.fields), (self.reset, row.reset))
        for place, texts in (*places, (self.prepare, row.prepare), (self.globals, row.globals)):
            filled = fill(texts)
            if place is owner.body and filled and place and (len(filled) > 1 or place[-1].startswith(" ")):
                filled = ["", *filled]
            place += filled if place is owner.body else [text for text in filled if text not in place]
        module = tuple(fill(row.module))
        if module and module not in self.module:
            self.module.append(module)
        owner.forward += self._place_lines(row, fill(lines), put, owner)
        self.names.append(row.name)
        self.assumed += row.assumed
        self.closed = row.alone
        if row.once or row not in load_rows("carriers"):
            self.taken |= {row.name, *self._list_attributes(row)}

    def _place_lines(self, row: StateRow, lines: list[str], put: Mapping[str, str], owner: _Owner) -> list[str]:
        """The lines in the forward pass, in a method or in an inner function."""
        site = self.pen.draw_weighted(_SITES)
        returns = any(line.lstrip().startswith("return") and line.startswith(" ") for line in lines)
        returns = returns and not any(line.startswith(("def ", "class ")) for line in lines)
        if returns and site == "inline":
            site = "inner"
        if self.plain and site == "method":
            site = "inner"
        if site == "inline":
            return lines
        name = f"apply_{put['n']}"
        inner = [f"    {line}" if line else "" for line in (*lines, "return x")]
        if site == "method":
            owner.methods += [*([""] if owner.methods else []), f"def {name}(self, x):", *inner]
            return [f"x = self.{name}(x)"]
        return [f"def {name}(x):", *inner, "", f"x = {name}(x)"]

    def choose_owner(self, row: StateRow) -> _Owner:
        """The model, or a submodule, whose place in the forward pass is that of its first unit."""
        wanted = self.pen.chance(_LAYER)
        if self.plain or row.plain or not (wanted or row.layer):
            return self.model
        if "self.layer = Layer()" not in self.model.init:
            self.model.init.append("self.layer = Layer()")
            self.model.forward.append("x = self.layer(x)")
        return self.layer


def draw_state(pen: Pen, spec: CaseSpec) -> StatefulProgram:
    """The state of a case, whose program is drawn already."""
    draft = _Draft(pen, spec, pen.chance(_PLAIN, "stateful_function") and not _has_parameters(spec))
    beginning = pen.one_of(_BEGINNINGS)
    if spec.program is None or not spec.program.statements:
        draft.model.forward.append(beginning)
    for _ in range(pen.draw_weighted(_UNITS)):
        table = pen.draw_weighted(_TABLES if len(draft.steps) < _MOST_STEPS else _STILL)
        if draft.closed:
            continue
        if table == "cells":
            _add_cell(draft)
        elif table == "calls":
            _add_calls(draft)
        else:
            _add_row(draft, table)
    if not draft.names:
        _add_cell(draft)
    run = tuple(_write_run(draft))
    return StatefulProgram(
        names=tuple(dict.fromkeys(draft.names)),
        model=draft.model.to_text(),
        layer=draft.layer.to_text(),
        fields=tuple(draft.fields),
        module=tuple(draft.module),
        prepare=tuple(draft.prepare),
        reset=tuple(draft.reset),
        globals=tuple(draft.globals),
        run=run,
        returns=pen.draw_weighted(_CONTAINERS),
        plain=draft.plain,
        assumed=tuple(dict.fromkeys(draft.assumed)),
        draws=any(row.random for table in ROW_TABLES for row in load_rows(table) if row.name in draft.names),
    )


def _has_parameters(spec: CaseSpec) -> bool:
    return spec.program is not None and any(argument.parameter for argument in spec.program.arguments)


def _draw_row(draft: _Draft, rows: Sequence[StateRow]) -> StateRow | None:
    fitting = [(row.name, row.weight) for row in rows if draft.allows(row)]
    if not fitting:
        return None
    name = draft.pen.draw_named(fitting)
    return next(row for row in rows if row.name == name)


def _add_row(draft: _Draft, table: str) -> None:
    pen, row = draft.pen, _draw_row(draft, load_rows(table))
    if row is None:
        return
    owner = draft.choose_owner(row)
    put = _list_names(draft, owner, n=row.name.partition("_")[2], same=pen.one_of(row.same))
    draft.add(row, row.read, put, owner)
    if row.change or row.around:
        changed = pen.one_of(row.change) if row.change else ()
        around = pen.one_of(row.around) if row.around else ""
        fill = [Template(line).substitute(put) for line in changed]
        draft.steps.append(_Step(tuple(fill), Template(around).substitute(put), after=row.after))


def _add_calls(draft: _Draft) -> None:
    """Calls of a value of one of Python's own types."""
    name = draft.pen.draw_named([(name, CALLS_WEIGHT) for name in list_types()])
    row = draw_calls(draft.pen, list_types()[name])
    if draft.allows(row):
        owner = draft.choose_owner(row)
        draft.add(row, row.read, _list_names(draft, owner, n=row.name), owner)


def _list_names(draft: _Draft, owner: _Owner, **more: str) -> dict[str, str]:
    return {"owner": owner.reached, "class": owner.name, "c": str(draft.spec.dims.width), **more}


def _add_cell(draft: _Draft) -> None:
    """A value in a carrier, a read, and a change of it."""
    pen, kinds = draft.pen, {kind.name: kind for kind in load_kinds()}
    carrier = _draw_row(draft, load_rows("carriers"))
    kind = kinds[pen.draw_weighted([(kind.name, kind.weight) for kind in kinds.values()])]
    name = next((name for name in kind.names if name not in draft.taken), None)
    if carrier is None or name is None or (carrier.binds and kind.callable):
        return
    draft.taken.add(name)
    owner = draft.choose_owner(carrier)
    first = pen.one_of(kind.values)
    later = pen.one_of([value for value in kind.values if value != first])
    read = pen.draw_named([(name_read(kind, read), 10) for read in kind.reads])
    default = f"field(default_factory=lambda: {first})" if kind.mutable else first
    put = _list_names(draft, owner, n=name, v=first, w=later, default=default)
    assert isinstance(carrier.read, str), carrier.name
    put["s"] = Template(carrier.read).substitute(put)
    lines = kind.reads[read.removeprefix(f"read_{kind.name}_")]
    long = any(len(line.replace("$s", put["s"])) > _LONGEST for line in lines)
    if pen.chance(_BOUND) or long or any("$s" in line and 'f"' in line for line in lines):
        lines = (f"own_{name} = $s", *(line.replace("$s", f"own_{name}") for line in lines))
    draft.add(carrier, lines, put, owner)
    draft.names.append(read)
    draft.steps.append(_draw_step(pen, carrier, kind, put))


def _draw_step(pen: Pen, carrier: StateRow, kind: ValueKind, put: Mapping[str, str]) -> _Step:
    mutates = pen.chance(55) and bool(kind.mutations) and carrier.path is not None
    mutation = pen.one_of(kind.mutations or ("",))
    if isinstance(carrier.around, str):
        return _Step(around=Template(carrier.around).substitute(put))
    write = pen.one_of(carrier.write)
    if mutates and carrier.path is not None:
        path = Template(carrier.path).substitute(put)
        return _Step((Template(mutation).substitute(put, p=path),))
    undo = (Template(write).substitute({**put, "w": put["v"]}),) if "$w" in write and carrier.path else ()
    return _Step((Template(write).substitute(put),), undo=undo)


def _write_run(draft: _Draft) -> Iterator[str]:
    """The statements of ``run``: a call, changes, and calls between and after them."""
    pen, calls = draft.pen, list[str]()

    def call(around: str = "") -> list[str]:
        calls.append(_ORDINALS[len(calls)])
        statement = f"{calls[-1]} = model(*inputs)"
        return [around, f"    {statement}"] if around else [statement]

    yield from call()
    pending = not draft.steps
    for step in draft.steps:
        yield from step.lines
        called = pen.chance(_CALLED) or bool(step.around)
        pending = not called
        if called:
            yield from call(step.around)
    if pending:
        yield from call()
    undone = [line for step in draft.steps for line in step.undo]
    if pen.chance(_RESTORED) and (undone or any(step.around for step in draft.steps)):
        yield from (*undone, *call())
    yield from (line for step in draft.steps for line in step.after)
    yield f"return {', '.join(calls)}"
