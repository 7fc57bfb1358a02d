"""``profile``: two ways to run a model, compared layer by layer."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch

from fuzzcompile.case import Case
from fuzzcompile.contract import LayerJson, ProfileJson
from fuzzcompile.execution.attention_backends import attention_calls, math_only
from fuzzcompile.execution.building import build
from fuzzcompile.execution.environment import describe
from fuzzcompile.execution.observation import Observation
from fuzzcompile.execution.runs import observe
from fuzzcompile.oracle import change
from fuzzcompile.profiling.distance import Distance
from fuzzcompile.profiling.measuring import Layer, apart
from fuzzcompile.profiling.runs import WHOLE, Calls, SideRun, returned, run_eagerly, run_side, untapped
from fuzzcompile.profiling.sides import Side, pair_of
from fuzzcompile.profiling.verdict import decide
from fuzzcompile.profiling.walk import Known, Walk
from fuzzcompile.tolerances import Tolerances

SCHEMA = 1


@dataclass(frozen=True)
class Asked:
    """What is to be profiled.

    Attributes:
        against: the side that is measured.
        reference: what it is compared with; no recording.
        depth: which modules are layers; None chooses blocks.
        tolerances: a TOML file that overrides the table of tolerances.
        math_only: attention takes its math kernel on both sides, and TF32 is off.
    """

    against: Side
    reference: Side = Side("eager")
    depth: int | None = None
    tolerances: Path | None = None
    math_only: bool = False


def profile(case: Case, device: torch.device, asked: Asked) -> ProfileJson:
    """Compare two ways to run the case, layer by layer.

    Raises:
        CannotRun: the case raises in one of them.
        EnvironmentUnfit: there is no such device or kernel here.
        UsageError: the tolerances cannot be used.
    """
    start = time.perf_counter()
    table = Tolerances.load(asked.tolerances)
    with math_only() if asked.math_only else contextlib.nullcontext():
        measured = _Profile(case, device, asked).measured()
    tolerance = table.for_pair(pair_of(asked.against, asked.reference, device), _dtype_name(measured))
    *layers, whole = measured.layers
    verdict = decide(layers, whole, tolerance, whole_exact=measured.whole_exact, repeats=measured.repeats)
    return {
        "schema": SCHEMA,
        "case": case.name,
        "torch": torch.__version__,
        "device": str(device),
        "against": str(asked.against),
        "reference": str(asked.reference),
        "verdict": verdict.name,
        "layer": verdict.layer,
        "rule": verdict.rule,
        "tolerance": tolerance.to_json(),
        "layers": [_row(layer) for layer in measured.layers],
        "attention": measured.attention,
        "notes": [*case.notes, *measured.notes],
        "environment": dict(describe(device)),
        "triage": None,
        "triage_whole": None,
        "cost": {"seconds": time.perf_counter() - start},
    }
