"""ATen kernels on operands of the layouts that a program gives them, beside the same kernels on contiguous copies.

An operator is a function of values: what its kernel gives does not depend on strides. One that does is at fault,
whether eager mode alone hands it such operands or the compiled program does.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fuzzcompile.compiler.applications import Application, Place, outcome_of, same_stream
from fuzzcompile.compiler.decompositions import operator_named
from fuzzcompile.compiler.labels import location
from fuzzcompile.compiler.ledger import Snapshot
from fuzzcompile.compiler.replay import _Replayer
from fuzzcompile.execution.device import seed_everything
from fuzzcompile.execution.tensors import copy_tree, significant_strides, with_memory, without_values
from fuzzcompile.facts import facts

if TYPE_CHECKING:
    from torch._ops import OpOverload

CONTIGUOUS = "contiguous"
_SEED = 11
Judge = Callable[[Application], None]


def on_contiguous(operator: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """The operator on contiguous copies of its operands."""
    args, kwargs = _contiguous((args, kwargs))
    return operator(*args, **kwargs)


def beside_contiguous(
    operator: OpOverload, args: tuple[object, ...], kwargs: dict[str, object], place: Place
) -> Application | None:
    """A kernel on its operands as they are, and on contiguous copies; None where layouts cannot matter, or may.

    They cannot where all operands are contiguous. They may in views, in operators that write or leave unwritten, and
    in those that take a place in a storage to read from.
    """
    leaves = pytree.tree_leaves((args, kwargs))
    if all(map(_is_contiguous, leaves)) or not _is_function_of_values(operator):
        return None
    with same_stream(operator) as draws:
        if draws:
            return None
        kernel = outcome_of(operator, args, kwargs)
        plain = outcome_of(lambda *a, **k: on_contiguous(operator, a, k), args, kwargs)
    given = copy_tree((args, dict(kwargs)))
    return Application(
        operator, CONTIGUOUS, lambda *a, **k: on_contiguous(operator, a, k), place, kernel, plain, False, given
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
    return significant_strides(value) == significant_strides(torch.empty(value.shape, device="meta"))


def _contiguous(tree: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda tensor: _copied(tensor), tree)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout != torch.strided or tensor.is_nested or _is_contiguous(tensor):
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def watch_kernels(snapshot: Snapshot, inputs: Sequence[object], judge: Judge) -> Exception | None:
    """Run an ATen graph and have ``judge`` see each kernel that gets operands which are not contiguous.

    Args:
        snapshot: the graph.
        inputs: values of its placeholders, in order; copied before the run.
        judge: called with each application, in the order of execution.

    Returns:
        The error that ended the run; None if it came to its end.
    """
    seed_everything(_SEED)
    interpreter = _Interpreter(snapshot)
    try:
        with torch.no_grad(), _Kernels(interpreter, judge):
            interpreter.run(*copy_tree(list(inputs)))
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:  # of the graph: kernels up to there were seen
        return error
    return None


class _Interpreter(_Replayer):
    node: fx.Node | None = None

    def run_node(self, n: fx.Node) -> object:
        """Run one node, and remember which."""
        self.node = n
        return super().run_node(n)


class _Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, interpreter: _Interpreter, judge: Judge) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._interpreter, self._judge = interpreter, judge

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        args, kwargs = pytree.tree_map(with_memory, (args, kwargs or {}))
        node = self._interpreter.node
        if isinstance(func, torch._ops.OpOverload) and node is not None and not without_values(args, kwargs):
            where = Place(node.name, location([node]), backward=bool(node.meta.get("autograd_backward")))
            # An operator that cannot be copied or compared shows nothing.
            with contextlib.suppress(NotImplementedError, RuntimeError, TypeError):
                application = beside_contiguous(func, args, kwargs, where)
                if application is not None:
                    self._judge(application)
        return func(*args, **kwargs)


@contextlib.contextmanager
def given_contiguous(names: Sequence[str]) -> Iterator[None]:
    """In the block, the kernels of operators get contiguous copies of their operands, in eager and compiled code.

    Their results have the layout that the kernels give them on the operands as they are, which compilers rely on. With
    an operator goes its overload that writes to ``out``, which Inductor calls in its place.

    Args:
        names: the operators (``aten.add.Tensor``); those that this torch does not know are passed over.
    """
    keys = ("CPU", "CUDA") if torch.cuda.is_available() else ("CPU",)
    with contextlib.ExitStack() as stack:
        for operator, key in itertools.product(_with_out(names), keys):
            stack.enter_context(_replaced(operator, key))
        yield


def _with_out(names: Sequence[str]) -> list[OpOverload]:
    functional = [operator for operator in map(operator_named, names) if operator is not None]
    outs = [operator_named(f"{str(operator).rpartition('.')[0]}.{_out_of(operator)}") for operator in functional]
    return [*functional, *(operator for operator in outs if operator is not None)]


def _out_of(operator: OpOverload) -> str:
    overload = operator._schema.overload_name
    return f"{overload}_out" if overload else "out"


@contextlib.contextmanager
def _replaced(operator: OpOverload, key: str) -> Iterator[None]:
    kernel = torch.library.get_kernel(operator, key)
    namespace, _, name = operator._schema.name.partition("::")
    written = {argument.name for argument in operator._schema.arguments if argument.is_out}

    def run(keys: torch._C.DispatchKeySet, *args: object, **kwargs: object) -> object:
        read = {name: value for name, value in kwargs.items() if name not in written}
        outs = {name: value for name, value in kwargs.items() if name in written}
        if all(map(_is_contiguous, pytree.tree_leaves((args, read)))):
            return kernel.call_boxed(keys, *args, **kwargs)
        plain_args, plain_kwargs = _contiguous((args, read))
        plain = kernel.call_boxed(keys, *plain_args, **plain_kwargs, **outs)
        if outs:
            return plain
        try:
            given = kernel.call_boxed(keys, *args, **kwargs)
        except Exception:  # the kernel refuses such operands, which is what it is doubted for
            return plain
        return pytree.tree_map(_laid_out_as, given, plain)

    make: Callable[..., Any] = torch.library.Library
    library = make(namespace, "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that a kernel is replaced: it is meant to be
            library.impl(f"{name}.{operator._schema.overload_name}".rstrip("."), run, key, with_keyset=True)
        yield
    finally:
        library._destroy()


def _laid_out_as(given: object, plain: object) -> object:
    """The values of ``plain`` in the layout of ``given``."""
    if isinstance(given, torch.Tensor) and isinstance(plain, torch.Tensor) and given.shape == plain.shape:
        return given.copy_(plain)
    return plain
