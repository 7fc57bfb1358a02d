"""Whether a long campaign slows down or grows: a campaign of hours, sampled as it runs, and its curves.

    python bench/endurance.py --budget 3h [--workers 2] [--seed 0] [--every 30] [--folder endurance]
    python bench/endurance.py --folder endurance --report reports/endurance.md

The first runs `fuzzcompile run` on an empty corpus in the folder and notes there, every 30 s, the memory and processor
time of each of its processes and the size of the corpus. The second reads the campaign's log and these samples. Memory
is what a process has for itself (USS: shared pages are not counted). Ctrl-C ends the campaign with its summary.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

_WORKER = "fuzzcompile.run.pool.worker"  # in the command line of a worker
_STEPS = 6
_ROW = "| {} | {} | {:.1f} | {:.2f} | {:.1f} | {} | {:.0f} | {:.0f} | {:.1f} |"


def main() -> None:
    """Run a campaign and sample it, or write the report of one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("endurance"), help="of the corpus, the log and the samples")
    parser.add_argument("--budget", default="3h", help="as of `fuzzcompile run`")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=float, default=30.0, help="seconds between two samples")
    parser.add_argument("--report", type=Path, help="only write the report of what the folder holds")
    given = parser.parse_args()
    if given.report is None:
        _run(given)
    text = _report(given.folder)
    (given.report or given.folder / "report.md").write_text(text, encoding="utf-8")
    print(text)


def _run(given: argparse.Namespace) -> None:
    given.folder.mkdir(parents=True)
    options = {"budget": given.budget, "workers": given.workers, "seed": given.seed, "device": "cpu"}
    options |= {"corpus": given.folder / "corpus.db", "log": given.folder / "log.jsonl"}
    command = [sys.executable, "-m", "fuzzcompile", "run"]
    command += [part for name, value in options.items() for part in (f"--{name}", str(value))]
    campaign = psutil.Popen(command)
    with (given.folder / "samples.jsonl").open("a", encoding="utf-8") as file:
        while campaign.poll() is None:
            file.write(json.dumps(_sample(campaign, options["corpus"])) + "\n")
            file.flush()
            _wait(campaign, given.every)


def _wait(campaign: psutil.Popen, seconds: float) -> None:
    """Wait for the next sample, or for the end of the campaign; a Ctrl-C is the campaign's, which had it too."""
    with contextlib.suppress(KeyboardInterrupt, psutil.TimeoutExpired):
        campaign.wait(seconds)


def _sample(campaign: psutil.Popen, corpus: Path) -> dict[str, Any]:
    """Time (s), bytes of the corpus and, by process, bytes and seconds (of it and its ended children)."""
    processes = []
    with contextlib.suppress(psutil.Error):
        for process in (campaign, *campaign.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                memory, times = process.memory_full_info(), process.cpu_times()
                processes.append(
                    {
                        "pid": process.pid,
                        "parent": process.ppid(),
                        "cmd": " ".join(process.cmdline())[:120],
                        "uss": memory.uss,
                        "cpu": times.user + times.system,
                        "kids": times.children_user + times.children_system,
                    }
                )
    files = [corpus, corpus.with_name(f"{corpus.name}-wal")]
    size = sum(path.stat().st_size for path in files if path.exists())
    return {"time": time.time(), "corpus": size, "processes": processes}


@dataclass(frozen=True)
class _Sample:
    """A sample of a campaign: seconds since its start, MB of driver, workers and corpus, processor seconds so far."""

    at: float
    driver: float
    workers: tuple[float, ...]
    corpus: float
    used: float


def _read_samples(path: Path, began: float) -> Iterator[_Sample]:
    """The samples; processor time is the driver's and its children's, of which those that ended are in its own."""
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        processes = row["processes"]
        if not processes:
            continue
        driver = processes[0]
        workers = [one["uss"] / 1e6 for one in processes if one["parent"] == driver["pid"] and _WORKER in one["cmd"]]
        used = sum(one["cpu"] + one["kids"] for one in processes)
        yield _Sample(row["time"] - began, driver["uss"] / 1e6, tuple(workers), row["corpus"] / 1e6, used)


def _report(folder: Path) -> str:
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    starts = [number for number, event in enumerate(events) if event["event"] == "campaign_started"]
    start, events = events[starts[0]], events[starts[0] : starts[1] if len(starts) > 1 else None]
    began = _moment(start)
    samples = list(_read_samples(folder / "samples.jsonl", began))
    judged = [(_moment(event) - began, event["seconds"]) for event in events if event["event"] == "case_judged"]
    found = [_moment(event) - began for event in events if event["event"] == "finding_found"]
    end = max(at for at, _ in judged)
    step = end / _STEPS
    rows = [_row(number * step, (number + 1) * step, judged, found, samples) for number in range(_STEPS)]
    first, last = (sum(low <= at < low + end / 3 for at in found) for low in (0.0, end * 2 / 3))
    return "\n".join(
        [
            f"seed {start['seed']}, {start['workers']} workers, {end / 60:.0f} minutes, {len(judged)} cases, "
            f"{len(found)} new findings; Python {platform.python_version()}, {psutil.cpu_count()} processors.",
            "",
            "| minutes | cases | a minute | median s a case | processor s a case | new findings | driver, MB | "
            "largest worker, MB | corpus, MB |",
            "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
            *rows,
            "",
            f"New findings in the first third {first}, in the last {last}.",
            "",
        ]
    )


def _row(low: float, high: float, judged: list[tuple[float, float]], found: list[float], samples: list[_Sample]) -> str:
    within = [sample for sample in samples if low <= sample.at < high]
    seconds = [took for at, took in judged if low <= at < high]
    used = within[-1].used - within[0].used
    share = sum(within[0].at <= at <= within[-1].at for at, _ in judged)
    return _ROW.format(
        f"{low / 60:.0f} to {high / 60:.0f}",
        len(seconds),
        60 * len(seconds) / (high - low),
        statistics.median(seconds),
        used / max(1, share),
        sum(low <= at < high for at in found),
        statistics.median(sample.driver for sample in within),
        max(size for sample in within for size in sample.workers),
        within[-1].corpus,
    )


def _moment(event: dict[str, Any]) -> float:
    """Seconds since the epoch."""
    return datetime.fromisoformat(event["time"]).timestamp()


if __name__ == "__main__":
    main()
