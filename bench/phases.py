"""Where the seconds of a campaign go: each phase of a compile, by what it was compiled for.

    python bench/phases.py [--cases N] [--seed S] [--plants FILE ...]

The first N cases of an ordinary campaign's generator are judged in one process, every second one screened first, as a
campaign does; findings are attributed and their causes searched, not minimized. A phase's seconds are wall-clock and
without those of phases inside it. The rows are the phases, the columns what the compile was for: the judged compile,
its confirmation and the reference runs (``judge``), the proof (``attribute``), the search for a cause (``cause``).
"""

from __future__ import annotations

import argparse
import importlib
import os
from collections import Counter

import torch
from nested_clock import NestedClock

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
    ("subprocess", "run", "g++"),
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
)
PURPOSES = (
    ("fuzzcompile.diagnosis.engine", "JudgedTrial.attribute", "attribute"),
    ("fuzzcompile.diagnosis.causes.search", "add_cause", "cause"),
)


def watch(clock: NestedClock) -> None:
    """Watch the phases and purposes; a function that the installed torch lacks is said."""
    rows = [(module, name, {"phase": label}) for module, name, label in PHASES]
    rows += [(module, name, {"purpose": label}) for module, name, label in PURPOSES]
    for module, name, label in rows:
        owner: object = importlib.import_module(module)
        *outer, last = name.split(".")
        for part in outer:
            owner = getattr(owner, part)
        if hasattr(owner, last):
            clock.watch(owner, last, **label)
        else:
            print(f"{module} has no {name}: its time counts for what calls it")


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
    clock = NestedClock(("judge", "rest"))
    watch(clock)
    source, verdicts = GeneratorSource(), Counter[str]()
    clock.turn()
    clock.spent.clear()
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


def print_table(clock: NestedClock, verdicts: Counter[str]) -> None:
    """Print seconds and shares, the largest phase first."""
    seconds = Counter({key: wall for key, (wall, _) in clock.spent.items()})
    total = sum(seconds.values())
    purposes = sorted({purpose for purpose, _ in seconds}, reverse=True)
    print(f"{sum(verdicts.values())} cases, {total:.0f} s: {dict(verdicts.most_common())}\n")
    print(f"| phase | {' | '.join(purposes)} | share |")
    print("|---|" + "---:|" * (len(purposes) + 1))
    rows = Counter[str]()
    for (_, phase), wall in seconds.items():
        rows[phase] += wall
    for phase, whole in rows.most_common():
        cells = (f"{seconds[purpose, phase]:.1f} s" for purpose in purposes)
        print(f"| {phase} | {' | '.join(cells)} | {100 * whole / total:.0f} % |")
    columns = (sum(wall for (each, _), wall in seconds.items() if each == purpose) for purpose in purposes)
    print(f"| all | {' | '.join(f'{wall:.1f} s' for wall in columns)} | 100 % |")


if __name__ == "__main__":
    main()
