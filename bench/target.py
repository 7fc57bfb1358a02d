"""What a case costs when it is judged for a device that is not there, beside the same case judged for the CPU.

    python bench/target.py [--target cuda:sm_90] [--cases N] [--seed S] [--report FILE]

N generated cases and a transformer block (batch 2, length 64, width 128; in eval mode and trained, in three dtypes)
are each judged four times: for the target by their graphs only, and with their kernels interpreted; for the CPU in a
screen, and in full. Two processes take turns, one for the target and one for the CPU, each with an empty kernel cache
every time, on one thread; the ways take turns too. A row gives wall seconds, with processor seconds in brackets: those
of compilers that were started are included, and on a busy machine only they mean something. The exit status is 1 if
the median block takes more than 10 s of processor time with its kernels.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from fuzzcompile.diagnosis.worker.judge import judge_file, prepare
from fuzzcompile.diagnosis.worker.local_pool import count_cpus
from fuzzcompile.fuzz.campaign.case_sources import fit_installed_torch
from fuzzcompile.fuzz.generation.cases import draw_case_at
from fuzzcompile.fuzz.generation.profile import Profile
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.judge_task import JudgeTask
from fuzzcompile.run.device import describe_environment

_MOST_SECONDS = 10.0
_BLOCK = '''"""One pre-norm transformer block."""

import torch
from torch import nn
from torch.nn import functional as F

BACKWARD = {training}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(128), nn.LayerNorm(128)
        self.qkv, self.out = nn.Linear(128, 384), nn.Linear(128, 128)
        self.up, self.down = nn.Linear(128, 512), nn.Linear(512, 128)

    def forward(self, x):
        q, k, v = self.qkv(self.first(x)).view(2, 64, 3, 4, 32).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) / 32**0.5).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(2, 64, 128))
        return x + self.down(F.gelu(self.up(self.second(x))))


def make():
    torch.manual_seed(0)
    return Block().to(torch.{dtype}).train({training}), (torch.randn(2, 64, 128, dtype=torch.{dtype}),)
'''


@dataclass(frozen=True)
class Way:
    """One way to judge a case: in which process, and whether kernels are left out."""

    name: str
    for_target: bool
    screen: bool


WAYS = (
    Way("target, graphs", for_target=True, screen=True),
    Way("target, kernels", for_target=True, screen=False),
    Way("CPU, screen", for_target=False, screen=True),
    Way("CPU, full", for_target=False, screen=False),
)


@dataclass(frozen=True)
class Cost:
    """Wall and processor seconds of one judgement, and what it said."""

    wall: float
    processor: float
    verdict: str
    kernels: str = ""


Row = Mapping[str, Cost]


def sources(cases: int, seed: int, target: str) -> Iterator[tuple[str, str]]:
    """Names and sources: the blocks, then generated cases as a campaign for the target draws them."""
    for training in (False, True):
        for dtype in ("float32", "float16", "bfloat16"):
            yield f"block {dtype}{', trained' if training else ''}", _BLOCK.format(training=training, dtype=dtype)
    profile = fit_installed_torch(Profile(), target)
    for index in range(cases):
        yield f"case {index}", draw_case_at(seed, index, profile).source


def judged(path: str, screen: bool) -> Cost:
    """Judge a file in this process, with an empty kernel cache."""
    from torch._inductor.utils import fresh_cache

    with fresh_cache():
        wall, processor = time.perf_counter(), _processor()
        report = judge_file(JudgeTask(path=path, screen=screen)).report
        wall, processor = time.perf_counter() - wall, _processor() - processor
    notes = report.get("target")
    return Cost(wall, processor, str(report["verdict"]), notes["stages"].get("kernels", "") if notes else "")


def _processor() -> float:
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def measure(cases: int, seed: int, target: str) -> Iterator[tuple[str, Row]]:
    """The name of each case, and its cost in each way."""
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(1, context, prepare, (Conditions(target=target),)) as told,
        ProcessPoolExecutor(1, context, prepare, (Conditions(),)) as plain,
    ):
        for number, (name, source) in enumerate([("warm-up", _BLOCK.format(training=True, dtype="float16"))]):
            _in_all_ways(folder, number, name, source, told, plain)  # what is done once: imports, patterns, headers
        for number, (name, source) in enumerate(sources(cases, seed, target)):
            yield name, _in_all_ways(folder, number, name, source, told, plain)


def _in_all_ways(
    folder: str, number: int, name: str, source: str, told: ProcessPoolExecutor, plain: ProcessPoolExecutor
) -> Row:
    path = Path(folder, f"{name.split(',')[0].replace(' ', '_')}_{number}.py")
    path.write_text(source, encoding="utf-8")
    ways = WAYS if number % 2 else WAYS[::-1]
    return {
        way.name: (told if way.for_target else plain).submit(judged, str(path), way.screen).result() for way in ways
    }


def table(rows: Sequence[tuple[str, Row]]) -> Iterator[str]:
    """Markdown: a row for each case, medians of blocks and of cases, and ratios of the medians."""
    yield f"| | {' | '.join(way.name for way in WAYS)} | verdict |"
    yield f"|---|{'---|' * len(WAYS)}---|"
    for name, row in rows:
        costs = " | ".join(f"{row[way.name].wall:.1f} ({row[way.name].processor:.1f})" for way in WAYS)
        verdict, kernels = row["target, kernels"].verdict, row["target, kernels"].kernels
        yield f"| {name} | {costs} | {verdict}{'' if kernels == 'interpreted' else f' ({kernels})'} |"
    for title, chosen in (("median block", _blocks(rows)), ("median case", _generated(rows))):
        if chosen:
            medians = [(_median(chosen, way, "wall"), _median(chosen, way, "processor")) for way in WAYS]
            yield f"| **{title}** | {' | '.join(f'{wall:.1f} ({used:.1f})' for wall, used in medians)} | |"
            base = medians[-1]
            ratios = " | ".join(f"{wall / base[0]:.2f} ({used / base[1]:.2f})" for wall, used in medians)
            yield f"| {title}, of CPU, full | {ratios} | |"


def _blocks(rows: Sequence[tuple[str, Row]]) -> list[Row]:
    return [row for name, row in rows if name.startswith("block")]


def _generated(rows: Sequence[tuple[str, Row]]) -> list[Row]:
    return [row for name, row in rows if not name.startswith("block")]


def _median(rows: Sequence[Row], way: Way, what: str) -> float:
    return statistics.median(float(getattr(row[way.name], what)) for row in rows)


def main() -> None:
    """Measure, print, and write the table if a file is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="cuda:sm_90")
    parser.add_argument("--cases", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=Path, metavar="FILE", help="Write the table to FILE too.")
    given = parser.parse_args()
    facts = describe_environment(torch.device("cpu"))
    lines = [
        "# What a case costs for a device that is not there",
        "",
        f"Made by `python bench/target.py --target {given.target} --cases {given.cases} --seed {given.seed}`: torch "
        f"{facts['torch']}, {facts['cpu']}, {count_cpus()} processors, load {os.getloadavg()[0]:.1f}. Seconds "
        "on the clock, and of the processor in brackets.",
        "",
    ]
    print("\n".join(lines), flush=True)
    rows = []
    for name, row in measure(given.cases, given.seed, given.target):
        rows.append((name, row))
        print(f"{name}: " + ", ".join(f"{way} {cost.processor:.1f}" for way, cost in row.items()), flush=True)
    lines += table(rows)
    slowest = _median(_blocks(rows), WAYS[1], "processor")
    lines += ["", f"A block with its kernels takes {slowest:.1f} s of the processor at the median.", ""]
    print("\n".join(lines))
    if given.report is not None:
        given.report.write_text("\n".join(lines), encoding="utf-8")
    sys.exit(slowest > _MOST_SECONDS)


if __name__ == "__main__":
    main()
