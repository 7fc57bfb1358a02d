"""What a profile costs, beside plain runs of the two sides that it compares.

    python bench/profile_cost.py [--rounds N] [--report FILE]

The 12-layer case in ``bench/profiles`` is run plainly (one process runs it as both sides, as a user's script would) and
profiled (``fuzzcompile profile``), in turn, each in a fresh process with an empty kernel cache, on one thread. Ratios
are of medians: of wall seconds, and of processor seconds, compilers included; on a busy machine only these mean
something. Memory is the largest resident size of one process. The exit status is 1 if a profile of the compiled pair
takes more than 3 times the processor seconds of the plain runs; of the other pair, whose runs take a fraction of a
second, nearly all is the start of the processes.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from fuzzcompile.diagnosis.worker.local_pool import count_cpus
from fuzzcompile.run.device import describe_environment

CASE = Path(__file__).parent / "profiles" / "bert_layout.py"
PAIRS = (("inductor", "eager"), ("sdpa:math", "sdpa:flash"))
_MOST = 3.0
_PLAIN = {
    ("inductor", "eager"): "torch._dynamo.reset(); model(*inputs); torch.compile(model)(*inputs)",
    ("sdpa:math", "sdpa:flash"): (
        "from torch.nn.attention import SDPBackend, sdpa_kernel\n"
        "for kernel in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):\n"
        "    with sdpa_kernel(kernel): model(*inputs)"
    ),
}
_SCRIPT = """
import runpy, torch
torch.set_num_threads(1)
model, inputs = runpy.run_path({case!r})["make"]()
with torch.no_grad():
{body}
"""


@dataclass(frozen=True)
class Cost:
    """Wall and processor seconds, and the largest resident memory of one process in MiB."""

    wall: float
    processor: float
    memory: float


def plain(pair: tuple[str, str]) -> list[str]:
    """The command that runs both sides and compares nothing."""
    body = "".join(f"    {line}\n" for line in _PLAIN[pair].splitlines())
    return [sys.executable, "-c", _SCRIPT.format(case=str(CASE), body=body)]


def profiled(pair: tuple[str, str]) -> list[str]:
    """The command that profiles them."""
    against, reference = pair
    return [sys.executable, "-m", "fuzzcompile", "profile", str(CASE), "--against", against, "--reference", reference]


def cost_of(command: list[str]) -> Cost:
    """Run a command in a process of its own, with an empty kernel cache."""
    with tempfile.TemporaryDirectory() as cache:
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        settings = {"TORCHINDUCTOR_CACHE_DIR": cache, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        process = subprocess.Popen(command, env={**os.environ, **settings}, stdout=subprocess.DEVNULL)
        peak = _watched(process)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(time.perf_counter() - start, used, peak)


def _watched(process: subprocess.Popen[bytes]) -> float:
    """Wait for the process; the largest resident size of it or one of its descendants, in MiB."""
    import psutil

    peak = 0
    while process.poll() is None:
        try:
            root = psutil.Process(process.pid)
            peak = max(peak, *(each.memory_info().rss for each in (root, *root.children(recursive=True))))
        except psutil.NoSuchProcess:
            pass
        time.sleep(0.2)
    return peak / 2**20


def table(costs: dict[tuple[str, str], list[tuple[Cost, Cost]]]) -> Iterator[str]:
    """Markdown: medians of the rounds, and their ratios."""
    yield "| pair | plain, s (processor) | profile, s (processor) | ratio (processor) | plain, MiB | profile, MiB |"
    yield "|---|---|---|---|---|---|"
    for (against, reference), rounds in costs.items():
        (wall, used, memory), (profile_wall, profile_used, profile_memory) = (
            [
                statistics.median(getattr(pair[side], name) for pair in rounds)
                for name in ("wall", "processor", "memory")
            ]
            for side in (0, 1)
        )
        yield (
            f"| {against} / {reference} | {wall:.1f} ({used:.1f}) | {profile_wall:.1f} ({profile_used:.1f}) "
            f"| {profile_wall / wall:.2f} ({profile_used / used:.2f}) | {memory:.0f} | {profile_memory:.0f} |"
        )


def main() -> None:
    """Measure, print, and write the table if a file is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--report", type=Path, metavar="FILE", help="Write the table to FILE too.")
    given = parser.parse_args()
    facts = describe_environment(torch.device("cpu"))
    costs: dict[tuple[str, str], list[tuple[Cost, Cost]]] = {pair: [] for pair in PAIRS}
    for number in range(given.rounds):
        for pair in PAIRS:
            commands = [plain(pair), profiled(pair)]
            measured = [cost_of(command) for command in (commands if number % 2 else commands[::-1])]
            first, second = measured if number % 2 else measured[::-1]
            costs[pair].append((first, second))
            print(f"{pair}: plain {first.processor:.1f} s, profile {second.processor:.1f} s", flush=True)
    lines = [
        "# What a profile costs",
        "",
        f"Made by `python bench/profile_cost.py --rounds {given.rounds}`: torch {facts['torch']}, {facts['cpu']}, "
        f"{count_cpus()} processors, load {os.getloadavg()[0]:.1f}. Medians; 12 layers.",
        "",
        *table(costs),
    ]
    print("\n".join(lines))
    if given.report:
        given.report.write_text("\n".join(lines) + "\n", encoding="utf-8")
    compiled = costs[PAIRS[0]]
    plainly, profiling = (statistics.median(pair[side].processor for pair in compiled) for side in (0, 1))
    sys.exit(profiling / plainly > _MOST)


if __name__ == "__main__":
    main()
