"""Time eager, compile and replays of one small float16 attention, and print the medians as JSON.

    python tools/gpu_times.py [--device cuda] [--runs 5]

The compile is the watched one that triage makes. The first compile is given apart: its kernels may be new.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from fuzzcompile.compiler.graph_replay import GraphReplayer
from fuzzcompile.compiler.rule_catalogue import initialise_patterns
from fuzzcompile.compiler.torch_config import compile_in_process
from fuzzcompile.diagnosis.attribution.steps import measure_steps
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.model.errors import FuzzcompileError
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run.device import Numerics, resolve_device

_CASE = """
import torch


def attention(q, k, v):
    weights = torch.softmax(q @ k.transpose(-2, -1) / 4.0, dim=-1)
    return weights @ v


def make():
    torch.manual_seed(0)
    return attention, tuple(torch.randn(2, 4, 32, 16, dtype=torch.float16) for _ in range(3))
"""


def main(device_option: str, runs: int) -> dict[str, object]:
    """Run and compile the case ``runs`` times and return the medians in seconds."""
    device = resolve_device(device_option)
    Numerics().apply()
    compile_in_process()
    initialise_patterns(device)
    eager, compiled, replayed = list[float](), list[float](), list[float]()
    replays = 0
    with tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder:
        path = Path(folder, "attention_float16.py")
        path.write_text(_CASE, encoding="utf-8")
        case = load_case(path)
        for _ in range(runs):
            experiments = Experiments(case, device)
            start = time.perf_counter()
            failure = experiments.runs.eager.failure
            eager.append(time.perf_counter() - start)
            trial = experiments.trial()
            failure = failure or trial.observation.failure
            if failure:
                raise FuzzcompileError(f"{case.name} fails on {device}: {failure}; there are no times to give.")
            compiled.append(trial.seconds)
            start, before = time.perf_counter(), GraphReplayer.replays
            measure_steps(trial.ledger)
            replayed.append(time.perf_counter() - start)
            replays += GraphReplayer.replays - before
    return {
        "case": case.name,
        "device": str(device),
        "runs": runs,
        "eager_seconds_median": statistics.median(eager),
        "compile_seconds_median": statistics.median(compiled),
        "compile_seconds_first": compiled[0],
        "replay_seconds_median": statistics.median(replayed),
        "replays": replays // runs,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    if given.runs < 1:
        parser.error("--runs must be at least 1")
    try:
        print(json.dumps(main(given.device, given.runs)))
    except FuzzcompileError as error:
        print(f"gpu_times: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
