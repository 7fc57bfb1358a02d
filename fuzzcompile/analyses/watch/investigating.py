"""Triage of a step's case files in a fork of the script, where the compiler is as it was in that step."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from fuzzcompile.analyses.watch.judging import wrong_by_value
from fuzzcompile.compiler.torch_config import compile_in_process
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.triage.engine import triage


def investigate(cases: Sequence[Path], answer: Path, *, seconds: float) -> None:
    """Triage the cases until one shows wrong values, and write its report, or else the first one's.

    Args:
        cases: case files.
        answer: where the report is written, as ``triage --json`` prints it.
        seconds: time after which attribution of a case begins no further compile.
    """
    torch.set_num_threads(1)  # a fork has none of its parent's threads
    compile_in_process()
    torch.compiler.set_stance("default")
    torch.compiler.reset()
    for path in cases:
        try:
            said = triage(load_case(path), torch.device("cpu"), deadline=time.monotonic() + 0.6 * seconds).to_json()
        except Exception:  # a case that cannot be judged must not cost the others
            continue
        wrong = wrong_by_value(said)
        if wrong or not answer.exists():
            draft = answer.with_suffix(".part")
            draft.write_text(json.dumps(said, allow_nan=False), encoding="utf-8")
            draft.replace(answer)
        if wrong:
            return
