"""Which mutants are tried: a sample of the lines that cases of the pool reach, stratified by stage and seeded."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fuzzcompile.compiler.source_probes import parse_file
from recalling.mutation import Mutation
from recalling.operators import mutations_of

Probe = tuple[str, int, int, int, int]
"""File, first line and column, last line and column."""


@dataclass(frozen=True)
class Reach:
    """How much of a stage's code the pool reaches, in statements and branches, and how many mutations that allows."""

    probes: int
    reached: int
    mutations: int
    reachable: int


@dataclass(frozen=True)
class Site:
    """A mutation, its stage, and the number of the probe that notes its execution."""

    mutation: Mutation
    stage: str
    probe: int


def sites(stages: Mapping[str, str], probes: Sequence[Probe]) -> list[Site]:
    """The mutations whose execution a probe notes, in the order of the files.

    Args:
        stages: the stage of each file.
        probes: all probes, by number.
    """
    numbered = _by_file(probes)
    return [
        Site(mutation, stage, probe)
        for file, stage in stages.items()
        for mutation, probe in _placed(mutations_of(file, parse_file(file)), numbered[file])
    ]


def reach(
    stages: Mapping[str, str], probes: Sequence[Probe], possible: Sequence[Site], reached: Collection[int]
) -> dict[str, Reach]:
    """By stage, how much of ``probes`` and of the ``possible`` sites the probes ``reached`` cover."""
    rows = [(stages[probe[0]], 0, number in reached) for number, probe in enumerate(probes)]
    rows += [(site.stage, 2, site.probe in reached) for site in possible]
    counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for stage, place, covered in rows:
        counts[stage][place] += 1
        counts[stage][place + 1] += covered
    return {stage: Reach(*row) for stage, row in counts.items()}


def sampled(found: Sequence[Site], seed: int) -> dict[str, Iterator[Site]]:
    """By stage, mutants in the order in which they are to be tried: lines in random order, one mutation a line.

    The operator is drawn first, so that operators with many mutations a line do not crowd out the rest.
    """
    lines: defaultdict[str, defaultdict[tuple[str, int], list[Site]]] = defaultdict(lambda: defaultdict(list))
    for site in found:
        lines[site.stage][site.mutation.file, site.mutation.start[0]].append(site)
    return {stage: _drawn(by_line, random.Random(f"recall {seed} {stage}")) for stage, by_line in lines.items()}


def _drawn(lines: Mapping[tuple[str, int], list[Site]], rng: random.Random) -> Iterator[Site]:
    order = sorted(lines)
    rng.shuffle(order)
    for line in order:
        operator = rng.choice(sorted({site.mutation.operator for site in lines[line]}))
        yield rng.choice([site for site in lines[line] if site.mutation.operator == operator])


def _by_file(probes: Sequence[Probe]) -> defaultdict[str, list[tuple[Probe, int]]]:
    numbered: defaultdict[str, list[tuple[Probe, int]]] = defaultdict(list)
    for number, probe in enumerate(probes):
        numbered[probe[0]].append((tuple(probe), number))  # type: ignore[arg-type]
    return numbered


def _placed(mutations: Sequence[Mutation], probes: Sequence[tuple[Probe, int]]) -> Iterator[tuple[Mutation, int]]:
    """Each mutation with the innermost probe around it; mutations that no probe notes are left out."""
    inside_out = sorted(probes, key=lambda row: (row[0][1:3], (-row[0][3], -row[0][4])))
    open_probes: list[tuple[Probe, int]] = []
    place = 0
    for mutation in sorted(mutations, key=lambda mutation: mutation.start):
        while place < len(inside_out) and inside_out[place][0][1:3] <= mutation.start:
            open_probes.append(inside_out[place])
            place += 1
        while open_probes and open_probes[-1][0][3:5] < mutation.start:
            open_probes.pop()
        around = (number for probe, number in reversed(open_probes) if probe[3:5] >= mutation.end)
        number = next(around, None)
        if number is not None:
            yield mutation, number
