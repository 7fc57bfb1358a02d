"""Programs over tensors that share memory: eager mode runs them, alike each time, in whatever order a kernel works."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from fuzzcompile.fuzz.aliased_programs import grammar
from fuzzcompile.fuzz.aliased_programs.layouts import VIEWS, Layout
from fuzzcompile.fuzz.generation.cases import GeneratedCase, draw_case_at, from_choices
from fuzzcompile.fuzz.generation.profile import Profile, list_names

ALIASED = Profile().steer({"aliased_program": 10_000, "plain": 0, "stateful": 0})


@pytest.fixture(scope="module")
def programs() -> list[GeneratedCase]:
    cases = (draw_case_at(3, index, ALIASED) for index in count())
    aliased = (case for case in cases if case.spec.aliases is not None)
    return [next(aliased) for _ in range(500)]


def call(source: str) -> list[torch.Tensor]:
    """What a program returned, and what it left in its inputs."""
    names: dict[str, Any] = {}
    exec(compile(source, "case.py", "exec"), names)
    model, inputs = names["make"]()
    with torch.no_grad():
        made = names["run"](model, inputs) if "run" in names else model(*inputs)
    return [leaf.clone() for leaf in pytree.tree_leaves((made, inputs))]


def test_programs_run_alike_twice(programs):
    raised = 0
    for case in programs:
        try:
            first, again = call(case.source), call(case.source)
        except RuntimeError:  # a view of a result whose layout torch chooses
            raised += 1
            continue
        assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(first, again, strict=True)), case.source
    assert raised < 0.01 * len(programs)


@pytest.mark.slow
def test_gradients_flow_through_some_programs_of_floating_point_numbers():
    profile, raised = ALIASED.steer({**dict(ALIASED.weights), "aliased_gradients": 10_000}), 0
    cases = (draw_case_at(4, index, profile) for index in range(1200))
    drawn = [case for case in cases if case.spec.aliases is not None and case.spec.backward]
    assert len(drawn) > 200
    for case in drawn:
        names: dict[str, Any] = {}
        exec(compile(case.source, "case.py", "exec"), names)
        model, (leaf,) = names["make"]()
        try:
            outputs = pytree.tree_leaves(names["run"](model, (leaf,)))
            torch.autograd.backward([out.double().sum() for out in outputs if out.requires_grad])
        except RuntimeError:  # what backward reads was written to, or torch chose a layout that has no such view
            raised += 1
            continue
        assert leaf.grad is not None, case.source
    assert raised < 0.05 * len(drawn)


def test_every_view_write_and_read_is_drawn_and_has_a_name(programs):
    drawn = {name for case in programs for name in case.features}
    rows = {name for name, *_ in grammar.list_alias_names()}
    assert rows <= drawn and "aliased_program" in drawn
    assert rows <= {name.name for name in list_names()}


def test_most_inputs_share_memory_and_most_programs_write(programs):
    shares = [case for case in programs if sum("clone" not in text for text in case.spec.aliases.inputs) > 1]
    writes = [case for case in programs if any(name.startswith("write_") for name in case.spec.aliasing)]
    assert len(shares) > 0.3 * len(programs) and len(writes) > 0.7 * len(programs)
    assert any("inputs[1], inputs[0]" in line for case in programs for line in case.spec.aliases.run)


def test_a_program_is_drawn_again_from_its_choices(programs):
    assert all(from_choices(case.choices, ALIASED) == case for case in programs[:20])


@pytest.mark.parametrize("shape", [(12,), (4, 6)])
@pytest.mark.parametrize("dtype", ["int64", "float32"])
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_elements_of_a_view_lie_where_torch_has_them(view, dtype: str, shape: tuple[int, ...]):
    """For each view of a new tensor, and of one that begins within its memory."""
    for start in (0, 1):
        base = torch.arange(24).to(getattr(torch, dtype))[: shape[0] * (shape[1] if len(shape) > 1 else 1)].view(shape)
        layout = Layout.of_new("base", dtype, shape)
        if start:
            base, layout = base[1:], next(each for each in VIEWS if each.name == "view_rest").place(layout)
        placed = view.place(layout)
        if placed is None:
            continue
        made = eval(view.form.replace("$a", "base"), {"base": base, "torch": torch})
        assert (tuple(made.shape), made.stride(), made.storage_offset()) == (
            placed.shape,
            placed.strides,
            placed.offset,
        )
        assert str(made.dtype) == f"torch.{placed.dtype}"


def test_overlapping_elements_are_not_written_to():
    windows = next(view for view in VIEWS if view.name == "view_windows").place(Layout.of_new("base", "int64", (8,)))
    gaps = next(view for view in VIEWS if view.name == "view_gaps").place(Layout.of_new("base", "int64", (8,)))
    assert windows is not None and gaps is not None
    assert not windows.is_writable and gaps.is_writable and not gaps.is_apart(windows)
