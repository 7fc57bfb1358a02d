"""Programs of several processes, real or imitated: of any kind, and those that call collectives, some of them late."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from string import Template
from typing import Literal

from fuzzcompile.fuzz.distributed_programs.grammar import (
    FILLING,
    KINDS,
    MESH_IMPORT,
    MOST_PROCESSES,
    draw_mesh,
    draw_planned,
    draw_settings,
    draw_wide,
    draw_wrapping,
)
from fuzzcompile.fuzz.distributed_programs.sharded_programs import draw_sharded
from fuzzcompile.fuzz.generation.spec import COLLECTIVES, PLANNED, WRAPPED, DistributedProgram, Pen, Weights
from fuzzcompile.model.package_files import read_rows

Gives = Literal["alike", "gathered", "scattered", "row"]


@dataclass(frozen=True, kw_only=True)
class Collective:
    """A row of ``collectives.toml``, where each entry is explained."""

    name: str
    lines: tuple[str, ...]
    weight: int
    gives: Gives
    later: str | None = None
    pair: bool = False
    first: bool = False
    divides: bool = False
    whole: bool = False
    plain: bool = False
    alone: bool = False
    float: bool = False
    operations: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PlainStep:
    """A row of ``steps.toml``, where each entry is explained."""

    name: str
    form: str
    weight: int
    gives: Gives = "alike"
    of: bool = False
    last: bool = False
    float: bool = False
    writes: bool = False


@cache
def load_collectives() -> tuple[Collective, ...]:
    """The rows of ``collectives.toml``, in order."""
    return read_rows(__package__, "collectives", Collective)


@cache
def load_steps() -> tuple[PlainStep, ...]:
    """The rows of ``steps.toml``, in order."""
    return read_rows(__package__, "steps", PlainStep)


def list_collective_names() -> Iterator[tuple[str, str, int, str]]:
    """Name, kind, weight and summary of all of this module that can be drawn more or less often."""
    yield from ((f"collective_{row.name}", "collective", row.weight, row.lines[-1]) for row in load_collectives())
    yield from ((f"between_{row.name}", "collective_step", row.weight, row.form) for row in load_steps())


_NUMBERS = {True: ("0.5", "2.0", "-1.5", "3.0"), False: ("2", "3", "-1", "5")}
_WIDTHS = (4, 6, 3, 8, 5)
_LENGTHS = ((3, 10), (4, 20), (5, 25), (6, 20), (7, 15), (9, 10))
# Percentages: statements that are collectives, waits that stand before the next statement, programs on a mesh of two
# dimensions, and values that are returned besides the last.
_COLLECTIVE, _WAITING, _PLANES, _RETURNED = 48, 25, 30, 30
_MOST_ELEMENTS = 4096


@dataclass
class _HeldValue:
    name: str
    shape: tuple[int, ...]


@dataclass
class _CollectiveDraft:
    """A program while it is drawn; ``sent`` are values that a collective reads until it is waited for."""

    pen: Pen
    groups: Sequence[tuple[str, str, int]]
    floating: bool
    differentiated: bool
    values: list[_HeldValue]
    lines: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    pending: list[tuple[str, _HeldValue, str]] = field(default_factory=list)
    made: int = 0

    def make_name(self) -> str:
        self.made += 1
        return f"y{self.made}"

    def wait(self, at: int) -> None:
        """Wait for a pending value, which can be read from here on."""
        line, value, _ = self.pending.pop(at)
        self.lines.append(line)
        self.values.append(value)

    def pick(self) -> _HeldValue:
        """A value, the youngest most of the time."""
        return self.pen.one_of(self.values[::-1])

    def find_alike(self, value: _HeldValue) -> list[_HeldValue]:
        return [other for other in self.values if other.shape == value.shape]

    def add_collective(self) -> bool:
        pen = self.pen
        rows = [row for row in load_collectives() if not (row.plain and self.differentiated)]
        rows = [row for row in rows if (self.differentiated or not row.alone) and (self.floating or not row.float)]
        chosen = pen.draw_named([(f"collective_{row.name}", row.weight) for row in rows])
        row = next(row for row in rows if f"collective_{row.name}" == chosen)
        group, pg, n = pen.one_of(self.groups)
        a = self.pick()
        axis = 0 if row.first else pen.number(len(a.shape) - 1)
        shape = _resize(a.shape, axis, row.gives, n)
        divided = not (row.divides and a.shape[0] % n) and not (row.whole and a.shape[0] < n)
        if shape is None or not divided:
            return False
        operations = ("sum", *(() if self.differentiated else row.operations))
        operation = pen.one_of(operations if self.floating else [each for each in operations if each != "avg"])
        b, y, z = pen.one_of(self.find_alike(a)), self.make_name(), self.make_name()
        texts = {"a": a.name, "b": b.name, "y": y, "z": z, "op": operation, "axis": axis, "n": n, "pg": pg}
        texts |= {"group": group, "named": f"{pg}.group_name", "source": pen.number(n - 1)}
        self.lines += [Template(line).substitute(texts) for line in row.lines]
        self.names.append(chosen)
        made = [_HeldValue(y, shape), *([_HeldValue(z, shape)] if row.pair else [])]
        if row.later is None:
            self.values += made
            return True
        self.pending.append((Template(row.later).substitute(texts), made[0], a.name))
        return True

    def add_step(self) -> bool:
        pen = self.pen
        rows = [row for row in load_steps() if self.floating or not row.float]
        chosen = pen.draw_named([(f"between_{row.name}", row.weight) for row in rows])
        row = next(row for row in rows if f"between_{row.name}" == chosen)
        a = self.pick()
        if (row.last and a.shape[-1] != self.values[0].shape[-1]) or (row.writes and not self._may_write(a)):
            return False
        texts = {"a": a.name, "b": pen.one_of(self.find_alike(a)).name, "k": pen.one_of(_NUMBERS[self.floating])}
        self.names.append(chosen)
        text = Template(row.form).substitute(texts)
        if row.writes:
            self.lines.append(text)
            return True
        made = _HeldValue(self.make_name(), (1, *a.shape[1:]) if row.gives == "row" else a.shape)
        self.lines.append(f"{made.name} = {text}")
        self.values.append(made)
        return True

    def _may_write(self, value: _HeldValue) -> bool:
        """Return whether no collective reads a value, which autograd does not need."""
        return not self.differentiated and all(value.name != read for *_, read in self.pending)


def _resize(shape: tuple[int, ...], axis: int, gives: Gives, n: int) -> tuple[int, ...] | None:
    size = {"gathered": shape[axis] * n, "scattered": shape[axis] // n}.get(gives, shape[axis])
    made = (*shape[:axis], size, *shape[axis + 1 :])
    return None if (gives == "scattered" and shape[axis] % n) or math.prod(made) > _MOST_ELEMENTS else made


def draw_collectives(pen: Pen, nproc: int, dtype: str, *, differentiated: bool) -> DistributedProgram:
    """A function that calls collectives, on inputs that differ between the processes."""
    mesh = draw_mesh(pen, nproc, planes=True) if pen.chance(_PLANES, "collectives_2d") else ()
    groups = [("group", "group", nproc)]
    if len(mesh) > 1:
        groups = [(f"(mesh, {at})", f"mesh.get_group({at})", size) for at, size in enumerate(mesh)]
    floating, width = "float" in dtype, pen.one_of(_WIDTHS)
    shape = (nproc * (1 + pen.number(2)), width)
    draft = _CollectiveDraft(pen, groups, floating, differentiated, [_HeldValue("x", shape)])
    for _ in range(pen.draw_weighted(_LENGTHS)):
        if draft.pending and pen.chance(_WAITING):
            draft.wait(pen.number(len(draft.pending) - 1))
        draft.add_collective() if pen.chance(_COLLECTIVE) else draft.add_step()
    while draft.pending:
        draft.wait(pen.number(len(draft.pending) - 1))
    if not any(name.startswith("collective_") for name in draft.names):
        draft.add_collective()
        while draft.pending:
            draft.wait(0)
    outputs = [draft.values[-1].name]
    outputs += [value.name for value in draft.values[1:-1] if pen.chance(_RETURNED)]
    made = ["def program(x, w):", *(f"    {line}" for line in draft.lines)]
    made.append(f"    return {', '.join(outputs)}")
    made = [*(["group = dist.group.WORLD"] if not mesh else []), "", *made, ""]
    random = f"torch.randn({{}}, {width}{'' if dtype == 'float32' else f', dtype=torch.{dtype}'})"
    random = random if floating else f"torch.randint(-9, 9, ({{}}, {width}){f', dtype=torch.{dtype}'})"
    inputs = [random.format(shape[0]), random.format(width)]
    if differentiated:
        inputs = [f"{text[:-1]}, requires_grad=True)" for text in inputs]
    text = "\n".join(made)
    imports = [*([MESH_IMPORT] if mesh else [])]
    imports += ["import torch.distributed._functional_collectives as funcol"] if "funcol." in text else []
    names = (*dict.fromkeys(draft.names), *(["collectives_2d"] if mesh else []))
    return DistributedProgram(names, nproc, tuple(imports), tuple(made), mesh, inputs=tuple(inputs), nested="program")


# Programs of each kind.

# Of what collectives exchange.
_EXCHANGED: Weights[str] = (("float32", 55), ("int64", 20), ("bfloat16", 12), ("float16", 5), ("float64", 8))


def draw_kind(pen: Pen, nproc: int) -> tuple[str, bool]:
    """A kind of program, and whether it wraps a module of the generator's."""
    kind = pen.draw_named(KINDS)
    wide = pen.chance(FILLING, "ddp_wide") and nproc <= MOST_PROCESSES  # no reducer of DDP imitates others
    return kind, kind == WRAPPED and not wide


def draw_program(
    pen: Pen, kind: str, nproc: int, *, backward: bool, stacked: bool | None
) -> tuple[DistributedProgram, str | None]:
    """A program of a kind under its settings, and the dtype of its inputs where that is its own choice.

    ``stacked`` says whether the module that it wraps has blocks, None that it wraps none of the generator's.
    """
    dtype = None
    if kind == WRAPPED:
        wide = stacked is None
        program = draw_wide(pen, nproc) if wide else draw_wrapping(pen, nproc, stacked=bool(stacked), backward=backward)
    elif kind == PLANNED:
        program = draw_planned(pen, nproc, backward=backward)
    elif kind == COLLECTIVES:
        dtype = "float32" if backward else pen.draw_weighted(_EXCHANGED)
        program = draw_collectives(pen, nproc, dtype, differentiated=backward)
    else:
        program = draw_sharded(pen, nproc, differentiated=backward)
    # What another one than the first gets when a tensor is divided, the imitated first does not send.
    ranks = (0, nproc - 1, nproc // 2) if kind in (WRAPPED, COLLECTIVES) else (0,)
    rank = None if nproc <= MOST_PROCESSES else pen.one_of(ranks)
    return draw_settings(pen, replace(program, names=(kind, *program.names), rank=rank)), dtype
