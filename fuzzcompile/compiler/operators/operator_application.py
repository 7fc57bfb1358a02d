"""One application of an operator, computed in several ways on copies of its real arguments."""

from __future__ import annotations

import contextlib
import functools
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fuzzcompile.compiler.graph_replay import GraphReplayer
from fuzzcompile.compiler.operators.decompositions import find_operator
from fuzzcompile.compiler.watch.ledger import Snapshot
from fuzzcompile.compiler.watch.rule_labels import find_location
from fuzzcompile.model.facts import facts
from fuzzcompile.run.arithmetic_modes import Float64Mode
from fuzzcompile.run.device import seed_everything
from fuzzcompile.run.tensors import (
    copy_tree,
    has_meta_tensors,
    list_significant_strides,
    map_tensors,
    materialize_zeros,
)

if TYPE_CHECKING:
    from torch._ops import OpOverload


# One application of an operator, computed in several ways on copies of its real arguments.

_EPS = torch.finfo(torch.float64).eps
_DRAW_SEED = 11


@dataclass(frozen=True)
class OperatorOutcome:
    """Result of one way of computing an operator: leaves of its result, its arguments afterwards, or an error.

    ``aliases`` are pairs of a result and an argument, by position, that share memory.
    """

    results: tuple[Any, ...] = ()
    arguments: tuple[Any, ...] = ()
    aliases: frozenset[tuple[int, int]] = frozenset()
    error: Exception | None = None


@dataclass(frozen=True)
class OperatorPlace:
    """Place of an operator in dynamo's graph: the node (of the forward pass, for gradients too) and its source line.

    ``ordinal`` counts the operators of this name on the line. ``inside`` are the decompositions around it.
    """

    node: str | None = None
    location: str | None = None
    ordinal: int = 1
    backward: bool = False
    inside: tuple[str, ...] = ()


@dataclass(frozen=True)
class Application:
    """One operator on its real arguments, computed by its own kernel and in another way (one of ``WAYS``)."""

    operator: OpOverload
    way: str
    function: Callable[..., object] | None
    place: OperatorPlace
    kernel: OperatorOutcome
    other: OperatorOutcome
    draws: bool = False
    _arguments: tuple[tuple[object, ...], dict[str, object]] = field(default=((), {}), repr=False)

    @property
    def initial_arguments(self) -> tuple[tuple[object, ...], dict[str, object]]:
        """The arguments, as they were before any way ran."""
        return self._arguments

    def refuses_always(self) -> bool:
        """Return whether the kernel raises the same on other values, so that no values are needed to see the fault."""
        message = str(self.kernel.error)
        for fill in (0, 1):
            given = map_tensors(functools.partial(torch.full_like, fill_value=fill), copy_tree(self._arguments))
            again = run_operator(self.operator, *given)
            if again.error is None or str(again.error) != message:
                return False
        return True

    def pair_arguments(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The tensors among the arguments before and after the kernel ran."""
        before = pytree.tree_leaves(self._arguments)
        pairs = zip(before, self.kernel.arguments, strict=False)
        return [(a, b) for a, b in pairs if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)]

    def compute_in_float64(self, *, noise: int | None = None) -> tuple[OperatorOutcome, OperatorOutcome] | None:
        """Both ways in float64; with ``noise``, on arguments moved by one ulp of float64. None if it cannot be run."""
        if self.function is None or self.draws:
            return None
        given = copy_tree(self._arguments, double=True)
        if noise is not None:
            generator = torch.Generator().manual_seed(noise)
            given = map_tensors(lambda tensor: _add_noise(tensor, generator), given)
        one = run_operator(self.operator, *given, double=True)
        other = run_operator(self.function, *given, double=True, dispatcher=True)
        return None if one.error is not None or other.error is not None else (one, other)


def run_operator(
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    *,
    double: bool = False,
    dispatcher: bool = False,
    inside: contextlib.AbstractContextManager[object] | None = None,
) -> OperatorOutcome:
    """Run ``function`` on copies of its arguments, natively or in float64, with Python's dispatcher or without."""
    copies, named = copy_tree((args, dict(kwargs)), double=double)
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(use_python_dispatcher(dispatcher))
        if inside is not None:
            stack.enter_context(inside)
        if double:
            stack.enter_context(Float64Mode(keep_casts=False))
        try:
            result = function(*copies, **named)
        except (KeyboardInterrupt, MemoryError):
            raise
        except Exception as error:  # of the operator: it is the answer
            return OperatorOutcome(error=error)
    results = tuple(pytree.tree_leaves(result)) if result is not NotImplemented else (NotImplemented,)
    arguments = tuple(pytree.tree_leaves((copies, named)))
    return OperatorOutcome(results, arguments, find_aliases(results, arguments))


def find_aliases(results: Sequence[object], arguments: Sequence[object]) -> frozenset[tuple[int, int]]:
    """Pairs of a result and an argument, by position, that lie in one storage."""
    held = [(position, _storage_pointer(value)) for position, value in enumerate(arguments)]
    found = [(position, _storage_pointer(value)) for position, value in enumerate(results)]
    return frozenset((i, j) for i, one in found for j, other in held if one is not None and one == other)


def use_python_dispatcher(enabled: bool) -> contextlib.AbstractContextManager[object]:
    """Python's dispatcher in force or not; as it is, where this torch has no such switch."""
    switch = getattr(torch._C, "_EnablePythonDispatcher" if enabled else "_DisablePythonDispatcher", None)
    return switch() if switch is not None else contextlib.nullcontext()


def _add_noise(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if not tensor.is_floating_point() or tensor.layout != torch.strided or not tensor.numel():
        return tensor
    draw = torch.randint(-1, 2, tensor.shape, generator=generator).to(tensor.device, tensor.dtype)
    moved = tensor.detach() * (1 + _EPS * draw)
    if 0 in tensor.stride():  # one element for many: each is moved on its own
        return moved
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(moved)


def _storage_pointer(value: object) -> int | None:
    if not isinstance(value, torch.Tensor):
        return None
    with contextlib.suppress(NotImplementedError, RuntimeError):
        return value.untyped_storage()._cdata if value.numel() else None
    return None


@contextlib.contextmanager
def replay_random_stream(operator: OpOverload) -> Iterator[bool]:
    """Have an operator that draws random numbers draw the same again, and leave the stream as it was."""
    draws = torch.Tag.nondeterministic_seeded in operator.tags
    if not draws:
        yield False
        return
    with torch.random.fork_rng():
        seed_everything(_DRAW_SEED)
        yield True


CONTIGUOUS = "contiguous"
_RUN_SEED = 11
ApplicationJudge = Callable[[Application], None]


def call_on_contiguous(operator: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """The operator on contiguous copies of its operands."""
    args, kwargs = _make_contiguous((args, kwargs))
    return operator(*args, **kwargs)


def compare_contiguous(
    operator: OpOverload, args: tuple[object, ...], kwargs: dict[str, object], place: OperatorPlace
) -> Application | None:
    """A kernel on its operands as they are, and on contiguous copies; None where layouts cannot matter, or may.

    They cannot where all operands are contiguous. They may in views, in operators that write or leave unwritten, and
    in those that take a place in a storage to read from.
    """
    leaves = pytree.tree_leaves((args, kwargs))
    if all(map(_is_contiguous, leaves)) or not _is_function_of_values(operator):
        return None
    with replay_random_stream(operator) as draws:
        if draws:
            return None
        kernel = run_operator(operator, args, kwargs)
        plain = run_operator(lambda *a, **k: call_on_contiguous(operator, a, k), args, kwargs)
    given = copy_tree((args, dict(kwargs)))
    return Application(
        operator, CONTIGUOUS, lambda *a, **k: call_on_contiguous(operator, a, k), place, kernel, plain, False, given
    )


def _is_function_of_values(operator: OpOverload) -> bool:
    schema = operator._schema
    named = schema.name.rpartition("::")[2] in facts().operators.uninitialised
    told = any(argument.name == "storage_offset" for argument in schema.arguments)
    aliased = any(value.alias_info is not None for value in (*schema.arguments, *schema.returns))
    return not (named or told or aliased)


def _is_contiguous(value: object) -> bool:
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_nested or value.numel() < 2:
        return True
    return list_significant_strides(value) == list_significant_strides(torch.empty(value.shape, device="meta"))


def _make_contiguous(tree: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda tensor: _copy_contiguous(tensor), tree)


def _copy_contiguous(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout != torch.strided or tensor.is_nested or _is_contiguous(tensor):
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def watch_kernels(snapshot: Snapshot, inputs: Sequence[object], judge: ApplicationJudge) -> Exception | None:
    """Run an ATen graph and have ``judge`` see each kernel that gets operands which are not contiguous.

    Args:
        snapshot: the graph.
        inputs: values of its placeholders, in order; copied before the run.
        judge: called with each application, in the order of execution.

    Returns:
        The error that ended the run; None if it came to its end.
    """
    seed_everything(_RUN_SEED)
    interpreter = GraphReplayer(snapshot)
    try:
        with torch.no_grad(), _KernelMode(interpreter, judge):
            interpreter.run(*copy_tree(list(inputs)))
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:  # of the graph: kernels up to there were seen
        return error
    return None


class _KernelMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, interpreter: GraphReplayer, judge: ApplicationJudge) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._interpreter, self._judge = interpreter, judge

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        args, kwargs = pytree.tree_map(materialize_zeros, (args, kwargs or {}))
        node = self._interpreter.node
        if isinstance(func, torch._ops.OpOverload) and node is not None and not has_meta_tensors(args, kwargs):
            where = OperatorPlace(node.name, find_location([node]), backward=bool(node.meta.get("autograd_backward")))
            # An operator that cannot be copied or compared shows nothing.
            with contextlib.suppress(NotImplementedError, RuntimeError, TypeError):
                application = compare_contiguous(func, args, kwargs, where)
                if application is not None:
                    self._judge(application)
        return func(*args, **kwargs)


@contextlib.contextmanager
def use_contiguous_operands(names: Sequence[str]) -> Iterator[None]:
    """In the block, the kernels of operators get contiguous copies of their operands, in eager and compiled code.

    Their results have the layout that the kernels give them on the operands as they are, which compilers rely on. With
    an operator goes its overload that writes to ``out``, which Inductor calls in its place.

    Args:
        names: the operators (``aten.add.Tensor``); those that this torch does not know are passed over.
    """
    keys = ("CPU", "CUDA") if torch.cuda.is_available() else ("CPU",)
    with contextlib.ExitStack() as stack:
        for operator, key in itertools.product(_add_out_overloads(names), keys):
            stack.enter_context(_replace_kernel(operator, key))
        yield


def _add_out_overloads(names: Sequence[str]) -> list[OpOverload]:
    functional = [operator for operator in map(find_operator, names) if operator is not None]
    outs = [
        find_operator(f"{str(operator).rpartition('.')[0]}.{_name_out_overload(operator)}") for operator in functional
    ]
    return [*functional, *(operator for operator in outs if operator is not None)]


def _name_out_overload(operator: OpOverload) -> str:
    overload = operator._schema.overload_name
    return f"{overload}_out" if overload else "out"


@contextlib.contextmanager
def _replace_kernel(operator: OpOverload, key: str) -> Iterator[None]:
    kernel = torch.library.get_kernel(operator, key)
    namespace, _, name = operator._schema.name.partition("::")
    written = {argument.name for argument in operator._schema.arguments if argument.is_out}

    def run(keys: torch._C.DispatchKeySet, *args: object, **kwargs: object) -> object:
        read = {name: value for name, value in kwargs.items() if name not in written}
        outs = {name: value for name, value in kwargs.items() if name in written}
        if all(map(_is_contiguous, pytree.tree_leaves((args, read)))):
            return kernel.call_boxed(keys, *args, **kwargs)
        plain_args, plain_kwargs = _make_contiguous((args, read))
        plain = kernel.call_boxed(keys, *plain_args, **plain_kwargs, **outs)
        if outs:
            return plain
        try:
            given = kernel.call_boxed(keys, *args, **kwargs)
        except Exception:  # the kernel refuses such operands, which is what it is doubted for
            return plain
        return pytree.tree_map(_copy_layout, given, plain)

    make: Callable[..., Any] = torch.library.Library
    library = make(namespace, "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that a kernel is replaced: it is meant to be
            library.impl(f"{name}.{operator._schema.overload_name}".rstrip("."), run, key, with_keyset=True)
        yield
    finally:
        library._destroy()


def _copy_layout(given: object, plain: object) -> object:
    """The values of ``plain`` in the layout of ``given``."""
    if isinstance(given, torch.Tensor) and isinstance(plain, torch.Tensor) and given.shape == plain.shape:
        return given.copy_(plain)
    return plain
