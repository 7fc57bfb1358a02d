"""Results that are no tensors: what has no equality is said not to have been compared."""

from __future__ import annotations

import pytest
import torch

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.programs.casefiles.case_module import load_case

SOURCE = """
import torch

class Pair:
    def __init__(self, held):
        self.held = held

def make():
    return (lambda x: ({returned})), (torch.ones(3),)
"""


@pytest.mark.parametrize(
    "returned, confidence, said",
    [
        ("x + 1, Pair(3)", "low", "out1 not compared: Pair has no equality"),
        ("x + 1, Pair(x * 2)", "high", ""),  # the tensor that it holds is compared
        ("x + 1, None, torch.float32, 3, 'text', x.shape", "high", ""),
    ],
)
def test_what_cannot_be_compared_lowers_the_confidence(write_case, returned, confidence, said):
    path = write_case(SOURCE.format(returned=returned))
    report = triage(load_case(path), torch.device("cpu")).to_json()
    assert (report["verdict"], report["confidence"], report["detail"]) == ("equal", confidence, said)
