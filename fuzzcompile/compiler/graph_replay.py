"""Replay: running a snapshot of the compiler's graph eagerly, on the real inputs of the program."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeGuard

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.target.graph_placement import CpuMode, call_on_cpu, replace_devices
from fuzzcompile.compiler.target.target_process import current_target
from fuzzcompile.compiler.watch.ledger import Snapshot, is_lowering_handler
from fuzzcompile.model.facts import facts
from fuzzcompile.run.arithmetic_modes import Float64Mode, UlpNoise
from fuzzcompile.run.case_program import Float64Stream, is_large, is_streamed, unstream
from fuzzcompile.run.device import seed_everything, trim_memory
from fuzzcompile.run.tensors import copy_tree, measure_storages

# Inputs that a graph of the compiler writes to, by its operators' schemas.


def find_read_only(graph: fx.Graph) -> list[int]:
    """Positions of the placeholders that no node writes to; none for a graph with calls that have no schema.

    A graph at torch level, or one with opaque lowerings, has such calls.
    """
    written: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op not in ("placeholder", "get_attr", "call_function", "output"):
            return []
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        if not isinstance(node.target, torch._ops.OpOverload):
            return []
        written.update(_find_origin(argument) for argument in _iterate_written(node, node.target))
    placeholders = graph.find_nodes(op="placeholder")
    return [position for position, node in enumerate(placeholders) if node not in written]


def _iterate_written(node: fx.Node, target: torch._ops.OpOverload) -> Iterator[fx.Node]:
    for position, argument in enumerate(target._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
            nodes: list[fx.Node] = []
            fx.node.map_arg(given, nodes.append)
            yield from nodes


def _find_origin(node: fx.Node) -> fx.Node:
    """The node whose memory ``node`` may be a view of."""
    while node.op == "call_function" and node.all_input_nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is not None and all(returned.alias_info is None for returned in schema.returns):
            return node
        node = node.all_input_nodes[0]
    return node


_REPLAY_SEED = 11
# Arguments that switch off what a fused random operator draws, where they are 0 or False.
_SWITCHES = ("dropout_p", "dropout", "training")


class NotReplayable(Exception):
    """The graph holds a lowering whose operators are not known: it says nothing about the program."""


@dataclass(frozen=True)
class ReplayResult:
    """Result of a replay: outputs and inputs as they are afterwards, or the error that ended it.

    Inputs that the graph did not write to are the captured tensors themselves, and so are outputs that are views of
    these (in their own dtype, in float64 too): copies of every parameter for every snapshot would be the largest part
    of the memory that a triage takes.
    """

    outputs: list[object]
    inputs: list[object]
    error: BaseException | None = None


def replay_graph(
    snapshot: Snapshot, inputs: Sequence[object], *, double: bool, noise_seed: int | None = None
) -> ReplayResult:
    """Run ``snapshot`` on copies of ``inputs``, natively or (``double``) with inputs, constants and dtypes in float64.

    Large inputs that the graph only reads are not copied. ``noise_seed`` moves every operator's result by up to one
    ulp.
    """
    arguments = _copy_arguments(snapshot, inputs, double=double)
    versions = [_get_version(argument) for argument in arguments]
    seed_everything(_REPLAY_SEED)
    interpreter = GraphReplayer(snapshot)
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
        if left is captured and _is_strided_tensor(copied) and _is_strided_tensor(captured)
    }
    return ReplayResult([_restore_view(output, given) for output in pytree.tree_leaves(result)], after)


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
    if not _is_strided_tensor(output) or not output.numel():
        return output
    captured = given.get((output.untyped_storage().data_ptr(), output.dtype))
    if captured is None:
        return output
    return captured.detach().as_strided(output.size(), output.stride(), output.storage_offset())


def _is_strided_tensor(value: object) -> TypeGuard[torch.Tensor]:
    """Return whether ``value`` is a tensor whose elements are those of its storage, as they are."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_quantized:
        return False
    return not (value.is_nested or value.is_conj() or value.is_neg() or is_streamed(value))


NodeValues = dict[str, object]
OnNode = Callable[[fx.Node, Callable[[], object]], object]
"""Runs a node of a replay, in its own way."""


def compute_values(
    snapshot: Snapshot, inputs: Sequence[object], *, double: bool = True, noise_seed: int | None = None
) -> NodeValues:
    """The value of every node in float64 (or natively), by node name, as far as the graph runs."""
    seed_everything(_REPLAY_SEED)
    interpreter = GraphReplayer(snapshot, keep=True)
    arguments = copy_tree(list(inputs), double=double)  # not under noise, which would move what is copied
    # Whatever ends the run, the values up to there are the answer.
    with torch.no_grad(), _enter_modes(double, noise_seed), contextlib.suppress(Exception):
        interpreter.run(*arguments)
    return interpreter.values


def differentiate_graph(
    snapshot: Snapshot, inputs: Sequence[object], tangents: Sequence[torch.Tensor], *, noise_seed: int | None = None
) -> list[object] | None:
    """Gradients of a torch-level graph in float64, by autograd, one per input (None for those without).

    ``tangents`` are gradients of the outputs that require one, in order. None if the graph cannot be differentiated so.
    """
    arguments = copy_tree(list(inputs), double=True)
    seed_everything(_REPLAY_SEED)
    try:
        with torch.enable_grad(), _enter_modes(True, noise_seed):
            results = pytree.tree_leaves(GraphReplayer(snapshot).run(*arguments))
            outputs = [out for out in results if isinstance(out, torch.Tensor) and out.requires_grad]
            if len(outputs) != len(tangents):
                return None
            torch.autograd.backward(
                outputs, [tangent.to(out.dtype) for out, tangent in zip(outputs, tangents, strict=True)]
            )
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
    return [node for node in snapshot.graph.nodes if node.op.startswith("call") and _is_drawing(node)]


def _is_drawing(node: fx.Node) -> bool:
    """Return whether a call draws random numbers; functions and methods at torch level go by their ATen namesake."""
    if isinstance(node.target, torch._ops.OpOverload):
        name = node.target._schema.name.rpartition("::")[2]
    else:
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    operator = node.target if isinstance(node.target, torch._ops.OpOverload) else _find_namesake(name)
    if operator is None or torch.Tag.nondeterministic_seeded not in operator.tags:
        return name in facts().operators.drawing_untagged
    return all(_get_argument(node, operator, switch) not in (0, False) for switch in _SWITCHES)


@functools.cache
def _find_namesake(name: str) -> torch._ops.OpOverload | None:
    packet = getattr(torch.ops.aten, name, None) or getattr(torch.ops.aten, f"{name}_", None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return None
    overload = getattr(packet, packet._overload_names[0], None)
    return overload if isinstance(overload, torch._ops.OpOverload) else None


def _get_argument(node: fx.Node, operator: torch._ops.OpOverload, name: str) -> object:
    """The value of an argument of a call, or its default; None where the operator has none of that name."""
    for position, argument in enumerate(operator._schema.arguments):
        if argument.name == name:
            given = node.args[position] if position < len(node.args) else argument.default_value
            return node.kwargs.get(name, given)
    return None


def _get_version(value: object) -> int:
    return value._version if isinstance(value, torch.Tensor) and not value.is_inference() else 0


class GraphReplayer(fx.Interpreter):
    """Interprets a snapshot; a lowering pattern's opaque node runs what the pattern replaced.

    With ``keep``, :attr:`values` has the value of each node. ``on_node`` is called in place of each node, with a
    function that runs it; what it returns is the node's value. ``replays`` are the runs in this process.
    """

    replays: ClassVar[int] = 0

    def __init__(self, snapshot: Snapshot, *, keep: bool = False, on_node: OnNode | None = None) -> None:
        root = nn.Module()
        for path, value in snapshot.attributes.items():
            _set_attribute(root, path, value)
        super().__init__(root, graph=snapshot.graph)
        self._opaque = snapshot.opaque
        self._keep = keep
        self._on_node = on_node
        self.node: fx.Node | None = None  # the one under way
        self._on_cpu = current_target() is not None
        self.values: NodeValues = {}

    def run(self, *args: Any, **options: Any) -> Any:
        """Run the graph, and count that."""
        GraphReplayer.replays += 1
        return super().run(*args, **options)

    def run_node(self, n: fx.Node) -> object:
        """Run one node; its value is kept where that was asked for."""
        self.node = n
        run = functools.partial(super().run_node, n)
        value = run() if self._on_node is None else self._on_node(n, run)
        if self._keep:
            # A later in-place write must not reach it.
            self.values[n.name] = value.detach().clone() if isinstance(value, torch.Tensor) else value
        return value

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


def _set_attribute(root: nn.Module, path: str, value: object) -> None:
    *parents, leaf = path.split(".")
    for part in parents:
        if not hasattr(root, part):
            root.add_module(part, nn.Module())
        root = getattr(root, part)
    if isinstance(value, nn.Module):
        root.add_module(leaf, value)
    else:
        object.__setattr__(root, leaf, value)
