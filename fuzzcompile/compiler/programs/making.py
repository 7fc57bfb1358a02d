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
from fuzzcompile.compiler.programs.searched import searched
from fuzzcompile.compiler.programs.settings import settings_for
from fuzzcompile.compiler.programs.sources import has_pattern, skeleton_of, variant_of
from fuzzcompile.compiler.programs.spelling import operands, statements
from fuzzcompile.compiler.programs.trying import compiled, runs
from fuzzcompile.generation.patterned import Edit, Operand, PatternProgram, render
from fuzzcompile.generation.patterned.kinds import applied, edits_of
from fuzzcompile.generation.patterned.program import Origin

# Draws in a row without a new program, after which there is taken to be none.
_BARREN = 30
# The share of the time for a rule in which programs are looked for.
_LOOKING = 2 / 3
# Near misses of one kind that are worked out for a program.
_EDITS_OF_A_KIND = 16
_DTYPES = ("float32", "float32", "bfloat16", "float16", "float32", "float64")


def programs_of(rule: Known, device: torch.device, seconds: float, *, enough: int = 2) -> list[PatternProgram]:
    """Programs for one rule: those that it changed, else those in which it fired, else those that may come near it.

    Args:
        rule: a pattern, a pass, an operator with a decomposition or a lowering, as the catalogue lists it.
        device: where the programs run.
        seconds: how long to look; two thirds for programs that the rule changes, the rest for near misses of them.
        enough: how many such programs to look for.
    """
    begun = time.monotonic()
    ranked: tuple[list[PatternProgram], ...] = ([], [], [])
    name = (rule.stage, rule.name)
    for program in candidates(rule, device):
        tried = compiled(program, device)
        rank = 0 if name in tried.changed else 1 if name in tried.fired else 2
        ranked[rank].append(replace(program, fires=rank < 2))
        if len(ranked[0]) >= enough or time.monotonic() - begun > _LOOKING * seconds:
            break
    best = next((programs for programs in ranked if programs), [])[:enough]
    ends = [begun + seconds * (_LOOKING + (1 - _LOOKING) * (at + 1) / len(best)) for at in range(len(best))]
    return [with_edits(program, random.Random(program.label), until) for program, until in zip(best, ends, strict=True)]


def with_edits(program: PatternProgram, rng: random.Random, until: float) -> PatternProgram:
    """The program with near misses that leave it running, each by itself; of each kind some, drawn with ``rng``.

    Those that there was no time for until ``until``, of ``time.monotonic``, are left out.
    """
    by_kind: dict[str, list[Edit]] = {}
    for edit in edits_of(program):
        by_kind.setdefault(edit.name, []).append(edit)
    tried = [edit for edits in by_kind.values() for edit in rng.sample(edits, min(len(edits), _EDITS_OF_A_KIND))]
    rng.shuffle(tried)
    running: list[Edit] = []
    for edit in tried:
        edited = applied(program, edit)
        if edited is not None and runs(edited):
            running.append(edit)
        if time.monotonic() > until:
            break
    return replace(program, edits=tuple(running))


def candidates(rule: Known, device: torch.device) -> Iterator[PatternProgram]:
    """Programs that run and may make a rule fire, without end unless nothing can be written for it."""
    yield from searched(rule)
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
            program = None if filled is None else _program(rule, named(filled), dict(settings), rng)
            if program is not None and (source := render(program)) not in seen:
                seen.add(source)
                barren = 0
                yield program


def _filled(rule: Known, code: Named, rng: random.Random, last: Filled | None) -> Filled | None:
    """Another filling; in a third of the draws the last one in another dtype, which costs no search."""
    own, dtype = variant_of(rule, rng), rng.choice(_DTYPES)
    if last is not None and own is None and rng.random() < 0.3:
        return recast(last, dtype)
    return own or fill(skeleton_of(rule, code, rng), rng, dtype, code.constants)


def _program(rule: Known, filled: Filled, settings: dict[str, object], rng: random.Random) -> PatternProgram:
    if filled.skeleton.frozen:
        settings["freezing"] = True
    if filled.skeleton.draws and rng.random() < 0.5:
        settings["fallback_random"] = False
    return PatternProgram(
        stage=rule.stage,
        rule=rule.name,
        pass_name=rule.pass_name,
        origin=_origin(rule),
        operands=tuple(_in_roles(filled, rng) if settings.get("freezing") else operands(filled)),
        statements=tuple(statements(filled)),
        returns=tuple(f"t{index}" for index in filled.skeleton.returns),
        settings=settings,
        backward=filled.skeleton.backward,
    )


def _origin(rule: Known) -> Origin:
    if rule.kind in ("decomposition", "lowering"):
        return "operator"
    return "pattern" if has_pattern(rule) else "pass"


def _in_roles(filled: Filled, rng: random.Random) -> list[Operand]:
    """The operands, those that a rule knows as weights as parameters; or all but one."""
    tensors = operands(filled)
    weights = {value.name for hole, value in filled.values.items() if isinstance(value, Operand) and hole.weight}
    if not weights or rng.random() < 0.4:
        moving = rng.choice(tensors).name if tensors and rng.random() < 0.4 else "x0"
        weights = {operand.name for operand in tensors} - {moving}
    return [replace(operand, role="parameter") if operand.name in weights else operand for operand in tensors]
