"""Where the seconds of a campaign go: each phase of a compile, by what it was compiled for.

    python bench/phases.py [--cases N] [--seed S] [--plants FILE ...]

The first N cases of an ordinary campaign's generator are judged in one process, every second one screened first, as a
campaign does; findings are attributed and their causes searched, not minimized. A phase's seconds are wall-clock and
without those of phases inside it. The rows are the phases, the columns what the compile was for: the judged compile,
its confirmation and the reference runs (``judge``), the proof (``attribute``), the search for a cause (``cause``).
"""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from fuzzcompile.compiler.kernel_cache import share_kernel_cache
from fuzzcompile.diagnosis.worker.judge import judge_file, prepare
from fuzzcompile.diagnosis.worker.local_pool import count_cpus
from fuzzcompile.fuzz.campaign.case_sources import GeneratorSource
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.errors import FuzzcompileError
from fuzzcompile.model.judge_task import JudgeTask
from fuzzcompile.run.device import describe_environment

# Module, function or class and method, phase. The innermost that runs gets the time.
PHASES = (
    ("torch._dynamo.convert_frame", "_compile", "dynamo"),
    ("torch._dynamo.backends.common", "aot_module_simplified", "AOTAutograd"),
    ("torch._inductor.compile_fx", "pre_grad_passes", "passes"),
    ("torch._inductor.compile_fx", "_recursive_joint_graph_passes", "passes"),
    ("torch._inductor.compile_fx", "_recursive_post_grad_passes", "passes"),
    ("torch._inductor.compile_fx", "fx_codegen_and_compile", "other Inductor"),
    ("torch._inductor.graph", "GraphLowering.run", "lowering"),
    ("torch._inductor.graph", "GraphLowering.codegen", "scheduling and code"),
    ("fuzzcompile.diagnosis.attributor", "measure_steps", "steps in float64"),
    ("fuzzcompile.diagnosis.engine", "measure_steps", "steps in float64"),
    ("fuzzcompile.diagnosis.trials.experiments", "judge", "comparing"),
    ("fuzzcompile.run.runs", "run_eager", "eager runs"),
    ("fuzzcompile.run.runs", "run_float64", "float64 runs"),
    ("fuzzcompile.diagnosis.worker.judge", "open_case", "loading"),
    ("fuzzcompile.compiler.session", "open_session", "session"),
)
PURPOSES = (
    ("fuzzcompile.diagnosis.engine", "JudgedTrial.attribute", "attribute"),
    ("fuzzcompile.diagnosis.causes.search", "add_cause", "cause"),
)


@dataclass
class Clock:
    """Seconds by purpose and phase; the top of each stack is what runs now."""

    seconds: Counter[tuple[str, str]] = field(default_factory=Counter)
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    purposes: list[str] = field(default_factory=lambda: ["judge"])
    phases: list[str] = field(default_factory=lambda: ["rest"])
    since: float = field(default_factory=time.perf_counter)

    def turn(self) -> None:
        """Give the time since the last turn to what ran."""
        now = time.perf_counter()
        self.seconds[self.purposes[-1], self.phases[-1]] += now - self.since
        self.since = now

    @contextmanager
    def inside(self, stack: list[str], name: str) -> Iterator[None]:
        """Run the block as a phase or for a purpose."""
        self.turn()
        stack.append(name)
        self.calls[self.purposes[-1], self.phases[-1]] += 1
        try:
            yield
        finally:
            self.turn()
            stack.pop()

    def watch(self, module: str, name: str, stack: list[str], label: str) -> None:
        """Time calls of a function; one that the module lacks is said."""
        holder: Any = importlib.import_module(module)
        *outer, last = name.split(".")
        for part in outer:
            holder = getattr(holder, part)
        if (function := getattr(holder, last, None)) is None:
            print(f"{module} has no {name}: its time counts for what calls it")
            return
        setattr(holder, last, self._wrap(function, stack, label))

    def _wrap(self, function: Callable[..., Any], stack: list[str], label: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.inside(stack, label):
                return function(*args, **kwargs)

        return timed


def main() -> None:
    """Judge the cases under the clock, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plants", nargs="*", default=[])
    given = parser.parse_args()
    os.environ.update(share_kernel_cache())
    prepare(Conditions(plants=tuple(given.plants)))
    facts = describe_environment(torch.device("cpu"))
    print(f"torch {facts['torch']}, {facts['cpu']}, {count_cpus()} processors, load {os.getloadavg()[0]:.1f}")
    clock = Clock()
    for module, name, label in PHASES:
        clock.watch(module, name, clock.phases, label)
    for module, name, label in PURPOSES:
        clock.watch(module, name, clock.purposes, label)
    clock.watch("subprocess", "run", clock.phases, "g++")
    source, verdicts = GeneratorSource(), Counter[str]()
    clock.turn()
    clock.seconds.clear()
    for index in range(given.cases):
        drawn = source.at(given.seed, index)
        try:
            report = judge_file(
                JudgeTask(path=f"case_{index}.py", source=drawn.source, screen=index % 2 == 0, seconds=60.0)
            ).report
        except FuzzcompileError:
            verdicts["unjudged"] += 1
            continue
        verdicts[str(report["verdict"])] += 1
    clock.turn()
    print_table(clock, verdicts)


def print_table(clock: Clock, verdicts: Counter[str]) -> None:
    """Print seconds and shares, the largest phase first."""
    total = sum(clock.seconds.values())
    purposes = sorted({purpose for purpose, _ in clock.seconds}, reverse=True)
    print(f"{sum(verdicts.values())} cases, {total:.0f} s: {dict(verdicts.most_common())}\n")
    print(f"| phase | {' | '.join(purposes)} | share |")
    print("|---|" + "---:|" * (len(purposes) + 1))
    rows = Counter[str]()
    for (_, phase), seconds in clock.seconds.items():
        rows[phase] += seconds
    for phase, seconds in rows.most_common():
        cells = (f"{clock.seconds[purpose, phase]:.1f} s" for purpose in purposes)
        print(f"| {phase} | {' | '.join(cells)} | {100 * seconds / total:.0f} % |")
    columns = (sum(s for (p, _), s in clock.seconds.items() if p == purpose) for purpose in purposes)
    print(f"| all | {' | '.join(f'{seconds:.1f} s' for seconds in columns)} | 100 % |")


if __name__ == "__main__":
    main()
