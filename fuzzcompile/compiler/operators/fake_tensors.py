"""Results of operators on fake tensors (dtype, shape, strides, memory), and compiles that ask the kernels instead."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.operators.decompositions import find_functional_form
from fuzzcompile.compiler.watch.ledger import Ledger, Unseen
from fuzzcompile.compiler.watch.torch_patch import Function, IntendedError
from fuzzcompile.model.facts import facts

if TYPE_CHECKING:
    from torch._ops import OpOverload
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.utils._pytree import TreeSpec


FAKE_TENSOR_MODULE = "torch._subclasses.fake_tensor"
_FACTS = facts().fake_tensors


@dataclass(frozen=True)
class FakeRun:
    """Leaves of an operator's result and of its arguments as fake tensors, or what was raised."""

    results: tuple[object, ...] = ()
    arguments: tuple[object, ...] = ()
    error: Exception | None = None


class FakeRuns:
    """Runs operators on fake tensors, each once for one kind of arguments."""

    def __init__(self) -> None:
        self._seen: set[object] = set()

    def needs_run(self, operator: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
        """Return whether the operator can run on fake tensors and has not yet run with arguments of this kind."""
        if any(tag.name in _FACTS.unknowable_tags for tag in operator.tags) or operator._schema.name in _FACTS.lifts:
            return False
        return _make_argument_key(operator, args, kwargs) not in self._seen

    def run(self, operator: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> FakeRun | None:
        """The operator on fake tensors; None where they do not say."""
        self._seen.add(_make_argument_key(operator, args, kwargs))
        return run_fake(operator, args, kwargs)


def run_fake(operator: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> FakeRun | None:
    """An operator on fake tensors made of its arguments; None where these do not say what it gives."""
    mode = _make_fake_mode()
    if mode is None:
        return None
    with torch.no_grad(), _enable_python_dispatcher():
        try:
            fake_args, fake_kwargs = pytree.tree_map_only(
                torch.Tensor, lambda tensor: mode.from_tensor(tensor.detach(), static_shapes=True), (args, kwargs)
            )
        except Exception:  # a kind of tensor that has no fake form
            return None
        try:
            with mode:
                result = operator(*fake_args, **fake_kwargs)
        except (KeyboardInterrupt, MemoryError):
            raise
        except Exception as error:  # of the operator: it is the answer
            if any(parent.__name__ in _FACTS.silent_errors for parent in type(error).__mro__):
                return None
            return FakeRun(error=error)
    return FakeRun(tuple(pytree.tree_leaves(result)), tuple(pytree.tree_leaves((fake_args, fake_kwargs))))


def find_fake_function(operator: OpOverload) -> Function | None:
    """The Python function that says what an operator gives on fake tensors; None where C++ does."""
    with contextlib.suppress(ImportError, AttributeError):
        implementations = importlib.import_module("torch._subclasses.fake_impls")
        own = getattr(implementations, "op_implementations_dict", {}).get(operator)
        if own is not None:
            return own  # type: ignore[no-any-return]
    with contextlib.suppress(ImportError, AttributeError):
        kernel = getattr(operator, "py_kernels", {}).get(torch._C.DispatchKey.Meta)
        if kernel is not None:
            return kernel  # type: ignore[no-any-return]
    decompositions = importlib.import_module("torch._decomp")
    for table in (getattr(decompositions, "meta_table", {}), getattr(decompositions, "decomposition_table", {})):
        if operator in table:
            return table[operator]  # type: ignore[no-any-return]
    return None


@dataclass(frozen=True)
class KernelMetadata:
    """Operators whose results are to have the metadata that their kernels give them, and the compile's ledger."""

    names: Sequence[str]
    ledger: Ledger

    def record_unseen(self, unseen: Unseen, error: BaseException | None = None) -> None:
        """Record metadata that could not be replaced."""
        self.ledger.record_unseen(unseen)

    def includes(self, operator: object) -> bool:
        """Return whether the operator, or the functional form of one that writes in place, is among them."""
        form = find_functional_form(operator) if isinstance(operator, torch._ops.OpOverload) else None
        return str(operator) in self.names or str(form) in self.names


def wrap_dispatch(metadata: KernelMetadata, original: Function) -> Function:
    """Answer with the metadata of an operator's results as its kernel gives them.

    It is run on zeros of the shapes and strides that the compiler knows; where these are symbolic, or the operator
    gives a view or takes something else than tensors, the compiler's own answer stands. A kernel that raises whatever
    the values are raises there too.
    """

    def dispatch(mode: FakeTensorMode, func: OpOverload, *rest: object) -> object:
        if metadata.includes(func):
            args, kwargs = cast("tuple[tuple[object, ...], dict[str, object]]", rest[-2:])
            answer = _compute_kernel_metadata(mode, func, args, kwargs or {})
            if answer is not None:
                return answer
        return original(mode, func, *rest)

    return dispatch


@contextlib.contextmanager
def forget_metadata() -> Iterator[None]:
    """Forget what fake tensors said before the block, and what they said in it."""
    forget = getattr(getattr(importlib.import_module(FAKE_TENSOR_MODULE), "FakeTensorMode", None), "cache_clear", None)
    if forget is not None:
        forget()
    try:
        yield
    finally:
        if forget is not None:
            forget()


def _compute_kernel_metadata(
    mode: FakeTensorMode, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
) -> object | None:
    if any(returned.alias_info is not None for returned in func._schema.returns):
        return None
    fake = importlib.import_module(FAKE_TENSOR_MODULE).FakeTensor
    no_dispatch = importlib.import_module("torch.utils._mode_utils").no_dispatch
    flat, spec = pytree.tree_flatten((args, kwargs))
    tensors = [value for value in flat if isinstance(value, torch.Tensor)]
    if not tensors or any(isinstance(value, torch.SymInt) for value in flat):
        return None
    sizes = [size for tensor in tensors for size in (*tensor.size(), *tensor.stride())]
    if any(not isinstance(size, int) for size in sizes):
        return None
    with no_dispatch():
        result, error = _run_on_values(func, flat, spec, fake, 0)
        if error is not None and str(_run_on_values(func, flat, spec, fake, 1)[1]) == str(error):
            raise IntendedError(error)
        if error is not None:
            return None
    converted: object = pytree.tree_map_only(
        torch.Tensor, lambda tensor: mode.fake_tensor_converter.from_real_tensor(mode, tensor), result
    )
    return converted


def _run_on_values(
    func: OpOverload, flat: Sequence[object], spec: TreeSpec, fake: type[FakeTensor], fill: int
) -> tuple[object, Exception | None]:
    """The operator on tensors full of one number, or what it raises."""
    real = [_fill_tensor(value, fill) if isinstance(value, fake) else value for value in flat]
    args, kwargs = pytree.tree_unflatten(real, spec)
    try:
        return func(*args, **kwargs), None
    except Exception as error:  # of the kernel: it is the answer
        return None, error


def _fill_tensor(value: FakeTensor, fill: int) -> torch.Tensor:
    made = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.fake_device)
    return made.fill_(fill)


def _make_fake_mode() -> FakeTensorMode | None:
    try:
        made = importlib.import_module(FAKE_TENSOR_MODULE).FakeTensorMode(allow_non_fake_inputs=True)
    except (ImportError, AttributeError, TypeError):
        return None
    mode: FakeTensorMode = made
    mode.cache_enabled = False  # an answer may have been remembered from before it was patched
    return mode


def _enable_python_dispatcher() -> contextlib.AbstractContextManager[object]:
    switch = getattr(torch._C, "_EnablePythonDispatcher", None)
    return switch() if switch is not None else contextlib.nullcontext()


def _make_argument_key(operator: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    def describe(value: object) -> object:
        if isinstance(value, torch.Tensor):
            return (value.dtype, tuple(value.shape), _get_strides(value), value.device, value.requires_grad)
        return repr(value)

    return operator, tuple(describe(leaf) for leaf in pytree.tree_leaves((args, kwargs)))


def _get_strides(value: torch.Tensor) -> tuple[int, ...]:
    return tuple(value.stride()) if value.layout == torch.strided and not value.is_nested else ()
