"""Records as a campaign makes them, for the tests and for the processes they start."""

import hashlib
from typing import Any

from fuzzcompile.corpus.records import Campaign, CaseRecord, Coverage, Reproducer

TORCH = "2.13.0+cpu"
ENVIRONMENT = {
    "torch": TORCH,
    "device": "cpu",
    "driver": None,
    "compiler": "gcc 12.2",
    "cpu": "Xeon",
    "cores": 2,
}
SDPA = "joint_graph/fuse_attention.py/sfdp"
STREAM = "seed=0 near_misses=1"
FIRED = Coverage("joint_graph", "pass_pattern_0", "_sfdp_pattern_28_inference", "fired", 1)
REFUSED = Coverage("joint_graph", "pass_pattern_0", "_sfdp_pattern_1_inference", "refused", 2)


def sha256(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()


def case(source: str = "def make(): ...\n", **fields: Any) -> CaseRecord:
    return CaseRecord(sha256(source), source, **{"origin": "generated", **fields})


def campaign(**fields: Any) -> Campaign:
    defaults: dict[str, Any] = {
        "seed": 0,
        "settings": {"budget": "10m", "near_misses": True},
        "command": "fuzzcompile run --budget 10m",
        "fuzzcompile_version": "0.1.0",
        "environment": ENVIRONMENT,
    }
    return Campaign(**defaults | fields)


def report(**fields: Any) -> dict[str, Any]:
    return {
        "schema": 1,
        "torch": TORCH,
        "device": "cpu",
        "case": "case.py",
        "verdict": "rounding",
        "is_bug": False,
        "confidence": "high",
        "evidence": {"outputs": [{"name": "out0", "error_ratio": 1.25}], "eager_deterministic": True},
        "culprit": None,
        "signature": None,
        "cost": {"compiles": 1, "replays": 2, "seconds": 0.75},
    } | fields


def bug(signature: str = SDPA, **fields: Any) -> dict[str, Any]:
    culprit = {"stage": "joint_graph", "rewrite": "_sfdp_pattern_28_inference", "necessary": True}
    return report(**{"verdict": "miscompile", "is_bug": True, "signature": signature, "culprit": culprit, **fields})


def reproducer(source: str = "print('repro')\n", **fields: Any) -> Reproducer:
    defaults: dict[str, Any] = {
        "lines": source.count("\n"),
        "kind": "recipe",
        "confirmed": True,
        "torch": TORCH,
    }
    return Reproducer(source, sha256(source), **defaults | fields)
