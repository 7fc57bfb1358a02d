"""What watching costs a training script: its time per step alone, watched without samples, and at 1/100 and 1/10.

    python bench/watch.py [--steps 400] [--rounds 3] [--width 128] [--threads 1]

The script trains a small transformer on the CPU, without dropout: watched, it would draw as eager does, which costs
another time. Each round runs it in every way, in turn, so that whatever else the
machine does falls on all of them. Steps are timed in the script itself, after those that compile; the figure of a way
is the least of its rounds. The processes beside the script share its processors, at the lowest priority: their work
shows in the wall time, and not in the processor time of the script's own process, which is what forks and copies cost
it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from fuzzcompile.run.device import describe_environment

SCRIPT = """
import json, sys, time
import torch
from torch import nn

steps, width, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
model = nn.Sequential(nn.Embedding(256, width), nn.TransformerEncoder(layer, 4, enable_nested_tensor=False),
                      nn.Linear(width, 256))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
step = torch.compile(model)
data = torch.randint(0, 256, (1024, 33))
warm, start, used = 10, 0.0, 0.0
for number in range(warm + steps):
    if number == warm:
        start, used = time.perf_counter(), time.process_time()
    batch = data[torch.randint(0, 1024, (8,))]
    loss = nn.functional.cross_entropy(step(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
took = time.perf_counter() - start, time.process_time() - used
json.dump([seconds / steps for seconds in took], open(out, "w"))
"""
WAYS = {"alone": None, "watched, no sample": 10**9, "1 in 100": 100, "1 in 10": 10}


@dataclass(frozen=True)
class Run:
    """Seconds a step, of the wall clock and of the processor, and what became of the samples."""

    wall: float
    cpu: float
    samples: str


def main() -> None:
    """Run the rounds and print one row for each way."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="fuzzcompile-bench-") as name:
        folder = Path(name)
        script = folder / "train.py"
        script.write_text(SCRIPT, encoding="utf-8")
        runs: dict[str, list[Run]] = {way: [] for way in WAYS}
        for number in range(options.rounds):
            for way, every in WAYS.items():
                run = _timed(script, folder, f"{number}_{every}", every, options)
                runs[way].append(run)
                print(f"round {number + 1}, {way}: {1e3 * run.wall:.2f} ms a step", file=sys.stderr)
    _show(runs, options)


def _show(runs: dict[str, list[Run]], options: argparse.Namespace) -> None:
    facts = describe_environment(torch.device("cpu"))
    given = ", ".join(f"{name} {value}" for name, value in vars(options).items())
    print(f"torch {torch.__version__}, {facts.get('cpu', 'CPU')}, {os.cpu_count()} processors; {given}")
    print(f"{'':20} {'wall ms':>9} {'ratio':>7} {'cpu ms':>9} {'ratio':>7}  samples")
    wall, cpu = (min(getattr(run, kind) for run in runs["alone"]) for kind in ("wall", "cpu"))
    for way, rounds in runs.items():
        best, least = min(run.wall for run in rounds), min(run.cpu for run in rounds)
        times = f"{1e3 * best:9.2f} {best / wall:7.3f} {1e3 * least:9.2f} {least / cpu:7.3f}"
        print(f"{way:20} {times}  {rounds[0].samples}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def _timed(script: Path, folder: Path, name: str, every: int | None, options: argparse.Namespace) -> Run:
    """One run of the script."""
    timed, out = folder / f"{name}.json", folder / f"out_{name}"
    given = [str(options.steps), str(options.width), str(timed)]
    watching = ["-m", "fuzzcompile", "watch", "--every", str(every), "--out", str(out), str(script), "--", *given]
    command = [sys.executable, *([str(script), *given] if every is None else watching)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    samples = ""
    if every is not None:
        job = json.loads((out / "job.json").read_text(encoding="utf-8"))
        samples = f"{len(job['sampled'])} taken, {sum(job['skipped'].values())} skipped"
    wall, cpu = json.loads(timed.read_text(encoding="utf-8"))
    return Run(wall, cpu, samples)


if __name__ == "__main__":
    main()
