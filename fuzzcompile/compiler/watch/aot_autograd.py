"""AOTAutograd's decisions: the analysis of inputs and outputs, the layout of tangents, the partition."""

from __future__ import annotations

import contextlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointPolicy

from fuzzcompile.compiler.graph_replay import GraphReplayer, list_drawing_calls
from fuzzcompile.compiler.torch_config import load_config
from fuzzcompile.compiler.watch.ledger import ChangedTangent, MetadataAnalysis, Snapshot
from fuzzcompile.compiler.watch.recorder import Recorder
from fuzzcompile.compiler.watch.rule_labels import find_source
from fuzzcompile.compiler.watch.torch_patch import Function
from fuzzcompile.model.facts import facts
from fuzzcompile.run.metrics import have_same_values
from fuzzcompile.run.runs import iterate_edges
from fuzzcompile.run.tensors import copy_tree, is_plain, share_storage
from fuzzcompile.run.torch_attributes import ReplacedAttribute
from fuzzcompile.run.transforms import leave_transforms

FUNCTION = facts().aot_autograd.analysis.partition(":")[2]
_MAKER = facts().aot_autograd.alias_copy.function


def _give_computed(session: object, original: Function) -> Function:
    def give(base: object, computed: object, *args: object, **named: object) -> object:
        return computed if is_plain(computed) else original(base, computed, *args, **named)

    return give


VIEWS = ReplacedAttribute(
    "torch._functorch._aot_autograd.runtime_wrappers",
    _MAKER,
    make=_give_computed,
    unprobed="Where it is not called, a compile with it is as wrong as without, and proves nothing.",
)
_OF_INPUT = ("alias_of_input", "is_input")


def wrap_analysis(recorder: Recorder, original: Function, *args: object, **kwargs: object) -> object:
    """Keep the first analysis of each captured graph; later ones are of other forms of it."""
    analyse = original(*args, **kwargs)
    assert callable(analyse)

    def analysed(*flat: object) -> object:
        said = analyse(*flat)
        if recorder.frame is not None and recorder.frame.analysis is None:
            recorder.frame.analysis = _read_metadata(said)
        return said

    return analysed


def _read_metadata(said: object) -> MetadataAnalysis:
    outputs, inputs = getattr(said, "output_info", ()), getattr(said, "input_info", ())
    return MetadataAnalysis(
        tuple(bool(getattr(output, "requires_grad_for_backward", output.requires_grad)) for output in outputs),
        tuple((str(output.output_type.name), output.base_idx) for output in outputs),
        tuple(bool(each.mutates_data) for each in inputs),
        tuple(bool(each.mutates_metadata) for each in inputs),
    )


def find_contradictions(
    said: MetadataAnalysis, snapshot: Snapshot, inputs: Sequence[object], *, grad: bool
) -> Iterator[str]:
    """Yield, in a few words each, what a run of the graph shows of inputs and outputs and the analysis denies."""
    kept = copy_tree([value.detach() if isinstance(value, torch.Tensor) else value for value in inputs])
    with torch.set_grad_enabled(grad), leave_transforms():
        given = _give(inputs)
        forms = list(map(_get_form, given))
        outputs = pytree.tree_leaves(GraphReplayer(snapshot).run(*given))
    if (len(outputs), len(given)) != (len(said.gradients), len(said.written)):
        return
    for index, output in enumerate(outputs):
        if isinstance(output, torch.Tensor):
            yield from _check_output(f"output {index}", output, said.gradients[index], said.kinds[index], given, grad)
    for index, (before, after) in enumerate(zip(kept, given, strict=True)):
        if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
            continue
        if said.reshaped[index] is (forms[index] == _get_form(after)):
            yield f"input {index} {'keeps its' if said.reshaped[index] else 'gets other'} sizes and strides"
        if not said.written[index] and before.shape == after.shape and not have_same_values(before, after.detach()):
            yield f"input {index} is written to"


def _get_form(value: object) -> tuple[object, ...]:
    return (value.shape, value.stride(), value.storage_offset()) if isinstance(value, torch.Tensor) else ()


# AOTAutograd's function that runs a graph forward and backward, to trace both as one.
_JOINT_RUN = "joint_helper"


def is_raised_while_differentiating(raised: Sequence[tuple[str, int, str]]) -> bool:
    """Return whether frames of the compiler (file, line, function) are of the tracing of a joint graph."""
    return any(function == _JOINT_RUN for _, _, function in raised)


def find_undifferentiated(snapshot: Snapshot, inputs: Sequence[object]) -> Iterator[str]:
    """Yield the inputs that a graph, which was not differentiated, makes results of others in the graph of autograd."""
    with torch.enable_grad(), leave_transforms():
        given = _give(inputs)
        before = [getattr(each, "grad_fn", None) for each in given]
        GraphReplayer(snapshot).run(*given)
    for index, (node, value) in enumerate(zip(before, given, strict=True)):
        if getattr(value, "grad_fn", None) is not node:
            yield f"input {index} requires gradients and is written to"


def find_joined_outputs(snapshot: Snapshot, inputs: Sequence[object]) -> Iterator[tuple[int, int]]:
    """Yield pairs of outputs of a graph: autograd reaches the second from the first, as eager mode runs it."""
    # A differentiated graph is one function of autograd: from its outputs only its inputs are reached, and from views
    # of outputs, which are made anew, these outputs.
    with torch.enable_grad(), leave_transforms():
        given = _give(inputs)
        outputs = pytree.tree_leaves(GraphReplayer(snapshot).run(*given))
    made: dict[tuple[object, int], int] = {}
    for index, each in enumerate(outputs):
        if isinstance(each, torch.Tensor) and each.grad_fn is not None and not any(each is one for one in given):
            made.setdefault((each.grad_fn, each.output_nr), index)
    for (function, _), later in made.items():
        reached = (made[edge] for edge in iterate_edges([function]) if edge in made)
        yield from ((later, earlier) for earlier in reached if not share_storage(outputs[later], outputs[earlier]))


def _give(inputs: Sequence[object]) -> list[Any]:
    """Copies of inputs, those that require gradients no leaves, to which nothing may write in place."""
    copies = copy_tree(list(inputs))
    return [each.clone() if isinstance(each, torch.Tensor) and each.requires_grad else each for each in copies]


def _check_output(
    name: str, output: torch.Tensor, gradient: bool, kind: tuple[str, int | None], given: Sequence[object], grad: bool
) -> Iterator[str]:
    # A view that was made without gradients requires them as its base does, and gets none.
    differentiable = output.requires_grad and (output.grad_fn is not None or not output._is_view())
    if grad and differentiable != gradient:
        yield f"{name} {'gets' if differentiable else 'gets no'} gradients"
    shared = [
        index for index, value in enumerate(given) if isinstance(value, torch.Tensor) and share_storage(value, output)
    ]
    of_input, base = kind
    if of_input in _OF_INPUT and base not in shared:
        yield f"{name} is no view of input {base}"
    # One of several views that one call makes (chunk) is given back as no alias, on purpose, and names its input.
    if kind == ("non_alias", None) and shared:
        yield f"{name} is a view of input {shared[0]}"


# AOTAutograd's changes of tangents (the gradients that a backward pass is given) before its graph gets them.

_COPY_MODULE, _COPY = facts().aot_autograd.tangent_copy.place.split(":")
PLACE = (_COPY_MODULE, _COPY)


def wrap_coercion(recorder: Recorder, original: Function, tangent: object, layout: object) -> object:
    """Compare each tangent with its copy: another layout of it has the same values."""
    _, line = find_source(original)
    copied = original(tangent, layout)
    if copied is not tangent and isinstance(copied, torch.Tensor) and isinstance(tangent, torch.Tensor):
        before, after = (value.detach().clone(memory_format=torch.contiguous_format) for value in (tangent, copied))
        if not have_same_values(before, after):
            shape, strides = tuple(tangent.shape), tuple(copied.stride())
            recorder.ledger.changed_tangents.append(ChangedTangent(shape, strides, before, after, line))
    return copied


# The function that splits a joint graph into forward and backward, and the plainest one to take its place.

_MINIMAL_CUT = facts().aot_autograd.partitioner


def find_partitioner() -> Callable[..., object] | None:
    """The user's own partitioner, or Inductor's; None if this torch has none that is known."""
    own: Callable[..., object] | None = getattr(load_config("inductor"), facts().aot_autograd.partitioner_setting, None)
    with contextlib.suppress(AttributeError):
        return own or pkgutil.resolve_name(_MINIMAL_CUT)
    return None


def describe_partitioner() -> tuple[str, Callable[..., object] | None]:
    """Name and function of the partitioner in use; the function is what holds its code."""
    function = find_partitioner()
    if function is None or hasattr(function, "__code__"):
        return _MINIMAL_CUT.partition(":")[2], function
    return type(function).__name__, type(function).__call__


def make_plain_partitioning() -> Mapping[str, object] | None:
    """Entries of Inductor's config under which everything that backward needs is saved; None if this torch has none."""

    def cut(partition: Function, gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any) -> object:
        kwargs.pop("compiler", None)
        return partition(gm, joint_inputs, **kwargs)

    with contextlib.suppress(ImportError, AttributeError):
        return _make_partitioning("DefaultPartition", pkgutil.resolve_name(facts().aot_autograd.plain_partitioner), cut)
    return None


def make_partitioning_without_repeated_draws() -> Mapping[str, object] | None:
    """Entries under which the partitioner in use has no random call in both parts; None if this torch has none.

    What such a call gives is saved for the backward part, and one that stands there all the same, unused, is left out.
    """

    def cut(partition: Function, gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any) -> object:
        for node in list_drawing_calls(gm.graph):
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        forward, backward = cast("tuple[fx.GraphModule, fx.GraphModule]", partition(gm, joint_inputs, **kwargs))
        drawn = {node.name for node in list_drawing_calls(forward.graph)}
        for node in list_drawing_calls(backward.graph):
            if node.name in drawn and not node.users:
                backward.graph.erase_node(node)
        backward.recompile()
        return forward, backward

    partition = find_partitioner()
    with contextlib.suppress(ImportError, AttributeError):
        return _make_partitioning("EachDrawOnce", partition, cut) if partition is not None else None
    return None


def _make_partitioning(name: str, partition: Function, cut: Function) -> Mapping[str, object] | None:
    """Entries under which ``cut`` splits joint graphs, and is given ``partition`` to do so."""
    from torch._inductor.custom_graph_pass import CustomPartitionerFn

    setting = facts().aot_autograd.partitioner_setting
    if not hasattr(load_config("inductor"), setting):
        return None

    class Partition(CustomPartitionerFn):
        def __call__(
            self, gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any
        ) -> tuple[fx.GraphModule, fx.GraphModule]:
            forward, backward = cast("tuple[Any, Any]", cut(partition, gm, joint_inputs, **kwargs))
            return forward, backward

        def uuid(self) -> None:
            return None

    Partition.__name__ = name
    return {setting: Partition()}
