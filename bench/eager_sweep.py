"""How much of torch's operators a sweep of eager mode alone gets through, and what it finds: the tables of a report.

    python bench/eager_sweep.py [--seconds 600] [--seed 0] [--log FILE] [OPERATOR ...]

Judges places of ``fuzzcompile run --source opinfo --eager`` in their order, one after the other, without a corpus and
without minimizing what it finds. FILE gets a line of JSON for each place, with its source.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from fuzzcompile.diagnosis.worker.local_pool import open_pool
from fuzzcompile.fuzz.campaign.budget import BudgetClock, CampaignBudget
from fuzzcompile.fuzz.campaign.case_sources import OperatorSweep, open_tables
from fuzzcompile.fuzz.opinfo_cells import DTYPES, LAYOUTS, OpInfoCell
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.judge_task import JUDGE, JudgeTask

# Seconds for one place; what takes longer is counted as not judged.
_MOST_SECONDS = 20.0


def iter_judged(sweep: OperatorSweep, seconds: float) -> Iterator[tuple[OpInfoCell, str, ReportJson | str]]:
    """Places with their source, and the report on each or why there is none, until the time is over."""
    with open_pool(Conditions(device="cpu"), 1) as pool:
        ends = time.monotonic() + seconds
        for index, cell in enumerate(sweep.cells):
            if time.monotonic() > ends:
                return
            drawn = sweep.at(sweep.seed, index)
            if drawn is None:
                continue
            task = JudgeTask(path=f"place_{index}.py", source=drawn.source)
            try:
                result = pool.schedule(JUDGE, (task,), label=f"place {index}", time_limit=_MOST_SECONDS).result()
                yield cell, drawn.source, result.report
            except Exception as error:  # of a place: the others are judged
                yield cell, drawn.source, str(error)


def _explain(text: str) -> str:
    for known in ("draws random numbers", "second reference", "did not end", "limit"):
        if known in text:
            return known
    return text.splitlines()[0][:80]


def main() -> None:
    """Judge places for so many seconds, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operators", nargs="*", metavar="OPERATOR")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path)
    given = parser.parse_args()
    verdicts, why_not = Counter[str](), Counter[str]()
    tried, found = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    operators, backward, longer, cotangents = set[str](), 0, 0, Counter[str]()
    findings = defaultdict[str, list[tuple[OpInfoCell, ReportJson]]](list)
    with open_tables(given.operators, eager=True) as tables:
        sweep = tables(given.seed, BudgetClock(CampaignBudget.parse("1h")))
        began = time.monotonic()
        for cell, source, report in iter_judged(sweep, given.seconds):
            if given.log is not None:
                with given.log.open("a", encoding="utf-8") as log:
                    log.write(json.dumps({"cell": cell.features, "report": report, "source": source}) + "\n")
            key = cell.dtype, cell.layout
            tried[key] += 1
            operators.add(cell.label)
            backward += cell.backward
            longer += cell.size == "long"
            cotangents[cell.cotangent] += cell.backward
            if isinstance(report, str):
                verdicts["not judged"] += 1
                why_not[_explain(report)] += 1
                continue
            verdicts[report["verdict"]] += 1
            if report["verdict"] == "eager_wrong":
                found[key] += 1
                findings[report["signature"] or ""].append((cell, report))
        minutes = (time.monotonic() - began) / 60
    total = tried.total()
    print(
        f"{total} places of {sweep.size} in {minutes:.1f} minutes, {total / minutes:.0f} a minute with one worker; "
        f"{len(operators)} of {len(sweep.operators)} entries of torch's tables; {backward} with gradients (cotangents: "
        f"{', '.join(f'{name} {count}' for name, count in cotangents.most_common() if count)}), {longer} of long sizes."
    )
    print(f"\nVerdicts: {', '.join(f'{name} {count}' for name, count in verdicts.most_common())}.")
    print(f"Not judged: {', '.join(f'{name} {count}' for name, count in why_not.most_common()) or 'none'}.")
    left_out = dict(sweep.account).get("left_out")
    rows = left_out.items() if isinstance(left_out, dict) else ()
    print(f"Samples left out: {', '.join(f'{name} {count}' for name, count in rows) or 'none'}.")
    print("\nPlaces tried by dtype and layout of the operands; findings in brackets:\n")
    print(f"| | {' | '.join(LAYOUTS)} |\n|---|{'---:|' * len(LAYOUTS)}")
    for dtype in DTYPES:
        cells = [f"{tried[dtype, x]}{f' ({found[dtype, x]})' if found[dtype, x] else ''}" for x in LAYOUTS]
        print(f"| {dtype} | {' | '.join(cells)} |")
    if findings:
        print("\n| Finding | Places | Dtypes | First seen in | Said of it |\n|---|---:|---|---|---|")
    for signature, seen in sorted(findings.items(), key=lambda item: -len(item[1])):
        first, report = seen[0]
        dtypes = ", ".join(dict.fromkeys(cell.dtype for cell, _ in seen))
        print(f"| `{signature}` | {len(seen)} | {dtypes} | {' '.join(first.features)} | {report['detail'][:200]} |")


if __name__ == "__main__":
    main()
