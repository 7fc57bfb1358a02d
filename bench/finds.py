"""Causes per core-hour of campaigns from scratch, before and after: checkouts side by side, under the same seeds.

    python bench/finds.py --tree before=CHECKOUT --tree after=. [--seeds 101 102 103] [--budget 30m] [--workers 1]
    python bench/finds.py --report reports/finds.md    # the table of what the state holds

For each seed, one campaign of every checkout runs at the same time with the same number of workers, from an empty
corpus, so that a busy machine slows all of them alike; the processor time that each had is told. Campaigns that ended
are kept in the state and not run again. Findings are counted as the corpus keeps them, one for each root cause that
its signatures tell apart; whether that is one cause, somebody must read.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fuzzcompile.corpus.queries import GENERAL
from fuzzcompile.corpus.store import Store
from fuzzcompile.model.severity import Severity

ENDED, CORPUS = "ended.json", "corpus.db"
# Severities that a maintainer is told of first, from the worst: silent, error, aliasing, raising layout.
_UPPER = 4


@dataclass(frozen=True)
class Ended:
    """How one campaign ended: the checkout's name, its revision, and what it took in seconds."""

    tree: str
    revision: str
    torch: str
    seed: int
    budget: str
    workers: int
    wall: float
    processor: float


def main() -> None:
    """Run what is not in the state yet, print the table, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tree", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--seeds", type=int, nargs="+", default=[101, 102, 103])
    parser.add_argument("--budget", default="30m")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--state", type=Path, default=Path("campaigns"))
    parser.add_argument("--report", type=Path, help="the file that the table goes to")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        _campaign(Path(given.one[0]), json.loads(given.one[1]))
        return
    trees = dict(tree.split("=", 1) for tree in given.tree)
    for seed in given.seeds if trees else ():
        _side_by_side(trees, seed, given.budget, given.workers, given.state)
    text = _table(given.state)
    print(text)
    if given.report is not None:
        given.report.write_text(text, encoding="utf-8")


def _side_by_side(trees: Mapping[str, str], seed: int, budget: str, workers: int, state: Path) -> None:
    running = []
    for name, tree in trees.items():
        folder = state / f"{name}-{seed}"
        if (folder / ENDED).exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        asked = {"tree": name, "path": str(Path(tree).resolve()), "seed": seed, "budget": budget, "workers": workers}
        running.append(subprocess.Popen([sys.executable, __file__, "--one", str(folder), json.dumps(asked)]))
    for process in running:
        process.wait()


def _campaign(folder: Path, asked: Mapping[str, str]) -> None:
    """Run one campaign in this process's only child, so that its processor time can be told."""
    command = [sys.executable, "-m", "fuzzcompile", "run", "--budget", asked["budget"], "--device", "cpu"]
    command += ["--seed", str(asked["seed"]), "--workers", str(asked["workers"]), "--corpus", CORPUS]
    environment = {**os.environ, "PYTHONPATH": asked["path"]}
    began = time.monotonic()
    with (folder / "log").open("w", encoding="utf-8") as log:
        status = subprocess.call(command, cwd=folder, env=environment, stdout=log, stderr=log)
    if status:
        raise SystemExit(f"{asked['tree']}, seed {asked['seed']}: exit status {status}; see {folder / 'log'}")
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    revision = subprocess.run(
        ["git", "-C", asked["path"], "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    )
    with Store.open(folder / CORPUS) as store:
        torch = str(store.campaigns()[-1].environment["torch"])
    ended = Ended(
        asked["tree"],
        revision.stdout.strip(),
        torch,
        int(asked["seed"]),
        asked["budget"],
        int(asked["workers"]),
        time.monotonic() - began,
        spent.ru_utime + spent.ru_stime,
    )
    (folder / ENDED).write_text(json.dumps(asdict(ended)), encoding="utf-8")


# -- the table ----------------------------------------------------------------------------------------


def _table(state: Path) -> str:
    ended = [(path.parent, Ended(**json.loads(path.read_text()))) for path in sorted(state.glob(f"*/{ENDED}"))]
    names = [severity.value for severity in Severity]
    torches = sorted({campaign.torch for _, campaign in ended})
    lines = [
        "# Campaigns from scratch, compared",
        "",
        f"Written by `bench/finds.py` on torch {', '.join(torches)}, {os.cpu_count()} processors "
        f"({platform.processor() or platform.machine()}). Campaigns of one seed ran at the same time, each from an "
        "empty corpus; the machine also did other work. Findings by severity; those without proof of a culprit and "
        "those drawn from the form of a public report are counted once more.",
        "",
        f"| tree | revision | seed | budget | workers | processor s | cases | {' | '.join(names)} | all | unproved "
        "| from reports' forms | upper four a core-hour |",
        "|---|---|---:|---:|---:|---:|---:|" + "---:|" * (len(names) + 4),
    ]
    distinct: dict[str, dict[str, str]] = {}
    for folder, campaign in ended:
        counts, cases = _counted(folder, distinct.setdefault(campaign.tree, {}))
        cells = [str(counts[name]) for name in (*names, "all", "unproved", "forms")]
        cells.append(f"{sum(counts[name] for name in names[:_UPPER]) * 3600 / campaign.processor:.0f}")
        lines.append(
            f"| {campaign.tree} | {campaign.revision} | {campaign.seed} | {campaign.budget} | {campaign.workers} "
            f"| {campaign.processor:.0f} | {cases} | {' | '.join(cells)} |"
        )
    lines += ["", "Signatures over all seeds:", "", f"| tree | {' | '.join(names)} | all |"]
    lines.append("|---|" + "---:|" * (len(names) + 1))
    for tree, signatures in distinct.items():
        by = Counter(signatures.values())
        lines.append(f"| {tree} | {' | '.join(str(by[name]) for name in names)} | {len(signatures)} |")
    for tree, signatures in distinct.items():
        alone = [
            s for s in sorted(signatures) if all(s not in held for other, held in distinct.items() if other != tree)
        ]
        lines += ["", f"Seen by {tree} alone:", "", *_listed(alone, signatures)]
    return "\n".join([*lines, ""])


def _listed(names: Sequence[str], severities: Mapping[str, str]) -> list[str]:
    return [f"- {severities[name]}: `{name}`" for name in names] or ["- none"]


def _counted(folder: Path, signatures: dict[str, str]) -> tuple[Counter[str], int]:
    """The findings of a corpus by severity, whose signatures are added to those of the tree, and its cases."""
    counts: Counter[str] = Counter()
    with Store.open(folder / CORPUS, create=False) as store:
        cases = store.counters().cases
        for finding in store.summaries():
            severity = str(finding.severity)
            signatures.setdefault(finding.signature, severity)
            counts["all"] += 1
            counts[severity] += 1
            counts["unproved"] += not (finding.culprit or {}).get("necessary")
            counts["forms"] += finding.drawn_from != GENERAL
    return counts, cases


if __name__ == "__main__":
    main()
