"""Several graphs in one program: graph breaks, recompiles, dynamic shapes, abandoned attempts."""

from __future__ import annotations

import planting
import programs
import pytest
import torch
from torch._inductor.fx_passes import joint_graph
from watching import Watched, apart, eager, watch

from fuzzcompile.compiler.watch import recorder
from fuzzcompile.compiler.watch.ledger import Frame
from fuzzcompile.run.case import CompileSettings

DYNAMIC = CompileSettings(dynamic=True)


def stages(frame: Frame) -> list[tuple[str, str]]:
    return [(record.stage, record.direction) for record in frame.records if record.stage != "partition"]


INFERENCE = [("pre_grad", "inference"), ("joint_graph", "inference"), ("post_grad", "inference")]
TRAINING = [("pre_grad", "inference"), ("joint_graph", "joint"), ("post_grad", "forward"), ("post_grad", "backward")]


def sin_off():
    return planting.handler(joint_graph.patterns, planting.aten.sin.default, planting.sin_off)


def indices(watched: Watched, name: str) -> list[int]:
    """Frames in which a rewrite was recorded."""
    return [frame.index for frame, _, rewrite in watched.ledger.list_rewrites() if rewrite.label.rewrite == name]


def shapes(inputs: list) -> list:
    return [tuple(value.shape) if isinstance(value, torch.Tensor) else value for value in inputs]


# -- one graph ----------------------------------------------------------------------------------------


def test_inference_graph_goes_through_three_stages():
    target, inputs = programs.block()
    watched = watch(target, inputs, screen=True)
    assert [stages(frame) for frame in watched.ledger.frames] == [INFERENCE]


def test_trained_graph_has_a_backward_graph():
    target, inputs = programs.block(training=True)
    watched = watch(target, inputs, backward=True, screen=True)
    (frame,) = watched.ledger.frames
    assert stages(frame) == TRAINING
    assert [len(calls) for calls in (frame.dynamo_calls, frame.forward_calls, frame.backward_calls)] == [1, 1, 1]


def test_dynamo_level_inputs_are_the_real_ones():
    target, (x,) = programs.block()
    watched = watch(target, (x,), screen=True)
    (call,) = watched.ledger.frames[0].dynamo_calls
    placeholders = [n for n in watched.ledger.frames[0].records[0].snapshots[0].graph.nodes if n.op == "placeholder"]
    assert len(call) == len(placeholders)
    assert all(isinstance(value, torch.Tensor) for value in call)
    assert any(torch.equal(value, x) for value in call if value.shape == x.shape)


# -- graph breaks and several graphs ------------------------------------------------------------------


def broken(x: torch.Tensor) -> torch.Tensor:
    y = torch.sin(x) + 1
    print("a graph break", end="")
    return torch.sin(y) * 2


def test_graph_break_makes_two_frames():
    (x,) = programs.tensors((3, 5))
    with sin_off():
        watched = watch(broken, (x,))
        vetoed = watch(broken, (x,), vetoes=["sin_off"])
    assert [stages(frame) for frame in watched.ledger.frames] == [INFERENCE, INFERENCE]
    assert [frame.index for frame in watched.ledger.frames] == [0, 1]
    assert indices(watched, "sin_off") == [0, 1]
    assert [step.frame for step in watched.steps if step.is_semantic] == [0, 1]
    assert apart(watched.values, eager(broken, (x,))) > planting.ERROR / 2
    assert apart(vetoed.values, eager(broken, (x,))) < 1e-6


def test_each_frame_is_replayed_on_its_own_inputs():
    (x,) = programs.tensors((3, 5))
    with sin_off():
        watched = watch(broken, (x,))
    first, second = (frame.forward_calls[0][0] for frame in watched.ledger.frames)
    assert torch.equal(first, x)
    assert torch.allclose(second, torch.sin(x) * (1 + planting.ERROR) + 1)


def test_item_in_the_middle_breaks_the_graph():
    def program(x: torch.Tensor) -> torch.Tensor:
        y = torch.sin(x)
        return y * 2 if y.sum().item() > -100 else y

    (x,) = programs.tensors((3, 5))
    watched = watch(program, (x,))
    assert len(watched.ledger.frames) == 2
    assert apart(watched.values, eager(program, (x,))) < 1e-6


def test_two_graphs_in_one_trained_program_keep_their_backward_graphs_apart():
    def program(x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x) * 3
        torch._dynamo.graph_break()
        return torch.sin(y)

    (x,) = programs.tensors((3, 5))
    x.requires_grad_()
    with planting.handler(planting.post_grad.pass_patterns[1], planting.aten.cos.default, planting.cos_off):
        watched = watch(program, (x,), backward=True)
    assert [stages(frame) for frame in watched.ledger.frames] == [TRAINING, TRAINING]
    assert [len(frame.backward_calls) for frame in watched.ledger.frames] == [1, 1]
    assert indices(watched, "cos_off") == [1]
    assert watched.step("cos_off").is_semantic


def test_independent_compiled_functions_get_a_frame_each_in_the_order_of_their_first_calls():
    inner = torch.compile(lambda x: torch.sin(x) * 3, backend="inductor")

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return torch._dynamo.disable(lambda v: inner(v))(y) + torch.cos(x)

    (x,) = programs.tensors((3, 5))
    with sin_off():
        watched = watch(program, (x,))
    first_calls = [frame.records[0].snapshots[0].operator_names for frame in watched.ledger.frames]
    assert ["add" in str(first_calls[0]), "sin" in str(first_calls[1]), "cos" in str(first_calls[2])] == [True] * 3
    assert indices(watched, "sin_off") == [1]
    assert watched.step("sin_off").is_semantic


# -- recompiles and dynamic shapes --------------------------------------------------------------------


def test_recompile_for_another_type_is_a_frame_of_its_own():
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * 2

    (x,) = programs.tensors((3, 5))
    with sin_off():
        watched = watch(program, (x,), (x.double(),))
    assert [len(frame.dynamo_calls) for frame in watched.ledger.frames] == [1, 1]
    assert [frame.forward_calls[0][0].dtype for frame in watched.ledger.frames] == [torch.float32, torch.float64]
    assert indices(watched, "sin_off") == [0, 1]
    assert len([step for step in watched.steps if step.is_semantic]) == 2


def test_second_shape_recompiles_with_symbolic_sizes():
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * x.shape[0]

    first, second = programs.tensors((3, 5), (4, 5))
    with sin_off():
        watched = watch(program, (first,), (second,))
    assert [shapes(frame.forward_calls[0]) for frame in watched.ledger.frames] == [[(3, 5)], [4, (4, 5)]]
    assert [step.frame for step in watched.steps if step.is_semantic] == [0, 1]


def test_second_dynamic_call_shares_the_frame_of_the_first():
    first, second = programs.tensors((3, 5), (4, 6))
    target, _ = programs.sine()
    with sin_off():
        watched = watch(target, (first,), (second,), settings=DYNAMIC)
        vetoed = watch(target, (first,), (second,), settings=DYNAMIC, vetoes=["sin_off"])
    (frame,) = watched.ledger.frames
    assert [shapes(call) for call in frame.forward_calls] == [[3, 5, (3, 5)], [4, 6, (4, 6)]]
    assert watched.step("sin_off").is_semantic
    assert apart(vetoed.values, eager(target, (first,), (second,))) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("training", [pytest.param(False, marks=pytest.mark.slow), True], ids=["eval", "training"])
def test_dynamic_block_is_replayed_in_every_stage(training: bool):
    target, (x,) = programs.block(training=training)
    (other,) = programs.tensors((3, 7, 16), seed=9)
    watched = watch(target, (x,), (other,), backward=training, settings=DYNAMIC, screen=True)
    frame = watched.ledger.frames[-1]
    assert stages(frame) == (TRAINING if training else INFERENCE)
    assert [len(frame.dynamo_calls), len(frame.forward_calls), len(frame.backward_calls)] == [2, 2, 2 * training]
    assert any(name.startswith("_sfdp") for name in watched.fired)
    assert all(step.float64 is not None and step.native is not None for step in watched.steps)
    assert not [s.label.rewrite for s in watched.steps if s.is_semantic or s.moves_natively]
    assert watched.ledger.unseen == []


@pytest.mark.slow
def test_error_in_a_dynamic_joint_graph_is_measured():
    target, inputs = programs.attention()
    others = programs.tensors(*[(3, 2, 7, 4)] * 3, seed=9)
    for tensor in (*inputs, *others):
        tensor.requires_grad_()
    with planting.attention_scale(planting.ERROR):
        watched = watch(target, inputs, others, backward=True, settings=DYNAMIC, screen=True)
    semantic = [step for step in watched.steps if step.is_semantic]
    assert [step.label.rewrite for step in semantic] == ["_sfdp_pattern_1_training"]
    assert semantic[0].record.direction == "joint"


def test_attempt_that_dynamo_throws_away_leaves_no_frame():
    norm = torch.nn.LayerNorm(5)  # its eps is taken for a symbolic number first, and then it may not be one

    def program(x: torch.Tensor) -> torch.Tensor:
        return norm(torch.sin(x))

    first, second = programs.tensors((3, 5), (4, 5))
    with sin_off():
        watched = watch(program, (first,), (second,), settings=DYNAMIC)
    (frame,) = watched.ledger.frames
    assert frame.index == 0
    assert stages(frame) == INFERENCE
    assert len(frame.forward_calls) == 2
    assert watched.ledger.failed_in is None


@pytest.mark.parametrize("small", [True, False])
def test_first_calls_are_kept_and_more_while_they_take_little_memory(small: bool, monkeypatch: pytest.MonkeyPatch):
    if not small:
        monkeypatch.setattr(recorder, "_CAPTURED_BYTES", 1)
    target, _ = programs.sine()
    calls = [tuple(programs.tensors((3, 5), seed=seed)) for seed in range(recorder.CAPTURED_CALLS + 1)]
    watched = watch(target, *calls)
    (frame,) = watched.ledger.frames
    kept = recorder.CAPTURED_CALLS if small else 2
    assert [len(frame.dynamo_calls), len(frame.forward_calls)] == [kept, kept]
    assert all(torch.equal(one[0], given) for one, (given,) in zip(frame.forward_calls, calls, strict=False))
