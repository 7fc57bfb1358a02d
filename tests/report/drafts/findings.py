"""Findings as an issue draft sees them: one that is fit to be filed, to be changed at one place at a time."""

from __future__ import annotations

from typing import Any

from triage_reports import output, report

from fuzzcompile.report.finding_facts import IssueFacts

COMMIT = "449b1768410104d3ed79d3bcfe4ba1d65c7f22c0"
ENVIRONMENT = {
    "torch": "2.13.0+cpu",
    "torch_git": COMMIT,
    "device": "cpu",
    "cuda": None,
    "driver": None,
    "cxx": "g++ 12.2.0",
    "cpu": "A CPU",
    "python": "3.11.7",
    "platform": "Linux x86_64",
    "hostname": "secret-host",
}
CASE = '''"""Wrong values under torch.compile, culprit addmm."""
import torch

def program(x, a, b):
    return torch.add(x, a @ b, alpha=0.5)

def make():
    torch.manual_seed(0)
    return program, (torch.randn(2, 2), torch.randn(2, 2), torch.randn(2, 2))
'''
CHECK = """
if __name__ == "__main__":
    model, inputs = make()
    raise SystemExit(not torch.equal(torch.compile(model)(*inputs), model(*inputs)))
"""
PLAIN = """import torch

def f(x, a, b):
    return torch.add(x, a @ b, alpha=0.5)

torch.manual_seed(0)
args = [torch.randn(2, 2) for _ in range(3)]
torch.testing.assert_close(torch.compile(f)(*args), f(*args))"""
PLAIN_OUTPUT = """AssertionError: Tensor-likes are not close!

Mismatched elements: 4 / 4 (100.0%)
Greatest absolute difference: 0.9 at index (1, 1) (up to 1e-05 allowed)"""
LADDER = [
    {"backend": "eager", "result": "right", "says": ""},
    {"backend": "aot_eager", "result": "right", "says": ""},
    {"backend": "aot_eager_decomp_partition", "result": "right", "says": ""},
    {"backend": "inductor", "result": "wrong", "says": "AssertionError: Tensor-likes are not close!"},
]
SHOWN = {
    "plain": PLAIN,
    "plain_output": PLAIN_OUTPUT,
    "plain_shows": True,
    "ladder": LADDER,
    "expression": "torch.add(x, a @ b, alpha=0.5)",
    "collect_env": "PyTorch version: 2.13.0+cpu\nOS: Linux",
}
WRONG = output(
    finding="far",
    max_abs_error_eager=1.75e-07,
    max_abs_error_compiled=0.9,
    error_ratio=5142857.0,
    within_default_tolerance=False,
    torch_same=False,
    where=[1, 1],
    at={"eager": 0.6037, "compiled": 1.504, "float64": 0.6037},
)
CULPRIT = {
    "stage": "post_grad",
    "pass": "pass_pattern_2",
    "rewrite": "addmm",
    "nodes": ["mm", "add"],
    "source": "torch/_inductor/fx_passes/post_grad.py",
    "line": 1800,
    "family": "addmm",
    "site": "repro.py:6 #1",
    "step": 1.417,
    "necessary": True,
    "sufficient": True,
    "siblings": [],
    "details": {"diff": "@@ -1 +1 @@\n-add = aten.add.Tensor(x, mm, alpha=0.5)\n+addmm = aten.addmm.default(x, a, b)"},
}
CAUSE = {
    "fingerprint": "add(alpha)",
    "kind": "argument",
    "before": "alpha=0.5",
    "after": "alpha=1",
    "still": "fires",
    "computes": "neighbour",
}
ABLATIONS = [
    {"toggle": "veto addmm", "repairs": True, "error": 1.75e-07},
    {"toggle": "only addmm (graphs interpreted)", "repairs": False, "error": 0.9},
]
WORKAROUND = {
    "how": "torch._inductor.config.disabled_passes = 'pass_pattern_2'",
    "config": {"disabled_passes": "pass_pattern_2"},
    "verified": True,
    "cost_ratio": 1.02,
}


def facts(verdict: str = "miscompile", *outputs: dict[str, Any], **fields: Any) -> IssueFacts:
    """A finding; ``fields`` are of the facts, or of the report where the facts have none of that name."""
    given_ones = {name for name, field in IssueFacts.__dataclass_fields__.items() if field.init}
    own = {key: fields.pop(key) for key in list(fields) if key in given_ones}
    wrong = outputs or ((WRONG,) if verdict in ("miscompile", "wrong_gradient", "nonfinite") else ())
    given = {
        "torch": "2.13.0+cpu",
        "culprit": CULPRIT,
        "cause": CAUSE,
        "ablations": ABLATIONS,
        "workaround": WORKAROUND,
        **fields,
    }
    known = {
        "reproducer": CASE + CHECK,
        "environment": ENVIRONMENT,
        "first_seen": "2026-01-02",
        "hits": 3,
        "confirmed": True,
        "shown": SHOWN,
    }
    return IssueFacts(**{"report": report(verdict, *wrong, **given), **known, **own})
