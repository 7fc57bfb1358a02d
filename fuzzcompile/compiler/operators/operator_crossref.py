"""Every operator of a graph beside what the compiler takes in its place, and every call as it is and as it is traced.

Dynamo's graph is run eagerly, with autograd where the program has gradients, and with Python's dispatcher in force, as
AOTAutograd traces it. Each ATen operator is computed several times on copies of its arguments: by its kernel, by its
decomposition, and on fake tensors. Decompositions call operators that are decomposed in turn: each is compared on its
own, inside a decomposition that otherwise runs on kernels, so that the innermost one that is wrong stands out.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import importlib
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.autograd import profiler
from torch.overrides import BaseTorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from fuzzcompile.compiler.collectives import imitate_ranks
from fuzzcompile.compiler.compiling_predicate import pretend_tracing
from fuzzcompile.compiler.functional_run import (
    SEEDS,
    FunctionalTools,
    OperatorMode,
    is_bound_to_capture,
    load_functional_tools,
    visit_nodes,
)
from fuzzcompile.compiler.graph_replay import GraphReplayer, _is_drawing
from fuzzcompile.compiler.operators.decompositions import (
    find_decomposition,
    list_dispatcher_kernels,
    read_decomposition_table,
    replace_dispatcher_kernels,
)
from fuzzcompile.compiler.operators.operator_application import (
    Application,
    Arguments,
    OperatorOutcome,
    OperatorPlace,
    Outcomes,
    compare_contiguous,
    replay_random_stream,
    run_drawing,
    run_fake,
    run_operator,
    use_python_dispatcher,
)
from fuzzcompile.compiler.target.target_process import decompose_on_target
from fuzzcompile.compiler.watch.ledger import Snapshot
from fuzzcompile.compiler.watch.rule_labels import find_location
from fuzzcompile.compiler.watch.torch_patch import Function
from fuzzcompile.compiler.watch.unseen import Unseen, UnseenLog
from fuzzcompile.model.errors import describe_error
from fuzzcompile.model.facts import facts
from fuzzcompile.model.stages import DECOMPOSITION, FAKE_TENSOR
from fuzzcompile.run.device import seed_everything
from fuzzcompile.run.tensors import copy_tree, has_meta_tensors, is_wrapper, materialize_zeros, name_collective
from fuzzcompile.run.transforms import leave_transforms

if TYPE_CHECKING:
    from torch._ops import HigherOrderOperator, OpOverload

__watches_calls__ = True  # its frames stand between a call and the program that makes it
_SEED = 11
# Decompositions within decompositions are followed so far down.
_MAX_DEPTH = 4
ApplicationJudge = Callable[[Application], None]
Where = Callable[[], str | None]
Backend = Callable[..., Any]
_CALLS = ("call_function", "call_method", "call_module")
_FACTS = facts().operators


def _differentiate(results: Sequence[object], tangents: Sequence[object]) -> None:
    outputs = [out for out in results if isinstance(out, torch.Tensor) and out.requires_grad]
    given = [torch.ones_like(out) for out in outputs]
    pairs = zip(tangents, outputs, strict=False)
    fitting = [one.to(out.dtype) for one, out in pairs if isinstance(one, torch.Tensor) and one.shape == out.shape]
    if outputs:
        with imitate_ranks():
            torch.autograd.backward(outputs, fitting if len(fitting) == len(outputs) == len(tangents) else given)


class Crossref:
    """Has ``judge`` see every operator that runs beside what the compiler takes in its place, inner ones first.

    After so many ``seconds`` the rest runs unwatched. ``where`` tells the line of a program without a graph.
    ``layouts_only``: each kernel is compared with itself on contiguous operands alone.

    ``raised`` is the exception of the ``operator`` at ``place`` that raised, if one did; ``writes`` says whether an
    operator writes to its arguments, and ``called`` are those that ran, apart from those inside of decompositions.
    ``unseen`` is what kept operators from being compared.
    """

    def __init__(
        self, judge: ApplicationJudge, *, seconds: float = 20.0, where: Where | None = None, layouts_only: bool = False
    ) -> None:
        self.raised: Exception | None = None
        self.operator: OpOverload | HigherOrderOperator | None = None
        self.place: OperatorPlace | None = None
        self.writes, self.called, self.unseen = False, set[str](), UnseenLog()
        self._judge, self._where, self._layouts_only = judge, where, layouts_only
        self._deadline, self._backward = time.monotonic() + seconds, False
        self._mode = OperatorMode(self._run_operator)
        self._table = read_decomposition_table()
        self._faked: set[object] = set()
        self._starts: list[int] = []  # the number of the next autograd node when each graph node began
        self._nodes: list[fx.Node] = []
        self._inside: tuple[str, ...] = ()
        self._ordinals: Counter[tuple[str, str | None]] = Counter()

    def run_graph(self, snapshot: Snapshot, inputs: Sequence[object], tangents: Sequence[object] | None = None) -> None:
        """Run a graph.

        ``tangents`` are gradients of the outputs that require one, None for a graph without a backward pass; where they
        do not fit, ones of the outputs' shapes stand in.
        """
        arguments = copy_tree(list(inputs))
        seed_everything(_SEED)
        interpreter = GraphReplayer(snapshot, on_node=self._enter)
        try:
            with torch.set_grad_enabled(tangents is not None), leave_transforms(), self._watch():
                results = pytree.tree_leaves(interpreter.run(*arguments))
                if tangents is not None:
                    self._backward = True
                    _differentiate(results, tangents)
        except (KeyboardInterrupt, MemoryError):
            raise
        except Exception as error:  # of an operator of the program: it is the answer
            self.raised = self.raised or error

    def run_program(self, run: Callable[[], object]) -> None:
        """Run a program without a graph."""
        with leave_transforms(), self._watch():
            run()

    def _enter(self, node: fx.Node, run: Callable[[], object]) -> object:
        number = getattr(torch.autograd, "_get_sequence_nr", None)
        self._starts.append(int(number()) if number is not None else 0)
        self._nodes.append(node)
        return run()

    @contextlib.contextmanager
    def _watch(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if not self._layouts_only:
                kernels = [(op, key, self._wrap_kernel(op, kernel)) for op, key, kernel in list_dispatcher_kernels()]
                stack.enter_context(replace_dispatcher_kernels(kernels))
                stack.enter_context(use_python_dispatcher(True))
            stack.enter_context(self._mode)
            yield

    def _run_operator(
        self, func: OpOverload | HigherOrderOperator, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> object:
        args, kwargs = pytree.tree_map(materialize_zeros, (args, kwargs))
        place = self._find_place(func)
        if not isinstance(func, torch._ops.OpOverload) or name_collective(func) is not None:
            return func(*args, **kwargs)
        if not self._inside:
            self.writes |= func._schema.is_mutable
            self.called.add(str(func))
        if not has_meta_tensors(args, kwargs):
            with self._contain(func, quiet=True) as watching:
                if watching and not self._inside:  # kernels of eager mode, on their operands and on contiguous ones
                    with use_python_dispatcher(False):
                        application = compare_contiguous(func, args, kwargs, place)
                    if application is not None:
                        self._judge(application)
            with self._contain(func) as watching:
                if watching and not self._layouts_only:
                    self._compare_all(func, args, kwargs, place)
        try:
            return func(*args, **kwargs)
        except Exception as error:  # re-raised: only noted here
            if not self._inside and self.operator is None:
                self.operator, self.place, self.raised = func, place, error
            raise

    @contextlib.contextmanager
    def _contain(self, operator: OpOverload, *, quiet: bool = False) -> Iterator[bool]:
        """Yields whether there is time left; an operator that cannot be copied or compared shows nothing."""
        late = time.monotonic() > self._deadline
        if late and not quiet:
            self._record_unseen("the rest of the operators", "out of time")
        try:
            yield not late
        except (KeyboardInterrupt, MemoryError):
            raise
        except Exception as error:
            if not quiet:
                self._record_unseen(str(operator), describe_error(error))

    def _record_unseen(self, what: str, why: str) -> None:
        # Where the culprit is proved by a compile without it, nothing hangs on the operators that were not compared;
        # where it is not, confidence is low anyway.
        shows = "differences between kernels, decompositions and metadata"
        self.unseen.note(Unseen(what, why, (DECOMPOSITION, FAKE_TENSOR), shows, harmless=True))

    def _compare_all(
        self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object], place: OperatorPlace
    ) -> None:
        decomposed = find_decomposition(func, self._table)
        operator = func if decomposed is None else decomposed[0]
        taken = {argument.name: argument for argument in operator._schema.arguments}
        # What the operator that writes in place need not be given (`p` of `bernoulli_`), its other form may need.
        defaults = {argument.name: argument.default_value for argument in func._schema.arguments[len(args) :]}
        needed = {name: defaults[name] for name in defaults if name in taken and not taken[name].has_default_value()}
        kwargs = {**needed, **{name: value for name, value in kwargs.items() if name in taken}}
        kind = _make_argument_key(operator, args, kwargs)
        if decomposed is None and kind in self._faked:
            return
        with replay_random_stream(operator) as draws, use_python_dispatcher(False):
            kernel, given = run_drawing(partial(run_operator, operator, args, kwargs), draws), (args, dict(kwargs))
            asked = Application(operator, "fake", None, place, kernel, OperatorOutcome(), draws, given)
            if decomposed is not None and len(self._inside) < _MAX_DEPTH:
                self._compare(replace(asked, way="decomposition"), decomposed[1])
            if kind not in self._faked:  # once for one kind of arguments
                self._faked.add(kind)
                fake = run_fake(operator, args, kwargs)
                if fake is not None:
                    self._judge(replace(asked, other=fake, initial_arguments=copy_tree(given)))

    def _compare(self, asked: Application, function: Function) -> None:
        around, self._inside = self._inside, (*self._inside, asked.name)
        try:
            if asked.draws:
                seed_everything(_SEED)
            # Inside, the mode is on again: a decomposition runs on kernels, and each of its parts is compared.
            watching = self._mode if asked.way == "decomposition" else None
            function = decompose_on_target(function)
            run = partial(run_operator, function, *asked.initial_arguments, dispatcher=True, inside=watching)
            outcome = run_drawing(run, asked.draws)
        finally:
            self._inside = around
        if outcome.results != (NotImplemented,):
            given = copy_tree(asked.initial_arguments)
            self._judge(replace(asked, function=function, other=outcome, initial_arguments=given))

    def _wrap_kernel(self, operator: OpOverload, kernel: Function) -> Function:

        def compare(*args: object, **kwargs: object) -> None:
            place = self._find_place(operator)
            with _disable_current_modes(), replay_random_stream(operator) as draws, torch.no_grad():
                with use_python_dispatcher(False):
                    own = run_drawing(partial(run_operator, operator, args, kwargs), draws)
                given = (args, kwargs)
                self._compare(
                    Application(operator, "dispatcher", None, place, own, OperatorOutcome(), draws, given), kernel
                )

        def run(*args: object, **kwargs: object) -> object:
            if len(self._inside) < _MAX_DEPTH and not any(map(is_wrapper, pytree.tree_leaves((args, kwargs)))):
                with self._contain(operator) as watching:
                    if watching:
                        compare(*args, **kwargs)
            return kernel(*args, **kwargs)

        return run

    def _find_place(self, func: OpOverload | HigherOrderOperator) -> OperatorPlace:
        node = self._nodes[-1] if self._nodes else None
        running = torch._C._current_autograd_node()
        backward = self._backward or running is not None
        if backward:  # the node of the forward pass whose gradient is computed
            index = bisect.bisect_right(self._starts, running._sequence_nr()) - 1 if running is not None else -1
            node = self._nodes[index] if 0 <= index < len(self._nodes) else None
        where = find_location([node]) if node is not None else None
        if self._where is not None and not backward:
            where = self._where()
        key = (str(func), where)
        if not self._inside:
            self._ordinals[key] += 1
        backward |= node is not None and bool(node.meta.get("autograd_backward"))
        nodes, site = (node.name,) if node else (), f"{where} #{max(1, self._ordinals[key])}" if where else None
        return OperatorPlace(nodes, where, site, backward, self._inside)


def _make_argument_key(operator: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    def describe(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return repr(value)
        strides = tuple(value.stride()) if value.layout == torch.strided and not value.is_nested else ()
        return value.dtype, tuple(value.shape), strides, value.device, value.requires_grad

    return operator, tuple(describe(leaf) for leaf in pytree.tree_leaves((args, kwargs)))


# Calls of dynamo's graph along both paths: in eager mode, and as dynamo or AOTAutograd traces them.


@dataclass(eq=False)
class ComparedCall:
    """One call of dynamo's graph on its real arguments: in eager mode, and as AOTAutograd traces it.

    If it draws random numbers (``draws``), both paths began in the same state, and their last result is the state that
    they left. ``traced_operators`` are those that the traced path calls.
    """

    node: fx.Node
    draws: bool
    _call: Callable[..., object]
    _arguments: Arguments
    _tools: FunctionalTools
    traced_operators: list[str] = field(default_factory=list)

    @functools.cached_property
    def eager(self) -> OperatorOutcome:
        """The outcome in eager mode."""
        return self._run_eagerly(double=False)

    @functools.cached_property
    def traced(self) -> OperatorOutcome:
        """The outcome as the call is traced."""
        return self._run_traced(double=False)

    def run_in_float64(self) -> Outcomes:
        """Both outcomes on float64 arguments."""
        return self._run_eagerly(double=True), self._run_traced(double=True)

    def list_eager_operators(self) -> list[str]:
        """The operators that the eager path calls, each before those that it consists of."""
        given = copy_tree(self._arguments)
        with profile_operators() as heard, imitate_ranks():
            self._call(*given)
        return [name for name, _ in list_profiled_operators(heard)]

    def _run_eagerly(self, *, double: bool) -> OperatorOutcome:
        given = copy_tree(self._arguments, double=double)
        return OperatorOutcome.from_call(lambda: self._call(*given), given)

    def _run_traced(self, *, double: bool) -> OperatorOutcome:
        plain, heard = copy_tree(self._arguments, double=double), list[str]()

        def hear(operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
            heard.append(str(operator))
            return operator(*args, **kwargs)

        def trace() -> object:
            with leave_transforms(), use_python_dispatcher(True), self._tools.mode(), OperatorMode(hear):
                args, kwargs = pytree.tree_map_only(torch.Tensor, self._tools.to_fun, plain)
                return pytree.tree_map_only(torch.Tensor, self._tools.from_fun, self._call(args, kwargs))

        outcome = OperatorOutcome.from_call(trace, plain)
        self.traced_operators = self.traced_operators if double else heard
        return outcome


def compare_paths(
    snapshot: Snapshot, inputs: Sequence[object], judge: Callable[[ComparedCall], None], *, grad: bool
) -> None:
    """Run dynamo's graph in eager mode and have ``judge`` see each of its calls along both paths, in order.

    Calls that write to their arguments, are no calls of tensors or cannot be traced by themselves are not shown. Of a
    call that draws random numbers the state of the generator is one more result, and it is shown for several states.
    ``grad`` says whether the program has gradients.
    """
    tools = load_functional_tools()
    if tools is None or is_bound_to_capture(snapshot):
        return

    def compare(replayer: GraphReplayer, node: fx.Node, run: Callable[[], object]) -> object:
        if node.op not in _CALLS or _writes(node):
            return run()
        try:
            given = copy_tree(replayer.fetch_args_kwargs_from_env(node))
        except (NotImplementedError, RuntimeError):  # a kind of tensor that cannot be copied
            return run()
        for seed in SEEDS if _is_drawing(node) else (None,):

            def call(args: tuple[Any, ...], kwargs: dict[str, Any], seed: int | None = seed) -> object:
                if seed is None:
                    return getattr(replayer, node.op)(node.target, args, kwargs)
                seed_everything(seed)
                return getattr(replayer, node.op)(node.target, args, kwargs), torch.get_rng_state()

            compared = ComparedCall(node, seed is not None, call, given, tools)
            gives_tensors = any(isinstance(result, torch.Tensor) for result in compared.eager.results)
            if gives_tensors and compared.traced.error is None:
                judge(compared)
        return run()

    seed_everything(SEEDS[0])
    visit_nodes(snapshot, inputs, compare, grad=grad)


def _writes(node: fx.Node) -> bool:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = (name.endswith("_") and not name.endswith("__")) or name.startswith("__i") or name == "setitem"
    return in_place or "out" in node.kwargs or name in _FACTS.uninitialised


@contextlib.contextmanager
def profile_operators() -> Iterator[profiler.profile]:
    """Profile every operator of the block; the messages that the profiler's library prints are dropped."""
    with contextlib.ExitStack() as stack:
        with _silence_stderr():
            heard = stack.enter_context(profiler.profile())
        try:
            yield heard
        finally:
            with _silence_stderr():
                stack.close()


@contextlib.contextmanager
def _silence_stderr() -> Iterator[None]:
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


# What the profiler calls the run of a backward function, before its name.
_BACKWARD = "autograd::engine::evaluate_function: "


def list_profiled_operators(heard: profiler.profile, inside: Collection[str] | None = None) -> list[tuple[str, str]]:
    """The operators that were called while a profiler was on, in order, apart from those that only make memory.

    A backward function goes by its own name. Each (``aten.relu``) comes with the name of what called it, which is empty
    for the program itself. ``inside``: names of marks (``record_function``); only operators called directly inside of
    one are meant.
    """
    makers = (*_FACTS.uninitialised, "resize_", "as_strided", "as_strided_")
    calls = [
        (event.name.removeprefix(_BACKWARD).replace("::", "."), getattr(event.cpu_parent, "name", ""))
        for event in heard.function_events or ()
        if "::" in event.name and event.name.partition("::")[2] not in makers
    ]
    return calls if inside is None else [(name, caller) for name, caller in calls if caller in inside]


def list_called_operators(graph: Snapshot, inputs: Sequence[object]) -> list[tuple[str, str]]:
    """The operators that the nodes of a graph call themselves, each with the node."""
    names = set[str]()

    def mark(replayer: GraphReplayer, node: fx.Node, run: Callable[[], object]) -> object:
        names.add(node.name)
        with profiler.record_function(node.name):
            return run()

    with profile_operators() as heard:
        visit_nodes(graph, inputs, mark)
    return list_profiled_operators(heard, names)


def bypass_nodes(nodes: Sequence[str], backend: str | Backend) -> Backend:
    """A backend that gets dynamo's graph without nodes: their first argument stands in for them, if a node."""

    def compile_without(module: fx.GraphModule, inputs: Sequence[object]) -> object:
        for node in list(module.graph.nodes):
            if node.name in nodes and node.args and isinstance(node.args[0], fx.Node):
                node.replace_all_uses_with(node.args[0])
                module.graph.erase_node(node)
        module.recompile()
        lookup: Callable[[str | Backend], Backend] = importlib.import_module("torch._dynamo").lookup_backend
        return lookup(backend)(module, inputs)

    return compile_without


@contextlib.contextmanager
def _disable_fused_attention() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        yield


def list_traced_paths() -> list[tuple[str, contextlib.AbstractContextManager[object]]]:
    """Return ways to make eager mode take the path that dynamo traces: each by its public name, and its context.

    Modules ask whether they are traced, whether their fast paths are on, or whether there are overrides of torch's
    functions, which a mode that does nothing is.
    """
    return [
        ("eager mode with torch.backends.mha.set_fastpath_enabled(False)", _disable_fused_attention()),
        ("eager mode in which torch.compiler.is_compiling() and is_exporting() are true", pretend_tracing()),
        ("eager mode under a torch function mode that does nothing", BaseTorchFunctionMode()),
    ]
