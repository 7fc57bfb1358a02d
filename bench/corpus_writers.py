"""Several processes that store cases in one corpus at once (bench/corpus.py --writers)."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections import Counter

from sqlalchemy import func, select

from bench.corpus_rows import ENVIRONMENT, SOURCE, clean, report, sha
from fuzzcompile.corpus.models import CoverageRow, FindingRow, RunRow
from fuzzcompile.corpus.records import Campaign, CaseRecord, Coverage
from fuzzcompile.corpus.store import Store
from fuzzcompile.corpus.transactions import find_part

STREAM = "seed=0"
# Findings that all writers hit, and how often: each sees them first at about the same time.
FINDINGS, HIT_EVERY = 50, 5
RULES = 20


def write_together(location: str, writers: int, records: int) -> None:
    """Let processes store cases, and check that each is there once."""
    Store.open(location).close()
    command = [sys.executable, "-m", "bench.corpus_writers", location, str(records)]
    begun = time.perf_counter()
    running = [subprocess.Popen([*command, str(n)], stdout=subprocess.PIPE, text=True) for n in range(writers)]
    said = [process.communicate()[0] for process in running]
    seconds = time.perf_counter() - begun
    assert [process.returncode for process in running] == [0] * writers, "a writer failed"
    taken = sorted(float(line) for text in said for line in text.split())
    total = writers * records
    print(f"{writers} writers, {records} records each: {total / seconds:.0f} records/s in {seconds:.0f} s")
    deciles = statistics.quantiles(taken, n=100)
    print(f"ms a record: median {deciles[49]:.1f}, 90th of 100 {deciles[89]:.1f}, worst {taken[-1]:.1f}")
    check(location, writers, records)
    print("Nothing was lost, and nothing stored twice.")


def check(location: str, writers: int, records: int) -> None:
    """Whether every case is there once, each hit was counted, and each campaign had a part of its own."""
    total = writers * records
    with Store.open(location, create=False) as store, store._engine.connect() as connection:
        found = store.summaries()
        assert store.counters().cases == store.counters().runs == total, store.counters()
        assert store.integrity() == "ok"
        hits = connection.execute(select(RunRow.finding_id, func.count()).group_by(RunRow.finding_id)).all()
        by_finding = {key: count for key, count in hits if key is not None}
        assert {finding.id: finding.hits for finding in found} == by_finding
        assert len({finding.signature for finding in found}) == len(found) == min(FINDINGS, records // HIT_EVERY)
        assert connection.scalar(select(func.sum(FindingRow.hits))) == writers * (records // HIT_EVERY)
        assert connection.scalar(select(func.sum(CoverageRow.count))) == total * RULES
        parts = Counter(map(find_part, store.recorded_indices(STREAM)))
        assert parts == dict.fromkeys(range(writers), records), parts


def write(location: str, records: int, writer: int) -> None:
    """Store cases as a campaign does; print how many ms each took."""
    said = {"command": "fuzzcompile run", "fuzzcompile_version": "0", "environment": ENVIRONMENT}
    with Store.open(location, create=False) as store:
        campaign = store.start_campaign(Campaign(seed=0, settings={"stream": STREAM}, **said))  # type: ignore[arg-type]
        places = 2**40 * store.part(campaign)
        for number in range(records):
            source = f"# {writer} {number}\n{SOURCE}"
            case = CaseRecord(sha(source), source, "generated", STREAM, places + number)
            hit = number % HIT_EVERY == HIT_EVERY - 1
            judged = report(number // HIT_EVERY % FINDINGS) if hit else clean()
            reached = [Coverage("joint_graph", "pass", f"rule_{rule}", "fired") for rule in range(RULES)]
            begun = time.perf_counter()
            store.record(campaign, case, ENVIRONMENT, judged, reached)  # type: ignore[arg-type]
            print(f"{(time.perf_counter() - begun) * 1e3:.2f}")
            if number % 50 == 0:
                store.heartbeat(campaign, {"cases": number})
        store.finish_campaign(campaign, {"cases": records}, "budget")


if __name__ == "__main__":
    write(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
