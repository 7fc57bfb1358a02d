"""What the calls of a campaign take as the corpus grows (bench/corpus.py --growth)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence

from bench.corpus_rows import (
    ENVIRONMENT,
    HIT_EVERY,
    SOURCE,
    add,
    begin,
    clean,
    conclude,
    report,
    settle,
    sha,
    signature,
)
from bench.corpus_timing import took
from fuzzcompile.corpus.records import CaseRecord, Coverage
from fuzzcompile.corpus.store import Store

REPEATS = 100
COMPILER = str(ENVIRONMENT["torch"])
RULES = [Coverage("joint_graph", "pass", f"rule_{rule}", "fired") for rule in range(20)]


def grow(location: str, sizes: Sequence[int], findings: int) -> None:
    """Fill a corpus to each size in turn, and print what the calls take there: medians, in ms."""
    findings = min(findings, sizes[0] // HIT_EVERY)
    columns: list[dict[str, float]] = []
    numbers = itertools.count()
    with Store.open(location) as store:
        begin(store, findings, sizes[0])
        for number, size in enumerate(sizes):
            add(store, 1 + store.stats().runs, size, findings)  # what was stored to be timed counts
            if number == 0:
                conclude(store, findings)
            settle(store)
            columns.append({what: median(call) for what, call in calls(store, findings, numbers)})
    print(f"{findings} findings; median ms, at cases: {'':6}{''.join(f'{size:>12,}' for size in sizes)}")
    for what in columns[0]:
        print(f"  {what:46}{''.join(f'{column[what]:12.2f}' for column in columns)}")


def calls(store: Store, findings: int, numbers: Iterator[int]) -> Iterator[tuple[str, Callable[[], object]]]:
    """What a campaign calls for each case, then what it calls now and then, then what people call."""

    def stored(judged: dict[str, object]) -> object:
        source = f"# {time.time_ns()} {next(numbers)}\n{SOURCE}"
        case = CaseRecord(sha(source), source, "generated", "seed=1", next(numbers))
        return store.record(1, case, ENVIRONMENT, judged, RULES)  # type: ignore[arg-type]

    since = store.news(COMPILER, None).since
    yield "record, no bug", lambda: stored(clean())
    yield "record, a further hit", lambda: stored(report(1 + next(numbers) % findings))
    yield "record, a new finding", lambda: stored(report(1) | {"signature": signature(f"new {next(numbers)}")})
    yield "has_source", lambda: store.has_source(sha(str(next(numbers))), "seed=1")
    yield "heartbeat", lambda: store.heartbeat(1, {"cases": 1})
    yield "news since 300 cases", lambda: store.news(COMPILER, since)
    yield "unreduced", store.unreduced
    yield "which campaigns live", store.living
    yield "summaries (corpus list)", store.summaries
    yield "one finding (corpus show)", lambda: store.finding(1 + next(numbers) % findings)


def median(call: Callable[[], object]) -> float:
    """The median time of some calls, in ms; of slow ones, few."""
    call()
    times: list[float] = []
    begun = time.perf_counter()
    while len(times) < REPEATS and (len(times) < 5 or time.perf_counter() - begun < 5.0):
        times.append(took(call).clock)
    return sorted(times)[len(times) // 2] * 1e3
