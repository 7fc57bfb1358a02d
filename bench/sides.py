"""Which side is told to be wrong: the same faults planted in eager mode's kernels and in the compiler.

    python bench/sides.py [--price 20]
    python bench/sides.py --mended [NUMBER ...]
    python bench/sides.py --known STATE [--limit 120]

Of each operator of `plants.sides`, once the CPU kernel and once the decomposition or lowering returns a result that is
5 % off. ``told``: the answer names the side; ``named``: the operator too. An operator whose compiled form calls the
eager kernel shows nothing when that is wrong; it is counted apart. ``price`` is the processor time of a triage with the
side in units of one without, for clean programs and for those with a fault, taking turns.

``--mended``: faults of eager mode that torch has mended (`plants.mended`), or those of some pull requests, beside the
compiled program and in eager mode alone. ``--known``: the side on public issues, the committed corpus and bugs planted
in the compiler (`known_sides`); what STATE holds is not judged again.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from unittest import mock

import torch
from known_sides import format_known, judge_known, read_state
from plants.mended import FAULTS as MENDED
from plants.mended import MendedFault
from plants.sides import FAULTS, SharedFault, compiler_fault, eager_fault, write_program

from fuzzcompile.diagnosis import engine
from fuzzcompile.diagnosis.refusals import CannotJudge
from fuzzcompile.diagnosis.triage_report import TriageReport
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run.device import describe_environment, resolve_device

CPU = torch.device("cpu")
Plant = Callable[[torch._ops.OpOverload], AbstractContextManager[object]]
SIDES: dict[str, Plant] = {"eager": eager_fault, "compiled": compiler_fault}


def main() -> None:
    """Plant, judge and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--price", type=int, default=10, help="programs whose price is measured")
    parser.add_argument(
        "--mended", type=int, nargs="*", metavar="NUMBER", help="faults that torch has mended, and nothing else"
    )
    parser.add_argument("--known", type=Path, metavar="STATE", help="known cases, and nothing else")
    parser.add_argument("--limit", type=float, default=120, help="seconds for a known case")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {describe_environment(resolve_device('cpu'), None).get('cpu')}\n")
    if options.known is not None:
        for side in judge_known(options.known, options.limit):
            print(f"{side.case}: {side.verdict}, {side.wrong}", file=sys.stderr)
        print(format_known(read_state(options.known)))
        return
    if options.mended is not None:
        print_mended(options.mended)
        return
    print("| side at fault | planted | shown | told | named | wrong side, high confidence | undecided |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for side, plant in SIDES.items():
            answers = [(fault, answer) for fault, answer in judge_each(Path(folder), plant) if answer.is_bug]
            told = [(fault, answer) for fault, answer in answers if answer.wrong == side]
            named = [fault for fault, answer in told if _names(answer, fault)]
            other = [x for _, x in answers if x.wrong not in (side, "undecided") and x.confidence == "high"]
            undecided = sum(answer.wrong == "undecided" for _, answer in answers)
            print(
                f"| {side} | {len(FAULTS)} | {len(answers)} | {len(told)} | {len(named)} | {len(other)} | {undecided} |"
            )
        print()
        for what, plant in (("clean", lambda _: nullcontext()), ("divergent", compiler_fault)):
            ratios = list(measure_price(Path(folder), plant, options.price))
            print(f"Price of a {what} program: median {statistics.median(ratios):.2f} (of {len(ratios)})")


def judge_each(folder: Path, plant: Plant) -> Iterator[tuple[SharedFault, TriageReport]]:
    """The answer on each fault."""
    for fault in FAULTS:
        with plant(fault.operator):
            yield fault, _judge(folder, fault)


def measure_price(folder: Path, plant: Plant, count: int) -> Iterator[float]:
    """Processor seconds of each program with the side, in units of those without."""
    for fault in FAULTS[:count]:
        with plant(fault.operator):
            _judge(folder, fault)  # kernels are compiled
            spent = dict.fromkeys((True, False), 0.0)
            for looked in (True, False, False, True):  # whatever grows from run to run counts for both
                without = nullcontext() if looked else mock.patch.object(engine, "find_wrong_side", lambda *_: None)
                start = time.process_time()
                with without:
                    _judge(folder, fault)
                spent[looked] += time.process_time() - start
        yield spent[True] / spent[False]


def print_mended(numbers: Collection[int]) -> None:
    """The answers on faults that torch has mended: beside the compiled program, and on eager mode alone."""
    print("| pull request | mended in | what | circumstance | here | beside compiled | eager alone |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for fault in MENDED:
            if numbers and fault.number not in numbers:
                continue
            forms = [("there already" if fault.plant is None else "put back", fault.install)]
            forms += [] if fault.apart is None else [("put back for eager mode alone", fault.apart)]
            for form, plant in forms:
                told = [_tell_mended(Path(folder), fault, plant, alone) for alone in (False, True)]
                cells = (f"#{fault.number}", fault.mended, f"{fault.where}: {fault.operator}", fault.circumstance, form)
                print("| " + " | ".join((*cells, *told)) + " |", flush=True)


def _tell_mended(
    folder: Path, fault: MendedFault, plant: Callable[[], AbstractContextManager[object]], alone: bool
) -> str:
    path = folder / "case.py"
    path.write_text(fault.write_program() + ('\n\nPATH = "eager"\n' if alone else ""), encoding="utf-8")
    with plant():
        try:
            return _word_answer(engine.triage(load_case(path), CPU), fault)
        except CannotJudge:
            return "not judged"


def _word_answer(answer: TriageReport, fault: MendedFault) -> str:
    if not answer.is_bug:
        return f"{answer.verdict.value}: nothing shows"
    culprit = answer.attribution.culprit
    # A gradient that is wrong is that of an operator, whichever other one it calls.
    names = (fault.operator, fault.operator.replace("_backward", ""))
    named = culprit is not None and culprit.stage == "aten" and culprit.rewrite in names
    side = "" if answer.wrong is None else f", {answer.wrong}"
    return f"{answer.verdict.value}{side}, {answer.confidence}" + (", named" if named else "")


def _judge(folder: Path, fault: SharedFault) -> TriageReport:
    path = folder / "case.py"
    path.write_text(write_program(fault.body, backward=fault.backward), encoding="utf-8")
    return engine.triage(load_case(path), CPU)


def _names(answer: TriageReport, fault: SharedFault) -> bool:
    culprit = answer.attribution.culprit
    return culprit is not None and culprit.rewrite == str(fault)


if __name__ == "__main__":
    main()
