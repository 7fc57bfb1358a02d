"""Signatures as text, and where two of them mean the same bug."""

from __future__ import annotations

import pytest

from fuzzcompile.reduction.jobs import same_bug
from fuzzcompile.reporting.baseline import Baseline
from fuzzcompile.signatures import agree, coarse, fingerprint_of, names_program, of_program, refined

PLACE = "joint_graph:torch/_inductor/fx_passes/fuse_attention.py:sfdp"
ERROR = "lowering:LoweringException:TypeError: got 'x': no such thing"


def test_a_fingerprint_is_the_fourth_part():
    signature = refined(PLACE, "softmax(dim)")
    assert signature == f"{PLACE}:softmax(dim)"
    assert (coarse(signature), fingerprint_of(signature)) == (PLACE, "softmax(dim)")
    assert (coarse(PLACE), fingerprint_of(PLACE)) == (PLACE, None)
    assert refined(PLACE, None) == PLACE


@pytest.mark.parametrize("signature", [ERROR, "codegen:torch/_inductor/codegen/cpp.py:expm1", "unattributed:-:crash"])
def test_other_signatures_take_none_and_have_none(signature):
    assert refined(signature, "layout") == coarse(signature) == signature
    assert fingerprint_of(signature) is None


@pytest.mark.parametrize(
    ("wanted", "reached", "same"),
    [
        (PLACE, PLACE, True),
        (PLACE, f"{PLACE}:layout", True),
        (f"{PLACE}:layout", PLACE, True),
        (f"{PLACE}:layout", f"{PLACE}:layout", True),
        (f"{PLACE}:layout", f"{PLACE}:softmax(dim)", False),
        (f"{PLACE}+addmm:layout", f"{PLACE}:layout", True),
        (f"{PLACE}:layout", "joint_graph:other.py:sfdp:layout", False),
        (ERROR, ERROR, True),
        (ERROR, ERROR + "!", False),
    ],
)
def test_one_cause_in_one_place(wanted, reached, same):
    assert agree(wanted, reached) is same


def test_a_program_stands_for_what_nothing_proves():
    signature = of_program("decomposition", "0123456789abcdef")
    assert signature == "decomposition:-:program-0123456789ab"
    assert names_program(signature) and not names_program(PLACE)
    assert not agree(signature, of_program("decomposition", "f" * 64))


@pytest.mark.parametrize(("cause", "same"), [("softmax(dim)", True), (None, True), ("layout", False)])
def test_a_reduction_that_meets_another_cause_met_another_bug(cause, same):
    wanted = {"is_bug": True, "verdict": "miscompile", "confidence": "low", "signature": f"{PLACE}:softmax(dim)"}
    assert same_bug(wanted, {**wanted, "signature": refined(PLACE, cause)}) is same


@pytest.mark.parametrize(
    ("known", "met", "is_known"),
    [(PLACE, "layout", True), (f"{PLACE}:layout", None, True), (f"{PLACE}:layout", "softmax(dim)", False)],
)
def test_a_baseline_tells_causes_apart_where_both_are_known(known, met, is_known, tmp_path):
    path = tmp_path / "known.txt"
    path.write_text(known + "\n")
    assert Baseline.read(path).knows({"is_bug": True, "signature": refined(PLACE, met)}) is is_known
