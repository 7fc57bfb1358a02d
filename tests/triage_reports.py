"""Triage reports (contract form) for tests of what is made of them."""

from __future__ import annotations

from typing import Any

CULPRIT = {
    "stage": "joint_graph",
    "pass": "pass_pattern_0",
    "rewrite": "_sfdp_pattern_28_inference",
    "nodes": [],
    "source": "torch/_inductor/fx_passes/fuse_attention.py",
    "line": 66,
    "family": "sfdp",
    "site": "model.py:14 #1",
    "step": 0.3,
    "necessary": True,
    "sufficient": None,
}
SIGNATURE = "joint_graph:torch/_inductor/fx_passes/fuse_attention.py:sfdp"


def output(name: str = "out0", **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "finding": "close",
        "max_abs_error_eager": 1e-7,
        "max_abs_error_compiled": 2e-7,
        "rms_error_eager": 3e-8,
        "rms_error_compiled": 5e-8,
        "error_ratio": 2.0,
        "max_ulps_eager": 1.5,
        "max_ulps_compiled": 3.0,
        "noise_floor": 4e-7,
        "scale": 1.0,
        "within_default_tolerance": True,
        "torch_same": True,
        "cosine": 1.0,
        "where": [0, 3],
        "at": {"eager": 0.5, "compiled": 0.25, "float64": 0.5},
        "detail": "",
        **fields,
    }


def report(verdict: str = "rounding", *outputs: dict[str, Any], **fields: Any) -> dict[str, Any]:
    evidence = fields.pop("evidence", {})
    bug = verdict not in ("equal", "rounding", "unstable", "precision_casts", "invalid")
    return {
        "schema": 1,
        "case": "model",
        "torch": "2.13.0",
        "device": "cpu",
        "verdict": verdict,
        "is_bug": bug,
        "confidence": "high",
        "detail": "",
        "evidence": {"outputs": list(outputs), "eager_deterministic": True, "float64_step": None, **evidence},
        "culprit": CULPRIT if bug else None,
        "contributors": [],
        "changed_bits": [],
        "ablations": [],
        "workaround": None,
        "signature": SIGNATURE if bug else None,
        "cost": {"compiles": 1, "screens": 0, "replays": 3, "seconds": 1.5},
        **fields,
    }
