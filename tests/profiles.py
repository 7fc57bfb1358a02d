"""A profile (contract form) for tests of what is made of it: twelve blocks, an error that grows slowly."""

from __future__ import annotations

from typing import Any

KERNELS = [
    {"name": "math", "usable": True, "chosen": False, "reason": ""},
    {"name": "flash", "usable": True, "chosen": True, "reason": ""},
    {"name": "efficient", "usable": False, "chosen": False, "reason": "It needs CUDA."},
    {"name": "cudnn", "usable": False, "chosen": False, "reason": "It needs CUDA."},
]
TENSOR = {"shape": [2, 4, 8, 16], "strides": [512, 128, 16, 1], "dtype": "float32"}
CALL = {
    "query": TENSOR, "key": TENSOR, "value": TENSOR, "mask": None, "device": "cpu", "dropout": 0.0, "causal": True,
    "scale": None, "enable_gqa": False, "needs_grad": False, "switched_on": ["math", "flash"], "calls": 12,
    "backends": KERNELS, "note": "",
}  # fmt: skip
TOLERANCE = {
    "pair": "same_backend", "dtype": "float32", "factor": 6.0, "relative": 1e-6, "absolute": 2e-6,
    "reason": "the kernels differ",
}  # fmt: skip
ENVIRONMENT = {"torch": "2.13.0", "cpu": "Xeon", "host": "secret-host"}


def layer(name: str, grown: int = 1, **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "kind": "Block",
        "size": 2.0,
        "max_error": 4e-6 * grown,
        "rms_error": 1e-6 * grown,
        "cosine": 1 - 1e-7 * grown,
        "float64_error": 1.1e-6 * grown,
        "reference_float64_error": 1.2e-6 * grown,
        "made": 5e-7,
        "inherited": 1e-6 * grown,
        "noise": 6e-7,
        "rounding": 7e-7 * grown,
        "made_in_float64": 1e-16,
        "amplification": 1.25,
        **fields,
    }


WHOLE = layer("(whole program)", 12, kind="program", made=None, inherited=None, noise=None, amplification=None)
BLOCKS = [layer(f"bert.encoder.layer.{index}", index + 1) for index in range(12)]


def profile(verdict: str = "expected_compounding", **fields: Any) -> dict[str, Any]:
    return {
        "schema": 1,
        "case": "bert",
        "torch": "2.13.0",
        "device": "cpu",
        "against": "inductor",
        "reference": "eager",
        "verdict": verdict,
        "layer": None,
        "rule": "no layer makes more than 0.8 times its rounding, 6 are allowed.",
        "tolerance": TOLERANCE,
        "layers": [*BLOCKS, WHOLE],
        "attention": [CALL],
        "notes": [],
        "environment": ENVIRONMENT,
        "triage": None,
        "triage_whole": None,
        "cost": {"seconds": 12.5},
        **fields,
    }


def jump(**fields: Any) -> dict[str, Any]:
    """A profile whose eighth block makes an error of its own."""
    made = layer("bert.encoder.layer.7", 8, made=0.25)
    layers = [*BLOCKS[:7], made, *BLOCKS[8:], WHOLE]
    return profile(
        "jump", **{"layer": "bert.encoder.layer.7", "layers": layers, "rule": "it is off by 0.25.", **fields}
    )
