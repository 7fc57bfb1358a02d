"""How fast a large corpus is: 100,000 cases and 2,000 findings, made of synthetic rows.

    python -m bench.corpus [--cases 100000] [--findings 2000] [--folder DIR]

Prints what a list, one finding, the storing of a further hit, and a report over everything take: in the library, and
as commands, where the start of Python with the libraries that they need is measured apart. The limits are those of the
project: list 1 s, show 0.2 s, finding out what a hit belongs to 5 ms, report 10 s. Beside the time on the clock stands
that of the processor, which other programs on the machine disturb less.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import sqlalchemy
from sqlalchemy import insert, update
from sqlalchemy.orm import Session

from fuzzcompile.corpus import CaseRecord, Coverage, Reproducer, Store
from fuzzcompile.corpus.merging import in_short
from fuzzcompile.corpus.models import Base, CampaignRow, CaseRow, EnvironmentRow, FindingRow, ReproducerRow, RunRow
from fuzzcompile.corpus.umbrellas import umbrella_of
from fuzzcompile.severity import severity

ENVIRONMENT = {"torch": "2.13.0+cpu", "device": "cpu", "cpu": "synthetic"}
STAGES = ("decomposition", "joint_graph", "post_grad", "lowering", "codegen")
STRIDES = {"outputs": [{"name": "out0", "finding": "stride", "view_raises": False}]}
START = datetime(2026, 1, 1, tzinfo=UTC)
# One case in so many shows a bug. Sizes are about those of a campaign's cases and reports.
HIT_EVERY = 5
SOURCE = "import torch\n" + "x = torch.nn.functional.scaled_dot_product_attention(q, k, v)  # a line of a case\n" * 25
PROOF = [f"%add_{line} : [num_users=1] = call_function[target=torch.ops.aten.add.Tensor]" for line in range(60)]
CHUNK = 2000
REPEATS = 5


def main() -> None:
    """Fill a corpus, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--findings", type=int, default=2_000)
    parser.add_argument("--folder", type=Path, default=None, help="Where to make the corpus; default: a temporary one.")
    given = parser.parse_args()
    print(f"{platform.platform()}, {os.cpu_count()} processors, {cpu()}")
    print(f"Python {platform.python_version()}, SQLAlchemy {sqlalchemy.__version__}")
    with tempfile.TemporaryDirectory(prefix="fuzzcompile-") as temporary:
        path = (given.folder or Path(temporary)) / "fuzzcompile.db"
        begun = time.perf_counter()
        fill(path, given.cases, given.findings)
        size, made = path.stat().st_size / 1e6, time.perf_counter() - begun
        print(f"{given.cases} cases, {given.findings} findings; {size:.0f} MB, made in {made:.0f} s")
        print("\nIn the library")
        library(path, given.findings)
        print("\nAs commands")
        commands(path, f"F{given.findings // 2}")


def fill(path: Path, cases: int, findings: int) -> None:
    """Make a corpus of so many cases, each judged once, of which one in `HIT_EVERY` hits one of the findings."""
    with Store.open(path) as store, Session(store._engine) as session, session.begin():
        session.execute(
            insert(EnvironmentRow), {"id": 1, "sha256": "e" * 64, "torch": "2.13.0+cpu", "details": ENVIRONMENT}
        )
        session.execute(insert(CampaignRow), campaign())
        hits = cases // HIT_EVERY // findings
        session.execute(insert(FindingRow), [finding_row(number, hits) for number in range(1, findings + 1)])
        rows: dict[type[Base], list[dict[str, object]]] = {CaseRow: [], RunRow: []}
        for number in range(1, cases + 1):
            finding = 1 + number // HIT_EVERY % findings if number % HIT_EVERY == 0 else None
            rows[CaseRow].append(case(number))
            rows[RunRow].append(run(number, finding))
            if len(rows[CaseRow]) == CHUNK or number == cases:
                for kind, chunk in rows.items():
                    session.execute(insert(kind), chunk)
                    chunk.clear()
        session.execute(insert(ReproducerRow), [reproducer_row(number) for number in range(1, findings + 1)])
        session.execute(update(FindingRow), [shown(number, findings) for number in range(1, findings + 1)])


def library(path: Path, findings: int) -> None:
    """What each call takes, the corpus being open."""
    with Store.open(path) as store:
        beginning = signature(findings // 2).rpartition(":")[0]
        names = [f"F{number}" for number in range(1, findings, findings // 20)]
        show("open", 1.0, timed(lambda: Store.open(path).close()))
        show("summaries (corpus list)", 1.0, timed(store.summaries))
        show("counters (corpus list)", 1.0, timed(store.counters))
        show("finding, reproducer, environment (show)", 0.2, timed(lambda: one(store, names)).shared(len(names)))
        show("finding by the beginning of a signature", 0.2, timed(lambda: store.finding(beginning)))
        named = [signature(number) for number in range(1, findings)]
        show(
            "which finding a signature belongs to",
            0.005,
            timed(lambda: [store.finding_of(s) for s in named]).shared(len(named)),
        )
        coarse = [name.rpartition(":")[0] for name in named[:50]]
        show(
            "the same for a coarse signature",
            0.005,
            timed(lambda: [store.finding_of(s) for s in coarse]).shared(len(coarse)),
        )
        stored = list(hits(store, known=True))
        show("a further hit stored, on the disk; median", None, middle(stored))
        show("a further hit stored, on the disk; worst of 200", None, max(stored, key=lambda row: row.clock))
        show("a new finding stored, on the disk; median", None, middle(hits(store, known=False)))
        show("a reproducer stored, findings merged; median", None, middle(reproducers(store)))
        show("all findings with reports (report)", 10.0, timed(store.findings))
        show("stats", 10.0, timed(store.stats))
        stream, compiler = "seed=0", "2.13.0+cpu"
        show(
            "what a resumed campaign reads",
            10.0,
            timed(lambda: (store.recorded_indices(stream), store.stream_runs(stream, compiler), store.findings())),
        )


def commands(path: Path, finding: str) -> None:
    """What each command takes, with the start of Python."""
    start = command(sys.executable, "-c", "import fuzzcompile.cli, fuzzcompile.corpus, rich.console")
    show("python -c pass", None, command(sys.executable, "-c", "pass"))
    show("Python with the libraries of these commands", None, start)
    for words, limit in {
        ("corpus", "list"): 1.0,
        ("corpus", "list", "--all"): 1.0,
        ("corpus", "list", "--json"): 10.0,
        ("corpus", "show", finding): 0.2,
        ("corpus", "show", finding, "--json"): 0.2,
        ("corpus", "stats"): 10.0,
    }.items():
        whole = command(sys.executable, "-m", "fuzzcompile", *words, "--corpus", str(path))
        show(f"fuzzcompile {' '.join(words)}", None, whole)
        show("    beyond that start", limit, whole - start)


def show(what: str, limit: float | None, took: Took) -> None:
    """One line: what it took, and whether that is within the limit."""
    slow = limit is not None and took.clock > limit
    within = "" if limit is None else f"  (limit {limit * 1e3:.0f} ms{': TOO SLOW' if slow else ''})"
    print(f"  {what:52} {took.clock * 1e3:9.1f} ms, processor {took.processor * 1e3:9.1f} ms{within}")


@dataclass(frozen=True)
class Took:
    """Seconds on the clock, and of the processor, child processes included."""

    clock: float
    processor: float

    def __sub__(self, other: Took) -> Took:
        return Took(self.clock - other.clock, self.processor - other.processor)

    def shared(self, number: int) -> Took:
        """What each of so many took."""
        return Took(self.clock / number, self.processor / number)


def middle(taken: Iterable[Took]) -> Took:
    """The medians."""
    rows = list(taken)
    return Took(statistics.median(row.clock for row in rows), statistics.median(row.processor for row in rows))


def timed(call: Callable[[], object]) -> Took:
    """The median of some calls."""
    return middle(took(call) for _ in range(REPEATS))


def took(call: Callable[[], object]) -> Took:
    """What one call takes."""
    used, begun = processor(), time.perf_counter()
    call()
    return Took(time.perf_counter() - begun, processor() - used)


def processor() -> float:
    """Seconds of the processor that this process and its children have used."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def command(*words: str) -> Took:
    """The median of some runs of a command."""
    return timed(lambda: subprocess.run(words, check=True, stdout=subprocess.DEVNULL))


def one(store: Store, names: list[str]) -> None:
    """Read these findings as ``corpus show`` does."""
    for name in names:
        found = store.finding(name)
        store.best_reproducer(found.id)
        store.umbrella(found.umbrella)
        store.related(found.id)
        store.replays(found.id)


def hits(store: Store, *, known: bool, number: int = 200) -> Iterator[Took]:
    """Store further cases; how long each took, the write to the disk included."""
    coverage = [Coverage("joint_graph", "pass_pattern_0", "_sfdp_pattern_1", "refused")]
    for index in range(number):
        source = f"# {time.time_ns()}\n{SOURCE}"
        drawn = CaseRecord(sha(source), source, "generated", "seed=1", index)
        name = index + 1 if known else f"new {time.time_ns()}"
        judged = report(index + 1) | {"signature": signature(name)}
        yield took(lambda: store.record(1, drawn, ENVIRONMENT, judged, coverage))  # noqa: B023 (called at once)


def reproducers(store: Store, number: int = 20) -> Iterator[Took]:
    """Store reproducers whose program another finding has: the newer finding vanishes into the older."""
    for index in range(number):
        judged = report(1) | {"signature": signature(f"twin {time.time_ns()}")}
        source = f"# {time.time_ns()}\n{SOURCE}"
        stored = store.record(1, CaseRecord(sha(source), source, "generated"), ENVIRONMENT, judged)
        script = Reproducer(
            source, sha(source), 30, "graph", True, "2.13.0+cpu", judged, program=sha(f"program {index * 5 + 1}")
        )
        yield took(lambda: store.add_reproducer(stored.finding_id or 0, script))  # noqa: B023 (called at once)


def campaign() -> dict[str, object]:
    """The row of a campaign."""
    times = dict.fromkeys(("started", "last_heard", "finished"), START)
    said = {"settings": {}, "command": "fuzzcompile run", "fuzzcompile_version": "0", "counters": {}, "ended": "budget"}
    return {"id": 1, "environment_id": 1, "seed": 0, **said, **times}


def case(number: int) -> dict[str, object]:
    """The row of a case."""
    source = f"# case {number}\n{SOURCE}"
    drawn = {"idioms": ["sdpa"], "near_misses": [], "features": ["a", "b", "c"], "choices": b"x" * 200}
    return {"id": number, "sha256": sha(source), "source": source, "origin": "generated", "created": START, **drawn}


def run(number: int, finding: int | None) -> dict[str, object]:
    """The row of a run."""
    judged = clean() if finding is None else report(finding)
    when = START + timedelta(seconds=number)
    cost = {"screened": number % 2 == 0, "seconds": 1.0, "compiles": 2}
    told = {"verdict": judged["verdict"], "is_bug": finding is not None, "report": judged, "created": when}
    placed = {"stream": "seed=0", "stream_index": number, "campaign_id": 1, "environment_id": 1}
    return {"id": number, "case_id": number, "finding_id": finding, **placed, **told, **cost}


def clean() -> dict[str, object]:
    """The report on a case that shows no bug."""
    told = ("max_abs_error_eager", "max_abs_error_compiled", "error_ratio", "noise_floor", "cosine")
    close = {"finding": "close", "within_default_tolerance": True, "torch_same": True, **dict.fromkeys(told, 1e-7)}
    outputs = [{"name": f"out{number}", **close} for number in range(4)]
    rules = [
        {"stage": "joint_graph", "pass": "p", "rewrite": f"_sfdp_pattern_{n}", "fired": 0, "refused": 1}
        for n in range(9)
    ]
    return {"verdict": "rounding", "is_bug": False, "evidence": {"outputs": outputs}, "rewrites": rules}


def report(number: int) -> dict[str, object]:
    """The report on a case that hits a finding; every severity has its share."""
    verdict = ("miscompile", "compile_error", "metadata", "aliasing", "accepts_invalid")[number % 5]
    details = {"graph": {"before": PROOF, "after": PROOF}}
    culprit = {"stage": STAGES[number % 5], "source": f"torch/f{number}.py", "line": 1, "rewrite": f"rule_{number}"}
    culprit |= {"pass": None, "nodes": [], "site": None, "step": None, "sufficient": None}
    culprit |= {"family": f"rule_{number}", "necessary": number % 3 > 0, "details": details}
    bug = {"verdict": verdict, "is_bug": True, "confidence": "high", "signature": signature(number), "culprit": culprit}
    judged = {"case": "c", "device": "cpu", "torch": "2.13.0+cpu", "detail": "it differs", "workaround": None}
    judged |= dict.fromkeys(("contributors", "ablations", "changed_bits", "suspects"), ())
    judged |= {"target": None, "cost": {"compiles": 3, "replays": 9, "seconds": 2.0}}
    return {**clean(), **judged, **bug, **({"evidence": STRIDES} if verdict == "metadata" else {})}


def signature(name: int | str) -> str:
    """The signature of a finding."""
    stage = STAGES[name % 5] if isinstance(name, int) else STAGES[0]
    return f"{stage}:torch/f{name}.py:rule_{name}:dtype"


def finding_row(number: int, hits: int) -> dict[str, object]:
    """The row of a finding, before it has runs."""
    judged = report(number)
    own = severity(judged)  # type: ignore[arg-type]
    said = {name: judged[name] for name in ("signature", "verdict", "confidence", "evidence")}
    said["culprit"] = in_short(judged.get("culprit"))
    seen = {"status": "open", "hits": hits, "first_seen": START, "last_seen": START}
    return {"id": number, "severity": own, "umbrella": umbrella_of(own, signature(number)), **said, **seen}


def shown(number: int, findings: int) -> dict[str, object]:
    """What a finding shows: its reproducer, and the first case that hit it."""
    first = HIT_EVERY * (number - 1 or findings)
    ids = dict.fromkeys(("best_run_id", "case_id"), first)
    return {"id": number, "best_reproducer_id": number, "speaks_by_reproducer": True, **ids}


def reproducer_row(number: int) -> dict[str, object]:
    """The row of a reproducer."""
    told = {"lines": 26, "kind": "graph", "confirmed": True, "torch": "2.13.0+cpu", "report": report(number)}
    key = {"sha256": sha(f"repro {number}"), "program": sha(f"program {number}"), "shown": {"plain": SOURCE[:800]}}
    return {"id": number, "finding_id": number, "source": SOURCE, "created": START, **key, **told}


def sha(text: str) -> str:
    """The key of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def cpu() -> str:
    """The processor's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown processor"
    )


if __name__ == "__main__":
    main()
