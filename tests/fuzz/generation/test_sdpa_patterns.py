"""The attention idioms are what Inductor's SDPA patterns look for: screened, they make the patterns fire."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from each_idiom import pen
from watching import make_compilation

from fuzzcompile.compiler.rule_catalogue import initialise_patterns
from fuzzcompile.compiler.session import open_session
from fuzzcompile.fuzz.generation.inputs import fit_spec
from fuzzcompile.fuzz.generation.rendering import render
from fuzzcompile.fuzz.generation.spec import CaseSpec, Dims
from fuzzcompile.fuzz.idioms.registry import Idiom, idiom, idioms
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run.runs import enter_grad_mode

# In torch 2.13 this pattern never fires: it is registered only without dropout, where pattern 15 takes its
# place.
NEVER = {17}


def variants(attention: Idiom, seeds: range) -> Iterator[CaseSpec]:
    """The idiom with its choices drawn, in both layouts, evaluated, and trained with dropout and without."""
    for seed in seeds:
        drawn = attention.draw_attention(pen(f"{attention.name} {seed}"))
        for layout in attention.attention.layouts or ("heads_first", "heads_last"):
            for dropout in (None, 0.1, 0.0):
                yield fit_spec(
                    CaseSpec(
                        replace(drawn, layout=layout, dropout=dropout or None),
                        Dims(2, 5, 3, 4),
                        training=dropout is not None,
                        backward=dropout is not None,
                    )
                )


def fired(spec: CaseSpec, folder: Path) -> set[int]:
    """The numbers of the SDPA patterns that fire in a screen of the case."""
    initialise_patterns(torch.device("cpu"))
    path = folder / "case.py"
    path.write_text(render(spec), encoding="utf-8")
    case = load_case(path)
    model, inputs = case.make()
    how = make_compilation(screen=True, record=False, fallback_random=not spec.attention.dropout)
    with enter_grad_mode(case.grad), open_session(case.settings, how) as session:
        session.compile(model)(*inputs)
    names = [label.rewrite for label, outcome in session.ledger.coverage if outcome == "fired"]
    return {int(match[1]) for name in names if (match := re.match(r"_sfdp_pattern_(\d+)", name))}


@pytest.mark.parametrize(
    ("name", "numbers"),
    [("attention_bmm", {13}), ("attention_heads_folded", {24}), ("attention_safe", {29, 30})],
)
def test_an_idiom_makes_its_pattern_fire(name: str, numbers: set[int], tmp_path: Path) -> None:
    eager = (spec for spec in variants(idiom(name), range(3)) if not spec.training)
    assert any(numbers & fired(spec, tmp_path) for spec in itertools.islice(eager, 4))


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="torch 2.13 registers these patterns")
def test_the_idioms_make_every_pattern_fire(tmp_path: Path) -> None:
    wanted = set(range(1, 31)) - NEVER
    for seed in range(10):
        specs = {spec for attention in idioms("attention") for spec in variants(attention, range(seed, seed + 1))}
        for spec in sorted(specs, key=repr):
            wanted -= fired(spec, tmp_path) if wanted else set()
    assert not wanted
