"""How fast a large corpus is: 100,000 cases and 2,000 findings, made of synthetic rows.

    python -m bench.corpus [--cases 100000] [--findings 2000] [--database sqlite|postgres|URL] [--folder DIR]
    python -m bench.corpus --writers 10 --records 10000 [--database ...]
    python -m bench.corpus --growth 1000,100000,1000000 [--database ...]

Prints what a list, one finding, the storing of a further hit, and a report over everything take: in the library, and
as commands, where the start of Python with the libraries that they need is measured apart. The limits are those of the
project: list 1 s, show 0.2 s, finding out what a hit belongs to 5 ms, report 10 s. Beside the time on the clock stands
that of the processor, which other programs on the machine disturb less.

With --writers, so many processes store so many cases each, at once: nothing may be lost, and nothing stored twice. With
--growth, what each call of a campaign takes when the corpus has grown to these sizes. ``postgres`` starts a server in a
temporary folder, which waits for its disk as a server does; a URL names an empty database.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import sqlalchemy

from bench.corpus_growth import grow
from bench.corpus_rows import ENVIRONMENT, SOURCE, add, begin, conclude, report, sha, signature
from bench.corpus_timing import Took, middle, show, timed, took
from bench.corpus_writers import write_together
from bench.postgres_server import PostgresServer
from fuzzcompile.corpus.records import CaseRecord, Coverage, Reproducer
from fuzzcompile.corpus.store import Store


def main() -> None:
    """Fill a corpus, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--findings", type=int, default=2_000)
    parser.add_argument("--database", default="sqlite", metavar="sqlite|postgres|URL")
    parser.add_argument("--writers", type=int, default=None, help="So many processes store cases at once.")
    parser.add_argument("--records", type=int, default=1_000, help="How many cases each of them stores.")
    parser.add_argument("--growth", default=None, metavar="N,N,...", help="Sizes at which each call is timed.")
    parser.add_argument("--folder", type=Path, default=None, help="Where to make the corpus; default: a temporary one.")
    given = parser.parse_args()
    print(f"{platform.platform()}, {os.cpu_count()} processors, {cpu()}")
    print(f"Python {platform.python_version()}, SQLAlchemy {sqlalchemy.__version__}")
    with place(given.database, given.folder) as location:
        if given.writers is not None:
            write_together(location, given.writers, given.records)
        elif given.growth is not None:
            grow(location, [int(size) for size in given.growth.split(",")], given.findings)
        else:
            measure(location, given.cases, given.findings)


@contextmanager
def place(database: str, folder: Path | None) -> Iterator[str]:
    """Where the corpus is to be."""
    with ExitStack() as stack:
        if database == "postgres":
            server = stack.enter_context(PostgresServer(fsync="on", full_page_writes="on", shared_buffers="256MB"))
            yield server.url(server.create())
        elif database == "sqlite":
            temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="fuzzcompile-"))
            yield str((folder or Path(temporary)) / "fuzzcompile.db")
        else:
            yield database


def measure(location: str, cases: int, findings: int) -> None:
    """What lists, one finding, further hits and a report take."""
    begun = time.perf_counter()
    with Store.open(location) as store:
        begin(store, findings, cases)
        add(store, 1, cases, findings)
        conclude(store, findings)
        size, made = store.stats().bytes["file"] / 1e6, time.perf_counter() - begun
    print(f"{cases} cases, {findings} findings; {size:.0f} MB, made in {made:.0f} s")
    print("\nIn the library")
    library(location, findings)
    print("\nAs commands")
    commands(location, f"F{findings // 2}")


def library(path: str, findings: int) -> None:
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


def commands(path: str, finding: str) -> None:
    """What each command takes, with the start of Python."""
    start = command(sys.executable, "-c", "import fuzzcompile.front.cli, fuzzcompile.corpus, rich.console")
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
        whole = command(sys.executable, "-m", "fuzzcompile", *words, "--corpus", path)
        show(f"fuzzcompile {' '.join(words)}", None, whole)
        show("    beyond that start", limit, whole - start)


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
