"""Programs of each kind drawn, for processes that there are and for imitated ones."""

from __future__ import annotations

from dataclasses import replace

from fuzzcompile.fuzz.distributed_programs.collective_programs import draw_collectives
from fuzzcompile.fuzz.distributed_programs.grammar import (
    FILLING,
    KINDS,
    MOST_PROCESSES,
    draw_planned,
    draw_settings,
    draw_wide,
    draw_wrapping,
)
from fuzzcompile.fuzz.distributed_programs.sharded_programs import draw_sharded
from fuzzcompile.fuzz.generation.spec import COLLECTIVES, PLANNED, WRAPPED, DistributedProgram, Pen, Weights

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
