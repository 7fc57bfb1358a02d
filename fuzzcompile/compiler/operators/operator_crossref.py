"""Every operator of a graph, run beside what the compiler takes in its place, on the program's real values.

Dynamo's graph is run eagerly, with autograd where the program has gradients, and with Python's dispatcher in force, as
AOTAutograd traces it. Each ATen operator is computed several times on copies of its arguments: by its kernel, by its
decomposition, and on fake tensors. Decompositions call operators that are decomposed in turn: each is compared on its
own, inside a decomposition that otherwise runs on kernels, so that the innermost one that is wrong stands out.
"""

from __future__ import annotations

import bisect
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from fuzzcompile.compiler.functional_run import OperatorMode, leave_transforms
from fuzzcompile.compiler.graph_replay import GraphReplayer
from fuzzcompile.compiler.operators.decompositions import (
    find_decomposition,
    list_dispatcher_kernels,
    read_decomposition_table,
    replace_dispatcher_kernels,
)
from fuzzcompile.compiler.operators.operator_application import (
    Application,
    OperatorOutcome,
    OperatorPlace,
    compare_contiguous,
    replay_random_stream,
    run_fake,
    run_operator,
    use_python_dispatcher,
)
from fuzzcompile.compiler.target.target_process import decompose_on_target
from fuzzcompile.compiler.watch.ledger import Snapshot, Unseen, UnseenLog, format_reason
from fuzzcompile.compiler.watch.rule_labels import find_location
from fuzzcompile.compiler.watch.torch_patch import Function
from fuzzcompile.model.stages import DECOMPOSITION, FAKE_TENSOR
from fuzzcompile.run.device import seed_everything
from fuzzcompile.run.tensors import copy_tree, has_meta_tensors, materialize_zeros

if TYPE_CHECKING:
    from torch._ops import HigherOrderOperator, OpOverload

__watches_calls__ = True  # its frames stand between a call and the program that makes it
_SEED = 11
# Decompositions within decompositions are followed so far down.
_MAX_DEPTH = 4
ApplicationJudge = Callable[[Application], None]


@dataclass
class CrossrefRun:
    """Extent of a run: the operator that raised, if one did, and its exception.

    ``unseen`` is what kept operators from being compared; ``writes`` says whether an operator of the graph writes to
    its arguments. ``called`` are the operators that ran, apart from those inside of decompositions.
    """

    raised: Exception | None = None
    operator: OpOverload | HigherOrderOperator | None = None
    place: OperatorPlace | None = None
    unseen: UnseenLog = field(default_factory=UnseenLog)
    writes: bool = False
    called: set[str] = field(default_factory=set)


def watch_operators(
    snapshot: Snapshot,
    inputs: Sequence[object],
    judge: ApplicationJudge,
    *,
    tangents: Sequence[object] | None = None,
    seconds: float = 20.0,
    layouts_only: bool = False,
) -> CrossrefRun:
    """Run a graph and have ``judge`` see every operator beside what the compiler takes in its place, inner ones first.

    ``tangents`` are gradients of the outputs that require one, None for a graph without a backward pass; where they do
    not fit, ones of the outputs' shapes stand in. After so many ``seconds`` the rest runs unwatched. ``layouts_only``:
    compare each kernel with itself on contiguous operands alone.
    """
    crossref = _Crossref(judge, time.monotonic() + seconds, layouts_only=layouts_only)
    arguments = copy_tree(list(inputs))
    seed_everything(_SEED)
    interpreter = GraphReplayer(snapshot, on_node=crossref.enter)
    try:
        with torch.set_grad_enabled(tangents is not None), leave_transforms(), crossref.watch():
            results = pytree.tree_leaves(interpreter.run(*arguments))
            if tangents is not None:
                crossref.backward = True
                _differentiate(results, tangents)
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:  # of an operator of the program: it is the answer
        crossref.watched.raised = crossref.watched.raised or error
    return crossref.watched


def watch_program(
    run: Callable[[], object], judge: ApplicationJudge, where: Callable[[], str | None], *, seconds: float = 20.0
) -> CrossrefRun:
    """As :func:`watch_operators`, for a program without a graph: ``run`` runs it, ``where`` tells its line."""
    crossref = _Crossref(judge, time.monotonic() + seconds, where)
    with leave_transforms(), crossref.watch():
        run()
    return crossref.watched


def _differentiate(results: Sequence[object], tangents: Sequence[object]) -> None:
    outputs = [out for out in results if isinstance(out, torch.Tensor) and out.requires_grad]
    if not outputs:
        return
    fitting = len(outputs) == len(tangents) and all(
        isinstance(tangent, torch.Tensor) and tangent.shape == out.shape
        for out, tangent in zip(outputs, tangents, strict=False)
    )
    given = [torch.ones_like(out) for out in outputs]
    if fitting:
        given = [cast(torch.Tensor, tangent).to(out.dtype) for out, tangent in zip(outputs, tangents, strict=True)]
    torch.autograd.backward(outputs, given)


class _Crossref:
    def __init__(
        self,
        judge: ApplicationJudge,
        deadline: float,
        where: Callable[[], str | None] | None = None,
        *,
        layouts_only: bool = False,
    ) -> None:
        self._judge, self._deadline, self._where, self._layouts_only = judge, deadline, where, layouts_only
        self.watched, self.backward = CrossrefRun(), False
        self._mode = OperatorMode(self._run_operator)
        self._table = read_decomposition_table()
        self._faked: set[object] = set()
        self._starts: list[int] = []  # the number of the next autograd node when each graph node began
        self._nodes: list[fx.Node] = []
        self._inside: tuple[str, ...] = ()
        self._ordinals: Counter[tuple[str, str | None]] = Counter()

    def enter(self, node: fx.Node, run: Callable[[], object]) -> object:
        number = getattr(torch.autograd, "_get_sequence_nr", None)
        self._starts.append(int(number()) if number is not None else 0)
        self._nodes.append(node)
        return run()

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
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
        if not isinstance(func, torch._ops.OpOverload):
            return func(*args, **kwargs)
        if not self._inside:
            self.watched.writes |= func._schema.is_mutable
            self.watched.called.add(str(func))
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
            if not self._inside and self.watched.operator is None:
                self.watched.operator, self.watched.place, self.watched.raised = func, place, error
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
                self._record_unseen(str(operator), format_reason(error))

    def _record_unseen(self, what: str, why: str) -> None:
        # Where the culprit is proved by a compile without it, nothing hangs on the operators that were not compared;
        # where it is not, confidence is low anyway.
        shows = "differences between kernels, decompositions and metadata"
        self.watched.unseen.note(Unseen(what, why, (DECOMPOSITION, FAKE_TENSOR), shows, harmless=True))

    def _compare_all(
        self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object], place: OperatorPlace
    ) -> None:
        decomposed = find_decomposition(func, self._table)
        operator = func if decomposed is None else decomposed[0]
        taken = {argument.name for argument in operator._schema.arguments}
        kwargs = {name: value for name, value in kwargs.items() if name in taken}
        kind = _make_argument_key(operator, args, kwargs)
        if decomposed is None and kind in self._faked:
            return
        with replay_random_stream(operator) as draws, use_python_dispatcher(False):
            kernel, given = run_operator(operator, args, kwargs), (args, dict(kwargs))
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
            outcome = run_operator(function, *asked.initial_arguments, dispatcher=True, inside=watching)
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
                    own = run_operator(operator, args, kwargs)
                given = (args, kwargs)
                self._compare(
                    Application(operator, "dispatcher", None, place, own, OperatorOutcome(), draws, given), kernel
                )

        def run(*args: object, **kwargs: object) -> object:
            if len(self._inside) < _MAX_DEPTH:
                with self._contain(operator) as watching:
                    if watching:
                        compare(*args, **kwargs)
            return kernel(*args, **kwargs)

        return run

    def _find_place(self, func: OpOverload | HigherOrderOperator) -> OperatorPlace:
        node = self._nodes[-1] if self._nodes else None
        running = torch._C._current_autograd_node()
        backward = self.backward or running is not None
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
        return OperatorPlace(node.name if node else None, where, max(1, self._ordinals[key]), backward, self._inside)


def _make_argument_key(operator: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    def describe(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return repr(value)
        strides = tuple(value.stride()) if value.layout == torch.strided and not value.is_nested else ()
        return value.dtype, tuple(value.shape), strides, value.device, value.requires_grad

    return operator, tuple(describe(leaf) for leaf in pytree.tree_leaves((args, kwargs)))
