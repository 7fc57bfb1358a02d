"""Each idiom and operator on its own: it renders, runs, and is what its name says."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from each_idiom import pen

from fuzzcompile.fuzz.generation.inputs import fit_spec
from fuzzcompile.fuzz.generation.rendering import render
from fuzzcompile.fuzz.generation.spec import NEAR_MISSES, Attention, Block, CaseSpec, Dims, NearMiss, Part
from fuzzcompile.fuzz.idioms.registry import Idiom, idioms
from fuzzcompile.fuzz.near_misses.near_miss_registry import applies

DIMS = Dims(batch=2, sequence=5, heads=4, head_dim=6)
PLAIN = CaseSpec(Attention("attention_div"), DIMS)


def with_idiom(idiom: Idiom, seed: int) -> CaseSpec:
    """A case in a block around the idiom, its choices drawn."""
    part = idiom.draw_choices(pen(seed)) if idiom.role != "attention" else Part(idiom.name)
    projected = Attention("attention_div", projection="projection_linear")
    made = {
        "attention": lambda: CaseSpec(idiom.draw_attention(pen(seed)), DIMS),
        "projection": lambda: CaseSpec(Attention("attention_div", projection=idiom.name), DIMS),
        "position": lambda: CaseSpec(Attention("attention_mul", position=idiom.name), DIMS),
        "query_norm": lambda: CaseSpec(Attention("attention_mul", norm=idiom.name), DIMS),
        "grouping": lambda: CaseSpec(Attention("attention_sdpa", grouping=idiom.name, form=SDPA), DIMS),
        "norm": lambda: CaseSpec(projected, DIMS, Block(norm=idiom.name)),
        "feed_forward": lambda: CaseSpec(projected, DIMS, Block(feed_forward=part)),
        "residual": lambda: CaseSpec(projected, DIMS, Block(residual=idiom.name)),
        "layer": lambda: CaseSpec(PLAIN.attention, DIMS, layer=part),
        "embedding": lambda: CaseSpec(projected, DIMS, Block(), embedding=idiom.name),
        "head": lambda: CaseSpec(projected, DIMS, Block(), head=part),
    }
    return fit_spec(made[idiom.role]())


SDPA = (("scaled", False), ("math", False))


def run(spec: CaseSpec) -> Any:
    namespace: dict[str, Any] = {}
    source = render(spec)
    exec(compile(source, "case.py", "exec"), namespace)
    model, inputs = namespace["make"]()
    with torch.no_grad():
        return model(*inputs)


@pytest.mark.parametrize("idiom", idioms(), ids=lambda idiom: idiom.name)
def test_an_idiom_runs_whatever_choices_are_drawn(idiom: Idiom) -> None:
    for seed in range(4):
        spec = with_idiom(idiom, seed)
        assert idiom.name in spec.idioms
        outputs = run(spec)
        for output in outputs if isinstance(outputs, tuple) else (outputs,):
            assert output.isfinite().all()


@pytest.mark.parametrize("idiom", idioms("layer"), ids=lambda idiom: idiom.name)
def test_a_layer_keeps_the_shape_of_the_activation(idiom: Idiom) -> None:
    for seed in range(4):
        assert run(with_idiom(idiom, seed)).shape == (DIMS.batch, DIMS.sequence, DIMS.width)


REFUSALS = (RuntimeError, ValueError, IndexError)


@pytest.mark.parametrize("operator", NEAR_MISSES, ids=lambda operator: operator.name)
def test_an_operator_leaves_its_mark_and_a_program_that_runs(operator: NearMiss) -> None:
    """Those that need a mask, a stack or a layer find one among the starting points."""
    masked = idioms("attention")[2].draw_attention  # with a mask of every shape
    starts = [
        PLAIN,
        *(CaseSpec(masked(pen(seed)), DIMS) for seed in range(3)),
        CaseSpec(Attention("attention_mul", projection="projection_linear"), DIMS, Block(layers=2)),
        *(with_idiom(idiom, 0) for idiom in idioms("layer")),
    ]
    applied = 0
    for start in starts:
        if not applies(operator, start):
            continue
        for seed in range(4):
            spec = fit_spec(operator.change(pen(seed), fit_spec(start)))
            if operator.name in spec.near_misses:
                applied += 1
                with pytest.raises(REFUSALS) if operator.name == "refused" else contextlib.nullcontext():
                    run(spec)
    assert applied


def test_a_spec_that_fits_is_left_as_it_is() -> None:
    for idiom in idioms():
        spec = with_idiom(idiom, 3)
        assert fit_spec(spec) == spec
