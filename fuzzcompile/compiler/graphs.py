"""Dynamo's graphs of a program, with the inputs that they really get."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx

from fuzzcompile.case import Case
from fuzzcompile.compiler.session import Compilation, compiling
from fuzzcompile.execution.building import build
from fuzzcompile.execution.runs import observe
from fuzzcompile.execution.tensors import copy_tree
from fuzzcompile.stage_names import JOINT_GRAPH


@dataclass(frozen=True)
class CapturedGraph:
    """One graph of dynamo at the level of torch's own functions, as it was first called.

    ``inputs`` are copies of what its placeholders got, in order; ``parameters`` says which of them are parameters.
    ``grad`` is whether gradients were recorded then.
    """

    module: fx.GraphModule
    inputs: list[object]
    parameters: tuple[bool, ...]
    grad: bool


def capture_graphs(case: Case, device: torch.device, *, dynamic: bool | None = False) -> list[CapturedGraph]:
    """Run the case with a backend that only watches: every graph that was called, in the order of the first calls.

    A graph comes with the inputs of its first call, or of the call that it refused, which ends the case.

    Args:
        case: the case; its program runs eagerly, graph by graph.
        device: where to run it.
        dynamic: as ``torch.compile`` takes it; False captures each shape as it is.

    Raises:
        CaseError: ``make()`` fails.
    """
    seen: list[CapturedGraph] = []

    def backend(module: fx.GraphModule, example_inputs: object) -> Callable[..., object]:
        place: int | None = None

        def run(*inputs: object) -> object:
            nonlocal place
            if place is None:
                place = len(seen)
                seen.append(_called(module, inputs))
                return module(*inputs)
            try:
                return module(*inputs)
            except Exception:  # the case may be one of a call that eager refuses, whatever it raises
                # Copied after the call: a copy before each call would be for nothing in all other cases.
                seen[place] = _called(module, inputs)
                raise

        return run

    settings = replace(case.settings, backend=backend, options={}, mode=None, dynamic=dynamic)
    with compiling(settings, Compilation(record=False)) as session:
        program = build(case, device)
        observe(case, program, session.compile(program.model), describe_failure=session.describe_failure)
    return seen


def _called(module: fx.GraphModule, inputs: Sequence[object]) -> CapturedGraph:
    held = tuple(isinstance(value, torch.nn.Parameter) for value in inputs)
    return CapturedGraph(module, copy_tree(list(inputs)), held, torch.is_grad_enabled())


def capture_functional(case: Case, device: torch.device) -> list[CapturedGraph]:
    """The graphs that AOTAutograd hands on where no gradients are recorded, in ATen operators, with their inputs.

    Transforms of functions (``vmap``, ``grad``) and higher-order operators that dynamo's graphs hold are worked out in
    them. Sizes are as symbolic as the case asks for.

    Raises:
        CaseError: ``make()`` fails.
    """
    with compiling(case.settings, Compilation(screen=True)) as session:
        program = build(case, device)
        observe(case, program, session.compile(program.model), describe_failure=session.describe_failure)
    found = []
    for frame in session.ledger.frames:
        record = frame.record(JOINT_GRAPH)
        if record is None or record.direction == "joint" or not record.snapshots:
            continue
        snapshot = record.snapshots[0]
        wanted = sum(node.op == "placeholder" for node in snapshot.graph.nodes)
        calls = [call.inputs for call in (*frame.forward_calls, *frame.dynamo_calls) if len(call.inputs) == wanted]
        if calls:
            held = tuple(isinstance(value, torch.nn.Parameter) for value in calls[0])
            module = fx.GraphModule(dict(snapshot.attributes), snapshot.graph)
            found.append(CapturedGraph(module, list(calls[0]), held, grad=False))
    return found
