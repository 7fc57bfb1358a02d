"""Names of rewrites: stable, distinct, and understood by vetoes."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
import torch
from torch._inductor.fx_passes import fuse_attention, joint_graph, post_grad

from fuzzcompile.compiler.rule_catalogue import initialise_patterns
from fuzzcompile.compiler.watch.ledger import Label
from fuzzcompile.compiler.watch.rule_labels import get_base_name, get_family, is_vetoed, make_entry_label


@pytest.mark.parametrize(
    "rewrite, base, family",
    [
        ("_sfdp_pattern_28_half_inference", "_sfdp_pattern_28", "sfdp"),
        ("_sfdp_pattern_1_training", "_sfdp_pattern_1", "sfdp"),
        ("_sfdp_pattern_13", "_sfdp_pattern_13", "sfdp"),
        ("addmm_pattern_inference", "addmm_pattern", "addmm_pattern"),
        ("pointless_view", "pointless_view", "pointless_view"),
    ],
)
def test_variants_and_numbers_are_told_from_the_name(rewrite: str, base: str, family: str):
    assert get_base_name(rewrite) == base
    assert get_family(rewrite) == family


@pytest.mark.parametrize(
    "name, rewrite, meant",
    [
        ("_sfdp_pattern_1", "_sfdp_pattern_1_inference", True),
        ("_sfdp_pattern_1", "_sfdp_pattern_11_inference", False),
        ("_sfdp", "_sfdp_pattern_11_inference", True),
        ("_sfdp_", "_sfdp_pattern_11_inference", True),
        ("pass_pattern_1", "pass_pattern_1", True),
        ("pass_pattern_1", "pass_pattern_10", False),
        ("*view*", "pointless_view_pair", True),
        ("joint_graph:_sfdp", "_sfdp_pattern_1", True),
        ("post_grad:_sfdp", "_sfdp_pattern_1", False),
        ("pointless_view_pair", "pointless_view", False),
        ("", "pointless_view", False),
        ("addmm", "addmm_pattern_inference", True),
        ("=addmm", "addmm_pattern_inference", False),
        ("=addmm_pattern", "addmm_pattern_inference", True),
        ("joint_graph:=addmm_pattern", "addmm_pattern_inference", True),
    ],
)
def test_veto_means_what_it_says(name: str, rewrite: str, meant: bool):
    assert is_vetoed(Label("joint_graph", None, rewrite), [name]) is meant


def test_every_entry_of_torch_has_a_name_and_a_place():
    initialise_patterns(torch.device("cpu"))
    tables = [joint_graph.early_patterns, *joint_graph.pass_patterns, *post_grad.pass_patterns]
    entries = {id(e): e for table in tables for found in table.patterns.values() for e in found}
    named = [make_entry_label(entry, "stage", None) for entry in entries.values()]
    assert len(named) > 50
    assert all(label.rewrite and label.source and label.line for label in named)
    assert all(str(label.source).startswith("torch/_inductor/") for label in named)


def test_rules_of_different_functions_have_different_names():
    initialise_patterns(torch.device("cpu"))
    places = defaultdict(set)
    for table in [joint_graph.early_patterns, *joint_graph.pass_patterns, *post_grad.pass_patterns]:
        for found in table.patterns.values():
            for entry in found:
                label = make_entry_label(entry, "stage", None)
                places[label.rewrite].add((label.source, label.line))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_every_sdpa_pattern_is_placed_at_its_own_definition():
    initialise_patterns(torch.device("cpu"))
    source = Path(fuse_attention.__file__).read_text().splitlines()
    entries = {id(e): e for table in joint_graph.pass_patterns for listed in table.patterns.values() for e in listed}
    placed = [make_entry_label(entry, "joint_graph", None) for entry in entries.values()]
    patterns = [label for label in placed if label.rewrite.startswith("_sfdp_pattern")]
    assert len(patterns) > 40
    for label in patterns:
        assert label.line is not None
        assert f"def {get_base_name(label.rewrite)}(" in source[label.line - 1]
