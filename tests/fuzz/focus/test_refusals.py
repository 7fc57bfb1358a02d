"""Which check refused a match, and which of its conditions. Nothing is compiled."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import torch
from torch._inductor.fx_passes import post_grad

from fuzzcompile.compiler.watch.rule_labels import explain_refusals, is_explained, run_explained


def match_of(*shapes: tuple[int, ...]) -> SimpleNamespace:
    """A match of ``inp + mat1 @ mat2`` as far as its check reads it."""
    inp, mat1, mat2 = (SimpleNamespace(meta={"val": torch.empty(shape)}) for shape in shapes)
    return SimpleNamespace(args=(mat1, mat2), kwargs={"inp": inp})


def test_a_refusal_names_the_check_and_the_condition_that_failed():
    accepted, why = run_explained(post_grad.is_valid_addmm_fusion, match_of((5, 7, 9), (4, 3), (3, 6)))
    assert not accepted
    assert why.startswith("is_valid_addmm_fusion: ")
    assert "(post_grad.py:" in why
    assert sys.gettrace() is None


def test_what_is_accepted_or_refused_in_code_that_is_not_the_compilers_has_no_reason():
    assert run_explained(lambda match: True, None) == (True, "")
    assert run_explained(lambda match: False, None) == (False, "")


def test_only_the_rules_of_a_focus_are_explained():
    with explain_refusals([("post_grad", "addmm")]):
        assert is_explained("post_grad", "addmm")
        assert not is_explained("post_grad", "mm_plus_mm")
    assert not is_explained("post_grad", "addmm")
