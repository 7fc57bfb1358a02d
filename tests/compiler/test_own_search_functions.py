"""Which SDPA patterns can fire: those that fire when their own search functions are compiled."""

from __future__ import annotations

import importlib

import pytest
import torch

from fuzzcompile.compiler.rule_catalogue import list_known_rules
from fuzzcompile.compiler.sdpa_patterns import list_registered, read_variants, try_variants
from fuzzcompile.model.errors import EnvironmentUnfit
from fuzzcompile.model.facts import facts

CPU = torch.device("cpu")
FUSE_ATTENTION = "torch._inductor.fx_passes.fuse_attention"
named_by_variant = pytest.mark.skipif(torch.__version__ < "2.12", reason="this torch names patterns without variants")
only_2_13 = pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the reasons are those of torch 2.13")


def fired(*names: str) -> dict[str, set[str]]:
    chosen = [variant for variant in read_variants(CPU) if variant.name in names]
    assert len(chosen) == len(names)
    tried = list(try_variants(CPU, chosen))
    assert [attempt.trouble for attempt in tried] == [None] * len(names)
    return {attempt.name: set(attempt.fired) for attempt in tried}


@named_by_variant
def test_patterns_of_every_kind_fire_for_their_own_function():
    names = (
        "_sfdp_pattern_5_inference",
        "_sfdp_pattern_5_training",
        "_sfdp_pattern_19_half_inference",
        "_sfdp_pattern_24_half_inference",  # names a dtype itself: bfloat16 is refused, half is not
    )
    assert fired(*names) == {name: {name} for name in names}


@named_by_variant
def test_dropout_fires_under_the_random_stream_of_the_compiler():
    name = "_sfdp_pattern_7_training"
    assert fired(name)[name] == {name}


@named_by_variant
def test_without_dropout_another_pattern_takes_the_graph():
    assert fired("_sfdp_pattern_3_inference") == {"_sfdp_pattern_3_inference": {"_sfdp_pattern_1_inference"}}


def test_every_variant_is_listed_with_what_it_is_called_with():
    listed = read_variants(CPU)
    names = {variant.name for variant in listed}
    assert len(listed) > 100 and len(names) == len(listed)
    assert {variant.training for variant in listed} == {True, False}
    assert {torch.float32, torch.float16} == {variant.inputs[0].dtype for variant in listed}
    assert len(list_registered(CPU)) > 20


def test_one_that_cannot_be_compiled_is_told_and_the_others_are_tried(monkeypatch):
    first, second = read_variants(CPU)[:2]

    def broken(*inputs: object, **scalars: object) -> None:
        raise RuntimeError("no such attention")

    object.__setattr__(first, "function", broken)
    bad, good = try_variants(CPU, [first, second])
    assert "no such attention" in (bad.trouble or "") and not bad.fired
    assert good.trouble is None and good.fired


def test_a_torch_without_the_list_is_told_in_one_sentence(monkeypatch):
    module = importlib.import_module(FUSE_ATTENTION)
    monkeypatch.delattr(module, "_get_sfdp_patterns")
    with pytest.raises(EnvironmentUnfit, match="_get_sfdp_patterns"):
        read_variants(CPU)


@only_2_13
@pytest.mark.slow
def test_all_fire_on_a_cpu_but_those_with_a_reason_against_them():
    tried = list(try_variants(CPU, read_variants(CPU)))
    can_fire = set().union(*(attempt.fired for attempt in tried))
    assert [attempt.trouble for attempt in tried if attempt.trouble] == []
    registered = set(list_registered(CPU))
    silent = [row for row in list_known_rules(CPU) if row.name in registered - can_fire]
    assert can_fire < registered and silent
    assert [row.name for row in silent if facts().find_reason(row.stage, row.name, "cpu", frozenset()) is None] == []
