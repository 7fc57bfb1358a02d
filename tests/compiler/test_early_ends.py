"""Runs of graphs that an operator ends: the values before it are the answer, and a note says that it is not whole."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from fuzzcompile.compiler.functional_run import visit_nodes
from fuzzcompile.compiler.graph_replay import compute_values
from fuzzcompile.compiler.watch.ledger import Snapshot
from fuzzcompile.compiler.watch.unseen import Unseen, format_unseen, gather_unseen

X = torch.ones(2, 3)


def make_snapshot(function) -> Snapshot:
    return Snapshot(fx.symbolic_trace(function).graph, {}, {})


def ends_early(x):
    return torch.exp(torch.mm(torch.sin(x), x))


def runs_through(x):
    return torch.exp(torch.sin(x))


def test_a_replay_that_an_operator_ends_leaves_a_note_beside_the_values_before_it():
    with gather_unseen() as unseen:
        values = compute_values(make_snapshot(ends_early), [X])
    assert [name for name in values if name != "x"] == ["sin"]
    assert torch.equal(values["sin"], X.double().sin())
    [note] = format_unseen(unseen)
    assert note.startswith("not watched: replay of a graph (RuntimeError: ") and "cannot be multiplied" in note
    assert note.endswith("values behind the operator that raised were not seen")
    assert not any(missed.harmless for missed in unseen), "the answer may rest on what came behind"


def test_a_walk_that_an_operator_ends_leaves_a_note():
    visited = []

    def visit(_, node, run):
        value = run()
        visited.append(node.name)
        return value

    with gather_unseen() as unseen:
        visit_nodes(make_snapshot(ends_early), [X], visit)
    assert [name for name in visited if name != "x"] == ["sin"]
    [note] = format_unseen(unseen)
    assert note.startswith("not watched: walk along a graph (RuntimeError: ")
    assert note.endswith("calls behind the operator that raised were not seen")


def test_a_run_to_the_end_leaves_none():
    with gather_unseen() as unseen:
        compute_values(make_snapshot(runs_through), [X])
        visit_nodes(make_snapshot(runs_through), [X], lambda _, node, run: run())
    assert unseen == []


def test_memory_that_is_used_up_ends_more_than_the_run():
    def use_up(*_):
        raise MemoryError

    with gather_unseen() as unseen, pytest.raises(MemoryError):
        visit_nodes(make_snapshot(runs_through), [X], use_up)
    assert unseen == []


def test_steps_that_were_missed_for_one_reason_are_one_note():
    unseen = [Unseen(f"aten.{name}", "RuntimeError: lost", (), "kernels", harmless=True) for name in "abcde"]
    first, second = format_unseen([*unseen, Unseen("a replay", "RuntimeError: lost", (), "kernels")])
    assert first == "not watched: a replay (RuntimeError: lost): kernels were not seen"
    assert second == "not watched: aten.a, aten.b, aten.c and 2 more (RuntimeError: lost): kernels were not seen"
