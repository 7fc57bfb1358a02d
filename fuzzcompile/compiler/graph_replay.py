"""Replay: running a snapshot of the compiler's graph eagerly, on the real inputs of the program."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeGuard

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.collectives import imitate_ranks
from fuzzcompile.compiler.operators.operator_application import is_drawing
from fuzzcompile.compiler.target.graph_placement import CpuMode, call_on_cpu, replace_devices
from fuzzcompile.compiler.target.target_process import current_target
from fuzzcompile.compiler.watch.ledger import Snapshot, is_lowering_handler
from fuzzcompile.compiler.watch.unseen import note_early_end
from fuzzcompile.model.facts import facts
from fuzzcompile.run.arithmetic_modes import Float64Mode, UlpNoise
from fuzzcompile.run.case_program import Float64Stream, is_large, is_streamed, unstream
from fuzzcompile.run.device import seed_everything, trim_memory
from fuzzcompile.run.tensors import copy_tree, is_wrapper, measure_storages

# Inputs that a graph of the compiler writes to, by its operators' schemas.


def find_read_only(graph: fx.Graph) -> list[int]:
    """Positions of the placeholders that no node writes to; none for a graph with calls that have no schema."""
    written: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op not in ("placeholder", "get_attr", "call_function", "output"):
            return []
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        if not isinstance(node.target, torch._ops.OpOverload):
            return []
        for position, argument in enumerate(node.target._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                given = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
                fx.node.map_arg(given, lambda argument: written.add(_find_origin(argument)))
    placeholders = graph.find_nodes(op="placeholder")
    return [position for position, node in enumerate(placeholders) if node not in written]


def _find_origin(node: fx.Node) -> fx.Node:
    """The node whose memory ``node`` may be a view of."""
    while node.op == "call_function" and node.all_input_nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is not None and all(returned.alias_info is None for returned in schema.returns):
            return node
        node = node.all_input_nodes[0]
    return node


_REPLAY_SEED = 11


class NotReplayable(Exception):
    """The graph holds a lowering whose operators are not known: it says nothing about the program."""


@dataclass(frozen=True)
class ReplayResult:
    """Outputs and inputs as they are after a replay, or the error that ended it.

    Inputs that were not written to are the captured tensors themselves, and outputs may be views of these: copies of
    every parameter for every snapshot would be the largest part of a triage's memory.
    """

    outputs: list[object]
    inputs: list[object]
    error: BaseException | None = None


def replay_graph(
    snapshot: Snapshot,
    inputs: Sequence[object],
    *,
    double: bool,
    noise_seed: int | None = None,
    on_node: OnNode | None = None,
) -> ReplayResult:
    """Run ``snapshot`` on copies of ``inputs``, natively or in float64 (``double``); a seed adds noise of one ulp.

    ``on_node`` runs a node in its own way.
    """
    arguments = _copy_arguments(snapshot, inputs, double=double)
    versions = [_get_version(argument) for argument in arguments]
    seed_everything(_REPLAY_SEED)
    interpreter = GraphReplayer(snapshot, on_node=on_node)
    try:
        with torch.no_grad(), _enter_modes(double, noise_seed):
            result = interpreter.run(*arguments)
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:  # of the graph: it is the answer
        return ReplayResult([], [], error)
    after = [
        (unstream(copied) if isinstance(copied, torch.Tensor) else copied) if _get_version(copied) != version else given
        for copied, given, version in zip(arguments, inputs, versions, strict=True)
    ]
    # Storages of arguments that the graph did not write to, and the captured tensors that they are copies of.
    given = {
        (copied.untyped_storage().data_ptr(), copied.dtype): captured
        for copied, captured, left in zip(arguments, inputs, after, strict=True)
        if left is captured and is_strided(copied) and is_strided(captured)
    }
    return ReplayResult([_restore_view(output, given) for output in pytree.tree_leaves(result)], after)


def keep_writes_apart(snapshot: Snapshot) -> Snapshot | None:
    """The graph in which what is copied into memory is a new tensor, and a result; None where nothing is copied.

    Two graphs that differ, though these two do not, differ by what they read of memory that is written to.
    """
    if torch.ops.aten.copy_.default not in snapshot.called_targets:
        return None
    graph = fx.Graph()
    results = graph.graph_copy(snapshot.graph, {})
    copies = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    for node in copies:
        node.target = torch.ops.aten.copy.default
    graph.output((results, tuple(copies)))
    return Snapshot(graph, snapshot.attributes, snapshot.opaque)


def draw_alike(before: Snapshot, after: Snapshot, inputs: Sequence[object]) -> bool:
    """Return whether two graphs with the same random calls draw the same numbers in a float64 replay.

    The same calls draw others in another order, or into memory that is laid out in another way. Of a call that computes
    with what it draws (dropout), the mask is compared.
    """
    left, right = (_list_drawn(snapshot, inputs) for snapshot in (before, after))
    return len(left) == len(right) and all(map(torch.equal, left, right))


def _list_drawn(snapshot: Snapshot, inputs: Sequence[object]) -> list[torch.Tensor]:
    drawing, drawn = {node.name for node in list_drawing_nodes(snapshot)}, list[torch.Tensor]()

    def keep(node: fx.Node, run: Callable[[], object]) -> object:
        result = run()
        if node.name in drawing:
            tensors = [leaf.detach().clone() for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            masks = [tensor for tensor in tensors if tensor.dtype is torch.bool]
            drawn.extend(masks or [tensor != 0 if _reads_floats(node) else tensor for tensor in tensors])
        return result

    replay_graph(snapshot, inputs, double=True, on_node=keep)
    return drawn


def _reads_floats(node: fx.Node) -> bool:
    values = (each.meta.get("val", each.meta.get("example_value")) for each in node.all_input_nodes)
    return any(isinstance(value, torch.Tensor) and value.is_floating_point() for value in values)


def _copy_arguments(snapshot: Snapshot, inputs: Sequence[object], *, double: bool) -> list[object]:
    """Copies of ``inputs``; large ones that the graph only reads stay as they are, or are converted when read."""
    kept = _find_read_only_inputs(snapshot, inputs)
    if kept:
        trim_memory()
    stream = Float64Stream()
    copies = iter(copy_tree([value for value in inputs if id(value) not in kept], double=double))
    return [
        (stream.make_streamed(kept[id(value)]) if double else value) if id(value) in kept else next(copies)
        for value in inputs
    ]


def _find_read_only_inputs(snapshot: Snapshot, inputs: Sequence[object]) -> dict[int, torch.Tensor]:
    """The large inputs that the graph only reads, by identity; none whose memory another input shares."""
    reads = set(find_read_only(snapshot.graph))
    owners = Counter(address for value in inputs for address in measure_storages([value]))
    return {
        id(value): value
        for position, value in enumerate(inputs)
        if position in reads
        and isinstance(value, torch.Tensor)
        and is_large(value)
        and owners[value.untyped_storage().data_ptr()] == 1
    }


def _restore_view(output: object, given: Mapping[tuple[int, torch.dtype], torch.Tensor]) -> object:
    """The output, as a view of the captured tensor whose copy it is a view of, if there is one."""
    if is_streamed(output):
        return unstream(output)
    if not is_strided(output) or not output.numel():
        return output
    captured = given.get((output.untyped_storage().data_ptr(), output.dtype))
    if captured is None:
        return output
    return captured.detach().as_strided(output.size(), output.stride(), output.storage_offset())


def is_strided(value: object) -> TypeGuard[torch.Tensor]:
    """Return whether a value is a tensor whose elements lie in its memory as its strides say."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_quantized:
        return False
    if value.is_nested or value.is_conj() or value.is_neg() or value._is_zerotensor():  # zeros without memory
        return False
    return not (is_streamed(value) or is_wrapper(value))


NodeValues = dict[str, object]
OnNode = Callable[[fx.Node, Callable[[], object]], object]
"""Runs a node of a replay, in its own way."""


def compute_values(
    snapshot: Snapshot, inputs: Sequence[object], *, double: bool = True, noise_seed: int | None = None
) -> NodeValues:
    """The value of every node in float64 (or natively), by node name, as far as the graph runs."""
    seed_everything(_REPLAY_SEED)
    values: NodeValues = {}

    def keep(node: fx.Node, run: Callable[[], object]) -> object:
        value = run()
        # A later in-place write must not reach it.
        values[node.name] = value.detach().clone() if isinstance(value, torch.Tensor) else value
        return value

    arguments = copy_tree(list(inputs), double=double)  # not under noise, which would move what is copied
    # Whatever ends the run, the values up to there are the answer.
    ending = note_early_end("replay of a graph", "values behind the operator that raised")
    with torch.no_grad(), _enter_modes(double, noise_seed), ending:
        GraphReplayer(snapshot, on_node=keep).run(*arguments)
    return values


def differentiate_graph(
    snapshot: Snapshot,
    inputs: Sequence[object],
    tangents: Sequence[torch.Tensor],
    *,
    written: Collection[int] = (),
    noise_seed: int | None = None,
) -> list[object] | None:
    """Gradients in float64 of a torch-level graph's inputs; None if it has none for these tangents.

    ``tangents`` are those of the inputs at the positions ``written``, as the graph leaves them, and of its outputs, as
    AOTAutograd orders them. An output in an input's memory has none: its gradient goes to the input.
    """
    arguments = copy_tree(list(inputs), double=True)
    seed_everything(_REPLAY_SEED)
    try:
        with torch.enable_grad(), _enter_modes(True, noise_seed):
            # Autograd refuses writes to leaves.
            given = [
                value.clone() if at in written and isinstance(value, torch.Tensor) else value
                for at, value in enumerate(arguments)
            ]
            results = [*(given[at] for at in written), *pytree.tree_leaves(GraphReplayer(snapshot).run(*given))]
            memory = measure_storages(given)
            kept = [
                out
                for at, out in enumerate(results)
                if isinstance(out, torch.Tensor)
                and out.requires_grad
                and (at < len(written) or not memory.keys() & measure_storages([out]).keys())
            ]
            if len(kept) != len(tangents):
                return None
            weights = [tangent.to(out.dtype) for out, tangent in zip(kept, tangents, strict=True)]
            with imitate_ranks():
                torch.autograd.backward(kept, weights)
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception:  # of the graph, in float64: nothing can be said
        return None
    return [argument.grad if isinstance(argument, torch.Tensor) else None for argument in arguments]


@contextlib.contextmanager
def _enter_modes(double: bool, noise_seed: int | None) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if current_target() is not None:
            stack.enter_context(CpuMode())
        if double:
            stack.enter_context(Float64Mode(keep_casts=False))
        if noise_seed is not None:
            stack.enter_context(UlpNoise(noise_seed))
        yield


def interpret_graph(snapshot: Snapshot, inputs: Sequence[object], *, double: bool = False) -> object:
    """Run ``snapshot`` on ``inputs`` themselves, as a compiled graph would: it may mutate them, unless ``double``."""
    with torch.no_grad(), _enter_modes(double, None):
        return fx.Interpreter.run(GraphReplayer(snapshot), *inputs)  # it is the compiled graph, and no replay


def list_random_calls(snapshot: Snapshot) -> list[str]:
    """The random operators of the graph, in order: graphs with the same ones draw the same numbers."""
    return [str(node.target) for node in list_drawing_nodes(snapshot)]


def list_drawing_nodes(snapshot: Snapshot) -> list[fx.Node]:
    """The calls of random operators in the graph, in order."""
    return list_drawing_calls(snapshot.graph)


def list_drawing_calls(graph: fx.Graph) -> list[fx.Node]:
    """The calls of random operators in a graph of torch, in order."""
    return [node for node in graph.nodes if node.op.startswith("call") and _is_drawing(node)]


def _is_drawing(node: fx.Node) -> bool:
    """Return whether a call draws random numbers; functions and methods at torch level go by their ATen namesake."""
    if isinstance(node.target, torch._ops.OpOverload):
        name = node.target._schema.name.rpartition("::")[2]
    else:
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    operator = node.target if isinstance(node.target, torch._ops.OpOverload) else _find_namesake(name)
    if operator is None or torch.Tag.nondeterministic_seeded not in operator.tags:
        return name in facts().operators.drawing_untagged
    return is_drawing(operator, node.args, node.kwargs)


@functools.cache
def _find_namesake(name: str) -> torch._ops.OpOverload | None:
    packet = getattr(torch.ops.aten, name, None) or getattr(torch.ops.aten, f"{name}_", None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return None
    overload: torch._ops.OpOverload | None = getattr(packet, packet._overload_names[0], None)
    return overload


def _get_version(value: object) -> int:
    return value._version if isinstance(value, torch.Tensor) and not value.is_inference() else 0


class GraphReplayer(fx.Interpreter):
    """Interprets a snapshot; a lowering pattern's opaque node runs what the pattern replaced.

    ``on_node`` runs a node in its own way. ``replays`` are the runs in this process.
    """

    replays: ClassVar[int] = 0

    def __init__(self, snapshot: Snapshot, *, on_node: OnNode | None = None) -> None:
        super().__init__(nn.Module(), graph=snapshot.graph)
        self._attributes, self._opaque = snapshot.attributes, snapshot.opaque
        self._on_node, self._on_cpu = on_node, current_target() is not None

    def run(self, *args: Any, **options: Any) -> Any:
        """Run the graph, and count that."""
        GraphReplayer.replays += 1
        with imitate_ranks():
            return super().run(*args, **options)

    def run_node(self, n: fx.Node) -> object:
        """Run one node."""
        run = functools.partial(super().run_node, n)
        return run() if self._on_node is None else self._on_node(n, run)

    def fetch_attr(self, target: str) -> object:
        """What a node names, of the attributes of the snapshot."""
        return self._attributes[target]

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """Call a function, an opaque one through its own replacement, on the device of the replay."""
        opaque = self._opaque.get(id(target))
        if opaque is not None:
            flat = pytree.tree_leaves((args, kwargs))
            inner = Snapshot(opaque.graph, opaque.attributes, {})
            return GraphReplayer(inner).run(*(flat[position] for position in opaque.inputs))
        if is_lowering_handler(target):
            raise NotReplayable(f"{target} is a lowering")
        if self._on_cpu:
            return call_on_cpu(target, args, kwargs)
        return super().call_function(target, args, kwargs)

    def call_method(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """Call a method, with its devices replaced where the replay runs on the CPU."""
        if self._on_cpu:
            args, kwargs = replace_devices(args), replace_devices(kwargs)
            target = "cpu" if target == "cuda" else target
        return super().call_method(target, args, kwargs)
