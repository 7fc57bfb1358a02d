"""Which of the bugs that are put back a campaign has reached: the plant without which nothing of a finding is left.

    fuzzcompile run --budget 60m --corpus DB $(python bench/reached.py --options)    # all of them at once
    python bench/reached.py DB                                                      # which it reached

Each finding's program is compiled with half of the plants, and half of those, until one is left under which it is a
bug. Every compile is a fork of one process that has imported torch. Plants that do not load together are left out.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch
from grading import names
from put_back import PublicBug, read_bugs

from fuzzcompile.compiler.rule_catalogue import initialise_patterns
from fuzzcompile.compiler.torch_config import compile_in_process
from fuzzcompile.corpus.store import Store
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run.device import describe_environment, resolve_device
from fuzzcompile.run.plants import run_plants

# Two plants undo a line each of one function, and what the first makes of it has no source.
APART = (153568, 162410)
_SECONDS = 60


def main() -> None:
    """Print the options for a campaign, or what one has reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", nargs="?", help="the corpus of the campaign")
    parser.add_argument("--options", action="store_true", help="print the options that plant all of them")
    given = parser.parse_args()
    bugs = [bug for bug in read_bugs() if not bug.reason and bug.issue not in APART]
    if given.options or given.corpus is None:
        print(" ".join(f"--plant {bug.plant}" for bug in bugs))
        return
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    compile_in_process(1)
    initialise_patterns(torch.device("cpu"))
    print(f"torch {torch.__version__}, {describe_environment(resolve_device('cpu'), None).get('cpu')}\n")
    print("| finding | verdict | culprit | reached |\n|---|---|---|---|")
    reached: dict[int, list[str]] = defaultdict(list)
    alike: dict[str, set[int]] = defaultdict(set)  # issues that findings with one error were
    with Store.open(given.corpus) as store:
        findings = store.findings()
        reproducers = [store.best_reproducer(finding.id) for finding in findings]
    for finding, reproducer in zip(findings, reproducers, strict=True):
        name, culprit = finding.public_id, finding.report["culprit"] or {}
        source = finding.source if reproducer is None else reproducer.source
        told, detail = [str(culprit.get(key)) for key in ("rewrite", "family")], finding.report["detail"]
        first = [bug for bug in bugs if bug.issue in alike[detail] or any(names(bug.names, one) for one in told)]
        own = is_bug(source, finding.verdict, [])
        bug = None if own else find_bug(source, finding.verdict, bugs, first)
        if bug is not None:
            reached[bug.issue].append(name)
            alike[detail].add(bug.issue)
        by = "torch's own" if own else "?" if bug is None else f"#{bug.issue}"
        said = f"{culprit.get('stage')}: {culprit.get('rewrite') or culprit.get('family')}"
        print(f"| {name} | {finding.verdict} | {said} | {by} |", flush=True)
    print(f"\n{len(findings)} findings; reached are {len(reached)} of {len(bugs)}: ", end="")
    print(", ".join(f"#{issue} ({len(found)})" for issue, found in sorted(reached.items())))


def find_bug(source: str, verdict: str, bugs: Sequence[PublicBug], first: Sequence[PublicBug]) -> PublicBug | None:
    """The plant that alone makes the verdict on a program; those that are likely are tried ``first``."""
    for bug in first:
        if is_bug(source, verdict, [bug]):
            return bug
    left = list(bugs)
    while len(left) > 1:
        half = left[: len(left) // 2], left[len(left) // 2 :]
        shown = next((part for part in half if is_bug(source, verdict, part)), None)
        if shown is None:
            return None
        left = list(shown)
    return left[0]


def is_bug(source: str, verdict: str, bugs: Sequence[PublicBug]) -> bool:
    """Judge a program with plants in a fork; return whether that is the verdict, or the fork is lost."""
    given = source, verdict, [bug.plant for bug in bugs]
    process = multiprocessing.get_context("fork").Process(target=_judge, args=given)
    process.start()
    process.join(_SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
        return False
    return process.exitcode != 0


def _judge(source: str, verdict: str, plants: Sequence[Path]) -> None:
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nothing, stream)
    run_plants(plants)
    with tempfile.TemporaryDirectory() as folder:
        case = Path(folder, "case.py")
        case.write_text(source, encoding="utf-8")
        said = Experiments(load_case(case), torch.device("cpu")).trial().judgement.verdict
    os._exit(int(said == verdict))


if __name__ == "__main__":
    main()
