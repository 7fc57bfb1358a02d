"""Which way of drawing reaches most for the same processor time: every strategy on its own, screened, from nothing.

    python bench/steering.py [--seconds S] [--seeds N]

Each strategy fills places of a stream until its cases have taken S seconds of processor time, N times under other
seeds. Printed are cases, what was reached (rewrites that fired or were refused, decompositions) and how many cases
looked wrong, by kind of first suspect. The same case is judged once, and its cost counted for every strategy that draws
it. Nothing hangs on wall time, so the machine need not be idle.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from fuzzcompile.attribution.proving import failing_rewrite
from fuzzcompile.attribution.replays import ReplayCount
from fuzzcompile.attribution.steps import steps_of, suspects_of
from fuzzcompile.campaign.drawing import Drawn, Generator
from fuzzcompile.campaign.profiles import for_this_torch
from fuzzcompile.campaign.steering import UNIFORM, Item, Outcome, Steering, Strategy, items_of
from fuzzcompile.case import load_case
from fuzzcompile.compiler.labels import family_of
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.generation import Profile
from fuzzcompile.judging.decision import decide
from fuzzcompile.trials.compiles import Experiments
from fuzzcompile.worker.isolation import isolated
from fuzzcompile.worker.judge import WorkerSetup, prepare

STRATEGIES = {
    "uniform": UNIFORM,
    "bandit": Strategy(candidates=4, pairs=0.0, wholes=0.0, kinds=0.0, mutated=0.0),
    "pairs": Strategy(candidates=4, wholes=0.0, kinds=0.0, mutated=0.0),
    "wholes": Strategy(candidates=4, mutated=0.0),
    "bandit of 8": Strategy(candidates=8, mutated=0.0),
    "mutation": Strategy(candidates=1, pairs=0.0, mutated=0.5, climbing=0.0),
    "climbing": Strategy(candidates=1, pairs=0.0, mutated=0.5, climbing=0.5),
    "drawn kinds": Strategy(kinds=0.0),
    "thriftless": Strategy(thrift=0.0),
    "default": Strategy(),
}


@dataclass(frozen=True)
class Screened:
    """What screening a case showed, and its processor seconds."""

    items: frozenset[Item]
    seconds: float
    step: float | None
    suspect: str | None


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--only", nargs="*", choices=tuple(STRATEGIES), default=tuple(STRATEGIES))
    given = parser.parse_args()
    prepare(WorkerSetup((), 1))
    known: dict[str, Screened] = {}
    source = Generator(for_this_torch(Profile()))
    print(f"torch {torch.__version__}; {given.seconds:.0f} s of processor time each, {given.seeds} seeds")
    with tempfile.TemporaryDirectory() as folder:
        for name in given.only:
            runs = [
                _run(Steering(source, seed, "screen", STRATEGIES[name]), given.seconds, Path(folder), known)
                for seed in range(given.first, given.first + given.seeds)
            ]
            medians = [statistics.median(column) for column in zip(*runs, strict=True)]
            each = "; ".join(f"{cases}/{reached}/{families}" for cases, reached, families in runs)
            print(
                f"{name:12} {medians[0]:6.0f} cases, {medians[1]:5.0f} reached, {medians[2]:3.0f} families of suspects "
                f"(median)   each: {each}",
                flush=True,
            )


def _run(steering: Steering, seconds: float, folder: Path, known: dict[str, Screened]) -> tuple[int, int, int]:
    """Cases, items reached and families of suspects of one stream."""
    spent, place = 0.0, 0
    reached: set[Item] = set()
    suspects: set[str] = set()
    while spent < seconds:
        start = time.process_time()
        drawn, _ = steering.at(place)
        spent += time.process_time() - start
        if drawn.sha256 not in known:
            known[drawn.sha256] = _screen(drawn, folder)
        found = known[drawn.sha256]
        spent += found.seconds
        reached |= found.items
        suspects |= {found.suspect} if found.suspect is not None else set()
        items = items_of(found.items, found.suspect)
        steering.learn(place, Outcome(drawn, items, True, found.step, found.suspect is not None))
        place += 1
    return place, len(reached), len(suspects)


def _screen(drawn: Drawn, folder: Path) -> Screened:
    path = folder / f"case_{drawn.sha256[:12]}.py"
    path.write_text(drawn.source, encoding="utf-8")
    start = time.process_time()
    items: set[Item] = set()
    step: float | None = None
    suspect: str | None = None
    try:
        with isolated():
            looking = Experiments(load_case(path), torch.device("cpu"), Compilation()).under(
                Compilation(screen=True), quick=True
            )
            trial = looking.trial()
            steps = steps_of(trial.ledger, ReplayCount())
            decision = decide(looking, trial, steps)
    except Exception as error:  # a case that cannot be judged brings nothing
        print(f"  {path.name}: {type(error).__name__}: {str(error)[:80]}")
    else:
        items |= {(label.stage, label.rewrite, outcome) for label, outcome in trial.ledger.coverage}
        items |= {(one.stage, one.name, one.outcome) for one in trial.ledger.reached}
        step = max((one.float64 or 0.0 for one in steps if not one.random), default=None)
        if decision.verdict.is_bug:
            failing, suspected = failing_rewrite(trial), suspects_of(steps)
            label = failing or (suspected[0].label if suspected else None)
            suspect = f"{decision.verdict.kind} {family_of(label.rewrite) if label is not None else 'unknown'}"
    return Screened(frozenset(items), time.process_time() - start, step, suspect)


if __name__ == "__main__":
    main()
