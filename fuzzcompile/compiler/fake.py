"""What fake tensors say an operator gives (dtype, shape, strides, memory), and compiles that take it from kernels."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.decompositions import functional_form
from fuzzcompile.facts import facts

_FAKE_TENSOR = "torch._subclasses.fake_tensor"
_FACTS = facts().fake_tensors


@dataclass(frozen=True)
class FakeRun:
    """Leaves of an operator's result and of its arguments as fake tensors, or what was raised."""

    results: tuple[Any, ...] = ()
    arguments: tuple[Any, ...] = ()
    error: Exception | None = None


class FakeRuns:
    """Runs operators on fake tensors, each once for one kind of arguments."""

    def __init__(self) -> None:
        self._seen: set[Any] = set()
        self._key: tuple[int, Any] | None = None

    def unseen(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the operator can be asked, and was not yet with arguments of this kind."""
        if any(tag.name in _FACTS.unknowable_tags for tag in operator.tags) or operator._schema.name in _FACTS.lifts:
            return False
        return _kind(operator, args, kwargs) not in self._seen

    def run(self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FakeRun | None:
        """The operator on fake tensors; None where they do not say."""
        self._seen.add(_kind(operator, args, kwargs))
        return run_fake(operator, args, kwargs)


def run_fake(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> FakeRun | None:
    """An operator on fake tensors made of its arguments; None where these do not say what it gives."""
    mode = _fake_mode()
    if mode is None:
        return None
    with torch.no_grad(), _python_dispatcher():
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
        except Exception as error:
            if any(parent.__name__ in _FACTS.silent_errors for parent in type(error).__mro__):
                return None
            return FakeRun(error=error)
    return FakeRun(tuple(pytree.tree_leaves(result)), tuple(pytree.tree_leaves((fake_args, fake_kwargs))))


def fake_function(operator: Any) -> Callable[..., Any] | None:
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


@contextlib.contextmanager
def metadata_from_kernels(names: Sequence[str]) -> Iterator[None]:
    """Compile with the metadata of these operators' results as their kernels give them.

    Each is run on zeros of the shapes and strides that the compiler knows; where these are symbolic, or the operator
    gives a view or takes something else than tensors, the compiler's own answer stands. A kernel that raises whatever
    the values are raises there too.
    """
    owner = getattr(importlib.import_module(_FAKE_TENSOR), "FakeTensorMode", None)
    original = getattr(owner, "_dispatch_impl", None)
    if not names or original is None:
        yield
        return

    def dispatch(mode: Any, func: Any, *rest: Any) -> Any:
        if str(func) in names or str(functional_form(func) if hasattr(func, "_schema") else None) in names:
            args, kwargs = rest[-2], rest[-1]
            found = _from_kernel(mode, func, args, kwargs or {})
            if found is not None:
                return found
        return original(mode, func, *rest)

    owner._dispatch_impl = dispatch  # type: ignore[union-attr]
    cached = getattr(owner, "cache_clear", None)
    if cached is not None:
        cached()
    try:
        yield
    finally:
        owner._dispatch_impl = original  # type: ignore[union-attr]
        if cached is not None:
            cached()


def _from_kernel(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any | None:
    if any(returned.alias_info is not None for returned in func._schema.returns):
        return None
    fake = importlib.import_module(_FAKE_TENSOR).FakeTensor
    no_dispatch = importlib.import_module("torch.utils._mode_utils").no_dispatch
    flat, spec = pytree.tree_flatten((args, kwargs))
    tensors = [value for value in flat if isinstance(value, torch.Tensor)]
    if not tensors or any(isinstance(value, torch.SymInt) for value in flat):
        return None
    sizes = [size for tensor in tensors for size in (*tensor.size(), *tensor.stride())]
    if any(not isinstance(size, int) for size in sizes):
        return None
    try:
        with no_dispatch():
            result, error = _on_values(func, flat, spec, fake, 0)
            if error is not None and str(_on_values(func, flat, spec, fake, 1)[1]) == str(error):
                raise _Refused(error)
            if error is not None:
                return None
        return pytree.tree_map_only(
            torch.Tensor, lambda tensor: mode.fake_tensor_converter.from_real_tensor(mode, tensor), result
        )
    except _Refused as refused:
        raise refused.error from None
    except Exception:
        return None


class _Refused(Exception):
    """The kernel raises whatever the values are."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def _on_values(func: Any, flat: Sequence[Any], spec: Any, fake: type, fill: int) -> tuple[Any, Exception | None]:
    """The operator on tensors full of one number, or what it raises."""
    real = [_filled(value, fill) if isinstance(value, fake) else value for value in flat]
    args, kwargs = pytree.tree_unflatten(real, spec)
    try:
        return func(*args, **kwargs), None
    except Exception as error:
        return None, error


def _filled(value: Any, fill: int) -> torch.Tensor:
    made = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.fake_device)
    return made.fill_(fill)


def _fake_mode() -> Any | None:
    try:
        mode = importlib.import_module(_FAKE_TENSOR).FakeTensorMode(allow_non_fake_inputs=True)
    except (ImportError, AttributeError, TypeError):
        return None
    mode.cache_enabled = False  # an answer may have been remembered from before it was patched
    return mode


def _python_dispatcher() -> contextlib.AbstractContextManager[Any]:
    switch = getattr(torch._C, "_EnablePythonDispatcher", None)
    return switch() if switch is not None else contextlib.nullcontext()


def _kind(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    def told(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return (value.dtype, tuple(value.shape), _strides(value), value.device, value.requires_grad)
        return repr(value)

    return operator, tuple(told(leaf) for leaf in pytree.tree_leaves((args, kwargs)))


def _strides(value: torch.Tensor) -> tuple[int, ...]:
    return tuple(value.stride()) if value.layout == torch.strided and not value.is_nested else ()
