"""What watching a compile costs: plain torch.compile beside a watched one, interleaved, kernels warm.

    python bench/ledger.py [CASE] [--pairs N]

Both compile the same program in the same process with Inductor's FX graph cache off (a cached graph runs no
passes, so there would be nothing to compare). Prints medians and the median of the ratios of the pairs, and the
time of the replays apart.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch

from fuzzcompile.attribution.steps import ReplayCount, steps_of
from fuzzcompile.case import Case, load_case
from fuzzcompile.execution import runs
from fuzzcompile.execution.building import build
from fuzzcompile.execution.environment import describe
from fuzzcompile.inductor.hooks import initialise_patterns
from fuzzcompile.inductor.ledger import Ledger
from fuzzcompile.inductor.session import Compilation, compiling, plainly

_DEFAULT = Path(__file__).parent.parent / "tests" / "known_issues" / "issue_179575.py"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", nargs="?", type=Path, default=_DEFAULT)
    parser.add_argument("--pairs", type=int, default=20)
    given = parser.parse_args()
    device = torch.device("cpu")
    case = load_case(given.case)
    initialise_patterns(device)
    _plain(case, device)
    _watched(case, device)
    plain, watched, replays = [], [], []
    for number in range(given.pairs):
        measured = {}
        for kind in ("plain", "watched") if number % 2 else ("watched", "plain"):
            measured[kind] = _plain(case, device) if kind == "plain" else _watched(case, device)
        plain.append(measured["plain"][0])
        watched.append(measured["watched"][0])
        start = time.perf_counter()
        steps_of(measured["watched"][1], ReplayCount())
        replays.append(time.perf_counter() - start)
    facts = describe(device)
    ratios = [w / p for w, p in zip(watched, plain, strict=True)]
    print(
        f"torch {facts['torch']}, {facts['cpu']}, {torch.get_num_threads()} threads; {case.name}, {given.pairs} pairs"
    )
    print(f"plain    {statistics.median(plain) * 1e3:8.1f} ms (median)")
    print(f"watched  {statistics.median(watched) * 1e3:8.1f} ms (median)")
    print(f"ratio    {statistics.median(ratios):8.3f} (median of pairs; {min(ratios):.3f} to {max(ratios):.3f})")
    print(f"replays  {statistics.median(replays) * 1e3:8.1f} ms (median, apart)")


def _plain(case: Case, device: torch.device) -> tuple[float, None]:
    program = build(case, device)
    with plainly(case.settings):
        start = time.perf_counter()
        runs.observe(case, program, torch.compile(program.model))
        return time.perf_counter() - start, None


def _watched(case: Case, device: torch.device) -> tuple[float, Ledger]:
    program = build(case, device)
    with compiling(case.settings, Compilation()) as session:
        start = time.perf_counter()
        runs.observe(case, program, session.compile(program.model))
        return time.perf_counter() - start, session.ledger


if __name__ == "__main__":
    main()
