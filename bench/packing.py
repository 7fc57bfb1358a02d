"""Whether small programs are judged faster by the dozen: packs of N as one module, beside the same programs alone.

    python bench/packing.py [--size 8] [--packs 10] [--kind program] [--seed 7]

Programs of one kind and the same settings become submodules of one module, whose outputs are theirs; they are drawn
as the generator draws them, and those that cannot share a module (further calls, random numbers, state) are left out.
A pack, its members in full, and its members screened are judged in turn in one process, each way with an empty cache
of kernels (a pack has kernels of its members), without a search for culprits. Printed are the seconds and verdicts of
each pack, the sums over packs in which nothing is wrong, and how many packs have a member that is wrong, which have
to be taken apart.
"""

from __future__ import annotations

import argparse
import ast
import os
import tempfile
import textwrap
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence

import torch
from torch._inductor.utils import fresh_cache

from fuzzcompile.compiler.kernel_cache import share_kernel_cache
from fuzzcompile.diagnosis.worker.judge import judge_file, prepare
from fuzzcompile.fuzz.generation.cases import draw_case_at
from fuzzcompile.fuzz.generation.profile import Profile
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.judge_task import JudgeTask
from fuzzcompile.run.device import describe_environment

SETTINGS = ("BACKWARD", "CONFIG", "DYNAMIC", "FULLGRAPH", "GRAD", "MODE", "OPTIONS")


def read_settings(source: str) -> tuple[tuple[str, str], ...] | None:
    """The settings of a case file, which members of a pack share; None if it can share a module with no other."""
    settings = {}
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign):
            settings[ast.unparse(statement.targets[0])] = ast.unparse(statement.value)
        elif isinstance(statement, ast.FunctionDef) and statement.name == "run":
            return None
    if set(settings) - set(SETTINGS) or "fallback_random" in settings.get("OPTIONS", ""):
        return None
    return tuple(sorted(settings.items()))


def write_pack(sources: Sequence[str]) -> str:
    """Write one case file for several with the same settings."""
    names = [f"p{number}" for number in range(len(sources))]
    parts = ["from torch import nn\n", *(f"{name} = {value}\n" for name, value in read_settings(sources[0]) or ())]
    for name, source in zip(names, sources, strict=True):
        parts.append(f"\n\ndef make_{name}():\n{_indent(source)}\n\n    return make()\n")
    given, members = ", ".join(f"in_{name}" for name in names), ", ".join(f"self.{name}" for name in names)
    calls, made = ", ".join(f"self.{n}(*in_{n})" for n in names), ", ".join(f"make_{n}()" for n in names)
    parts.append(
        f"\n\nclass Pack(nn.Module):\n    def __init__(self, members):\n        super().__init__()\n"
        f"        {members}, = members\n\n    def forward(self, {given}):\n        return {calls},\n"
        f"\n\ndef make():\n    made = {made},\n"
        "    return Pack([model for model, _ in made]), tuple(inputs for _, inputs in made)\n"
    )
    return "".join(parts)


def _indent(source: str) -> str:
    """The imports, functions and classes of a case file as the body of a function."""
    lines, left_out = source.splitlines(), set[int]()
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign | ast.Expr):
            left_out |= set(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    return textwrap.indent("\n".join(s for n, s in enumerate(lines, 1) if n not in left_out).strip(), "    ")


def iter_packs(kind: str, size: int, seed: int) -> Iterator[list[str]]:
    """Draw programs of a kind, and yield so many whenever there are that many of equal settings."""
    waiting, index = defaultdict[object, list[str]](list), 0
    while True:
        source = draw_case_at(seed, index, Profile(), kind).source  # type: ignore[arg-type]
        index += 1
        if (settings := read_settings(source)) is None:
            continue
        waiting[settings].append(source)
        if len(waiting[settings]) == size:
            yield waiting.pop(settings)


def judge(name: str, source: str, *, screen: bool = False) -> tuple[float, ReportJson]:
    """Seconds and report of one judgement, without a search for the culprit."""
    start = time.perf_counter()
    task = JudgeTask(path=f"{name}.py", source=source, screen=screen, thorough=False, seconds=0.0)
    report = judge_file(task).report
    return time.perf_counter() - start, report


def main() -> None:
    """Judge the packs and their members, and print what they took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--packs", type=int, default=10)
    parser.add_argument("--kind", default="program")
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="packing-")
    os.environ.update(share_kernel_cache())
    prepare(Conditions())
    facts = describe_environment(torch.device("cpu"))
    print(f"torch {facts['torch']}, {facts['cpu']}, load {os.getloadavg()[0]:.1f}")
    sums, clean, packs = [0.0, 0.0, 0.0], 0, iter_packs(given.kind, given.size, given.seed)
    judge("warm", next(packs)[0])
    for number in range(given.packs):
        members = next(packs)
        with fresh_cache():
            alone = [judge(f"m{number}_{i}", source) for i, source in enumerate(members)]
        with fresh_cache():
            screened = [judge(f"s{number}_{i}", source, screen=True) for i, source in enumerate(members)]
        with fresh_cache():
            seconds, report = judge(f"pack{number}", write_pack(members))
        taken = (seconds, sum(each for each, _ in alone), sum(each for each, _ in screened))
        judged = [each for _, each in alone] + [report]
        wrong = [each["verdict"] for each in judged if each["is_bug"] or not each["evidence"]["graphs"]]
        print(
            f"{number}: pack {taken[0]:.1f} s, in full {taken[1]:.1f} s, screened {taken[2]:.1f} s; {wrong or 'clean'}"
        )
        if not wrong:
            clean += 1
            sums = [before + now for before, now in zip(sums, taken, strict=True)]
    print(
        f"{clean} of {given.packs} packs are clean: {sums[0]:.1f} s, in full {sums[1]:.1f} s, screened {sums[2]:.1f} s"
    )


if __name__ == "__main__":
    main()
