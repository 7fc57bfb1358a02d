"""Programs that a user's own replacement patterns search for: the search function over its example inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.catalogue import Known
from fuzzcompile.compiler.custom_examples import Example, example_of
from fuzzcompile.compiler.programs.expressions import Unwritable
from fuzzcompile.compiler.programs.filling import Filled, named, recast
from fuzzcompile.compiler.programs.skeleton import Call, Hole, Made, Skeleton
from fuzzcompile.compiler.programs.spelling import operands, statements
from fuzzcompile.generation.patterned import Operand, PatternProgram


def searched(rule: Known) -> Iterator[PatternProgram]:
    """The programs of a rule's search functions, as they were registered.

    Functions that cannot be written out, or do not run on such inputs in eager mode, give none.
    """
    for example in filter(None, map(example_of, rule.made_of)):
        filled = _filled(example)
        if filled is not None:
            with contextlib.suppress(Unwritable):
                yield PatternProgram(
                    stage=rule.stage,
                    rule=rule.name,
                    pass_name=rule.pass_name,
                    origin="search function",
                    operands=tuple(operands(filled)),
                    statements=tuple(statements(filled)),
                    returns=tuple(f"t{index}" for index in filled.skeleton.returns),
                    settings={},
                )


def _filled(example: Example) -> Filled | None:
    try:
        skeleton, holes = _skeleton(_traced(example))
    except Exception:  # user code, traced in two ways: what it raises says only that no program comes of it
        return None
    tensors = [value for value in example.inputs if isinstance(value, torch.Tensor)]
    if len(tensors) != len(holes):
        return None
    values: dict[Hole, object] = {
        hole: Operand("", tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        for hole, tensor in zip(holes, tensors, strict=True)
    }
    filled = Filled(skeleton, values)
    floating = [value for value in values.values() if isinstance(value, Operand) and value.floating]
    same = {value.dtype for value in floating}
    # As it is registered, if that runs; a mixture of dtypes is left as it is.
    runs = recast(filled, same.pop()) if len(same) == 1 else filled
    return None if runs is None else named(runs)


def _traced(example: Example) -> fx.GraphModule:
    """The search function as a graph over its tensors: of torch's functions, or of operators where that fails."""
    if all(map(torch.is_tensor, example.inputs)) and not example.scalars:
        with contextlib.suppress(Exception):  # it looks at sizes, say
            return fx.symbolic_trace(example.function)

    def over_tensors(*tensors: torch.Tensor) -> object:
        given = iter(tensors)
        arguments = [next(given) if isinstance(value, torch.Tensor) else value for value in example.inputs]
        return example.function(*arguments, **example.scalars)

    tensors = [value for value in example.inputs if isinstance(value, torch.Tensor)]
    return make_fx(over_tensors)(*(torch.zeros(value.shape, dtype=value.dtype) for value in tensors))


def _skeleton(module: fx.GraphModule) -> tuple[Skeleton, list[Hole]]:
    """The calls of a graph, and a hole for each of its inputs."""
    skeleton, values = Skeleton(), dict[fx.Node, Hole | Made]()

    def resolved(arguments: Any) -> Any:
        return pytree.tree_map(lambda leaf: values[leaf] if isinstance(leaf, fx.Node) else leaf, arguments)

    for node in module.graph.nodes:
        if node.op == "placeholder":
            values[node] = Hole(node.name, "Tensor")
        elif node.op in ("call_function", "call_method"):
            values[node] = skeleton.add(Call(node.target, resolved(tuple(node.args)), resolved(dict(node.kwargs))))
        elif node.op == "output":
            skeleton.returns = _made(resolved(node.args))
        else:
            raise Unwritable(f"the search function holds a {node.op}")
    return skeleton.finish(), [hole for hole in values.values() if isinstance(hole, Hole)]


def _made(returned: Sequence[object]) -> list[int]:
    return list(dict.fromkeys(leaf.index for leaf in pytree.tree_leaves(returned) if isinstance(leaf, Made)))
