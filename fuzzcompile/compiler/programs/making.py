"""From a rule to programs that make it fire."""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import replace

import torch

from fuzzcompile.compiler.catalogue import Known, known_to
from fuzzcompile.compiler.programs.code import Named, named_in
from fuzzcompile.compiler.programs.expressions import Unwritable
from fuzzcompile.compiler.programs.filling import Filled, fill, named, recast
from fuzzcompile.compiler.programs.settings import settings_for
from fuzzcompile.compiler.programs.sources import skeleton_of
from fuzzcompile.compiler.programs.spelling import operands, statements
from fuzzcompile.compiler.programs.trying import compiled, runs
from fuzzcompile.generation.patterned import PatternProgram, render
from fuzzcompile.generation.patterned.kinds import applied, edits_of

# Programs that fire, after which no other is looked for.
_ENOUGH = 3
# Draws in a row without a new program, after which there is taken to be none.
_BARREN = 30
_DTYPES = ("float32", "float32", "bfloat16", "float16", "float32", "float64")


def programs_of(stage: str, rule: str, device: torch.device, seconds: float) -> list[PatternProgram]:
    """Programs for one rule, those first whose compile made it fire; their near misses are worked out.

    Args:
        stage: the rule's stage.
        rule: its name in the catalogue: a pattern, a pass, an operator with a decomposition or a lowering.
        device: where the programs run.
        seconds: how long to look for one that fires.
    """
    known = [row for row in known_to(device) if (row.stage, row.name) == (stage, rule) and row.kind != "setting"]
    until = time.monotonic() + seconds
    fired: list[PatternProgram] = []
    others: list[PatternProgram] = []
    for program in itertools.chain.from_iterable(candidates(row, device) for row in known):
        fires = (stage, rule) in compiled(program, device).fired
        (fired if fires else others).append(replace(program, fires=fires))
        if len(fired) >= _ENOUGH or time.monotonic() > until:
            break
    return [with_edits(program, device) for program in (fired or others[:_ENOUGH])]


def with_edits(program: PatternProgram, device: torch.device) -> PatternProgram:
    """The program with the near misses that leave it running, each by itself."""
    valid = []
    for edit in edits_of(program):
        edited = applied(program, edit)
        if edited is not None and runs(edited, device):
            valid.append(edit)
    return replace(program, edits=tuple(valid))


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
