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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import torch
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from fuzzcompile.compiler.functional_run import leave_transforms
from fuzzcompile.compiler.graph_replay import GraphReplayer
from fuzzcompile.compiler.operators.decompositions import (
    find_decomposition,
    list_dispatcher_kernels,
    read_decomposition_table,
)
from fuzzcompile.compiler.operators.fake_tensors import FakeRuns
from fuzzcompile.compiler.operators.operator_application import (
    Application,
    OperatorOutcome,
    OperatorPlace,
    compare_contiguous,
    find_aliases,
    replay_random_stream,
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


Judge = Callable[[Application], None]


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
    judge: Judge,
    *,
    tangents: Sequence[object] | None = None,
    seconds: float = 20.0,
) -> CrossrefRun:
    """Run a torch-level graph and have ``judge`` see every operator beside what the compiler takes in its place.

    Args:
        snapshot: dynamo's graph.
        inputs: values of its placeholders, in order; copied before the run.
        judge: called with each :class:`Application`, in the order of execution, inner ones first.
        tangents: gradients of the outputs that require one; None for a graph without a backward pass. Where they do
            not fit the outputs, ones of their shapes stand in.
        seconds: after so long, the rest runs unwatched.
    """
    crossref = _CrossrefMode(judge, time.monotonic() + seconds)
    arguments = copy_tree(list(inputs))
    seed_everything(_SEED)
    interpreter = GraphReplayer(snapshot, on_node=crossref.enter)
    try:
        with (
            torch.set_grad_enabled(tangents is not None),
            leave_transforms(),
            _watch_kernels(crossref),
            use_python_dispatcher(True),
            crossref,
        ):
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
    run: Callable[[], object], judge: Judge, where: Callable[[], str | None], *, seconds: float = 20.0
) -> CrossrefRun:
    """As :func:`watch_operators`, for a program of which there is no graph, because its capture failed.

    ``run`` runs it in eager mode, and ``where`` tells the line that is under way.
    """
    crossref = _CrossrefMode(judge, time.monotonic() + seconds, where)
    with leave_transforms(), _watch_kernels(crossref), use_python_dispatcher(True), crossref:
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


class _CrossrefMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, judge: Judge, deadline: float, where: Callable[[], str | None] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._where = where
        self.watched = CrossrefRun()
        self.backward = False
        self._judge, self._deadline = judge, deadline
        self._table = read_decomposition_table()
        self._fake = FakeRuns()
        self._node: fx.Node | None = None
        self._starts: list[int] = []
        self._nodes: list[fx.Node] = []
        self._inside: tuple[str, ...] = ()
        self._ordinals: Counter[tuple[str, str | None]] = Counter()

    def enter(self, node: fx.Node, run: Callable[[], object]) -> object:
        """Run a node; the operators that run from now on, and the gradients of their results, are attributed to it."""
        self._node = node
        self._starts.append(_peek_sequence_number())
        self._nodes.append(node)
        return run()

    def __torch_dispatch__(
        self,
        func: OpOverload | HigherOrderOperator,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        args, kwargs = pytree.tree_map(materialize_zeros, (args, kwargs or {}))
        place = self._find_place(func)
        if not isinstance(func, torch._ops.OpOverload):
            return func(*args, **kwargs)
        if not self._inside and func._schema.is_mutable:
            self.watched.writes = True
        if not self._inside:
            self.watched.called.add(str(func))
            self._compare_layouts(func, args, kwargs, place)
        self._compare_all(func, args, kwargs, place)
        try:
            return func(*args, **kwargs)
        except Exception as error:  # re-raised: only noted here
            if not self._inside and self.watched.operator is None:
                self.watched.operator, self.watched.place, self.watched.raised = func, place, error
            raise

    def _compare_layouts(
        self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object], place: OperatorPlace
    ) -> None:
        """Compare a kernel of eager mode on its operands as they are with the same kernel on contiguous ones."""
        if has_meta_tensors(args, kwargs) or time.monotonic() > self._deadline:
            return  # of the second the comparison of decompositions says so
        # An operator that cannot be copied or compared shows nothing, as said of it below.
        with contextlib.suppress(NotImplementedError, RuntimeError, TypeError), use_python_dispatcher(False):
            application = compare_contiguous(func, args, kwargs, place)
            if application is not None:
                self._judge(application)

    def _compare_all(
        self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object], place: OperatorPlace
    ) -> None:
        if has_meta_tensors(args, kwargs):
            return
        if time.monotonic() > self._deadline:
            self._record_unseen("the rest of the operators", "out of time")
            return
        try:
            decomposed = find_decomposition(func, self._table)
            operator = func if decomposed is None else decomposed[0]
            taken = {argument.name for argument in operator._schema.arguments}
            kwargs = {name: value for name, value in kwargs.items() if name in taken}
            wanted = decomposed is not None or self._fake.needs_run(operator, args, kwargs)
            if not wanted:
                return
            with replay_random_stream(operator) as draws, use_python_dispatcher(False):
                kernel = run_operator(operator, args, kwargs)
                if decomposed is not None and len(self._inside) < _MAX_DEPTH:
                    self._compare(operator, decomposed[1], args, kwargs, place, kernel, draws, "decomposition")
                if self._fake.needs_run(operator, args, kwargs):
                    fake = self._fake.run(operator, args, kwargs)
                    if fake is not None:
                        aliases = find_aliases(fake.results, fake.arguments)
                        outcome = OperatorOutcome(fake.results, fake.arguments, aliases, fake.error)
                        given = copy_tree((args, dict(kwargs)))
                        self._judge(Application(operator, "fake", None, place, kernel, outcome, draws, given))
        except (KeyboardInterrupt, MemoryError):
            raise
        except Exception as error:  # an operator that cannot be copied or compared shows nothing
            self._record_unseen(str(func), format_reason(error))

    def _record_unseen(self, what: str, why: str) -> None:
        # Where the culprit is proved by a compile without it, nothing hangs on the operators that were not compared;
        # where it is not, confidence is low anyway.
        shows = "differences between kernels, decompositions and metadata"
        self.watched.unseen.note(Unseen(what, why, (DECOMPOSITION, FAKE_TENSOR), shows, harmless=True))

    def _compare(
        self,
        operator: OpOverload,
        function: Function,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        place: OperatorPlace,
        kernel: OperatorOutcome,
        draws: bool,
        way: str,
    ) -> None:
        around, self._inside = self._inside, (*self._inside, str(operator))
        try:
            if draws:
                seed_everything(_SEED)
            # Inside, this mode is on again: a decomposition runs on kernels, and each of its parts is compared.
            watching = self if way == "decomposition" else None
            function = decompose_on_target(function)
            outcome = run_operator(function, args, kwargs, dispatcher=True, inside=watching)
        finally:
            self._inside = around
        if outcome.results == (NotImplemented,):
            return
        given = copy_tree((args, dict(kwargs)))
        self._judge(Application(operator, way, function, place, kernel, outcome, draws, given))

    def compare_kernel(
        self, operator: OpOverload, kernel: Function, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        """Compare a decomposition of the dispatcher with the operator in C++."""
        if len(self._inside) >= _MAX_DEPTH:
            return
        if time.monotonic() > self._deadline:
            self._record_unseen("the rest of the operators", "out of time")
            return
        try:
            place = self._find_place(operator)
            with _disable_current_modes(), replay_random_stream(operator) as draws, torch.no_grad():
                with use_python_dispatcher(False):
                    own = run_operator(operator, args, kwargs)
                self._compare(operator, kernel, args, kwargs, place, own, draws, "dispatcher")
        except (KeyboardInterrupt, MemoryError):
            raise
        except Exception as error:  # an operator that cannot be copied or compared shows nothing
            self._record_unseen(str(operator), format_reason(error))

    def _find_place(self, func: OpOverload | HigherOrderOperator) -> OperatorPlace:
        node, backward = self._node, False
        running = torch._C._current_autograd_node()
        if self.backward or running is not None:
            backward = True
            node = self._find_forward_node(running)
        where = find_location([node]) if node is not None else None
        if self._where is not None and not backward:
            where = self._where()
        key = (str(func), where)
        if not self._inside:
            self._ordinals[key] += 1
        return OperatorPlace(
            node.name if node is not None else None, where, max(1, self._ordinals[key]), backward, self._inside
        )

    def _find_forward_node(self, running: torch.autograd.graph.Node | None) -> fx.Node | None:
        """The node of the forward pass whose gradient is computed."""
        if running is None:
            return None
        index = bisect.bisect_right(self._starts, running._sequence_nr()) - 1
        return self._nodes[index] if 0 <= index < len(self._nodes) else None


@contextlib.contextmanager
def _watch_kernels(crossref: _CrossrefMode) -> Iterator[None]:
    """Compare every decomposition of the dispatcher that runs."""
    kernels = list_dispatcher_kernels()

    def wrap(operator: OpOverload, kernel: Function) -> Function:
        def run(*args: object, **kwargs: object) -> object:
            crossref.compare_kernel(operator, kernel, args, kwargs)
            return kernel(*args, **kwargs)

        return run

    try:
        for operator, key, kernel in kernels:
            operator.py_kernels[key] = wrap(operator, kernel)
            operator._dispatch_cache.clear()
        yield
    finally:
        for operator, key, kernel in kernels:
            operator.py_kernels[key] = kernel
            operator._dispatch_cache.clear()


def _peek_sequence_number() -> int:
    number = getattr(torch.autograd, "_get_sequence_nr", None)
    return int(number()) if number is not None else 0
