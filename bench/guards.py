"""Guard faults planted in dynamo, each judged by a program of two calls: is it found, and the kind of guard named.

python bench/guards.py [--only WORD]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
from plants.guards import FAULTS, GuardFault

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.model.contract import ReportJson
from fuzzcompile.programs.casefiles.case_module import load_case


def judge(fault: GuardFault, *, planted: bool = True) -> ReportJson:
    """The report on a fault's program, with the fault or without it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "case.py")
        path.write_text(fault.write_case(), encoding="utf-8")
        if not planted:
            return triage(load_case(path), torch.device("cpu")).to_json()
        with fault.plant():
            return triage(load_case(path), torch.device("cpu")).to_json()


def main() -> None:
    """Print a row for each fault, and the shares that were found and named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="faults with this word in their description")
    faults = [fault for fault in FAULTS if parser.parse_args().only in str(fault)]
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    print("| fault | clean | planted | named | seconds |\n|---|---|---|---|---:|")
    found = named = clean = 0
    for fault in faults:
        began, without = time.perf_counter(), judge(fault, planted=False)
        report = judge(fault)
        kind = (report["culprit"] or {}).get("rewrite")
        found += report["verdict"] == "stale"
        named += report["verdict"] == "stale" and kind in fault.kinds
        clean += not without["is_bug"]
        said = (kind, (report["culprit"] or {}).get("details", {}).get("guard"))
        print(f"| {fault} | {without['verdict']} | {report['verdict']} | {said} | {time.perf_counter() - began:.1f} |")
    print(f"\n{len(faults)} faults: {found} found, {named} with the kind named; {clean} clean without the fault.")


if __name__ == "__main__":
    main()
