"""What is kept of calls: each state of a storage once, as it was before the call."""

from __future__ import annotations

import torch
from torch import nn
from watching import Watched, make_compilation, watch

from fuzzcompile.compiler.session import Compilation, open_session
from fuzzcompile.run.case import CompileSettings
from fuzzcompile.run.tensors import KnownCopies, copy_tree


def storages(inputs: list) -> set[int]:
    return {value.untyped_storage().data_ptr() for value in inputs if isinstance(value, torch.Tensor)}


def test_a_storage_is_copied_again_only_after_it_changed():
    known: KnownCopies = {}
    base = torch.tensor([1.0, float("nan"), 3.0])
    first, view = copy_tree([base, base[1:]], known=known)
    (again,) = copy_tree([base], known=known)
    assert storages([first]) == storages([view]) == storages([again]) != storages([base])
    base[0] = 5.0
    (changed,) = copy_tree([base], known=known)
    assert [float(first[0]), float(again[0]), float(changed[0])] == [1.0, 1.0, 5.0]
    base.untyped_storage().resize_(5 * 4)
    assert copy_tree([base], known=known)[0].untyped_storage().nbytes() == 20


def test_writes_that_count_no_version_are_seen():
    known: KnownCopies = {}
    base = torch.zeros(4)
    (before,) = copy_tree([base], known=known)
    base.numpy()[0] = -0.0  # other bits, and equal
    (after,) = copy_tree([base], known=known)
    assert storages([before]) != storages([after])
    assert bool(torch.signbit(after[0])) and not bool(torch.signbit(before[0]))


def test_copies_keep_what_tells_inputs_apart():
    known: KnownCopies = {}
    base = torch.arange(6.0)
    leaf = base[:4].view(2, 2).t().requires_grad_()
    copies = [copy_tree([leaf, base], known=known) for _ in range(2)]
    for one, other in copies:
        assert one.requires_grad and one.is_leaf and not other.requires_grad
        assert one.stride() == (1, 2) and storages([one]) == storages([other])
    with torch.inference_mode():
        (inside,) = copy_tree([base], known=known)
    assert inside.is_inference() and not copies[0][1].is_inference()


def linear(training: bool) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).train(training), (torch.randn(3, 8),)


def captured(watched: Watched) -> list[list]:
    (frame,) = watched.ledger.frames
    return [call for calls in (frame.dynamo_calls, frame.forward_calls, frame.backward_calls) for call in calls]


def test_parameters_are_kept_once_for_all_graphs_and_calls():
    model, inputs = linear(True)
    watched = watch(model, inputs, inputs, backward=True, screen=True)
    assert watched.ledger.unseen == []
    kept = captured(watched)
    assert len(kept) == 6
    weights = [{p for p in storages(call) if p in storages(kept[0])} for call in kept]
    assert all(len(shared) >= 4 for shared in weights[:4])
    assert all(shared for shared in weights[4:])
    assert all(storages(call).isdisjoint(storages(list(model.parameters()))) for call in kept)


def test_mutated_inputs_are_kept_as_they_were_before_each_call():
    def program(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + 1

    x = torch.ones(4)
    with open_session(CompileSettings(), Compilation()) as session:
        compiled = session.compile(program)
        for _ in range(2):
            compiled(x)
    (frame,) = session.ledger.frames
    for calls in (frame.dynamo_calls, frame.forward_calls):
        assert [call[0].tolist() for call in calls] == [[1.0] * 4, [2.0] * 4]


def test_frozen_parameters_stay_as_they_were():
    model, (x,) = linear(False)
    expected = [p.detach().clone() for p in model.parameters()]
    with open_session(CompileSettings(), make_compilation(config={"freezing": True})) as session, torch.no_grad():
        session.compile(model)(x)
    (frame,) = session.ledger.frames
    for parameter in model.parameters():
        parameter.data = torch.zeros_like(parameter, dtype=torch.float64)
    assert session.ledger.unseen == []
    assert all(torch.equal(one, other) for one, other in zip(frame.parameters, expected, strict=True))
    held = [value for record in frame.records for value in record.snapshots[0].attributes.values()]
    plain = [value for value in held if value.layout == torch.strided]  # the others are prepacked, and so copies
    assert plain
    assert all(value.dtype == torch.float32 and bool(value.abs().sum()) for value in plain)


def test_nothing_is_kept_where_nothing_is_recorded():
    model, inputs = linear(False)
    watched = watch(model, inputs, screen=True, record=False)
    assert captured(watched) == []
