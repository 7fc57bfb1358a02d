"""What watching a compile costs: plain torch.compile beside a watched one, interleaved, kernels warm.

    python bench/ledger.py [CASE ...] [--pairs N]

Both compile the same program in the same process with Inductor's FX graph cache off (a cached graph runs no
passes, so there would be nothing to compare). Prints medians and the median of the ratios of the pairs, of time on the
clock and of this process's time on the processor, which other processes disturb less; and the replays apart.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from pathlib import Path

import torch

from fuzzcompile.compiler.rule_catalogue import initialise_patterns
from fuzzcompile.compiler.session import Compilation, open_plain_session, open_session
from fuzzcompile.compiler.watch.ledger import Ledger
from fuzzcompile.diagnosis.attribution.steps import measure_steps
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run import runs
from fuzzcompile.run.case import Case
from fuzzcompile.run.case_program import build
from fuzzcompile.run.device import describe_environment

_KNOWN = Path(__file__).parent.parent / "tests" / "known_issues"
_DEFAULT = (_KNOWN / "issue_179575.py", _KNOWN / "issue_195320.py")
_WARM_UPS = 2
_REPLAYED = 5
Times = tuple[float, float]  # on the clock, on the processor; in seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", type=Path, default=_DEFAULT)
    parser.add_argument("--pairs", type=int, default=30)
    given = parser.parse_args()
    device = torch.device("cpu")
    initialise_patterns(device)
    facts = describe_environment(device)
    print(f"torch {facts['torch']}, {facts['cpu']}, {torch.get_num_threads()} threads")
    for path in given.cases:
        measure(load_case(path), device, given.pairs)


def measure(case: Case, device: torch.device, pairs: int) -> None:
    """Print what watching ``case`` costs."""
    for _ in range(_WARM_UPS):
        _plain(case, device)
        _watched(case, device)
    plain, watched = list[Times](), list[Times]()
    for number in range(pairs):
        for kind in ("plain", "watched") if number % 2 else ("watched", "plain"):
            if kind == "plain":
                plain.append(_plain(case, device))
            else:
                watched.append(_watched(case, device)[0])
    replays, rewrites = list[float](), 0
    for _ in range(_REPLAYED):  # apart: a compile after replays, or with a ledger held, takes a few percent longer
        ledger = _watched(case, device)[1]
        start = time.perf_counter()
        measure_steps(ledger)
        replays.append(time.perf_counter() - start)
        rewrites = len(ledger.list_rewrites())
    print(f"{case.name}: {pairs} pairs, {rewrites} rewrites")
    for name, which in (("clock", 0), ("processor", 1)):
        without, seen = [times[which] for times in plain], [times[which] for times in watched]
        ratios = [w / p for w, p in zip(seen, without, strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        medians = f"plain {statistics.median(without) * 1e3:7.1f} ms  watched {statistics.median(seen) * 1e3:7.1f} ms"
        spread = f"median of pairs; half of them {low:.3f} to {high:.3f}"
        print(f"  {name:10}{medians}  ratio {statistics.median(ratios):.3f} ({spread})")
    print(f"  replays   {statistics.median(replays) * 1e3:7.1f} ms (median, apart)")


def _plain(case: Case, device: torch.device) -> Times:
    program = build(case, device)
    gc.collect()  # what the run before left behind is not this one's to clear
    with open_plain_session(case.settings) as session:
        start = time.perf_counter(), time.process_time()
        runs.observe(case, program, session.compile(program.model))
        return time.perf_counter() - start[0], time.process_time() - start[1]


def _watched(case: Case, device: torch.device) -> tuple[Times, Ledger]:
    program = build(case, device)
    gc.collect()
    with open_session(case.settings, Compilation()) as session:
        start = time.perf_counter(), time.process_time()
        runs.observe(case, program, session.compile(program.model))
        times = time.perf_counter() - start[0], time.process_time() - start[1]
    return times, session.ledger


if __name__ == "__main__":
    main()
