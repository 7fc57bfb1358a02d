"""Results of operators on fake tensors (dtype, shape, strides, memory), and compiles that ask the kernels instead."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.operators.decompositions import ChosenOperators, find_functional_form
from fuzzcompile.compiler.operators.operator_application import (
    OperatorOutcome,
    run_operator,
    use_python_dispatcher,
)
from fuzzcompile.compiler.watch.torch_patch import Function, IntendedError
from fuzzcompile.model.facts import facts

if TYPE_CHECKING:
    from torch._ops import OpOverload
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.utils._pytree import TreeSpec

FAKE_TENSOR_MODULE = "torch._subclasses.fake_tensor"
_FACTS = facts().fake_tensors


def run_fake(operator: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> OperatorOutcome | None:
    """An operator on fake tensors made of its arguments; None where these do not say what it gives."""
    if any(tag.name in _FACTS.unknowable_tags for tag in operator.tags) or operator._schema.name in _FACTS.lifts:
        return None
    try:
        mode = importlib.import_module(FAKE_TENSOR_MODULE).FakeTensorMode(allow_non_fake_inputs=True)
    except (ImportError, AttributeError, TypeError):
        return None
    mode.cache_enabled = False  # an answer may have been remembered from before it was patched
    with torch.no_grad(), use_python_dispatcher(True):
        try:
            fake_args, fake_kwargs = pytree.tree_map_only(
                torch.Tensor, lambda tensor: mode.from_tensor(tensor.detach(), static_shapes=True), (args, kwargs)
            )
        except Exception:  # a kind of tensor that has no fake form
            return None
        outcome = run_operator(operator, fake_args, fake_kwargs, dispatcher=True, inside=mode, copied=False)
    kinds = [] if outcome.error is None else type(outcome.error).__mro__
    return None if any(kind.__name__ in _FACTS.silent_errors for kind in kinds) else outcome


def find_fake_function(operator: OpOverload) -> Function | None:
    """The Python function that says what an operator gives on fake tensors; None where C++ does."""
    with contextlib.suppress(ImportError, AttributeError):
        own = importlib.import_module("torch._subclasses.fake_impls").op_implementations_dict.get(operator)
        if own is not None:
            return cast(Function, own)
    kernel = getattr(operator, "py_kernels", {}).get(torch._C.DispatchKey.Meta)
    decompositions = importlib.import_module("torch._decomp")
    tables = [getattr(decompositions, name, {}) for name in ("meta_table", "decomposition_table")]
    return kernel or next((table[operator] for table in tables if operator in table), None)


def wrap_dispatch(chosen: ChosenOperators, original: Function) -> Function:
    """Answer with the metadata of an operator's results as its kernel gives them.

    It is run on zeros of the shapes and strides that the compiler knows; where these are symbolic, or the operator
    gives a view or takes something else than tensors, the compiler's own answer stands. A kernel that raises whatever
    the values are raises there too.
    """

    def dispatch(mode: FakeTensorMode, func: OpOverload, *rest: object) -> object:
        form = find_functional_form(func) if isinstance(func, torch._ops.OpOverload) else None
        if str(func) in chosen.names or str(form) in chosen.names:
            args, kwargs = cast("tuple[tuple[object, ...], dict[str, object]]", rest[-2:])
            answer = _compute_kernel_metadata(mode, func, args, kwargs or {})
            if answer is not None:
                return answer
        return original(mode, func, *rest)

    return dispatch


@contextlib.contextmanager
def forget_metadata() -> Iterator[None]:
    """Forget what fake tensors said before the block, and what they said in it."""
    mode = getattr(importlib.import_module(FAKE_TENSOR_MODULE), "FakeTensorMode", None)
    forget: Function = getattr(mode, "cache_clear", lambda: None)
    forget()
    try:
        yield
    finally:
        forget()


def _compute_kernel_metadata(
    mode: FakeTensorMode, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
) -> object | None:
    if any(returned.alias_info is not None for returned in func._schema.returns):
        return None
    no_dispatch = importlib.import_module("torch.utils._mode_utils").no_dispatch
    flat, spec = pytree.tree_flatten((args, kwargs))
    tensors = [value for value in flat if isinstance(value, torch.Tensor)]
    sizes = [size for tensor in tensors for size in (*tensor.size(), *tensor.stride())]
    if not tensors or any(isinstance(value, torch.SymInt) for value in (*flat, *sizes)):
        return None
    with no_dispatch():
        result, error = _run_on_values(func, flat, spec, 0)
        if error is not None and str(_run_on_values(func, flat, spec, 1)[1]) == str(error):
            raise IntendedError(error)
        if error is not None:
            return None
    converted: object = pytree.tree_map_only(
        torch.Tensor, lambda tensor: mode.fake_tensor_converter.from_real_tensor(mode, tensor), result
    )
    return converted


def _run_on_values(
    func: OpOverload, flat: Sequence[object], spec: TreeSpec, fill: int
) -> tuple[object, Exception | None]:
    fake = importlib.import_module(FAKE_TENSOR_MODULE).FakeTensor
    args, kwargs = pytree.tree_unflatten(
        [_fill_tensor(value, fill) if isinstance(value, fake) else value for value in flat], spec
    )
    try:
        return func(*args, **kwargs), None
    except Exception as error:  # of the kernel: it is the answer
        return None, error


def _fill_tensor(value: FakeTensor, fill: int) -> torch.Tensor:
    made = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.fake_device)
    return made.fill_(fill)
