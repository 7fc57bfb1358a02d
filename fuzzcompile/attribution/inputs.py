"""Values to replay a stage's graph on: those that the compiled program really got, or stand-ins for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from fuzzcompile.compiler.ledger import Call, Frame, GraphRecord, Snapshot
from fuzzcompile.compiler.target.process import device_of_values
from fuzzcompile.stage_names import POST_GRAD, PRE_GRAD

_STAND_IN_SEED = 3


def inputs_of(frame: Frame, record: GraphRecord, number: int = 0) -> Sequence[Any] | None:
    """Inputs of a record's graphs in one captured call.

    Args:
        frame: holds the calls of the program.
        record: the graphs of one stage.
        number: of the call.

    Returns:
        The inputs in the order of the placeholders. Where the program never ran, because compiling failed, values of
        the recorded shape and dtype stand in. None if there was no such call, or if no stand-ins can be made.
    """
    this = slice(number, number + 1)
    if record.direction == "joint":
        return _joint_inputs(frame, record, this)
    if record.stage == PRE_GRAD:
        candidates = [call.inputs for call in frame.dynamo_calls[this]]
    elif record.direction == "backward":
        candidates = [call.inputs for call in frame.backward_calls[this]]
    else:
        compiled = [call.inputs for call in frame.forward_calls[this]]
        captured = [[*frame.parameters, *call.inputs] for call in frame.dynamo_calls[this]]
        candidates = [*compiled, *captured]
    if not candidates:
        return _filled(placeholders_of(record.snapshots[0]), {}) if number == 0 else None
    return _fitting(record, candidates)


def _fitting(record: GraphRecord, candidates: Sequence[Sequence[Any]]) -> Sequence[Any] | None:
    """The first inputs that are as many as the graph takes.

    Freezing turns parameters into constants between the stages: the graph before it takes them as inputs.
    """
    wanted = len(placeholders_of(record.snapshots[0]))
    return next((inputs for inputs in candidates if len(inputs) == wanted), None)


def _joint_inputs(frame: Frame, record: GraphRecord, this: slice) -> Sequence[Any] | None:
    """Primals of the forward call and tangents of the backward call, by placeholder name.

    Where no backward ran, standard normal tangents stand in for them.
    """
    named = {
        **_named(frame, "forward", frame.forward_calls[this]),
        **_named(frame, "backward", frame.backward_calls[this]),
    }
    if this.start and not named:
        return None
    return _filled(placeholders_of(record.snapshots[0]), named)


def _named(frame: Frame, direction: str, calls: Sequence[Call]) -> dict[str, Any]:
    record = frame.record(POST_GRAD, direction)
    if record is None or not record.snapshots or not calls:
        return {}
    names = [str(node.target) for node in placeholders_of(record.snapshots[0])]
    return dict(zip(names, calls[0].inputs, strict=False))


def _filled(placeholders: Sequence[fx.Node], named: dict[str, Any]) -> Sequence[Any] | None:
    generator = torch.Generator().manual_seed(_STAND_IN_SEED)
    try:
        return [
            _as_traced(node, named[str(node.target)]) if str(node.target) in named else _stand_in(node, generator)
            for node in placeholders
        ]
    except (TypeError, ValueError, RuntimeError):  # a size without a value, a kind of input that we do not know
        return None


def _as_traced(node: fx.Node, value: Any) -> Any:
    """Cast a captured value to the dtype that the graph was traced with.

    Where a rewrite gave an output another dtype, its tangent came in that dtype too; the graph before takes none such.
    """
    traced = node.meta.get("val")
    if not (isinstance(traced, torch.Tensor) and isinstance(value, torch.Tensor)) or not value.is_floating_point():
        return value
    return value.to(traced.dtype) if traced.is_floating_point() else value


def _stand_in(node: fx.Node, generator: torch.Generator) -> Any:
    """Standard normal values, zeros for integers (which may be indices) and False, in the recorded layout."""
    value = node.meta.get("val", node.meta.get("example_value"))
    if isinstance(value, (int, torch.SymInt)):
        return int(value)
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"no stand-in for {type(value).__name__}")
    shape, stride = [int(size) for size in value.shape], [int(step) for step in value.stride()]
    made = torch.empty_strided(shape, stride, dtype=value.dtype, device=device_of_values(value.device)).zero_()
    if value.is_floating_point():
        made.copy_(torch.randn(shape, generator=generator))
    return made


def placeholders_of(snapshot: Snapshot) -> list[fx.Node]:
    """The inputs of a snapshot's graph, in order."""
    return [node for node in snapshot.graph.nodes if node.op == "placeholder"]
