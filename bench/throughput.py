"""How fast cases are judged, screened and in full, beside plain torch.compile of the same cases.

    python bench/throughput.py costs [--cases N] [--seed S]
    python bench/throughput.py campaign [--minutes M] [--workers W] [--mix screen|full|mixed] [--blocks]

``costs`` draws N cases and does each in one process, every time with a kernel cache that is empty: plain torch.compile
and one run; judged in full, from generation to storage; screened. It prints medians, our own share of the full run,
and how many times as fast a screen is. Cases with a bug are left out of the share: attributing them is the purpose.

``campaign`` runs the campaign itself on an empty corpus and kernel cache, and prints cases per minute over time and the
memory of the workers at equal ages. The rate is given over all time, over the time in which workers judge (findings of
a new corpus are minimized first of all), and over the time that went into cases which a screen was enough for.
``--blocks`` draws single blocks in eval mode under the compiler's defaults, else the default mix; what was drawn is
printed. Wall times mean something on an idle machine only; processor times are beside them.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil
import torch
from torch._inductor.utils import fresh_cache

from fuzzcompile.compiler.session import open_plain_session
from fuzzcompile.corpus.records import CaseRecord, Coverage
from fuzzcompile.corpus.store import Store
from fuzzcompile.diagnosis.worker.judge import judge_file, prepare
from fuzzcompile.diagnosis.worker.local_pool import count_cpus
from fuzzcompile.fuzz.campaign.budget import BudgetClock, CampaignBudget, format_duration
from fuzzcompile.fuzz.campaign.campaign_events import CaseJudged, Event, Started, Tick
from fuzzcompile.fuzz.campaign.campaign_run import run_campaign, start_workers
from fuzzcompile.fuzz.campaign.case_sources import CaseSource, DrawnCase, GeneratorSource
from fuzzcompile.fuzz.generation.profile import Profile
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.judge_task import JudgeResult, JudgeTask
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run import runs
from fuzzcompile.run.case_program import build
from fuzzcompile.run.device import describe_environment

_DEVICE = torch.device("cpu")
_AGE = 45.0  # seconds of a worker's life at which its memory is compared


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    costs = commands.add_parser("costs")
    costs.add_argument("--cases", type=int, default=20)
    costs.add_argument("--seed", type=int, default=0)
    campaign = commands.add_parser("campaign")
    campaign.add_argument("--minutes", type=float, default=30.0)
    campaign.add_argument("--workers", type=int, default=2)
    campaign.add_argument("--mix", choices=("mixed", "screen", "full"), default="mixed")
    campaign.add_argument("--blocks", action="store_true")
    campaign.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    facts = describe_environment(_DEVICE)
    print(f"torch {facts['torch']}, {facts['cpu']}, {count_cpus()} processors, load {os.getloadavg()[0]:.1f}")
    if given.command == "costs":
        measure_costs(given.cases, given.seed)
    else:
        measure_campaign(given.minutes, given.workers, given.mix, blocks=given.blocks, seed=given.seed)


# -- one case at a time -----------------------------------------------------------------------------


@dataclass
class Cost:
    """Wall and processor seconds of one thing done, those of compilers that it started included."""

    wall: float = 0.0
    processor: float = 0.0


@contextmanager
def _measured() -> Iterator[Cost]:
    cost, wall, processor = Cost(), time.perf_counter(), _processor()
    yield cost
    cost.wall, cost.processor = time.perf_counter() - wall, _processor() - processor


def _processor() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def measure_costs(cases: int, seed: int) -> None:
    """Time ``cases`` cases each in three ways, and print what came of it."""
    prepare(Conditions())
    plain: list[Cost] = []
    full: list[Cost] = []
    screen: list[Cost] = []
    drawn: list[DrawnCase] = []
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder, "corpus.db")) as store:
        _one(GeneratorSource().at(seed, 10**9), Path(folder), store, seed, 10**9)  # whatever is done once only
        for index in range(cases):
            costs = _one(None, Path(folder), store, seed, index)
            if costs is None:
                continue
            case, *measured = costs
            for costs_so_far, cost in zip((plain, full, screen), measured, strict=True):
                costs_so_far.append(cost)
            drawn.append(case)
    print(f"\n{len(plain)} cases without a bug of {cases}; mix: {_mix(drawn)}")
    for name, taken in (("plain", plain), ("full", full), ("screen", screen)):
        print(f"{name:7} median {_median(taken, 'wall'):7.2f} s wall, {_median(taken, 'processor'):7.2f} s processor")
    for what in ("wall", "processor"):
        own = [getattr(f, what) / getattr(p, what) - 1 for p, f in zip(plain, full, strict=True)]
        total = sum(getattr(f, what) for f in full) / sum(getattr(p, what) for p in plain) - 1
        faster = [getattr(f, what) / getattr(s, what) for f, s in zip(full, screen, strict=True)]
        middle = _median(full, what) / _median(screen, what)
        print(
            f"{what:9}: our own work in full mode {100 * statistics.median(own):.0f} % (median), "
            f"{100 * total:.0f} % of all; a screen is {middle:.1f} times as fast as full "
            f"at the median of the mix (median of the cases' own ratios: {statistics.median(faster):.1f})"
        )


def _one(
    given: DrawnCase | None, folder: Path, store: Store, seed: int, index: int
) -> tuple[DrawnCase, Cost, Cost, Cost] | None:
    """Plain, full and screened cost of a case; None if it has a bug or does not run."""
    drawn = given or GeneratorSource().at(seed, index)
    path = folder / f"case_{index}.py"
    path.write_text(drawn.source, encoding="utf-8")
    costs: dict[str, Cost] = {}
    judged: dict[str, JudgeResult] = {}

    def in_plain() -> None:
        case = load_case(path)
        with open_plain_session(case.settings):
            program = build(case, _DEVICE)
            runs.observe(case, program, torch.compile(program.model, dynamic=case.settings.dynamic))

    def in_full() -> None:
        judged["full"] = _judged(GeneratorSource().at(seed, index), path, store, screen=False)

    def in_screen() -> None:
        judged["screen"] = _judged(GeneratorSource().at(seed, index), path, store, screen=True)

    ways = {"plain": in_plain, "full": in_full, "screen": in_screen}
    # Whichever comes first pays for what is done once (files read, the processor warm), so they take turns.
    for name in ways if index % 2 else reversed(ways):
        with fresh_cache(), _measured() as costs[name]:
            ways[name]()
    report = judged["full"].report
    verdict = report["verdict"]
    times = "  ".join(f"{name} {costs[name].wall:6.2f} ({costs[name].processor:6.2f})" for name in ways)
    print(f"{index:4} {times}  {verdict}", flush=True)
    if report["is_bug"] or verdict == "invalid" or not judged["screen"].screened:
        return None
    return drawn, costs["plain"], costs["full"], costs["screen"]


def _judged(drawn: DrawnCase, path: Path, store: Store, *, screen: bool) -> JudgeResult:
    """A case from its text to the corpus, as a campaign's worker and engine do it."""
    path.write_text(drawn.source, encoding="utf-8")
    judged = judge_file(JudgeTask(path=str(path), screen=screen))
    coverage = [Coverage(c.stage, c.pass_name or "", c.rewrite, c.outcome, c.count) for c in judged.coverage]  # type: ignore[arg-type]
    record = CaseRecord(drawn.sha256, drawn.source, "generated", features=drawn.features)
    store.record(None, record, describe_environment(_DEVICE), judged.report, coverage, screened=judged.screened)
    return judged


def _median(costs: Iterable[Cost], what: str) -> float:
    return float(statistics.median(getattr(cost, what) for cost in costs))


def _mix(drawn: Sequence[DrawnCase]) -> str:
    counts = Counter(name for case in drawn for name in case.features)
    return ", ".join(f"{name} {100 * count / len(drawn):.0f} %" for name, count in counts.most_common(20))


# -- a whole campaign -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Blocks(CaseSource):
    """Single blocks in eval mode under the compiler's defaults: what the generator draws, until it is one."""

    generator: GeneratorSource = field(default_factory=GeneratorSource)
    name: str = "eval-blocks"
    profile: None = None

    def at(self, seed: int, index: int, candidate: int = 0) -> DrawnCase:
        """The next such block."""
        number = 0
        while True:
            drawn = self.generator.at(seed, index * 1000 + number, candidate)
            spec: Any = (drawn.spec or {}).get("case") or {}
            block = spec.get("block") or {}
            trained = spec.get("training") or spec.get("backward")
            if block and block["layers"] == 1 and not trained and not any(spec["compile"].values()):
                return drawn
            number += 1

    def of(self, choices: bytes) -> DrawnCase | None:
        """Nothing is varied."""
        return None


class _Watch:
    """Takes note of when cases were judged, and of the memory of each worker by its age."""

    def __init__(self) -> None:
        self.start = 0.0
        self.judged: list[tuple[float, int]] = []
        self.seconds: dict[int, float] = {}
        self.memory: dict[int, list[tuple[float, int]]] = {}
        self.own: list[tuple[float, int]] = []
        self.processor: dict[int, float] = {}  # of each worker and the compilers that it started
        self._process = psutil.Process()
        self._sampled = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is open."""

    def handle(self, event: Event) -> None:
        """Note a judged case, and now and then the memory."""
        now = time.monotonic()
        if isinstance(event, Started):
            self.start = now
        elif isinstance(event, CaseJudged):
            self.judged.append((now - self.start, event.index))
            self.seconds[event.index] = event.seconds
        elif isinstance(event, Tick) and now - self._sampled > 1.0:
            self._sampled = now
            self.own.append((now - self.start, self._process.memory_info().rss))
            for child in self._process.children():
                try:
                    sample = time.time() - child.create_time(), child.memory_info().rss
                    self.processor[child.pid] = sum(child.cpu_times()[:4])
                except psutil.Error:
                    continue
                self.memory.setdefault(child.pid, []).append(sample)


def measure_campaign(minutes: float, workers: int, mix: Any, *, blocks: bool, seed: int) -> None:
    """Run a campaign of that length from nothing, and print its rate and growth."""
    watch = _Watch()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder, "kernels"))
        location = str(Path(folder, "corpus.db"))
        counted = BudgetClock(CampaignBudget(seconds=60.0 * minutes))
        with start_workers(Conditions("cpu"), workers, counted) as started:
            source = _Blocks() if blocks else None
            settings = started.make_settings(
                Profile(), counted, seed=seed, drafts=Path(folder, "drafts"), mix=mix, source=source
            )
            summary = run_campaign(
                settings,
                started,
                location=location,
                command="bench/throughput.py",
                handlers=(watch.handle,),
                clock=counted,
            )
        if summary.why is not None:
            raise SystemExit(summary.why)
        with Store.open(location) as store:
            stored = store.stream_runs(settings.stream, torch.__version__)
    counts = Counter(name for run in stored for name in run.features)
    drawn = ", ".join(f"{name} {100 * count / max(len(stored), 1):.0f} %" for name, count in counts.most_common(20))
    tally = summary.tally
    print(f"{mix}, {workers} workers, {'single eval blocks' if blocks else 'default mix'}: {tally.cases} cases in "
          f"{format_duration(tally.seconds)}, {tally.cases_per_minute:.1f}/min, {tally.screened} screened")  # fmt: skip
    spent = sum(watch.processor.values()) + _processor()
    print(f"{spent:.0f} s of processor time, {spent / max(tally.cases, 1):.2f} s a case; "
          f"left over: {summary.behind.cases} cases, {summary.behind.waiting} findings to minimize")  # fmt: skip
    judging = sum(watch.seconds.values()) / workers
    print(f"{60.0 * len(watch.seconds) / judging:.1f}/min while workers judge, "
          f"{100 * judging / tally.seconds:.0f} % of their time; the rest is minimizing and starting")  # fmt: skip
    screened = {run.index: watch.seconds[run.index] for run in stored if run.screened and run.index in watch.seconds}
    if screened:
        took = sum(screened.values()) / workers
        print(f"{60.0 * len(screened) / took:.1f}/min of cases that were only screened, "
              f"{100 * took / judging:.0f} % of judging; the rest is proving bugs")  # fmt: skip
    print(f"verdicts: {dict(tally.verdicts)}; findings: {tally.findings}\nmix: {drawn}")
    _print_growth(watch, screened, minutes)


def _print_growth(watch: _Watch, screened: Mapping[int, float], minutes: float) -> None:
    window = max(60.0, 60.0 * minutes / 6)
    for begin in (window * number for number in range(max(1, round(60.0 * minutes / window)))):
        inside = [index for at, index in watch.judged if begin <= at < begin + window]
        took = [screened[index] for index in inside if index in screened]
        median = f"{statistics.median(took):5.2f} s" if took else "-"
        print(
            f"  from {format_duration(begin)}: {60.0 * len(inside) / window:6.1f} cases/min; a screen took "
            f"{median} (median)"
        )
    ages = []
    for samples in watch.memory.values():
        at_age = [size for age, size in samples if abs(age - _AGE) < 2.0]
        if at_age:
            ages.append(at_age[0] / 2**20)
    print(f"  worker memory at an age of {_AGE:.0f} s, MiB, in order of birth: {[round(size) for size in ages]}")
    if watch.own:
        first, last = watch.own[len(watch.own) // 4][1], watch.own[-1][1]
        print(f"  own memory after a quarter {first / 2**20:.0f} MiB, at the end {last / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
