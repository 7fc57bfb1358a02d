"""A signature is taken apart from the left: what comes last may hold colons."""

import pytest

from fuzzcompile.front.known_bugs import Baseline
from fuzzcompile.model import signatures
from fuzzcompile.model.signatures import (
    agree,
    drop_fingerprint,
    find_symptom,
    is_unproved,
    make_program_signature,
    parse_fingerprint,
    replace_fingerprint,
)
from fuzzcompile.programs.shrink.search import same_bug

SDPA = "joint_graph:torch/_inductor/fx_passes/fuse_attention.py:sfdp"
ERROR = "lowering:CppCompileError:g++: error: 'tmp' was not declared"
LOWERING_ERROR = "lowering:LoweringException:TypeError: got 'x': no such thing"
PROGRAM = "unattributed:-:program-0123456789ab"


@pytest.mark.parametrize(
    ("signature", "coarse", "fingerprint"),
    [
        (SDPA, SDPA, None),
        (f"{SDPA}:softmax(dim)", SDPA, "softmax(dim)"),
        (f"{SDPA}:x[:, 0:2]", SDPA, "x[:, 0:2]"),
        ("decomposition:-:to:layout", "decomposition:-:to", "layout"),
        ("post_grad:mine.py:my_pass:dtype", "post_grad:mine.py:my_pass", "dtype"),
        (ERROR, ERROR, None),
        (PROGRAM, PROGRAM, None),
        ("a", "a", None),
    ],
)
def test_place_and_fingerprint(signature, coarse, fingerprint):
    assert (signatures.drop_fingerprint(signature), signatures.parse_fingerprint(signature)) == (coarse, fingerprint)
    assert signatures.replace_fingerprint(signature, fingerprint) == signature
    assert signatures.parse_stage(signature) == signature.split(":")[0]


def test_only_a_place_is_refined():
    assert signatures.replace_fingerprint(f"{SDPA}:layout", "dtype") == f"{SDPA}:dtype"
    assert (
        signatures.replace_fingerprint(ERROR, "dtype") == ERROR
        and signatures.replace_fingerprint(PROGRAM, "dtype") == PROGRAM
    )
    assert signatures.is_unproved(PROGRAM) and signatures.is_unproved("unattributed:-:miscompile")
    assert not any(signatures.is_unproved(proved) for proved in (SDPA, ERROR, "functionalization:-:to"))


def test_two_fingerprints_are_two_bugs_of_one_place():
    dim, layout = f"{SDPA}:softmax(dim)", f"{SDPA}:layout"
    assert signatures.name_same_place(dim, layout) and not signatures.agree(dim, layout)
    assert signatures.agree(dim, SDPA) and signatures.agree(SDPA, SDPA)
    assert not signatures.agree(SDPA, ERROR)


def test_a_fingerprint_is_the_fourth_part():
    signature = replace_fingerprint(SDPA, "softmax(dim)")
    assert signature == f"{SDPA}:softmax(dim)"
    assert (drop_fingerprint(signature), parse_fingerprint(signature)) == (SDPA, "softmax(dim)")
    assert (drop_fingerprint(SDPA), parse_fingerprint(SDPA)) == (SDPA, None)
    assert replace_fingerprint(SDPA, None) == SDPA


@pytest.mark.parametrize(
    "signature", [LOWERING_ERROR, "codegen:torch/_inductor/codegen/cpp.py:expm1", "unattributed:-:crash"]
)
def test_other_signatures_take_none_and_have_none(signature):
    assert replace_fingerprint(signature, "layout") == drop_fingerprint(signature) == signature
    assert parse_fingerprint(signature) is None


@pytest.mark.parametrize(
    ("wanted", "reached", "same"),
    [
        (SDPA, SDPA, True),
        (SDPA, f"{SDPA}:layout", True),
        (f"{SDPA}:layout", SDPA, True),
        (f"{SDPA}:layout", f"{SDPA}:layout", True),
        (f"{SDPA}:layout", f"{SDPA}:softmax(dim)", False),
        (f"{SDPA}+addmm:layout", f"{SDPA}:layout", True),
        (f"{SDPA}:layout", "joint_graph:other.py:sfdp:layout", False),
        (LOWERING_ERROR, LOWERING_ERROR, True),
        (LOWERING_ERROR, LOWERING_ERROR + "!", False),
    ],
)
def test_one_cause_in_one_place(wanted, reached, same):
    assert agree(wanted, reached) is same


def test_a_program_stands_for_what_nothing_proves():
    signature = make_program_signature("decomposition", "0123456789abcdef")
    assert signature == "decomposition:-:program-0123456789ab"
    assert is_unproved(signature) and not is_unproved(SDPA)
    assert not agree(signature, make_program_signature("decomposition", "f" * 64))


@pytest.mark.parametrize(("cause", "same"), [("softmax(dim)", True), (None, True), ("layout", False)])
def test_a_reduction_that_meets_another_cause_met_another_bug(cause, same):
    wanted = {"is_bug": True, "verdict": "miscompile", "confidence": "low", "signature": f"{SDPA}:softmax(dim)"}
    assert same_bug(wanted, {**wanted, "signature": replace_fingerprint(SDPA, cause)}) is same


@pytest.mark.parametrize(
    ("known", "met", "is_known"),
    [
        (SDPA, "layout", True),
        (f"{SDPA}:layout", None, True),
        (f"{SDPA}:layout", "softmax(dim)", False),
    ],
)
def test_a_baseline_tells_causes_apart_where_both_are_known(known, met, is_known, tmp_path):
    path = tmp_path / "known.txt"
    path.write_text(known + "\n")
    assert Baseline.read(path).knows({"is_bug": True, "signature": replace_fingerprint(SDPA, met)}) is is_known


def test_a_program_in_place_of_a_cause_is_provisional():
    provisional = signatures.replace_fingerprint(SDPA, f"{signatures.PROGRAM}0123456789ab")
    assert signatures.is_provisional(provisional) and not signatures.is_provisional(PROGRAM)
    assert signatures.agree(provisional, f"{SDPA}:dtype") and not signatures.is_unproved(provisional)


NAN = float("nan")


@pytest.mark.parametrize(
    ("verdict", "outputs", "symptom"),
    [
        ("aliasing", [{"finding": "alias"}], "sharing"),
        ("metadata", [{"finding": "stride"}, {"finding": "wild"}], "layout"),
        ("metadata", [{"finding": "stride"}, {"finding": "dtype"}], None),
        ("metadata", [{"finding": "dtype"}], "dtype"),
        ("metadata", [{"finding": "shape"}], None),
        ("nonfinite", [{"finding": "nonfinite", "at": {"eager": NAN, "compiled": 1.0}}], "nonfinite lost"),
        ("nonfinite", [{"finding": "nonfinite", "at": {"eager": None, "compiled": 1.0}}], "nonfinite lost"),
        ("nonfinite", [{"finding": "nonfinite", "at": {"eager": 1.0, "compiled": NAN}}], "nonfinite made"),
        ("nonfinite", [{"finding": "nonfinite", "at": {"eager": NAN, "compiled": float("inf")}}], None),
        ("nonfinite", [{"finding": "nonfinite", "at": {"eager": NAN, "compiled": 1.0}}, {"finding": "far"}], None),
        (
            "nonfinite",
            [{"finding": "nonfinite", "at": {"eager": NAN, "compiled": 1.0}, "rms_error_compiled": 0.5}],
            None,
        ),
        ("miscompile", [{"finding": "far"}], None),
        ("precision_loss", [{"finding": "far"}], "precision"),
    ],
)
def test_a_symptom_settles_the_bug_where_all_else_is_right(verdict, outputs, symptom):
    usual = {"rms_error_compiled": 1e-7, "rms_error_eager": 1e-8, "noise_floor": 1e-7}
    assert find_symptom(verdict, [{**usual, **output} for output in outputs], {}) == symptom


def test_values_that_a_later_write_to_shared_memory_changes_are_one_bug_with_the_sharing():
    far, shares = [{"finding": "far"}], {"shares": "output 0: its own became memory of input 0"}
    assert find_symptom("miscompile", far, shares) == find_symptom("aliasing", [{"finding": "alias"}], {}) == "sharing"
    assert find_symptom("metadata", [{"finding": "shape"}], shares) is None
    assert find_symptom("miscompile", far, {"written through": "d"}) == "sharing"
    assert find_symptom("miscompile", far, {"writes in place": True}) == "sharing"
    assert find_symptom("miscompile", far, {"writes in place": True, "changed": "stride (4, 1) became (1, 4)"}) is None
    assert find_symptom("miscompile", far, {"a run shows": ["output 0 is a view of input 0"]}) == "sharing"
    assert find_symptom("miscompile", far, {"a run shows": ["input 0 is written to"]}) is None


@pytest.mark.parametrize(
    ("changed", "symptom"),
    [
        ("output 0: stride (4, 2, 1) became (4, 2, 0)", "overlap"),
        ("output 1: stride (1,) became (0,)", "overlap"),
        ("output 0: stride (4, 2, 1) became (10, 2, 1)", None),
        ("output 0: stride (4, 0, 1) became (0, 4, 1)", None),
    ],
)
def test_a_rewrite_that_makes_results_overlap_is_one_bug(changed, symptom):
    assert find_symptom("miscompile", [{"finding": "far"}], {"changed": changed}) == symptom


def test_a_rewrite_that_writes_where_elements_overlap_is_the_same_bug_whatever_reads_them():
    details = {"writes in place": True, "writes to overlap": True}
    assert find_symptom("miscompile", [{"finding": "far"}], details) == "overlap"


@pytest.mark.parametrize("verdict", ["runtime_error", "metadata", "miscompile"])
def test_a_view_made_anew_of_the_wrong_tensor_is_one_bug_however_it_shows(verdict):
    assert find_symptom(verdict, [{"finding": "far"}], {"kind": "regenerated"}) == "sharing"
    assert find_symptom(verdict, [{"finding": "far"}], {"kind": "regenerated", "way": "as_strided"}) == "layout"
