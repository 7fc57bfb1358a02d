"""A signature is taken apart from the left: what comes last may hold colons."""

import pytest

from fuzzcompile import signatures

SDPA = "joint_graph:torch/_inductor/fx_passes/fuse_attention.py:sfdp"
ERROR = "lowering:CppCompileError:g++: error: 'tmp' was not declared"
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
    assert (signatures.coarse(signature), signatures.fingerprint(signature)) == (coarse, fingerprint)
    assert signatures.refined(signature, fingerprint) == signature
    assert signatures.stage(signature) == signature.split(":")[0]


def test_only_a_place_is_refined():
    assert signatures.refined(f"{SDPA}:layout", "dtype") == f"{SDPA}:dtype"
    assert signatures.refined(ERROR, "dtype") == ERROR and signatures.refined(PROGRAM, "dtype") == PROGRAM
    assert signatures.is_unproved(PROGRAM) and signatures.is_unproved("unattributed:-:miscompile")
    assert not any(signatures.is_unproved(proved) for proved in (SDPA, ERROR, "functionalization:-:to"))


def test_two_fingerprints_are_two_bugs_of_one_place():
    dim, layout = f"{SDPA}:softmax(dim)", f"{SDPA}:layout"
    assert signatures.same_place(dim, layout) and not signatures.agree(dim, layout)
    assert signatures.agree(dim, SDPA) and signatures.agree(SDPA, SDPA)
    assert not signatures.agree(SDPA, ERROR)
