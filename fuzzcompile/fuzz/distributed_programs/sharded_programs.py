"""Programs over tensors of which each process has a part: ``DTensor`` in uneven shards, replicated and partial."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from string import Template
from typing import Literal

from fuzzcompile.fuzz.distributed_programs.grammar import MESH_IMPORT, draw_mesh
from fuzzcompile.fuzz.generation.spec import DistributedProgram, Pen
from fuzzcompile.model.package_files import read_rows

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ShardedStep:
    """A row of ``sharded_steps.toml``, where each entry is explained."""

    name: str
    form: str
    weight: int
    gives: Literal["alike", "summed", "kept", "product", "turned", "joined", "flat"] = "alike"
    of: Literal["equal", "row", "matrix"] | None = None
    plain: bool = False


@cache
def load_sharded_steps() -> tuple[ShardedStep, ...]:
    """The rows of ``sharded_steps.toml``, in order."""
    return read_rows(__package__, "sharded_steps", ShardedStep)


def list_sharded_names() -> Iterator[tuple[str, str, int, str]]:
    """Name, kind, weight and summary of all of this module that can be drawn more or less often."""
    yield from ((f"sharded_{row.name}", "sharded_step", row.weight, row.form) for row in load_sharded_steps())


# Sizes that few numbers of processes divide.
_SIZES = (4, 5, 6, 7, 3, 8)
_LENGTHS = ((2, 15), (3, 25), (4, 25), (5, 20), (7, 15))
_NUMBERS = ("0.5", "2.0", "-1.5")
# Percentages: a mesh of two dimensions, an input of three, an input that is partial, values that are returned besides
# the last, and a result that is returned whole.
_PLANES, _THREE, _PARTIAL, _RETURNED, _WHOLE = 40, 30, 15, 25, 30


@dataclass
class _ShardedDraft:
    pen: Pen
    planes: int
    differentiated: bool
    values: dict[str, Shape] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)

    def draw_placements(self, rank: int) -> str:
        """One placement for each dimension of the mesh, no axis twice: parts of parts are another matter."""
        left, placed = [*range(rank)], list[str]()
        for _ in range(self.planes):
            if left and self.pen.chance(70):
                placed.append(f"Shard({left.pop(self.pen.number(len(left) - 1))})")
            else:
                placed.append("Replicate()")
        return ", ".join(placed)

    def add_input(self, shape: Shape) -> str:
        name, sizes = "abcdefgh"[len(self.inputs)], ", ".join(map(str, shape))
        grad = ".requires_grad_()" if self.differentiated else ""
        if self.pen.chance(_PARTIAL, "partial_input") and not self.differentiated:
            self.names.append("partial_input")
            placed = ", ".join(["Partial()", *["Replicate()"] * (self.planes - 1)])
            self.inputs.append(f"DTensor.from_local(torch.randn({sizes}), mesh, [{placed}])")
        else:
            placements = self.draw_placements(len(shape))
            self.inputs.append(f"distribute_tensor(torch.randn({sizes}), mesh, [{placements}]){grad}")
        self.values[name] = shape
        return name

    def add_step(self) -> bool:
        pen = self.pen
        rows = [row for row in load_sharded_steps() if not (row.plain and self.differentiated)]
        chosen = pen.draw_named([(f"sharded_{row.name}", row.weight) for row in rows])
        row = next(row for row in rows if f"sharded_{row.name}" == chosen)
        a = pen.one_of([*self.values][::-1])
        shape = self.values[a]
        if len(shape) < 1 + (row.gives in ("turned", "product", "flat")) or (row.gives == "summed" and len(shape) < 2):
            return False
        axis, other, made = pen.number(len(shape) - 1), shape, shape
        if row.of == "row":
            other = shape[-1:]
        elif row.of == "matrix":
            other = (shape[-1], pen.one_of(_SIZES))
        known = [name for name, held in self.values.items() if held == other]
        b = pen.one_of(known) if known else ""
        if row.of is not None and not b:
            if len(self.inputs) > 3:
                return False
            b = self.add_input(other)
            other = self.values[b]
        if row.gives in ("summed", "kept"):
            made = (*shape[:axis], *((1,) if row.gives == "kept" else ()), *shape[axis + 1 :])
        elif row.gives == "product":
            made = (*shape[:-1], other[-1])
        elif row.gives == "turned":
            made = (*shape[:-2], shape[-1], shape[-2])
        elif row.gives == "joined":
            made = (*shape[:axis], 2 * shape[axis], *shape[axis + 1 :])
        elif row.gives == "flat":
            made = (shape[0] * shape[1], *shape[2:])
        texts = {"a": a, "b": b, "k": pen.one_of(_NUMBERS), "d": axis, "placements": self.draw_placements(len(shape))}
        name = f"y{len(self.lines)}"
        self.lines.append(f"{name} = {Template(row.form).substitute(texts)}")
        self.names.append(chosen)
        self.values[name] = made
        return True


def draw_sharded(pen: Pen, nproc: int, *, differentiated: bool) -> DistributedProgram:
    """A function over tensors in parts; the parts themselves are what it returns, or the whole."""
    mesh = draw_mesh(pen, nproc, planes=pen.chance(_PLANES, "sharded_2d"))
    draft = _ShardedDraft(pen, len(mesh), differentiated)
    rank = 3 if pen.chance(_THREE) else 2
    draft.add_input(tuple(pen.one_of(_SIZES) for _ in range(rank)))
    for _ in range(pen.draw_weighted(_LENGTHS)):
        draft.add_step()
    if not draft.lines:
        draft.lines.append(f"y0 = a.redistribute(mesh, [{draft.draw_placements(rank)}])")
        draft.values["y0"], draft.names = draft.values["a"], [*draft.names, "sharded_redistribute"]
    own = [name for name in draft.values if name.startswith("y")]
    last = f"{own[-1]}.full_tensor()" if pen.chance(_WHOLE, "returned_whole") else own[-1]
    outputs = [last, *(name for name in own[:-1] if pen.chance(_RETURNED))]
    arguments = ", ".join("abcdefgh"[: len(draft.inputs)])
    made = ["", f"def program({arguments}):", *(f"    {line}" for line in draft.lines)]
    made += [f"    return {', '.join(outputs)}", ""]
    text = "\n".join([*made, *draft.inputs])
    words = ("DTensor", "Partial", "Replicate", "Shard", "distribute_tensor")
    used = [word for word in words if f"{word}(" in text or f"{word}." in text]
    imports = [MESH_IMPORT, f"from torch.distributed.tensor import {', '.join(used)}"]
    names = (*dict.fromkeys(draft.names), *(["sharded_2d"] if len(mesh) > 1 else []))
    apart = None if "partial_input" in names else ()
    return DistributedProgram(
        names, nproc, tuple(imports), tuple(made), mesh, inputs=tuple(draft.inputs), nested="program", apart=apart
    )
