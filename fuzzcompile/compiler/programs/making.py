"""From a rule to programs that make it fire."""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import replace

import torch

from fuzzcompile.compiler.catalogue import Known
from fuzzcompile.compiler.programs.code import Named, named_in
from fuzzcompile.compiler.programs.expressions import Unwritable
from fuzzcompile.compiler.programs.filling import Filled, fill, named, recast
from fuzzcompile.compiler.programs.settings import settings_for
from fuzzcompile.compiler.programs.sources import skeleton_of
from fuzzcompile.compiler.programs.spelling import operands, statements
from fuzzcompile.compiler.programs.trying import compiled, runs
from fuzzcompile.generation.patterned import Edit, PatternProgram, render
from fuzzcompile.generation.patterned.kinds import applied, edits_of

# Draws in a row without a new program, after which there is taken to be none.
_BARREN = 30
# Near misses of one kind that are worked out for a program.
_EDITS_OF_A_KIND = 16
_DTYPES = ("float32", "float32", "bfloat16", "float16", "float32", "float64")


def programs_of(rule: Known, device: torch.device, seconds: float, *, enough: int = 3) -> list[PatternProgram]:
    """Programs for one rule: those that it changed, else those in which it fired, else those that may come near it.

    Args:
        rule: a pattern, a pass, an operator with a decomposition or a lowering, as the catalogue lists it.
        device: where the programs run.
        seconds: how long to look for programs that the rule changes.
        enough: how many such programs to look for.
    """
    until = time.monotonic() + seconds
    ranked: tuple[list[PatternProgram], ...] = ([], [], [])
    for program in candidates(rule, device):
        tried = compiled(program, device)
        name = (rule.stage, rule.name)
        ranked[0 if name in tried.changed else 1 if name in tried.fired else 2].append(
            replace(program, fires=name in tried.fired)
        )
        if len(ranked[0]) >= enough or time.monotonic() > until:
            break
    best = next((programs for programs in ranked if programs), [])
    return [with_edits(program, random.Random(program.label)) for program in best[:enough]]


def with_edits(program: PatternProgram, rng: random.Random) -> PatternProgram:
    """The program with near misses that leave it running, each by itself; of each kind some, drawn with ``rng``."""
    by_kind: dict[str, list[Edit]] = {}
    for edit in edits_of(program):
        by_kind.setdefault(edit.name, []).append(edit)
    tried = [edit for edits in by_kind.values() for edit in rng.sample(edits, min(len(edits), _EDITS_OF_A_KIND))]
    edited = ((edit, applied(program, edit)) for edit in tried)
    return replace(program, edits=tuple(edit for edit, result in edited if result is not None and runs(result)))


def candidates(rule: Known, device: torch.device) -> Iterator[PatternProgram]:
    """Programs that run and may make a rule fire, without end unless nothing can be written for it."""
    code = named_in(rule.made_of)
    seen, barren, last = set[str](), 0, None
    for number, settings in zip(itertools.count(), itertools.cycle(settings_for(rule)), strict=False):
        if barren > _BARREN:
            return
        barren += 1
        rng = random.Random(f"{rule.stage} {rule.name} {number}")
        with contextlib.suppress(Unwritable):
            filled = _filled(rule, code, rng, last)
            last = filled or last
            program = None if filled is None else _program(rule, named(filled), dict(settings))
            if program is not None and (source := render(program)) not in seen:
                seen.add(source)
                barren = 0
                yield program


def _filled(rule: Known, code: Named, rng: random.Random, last: Filled | None) -> Filled | None:
    """Another filling; in a third of the draws the last one in another dtype, which costs no search."""
    dtype = rng.choice(_DTYPES)
    if last is not None and rng.random() < 0.3:
        return recast(last, dtype)
    return fill(skeleton_of(rule, code, rng), rng, dtype, code.constants)


def _program(rule: Known, filled: Filled, settings: dict[str, object]) -> PatternProgram:
    tensors = operands(filled)
    if settings.get("freezing"):
        tensors = [replace(operand, role="parameter") if at else operand for at, operand in enumerate(tensors)]
    return PatternProgram(
        stage=rule.stage,
        rule=rule.name,
        pass_name=rule.pass_name,
        origin="pattern",
        operands=tuple(tensors),
        statements=tuple(statements(filled)),
        returns=tuple(f"t{index}" for index in filled.skeleton.returns),
        settings=settings,
        backward=filled.skeleton.backward,
    )
