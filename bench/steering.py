"""Which way of drawing reaches most for the same processor time: every strategy on its own, screened, from nothing.

    python bench/steering.py [--seconds S] [--seeds N] [--only NAME ...] [--state FILE.jsonl] [--report FILE.md]
    PYTHONPATH=CHECKOUT python bench/steering.py --generator "before" ...    # the generator of another checkout

Each strategy fills places of a stream until its cases have taken S seconds of processor time, N times under other
seeds. Counted are cases, what was reached (rules that fired or were refused, decompositions), rules that fired, and
kinds of first suspects among cases that looked wrong. The same case is judged once, and its cost counted for every
strategy that draws it. Nothing hangs on wall time, so the machine need not be idle. Finished streams are kept in the
state and not run again; the report is written from all of them. Strategies differ in how places are filled or, as
"plain 40" and the like, in the share of plain attentions (of operator programs, "programs 0") under uniform drawing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from fuzzcompile.compiler.session import Compilation
from fuzzcompile.compiler.watch.rule_labels import get_family
from fuzzcompile.diagnosis.attribution.steps import measure_steps, rank_suspects
from fuzzcompile.diagnosis.decision import decide
from fuzzcompile.diagnosis.stages.graph_passes import find_failing_rewrite
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.diagnosis.worker.judge import isolate_process, prepare
from fuzzcompile.fuzz.campaign.case_sources import DrawnCase, GeneratorSource, Item, fit_installed_torch
from fuzzcompile.fuzz.campaign.steering import UNIFORM, PlaceOutcome, Steering, Strategy, collect_items
from fuzzcompile.fuzz.generation.profile import Profile
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.severity import Severity
from fuzzcompile.programs.casefiles.case_module import load_case

STRATEGIES = {
    "uniform": UNIFORM,
    "bandit": Strategy(candidates=4, pairs=0.0, wholes=0.0, kinds=0.0, mutated=0.0),
    "pairs": Strategy(candidates=4, wholes=0.0, kinds=0.0, mutated=0.0),
    "wholes": Strategy(candidates=4, mutated=0.0),
    "mutation": Strategy(candidates=1, pairs=0.0, mutated=0.5, climbing=0.0),
    "climbing": Strategy(candidates=1, pairs=0.0, mutated=0.5, climbing=0.5),
    "drawn kinds": Strategy(kinds=0.0),
    "thriftless": Strategy(thrift=0.0),
    "default": Strategy(),
}
# Weights of the generator, in percent of its own: of 10 plain attentions in 100 cases, and 50 programs in the others.
SHARES = {
    "plain 0": {"plain": 0},
    "plain 20": {"plain": 200},
    "plain 40": {"plain": 400},
    "programs 0": {"program": 0},
    "programs 25": {"program": 50},
    "programs 80": {"program": 160},
}


@dataclass(frozen=True)
class Stream:
    """What one stream reached; ``fired`` and ``families`` count rules and kinds of suspects."""

    generator: str
    strategy: str
    seed: int
    seconds: float
    cases: int
    reached: int
    fired: int
    families: int
    suspects: Sequence[str]


@dataclass(frozen=True)
class Screened:
    """What screening a case showed, and its processor seconds."""

    items: frozenset[Item]
    seconds: float
    step: float | None
    suspect: str | None


def main() -> None:
    """Measure what is not known yet, print, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    names = (*STRATEGIES, *SHARES)
    parser.add_argument("--only", nargs="*", choices=names, default=names)
    parser.add_argument("--generator", default="now", help="what the report calls the generator of this run")
    parser.add_argument("--state", type=Path, default=Path("steering.jsonl"))
    parser.add_argument("--report", type=Path, help="the file that the report goes to")
    given = parser.parse_args()
    known = _known(given.state)
    if given.only:
        prepare(Conditions())
    print(f"torch {torch.__version__}; {given.seconds:.0f} s of processor time each, {given.seeds} seeds")
    judged: dict[str, Screened] = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(given.first, given.first + given.seeds):
            for name in given.only:
                if (given.generator, name, seed, given.seconds) in known:
                    continue
                stream = _run(given.generator, name, seed, given.seconds, Path(folder), judged)
                known[given.generator, name, seed, given.seconds] = stream
                with given.state.open("a", encoding="utf-8") as state:
                    state.write(json.dumps(asdict(stream)) + "\n")
                print(f"{name:12} seed {seed}: {stream.cases} cases, {stream.reached} reached", flush=True)
    text = _report(list(known.values()))
    print(text)
    if given.report is not None:
        given.report.write_text(text, encoding="utf-8")


def _known(state: Path) -> dict[tuple[str, str, int, float], Stream]:
    lines = state.read_text(encoding="utf-8").splitlines() if state.exists() else []
    streams = [Stream(**json.loads(line)) for line in lines]
    return {(stream.generator, stream.strategy, stream.seed, stream.seconds): stream for stream in streams}


def _report(streams: Sequence[Stream]) -> str:
    """A table with one line for each generator and strategy, by the median over seeds of what was reached."""
    groups: dict[tuple[str, str, float], list[Stream]] = {}
    for stream in streams:
        groups.setdefault((stream.generator, stream.strategy, stream.seconds), []).append(stream)
    lines = [
        "# Strategies of drawing, compared",
        "",
        f"Written by `bench/steering.py` on torch {torch.__version__}. Every stream screens from nothing for the same "
        "processor time. Medians over seeds; in brackets each seed's.",
        "",
        "| generator | strategy | seconds | seeds | cases | reached | rules fired | kinds of suspects |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (generator, strategy, seconds), runs in sorted(groups.items(), key=_longest_and_most):
        cells = [_cell(runs, name) for name in ("cases", "reached", "fired", "families")]
        lines.append(f"| {generator} | {strategy} | {seconds:.0f} | {len(runs)} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _longest_and_most(group: tuple[tuple[str, str, float], Sequence[Stream]]) -> tuple[float, float]:
    (_, _, seconds), runs = group
    return -seconds, -_median(runs, "reached")


def _median(runs: Sequence[Stream], name: str) -> float:
    return statistics.median(getattr(stream, name) for stream in runs)


def _cell(runs: Sequence[Stream], name: str) -> str:
    each = ", ".join(str(getattr(stream, name)) for stream in sorted(runs, key=lambda stream: stream.seed))
    return f"{_median(runs, name):.0f} ({each})"


def _run(generator: str, name: str, seed: int, seconds: float, folder: Path, known: dict[str, Screened]) -> Stream:
    """One stream of a strategy."""
    weights: Mapping[str, int] = SHARES.get(name, {})
    source = GeneratorSource(fit_installed_torch(Profile().steer(weights)))
    steering = Steering(source, seed, "screen", STRATEGIES.get(name, UNIFORM))
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
        items = collect_items(found.items, found.suspect)
        severity = Severity.SILENT if found.suspect is not None else None  # a screen says no more
        steering.learn(place, PlaceOutcome(drawn, items, True, found.step, severity, found.seconds))
        place += 1
    fired = sum(outcome == "fired" for _, _, outcome in reached)
    return Stream(generator, name, seed, seconds, place, len(reached), fired, len(suspects), sorted(suspects))


def _screen(drawn: DrawnCase, folder: Path) -> Screened:
    path = folder / f"case_{drawn.sha256[:12]}.py"
    path.write_text(drawn.source, encoding="utf-8")
    start = time.process_time()
    items: set[Item] = set()
    step: float | None = None
    suspect: str | None = None
    try:
        with isolate_process():
            looking = Experiments(load_case(path), torch.device("cpu"), Compilation()).under(
                Compilation(screen=True), quick=True
            )
            trial = looking.trial()
            steps = measure_steps(trial.ledger)
            decision = decide(looking, trial, steps)
    except Exception as error:  # a case that cannot be judged brings nothing
        print(f"  {path.name}: {type(error).__name__}: {str(error)[:80]}")
    else:
        items |= {(label.stage, label.rewrite, outcome) for label, outcome in trial.ledger.coverage}
        items |= {(one.stage, one.name, one.outcome) for one in trial.ledger.reached}
        step = max((one.float64 or 0.0 for one in steps if not one.random), default=None)
        if decision.verdict.is_bug:
            failing, suspected = find_failing_rewrite(trial), rank_suspects(steps)
            label = failing or (suspected[0].label if suspected else None)
            suspect = f"{decision.verdict.kind} {get_family(label.rewrite) if label is not None else 'unknown'}"
    return Screened(frozenset(items), time.process_time() - start, step, suspect)


if __name__ == "__main__":
    main()
