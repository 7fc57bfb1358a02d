"""What the generator makes: whether its cases parse, run in eager and differ, and how long that takes.

    python bench/generation.py --count 10000 [--eager 10000] [--no-near-misses]

Prints generation time (of the processor, for a machine that others use too), how many cases are alike, how many do
not run in eager, and how long it takes to see that.
"""

from __future__ import annotations

import argparse
import ast
import statistics
import time
import warnings
from collections import Counter
from typing import Any

import torch

from fuzzcompile.fuzz.generation.cases import GeneratedCase, draw_case_at
from fuzzcompile.fuzz.generation.profile import Profile
from fuzzcompile.run.runs import enter_grad_mode
from fuzzcompile.run.tensors import name_leaves


def run_in_eager(case: GeneratedCase) -> None:
    """All calls of a case, and its backward passes.

    Raises:
        Exception: whatever the case raises.
    """
    namespace: dict[str, Any] = {}
    exec(compile(case.source, "case.py", "exec"), namespace)
    torch.manual_seed(0)
    model, inputs = namespace["make"]()
    with enter_grad_mode(namespace.get("GRAD", "enabled" if "BACKWARD" in namespace else "no_grad")):
        for call in (inputs, *namespace.get("CALLS", ())):
            result = namespace["run"](model, call) if "run" in namespace else model(*call)
            if namespace.get("BACKWARD"):
                outputs = [leaf for _, leaf in name_leaves("out", result) if isinstance(leaf, torch.Tensor)]
                sum(output.float().sum() for output in outputs if output.requires_grad).backward()


def main() -> None:
    """Generate, parse, run, count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="cases to generate")
    parser.add_argument("--eager", type=int, default=None, help="how many of them to run in eager; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-near-misses", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    profile = Profile(near_misses=not arguments.no_near_misses)
    draw_case_at(arguments.seed, 0, profile)

    wall, busy, invalid_after = [], [], []
    sources: Counter[str] = Counter()
    features: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    ran = 0
    for index in range(arguments.count):
        start, begun = time.perf_counter(), time.process_time()
        case = draw_case_at(arguments.seed, index, profile)
        wall.append(time.perf_counter() - start)
        busy.append(time.process_time() - begun)
        ast.parse(case.source)
        sources[case.sha256] += 1
        features.update(case.features)
        if arguments.eager is not None and index >= arguments.eager:
            continue
        ran += 1
        start = time.process_time()
        try:
            run_in_eager(case)
        except Exception as error:  # a case may fail in any way at all
            invalid_after.append(time.process_time() - start)
            errors[f"{type(error).__name__}: {' '.join(str(error).split())[:90]} (index {index})"] += 1

    print(f"{arguments.count} cases, all parse, {arguments.count - len(sources)} alike, {len(features)} features")
    print(
        f"generation: {1e3 * statistics.mean(busy):.2f} ms of the processor each (at most {1e3 * max(busy):.0f}), "
        f"{1e3 * statistics.mean(wall):.2f} ms on the clock"
    )
    print(f"eager: {ran - len(invalid_after)} of {ran} run ({100 * (1 - len(invalid_after) / max(1, ran)):.2f} %)")
    if invalid_after:
        worst, middle = max(invalid_after), statistics.median(invalid_after)
        print(f"invalid ones are known after {1e3 * middle:.0f} ms at the median, {1e3 * worst:.0f} ms at most")
    for error, times in errors.most_common(20):
        print(f"  {times} × {error}")
    rare = [f"{name} {times}" for name, times in features.most_common()[-12:]]
    print(f"rarest: {', '.join(rare)}")


if __name__ == "__main__":
    main()
