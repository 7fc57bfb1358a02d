"""The decompositions that stand between dynamo's graph and the one of Inductor's passes, and compiles without them.

There are two kinds. Those of Inductor's table are applied to ATen operators below autograd. Others are registered at
the dispatcher, in Python, for operators that consist of others (``aten.dropout``, ``aten.upsample_bilinear2d.vec``):
AOTAutograd traces with these in force, and eager mode runs the C++ of the same operator.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

_COMPILE_FX = "torch._inductor.compile_fx"
_KEYS = ("CompositeImplicitAutograd", "Autograd")


def decomposition_table() -> Mapping[Any, Callable[..., Any]]:
    """The table that Inductor hands to AOTAutograd, as it is now; empty where this torch has none to be found.

    It depends on Inductor's config: see :func:`configured`.
    """
    try:
        return dict(importlib.import_module(_COMPILE_FX).select_decomp_table())
    except (ImportError, AttributeError):
        return {}


@contextlib.contextmanager
def configured(config: Mapping[str, Any]) -> Iterator[None]:
    """Entries of Inductor's config in force, as far as this torch has them: decompositions read them."""
    present = importlib.import_module("torch._inductor.config")
    known = present.get_config_copy()
    with present.patch({key: value for key, value in config.items() if key in known}):
        yield


def dispatcher_kernels() -> list[tuple[Any, Any, Callable[..., Any]]]:
    """Operators that the Python dispatcher decomposes: operator, dispatch key and function."""
    try:
        loaded = importlib.import_module("torch._dispatch.python").all_py_loaded_overloads
        keys = [getattr(torch._C.DispatchKey, name) for name in _KEYS]
    except (ImportError, AttributeError):
        return []
    return [
        (operator, key, operator.py_kernels[key])
        for operator in list(loaded())
        for key in keys
        if key in getattr(operator, "py_kernels", {})
    ]


def decomposition_of(operator: Any, table: Mapping[Any, Callable[..., Any]]) -> tuple[Any, Callable[..., Any]] | None:
    """What functionalization makes of ``operator`` (``aten.add`` of ``aten.add_``), and its decomposition, if any."""
    traced = functional_form(operator) or operator
    if traced._schema.is_mutable and any(argument.is_out for argument in traced._schema.arguments):
        return None
    return (traced, table[traced]) if traced in table else None


def functional_form(operator: Any) -> Any | None:
    """The operator that computes anew what ``operator`` writes in place, by their names; None if there is none.

    It takes the same arguments, save those that are there for their results (``out=``).
    """
    if not operator._schema.is_mutable:
        return None
    namespace, _, name = operator._schema.name.partition("::")
    overload = operator._overloadname
    if overload == "out" or overload.endswith("_out"):
        functional, overload = name, overload[:-4] or "default"
    else:
        functional = name[:-1] if name.endswith("_") and not name.endswith("__") else f"{name}_functional"
    try:
        return getattr(getattr(getattr(torch.ops, namespace), functional), overload)
    except (AttributeError, RuntimeError):
        return None


def operator_name(operator: Any) -> str:
    """``aten.gelu.default``."""
    return str(operator)


def operator_named(name: str) -> Any | None:
    """The operator called ``aten.gelu.default``; None if this torch has none of that name."""
    namespace, _, rest = name.partition(".")
    packet_name, _, overload = rest.rpartition(".")
    try:
        return getattr(getattr(getattr(torch.ops, namespace), packet_name), overload)
    except (AttributeError, RuntimeError):
        return None


def family_of_operator(name: str) -> str:
    """An operator's name without namespace and overload, nor the mark of writing in place: ``celu`` of ``celu_``."""
    parts = name.split(".")
    short = parts[1] if len(parts) > 1 else name
    return short[:-1] if short.endswith("_") and not short.endswith("__") else short


def can_take_out() -> bool:
    """Whether :func:`without` works with the installed torch."""
    try:
        return callable(importlib.import_module(_COMPILE_FX).select_decomp_table)
    except (ImportError, AttributeError):
        return False


@contextlib.contextmanager
def without(names: Sequence[str]) -> Iterator[None]:
    """Compile as if the operators called ``names`` had no decomposition.

    They then reach Inductor, which lowers them or, where it has no lowering, calls the ATen kernel. What it registers
    for that is taken back at the end. With an operator that writes in place goes the one that functionalization makes
    of it. Names that this torch does not know are passed over.
    """
    named = [operator for operator in map(operator_named, names) if operator is not None]
    operators = [form for operator in named for form in (operator, functional_form(operator)) if form is not None]
    if not operators:
        yield
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(_table_without(operators))
        stack.enter_context(_dispatcher_without(operators))
        stack.enter_context(_registrations_restored())
        stack.enter_context(_without_ci())
        yield


@contextlib.contextmanager
def _table_without(operators: Sequence[Any]) -> Iterator[None]:
    try:
        owner = importlib.import_module(_COMPILE_FX)
        original = owner.select_decomp_table
    except (ImportError, AttributeError):
        yield
        return

    def select_decomp_table() -> dict[Any, Any]:
        return {operator: function for operator, function in original().items() if operator not in operators}

    owner.select_decomp_table = select_decomp_table  # type: ignore[attr-defined]
    try:
        yield
    finally:
        owner.select_decomp_table = original  # type: ignore[attr-defined]


@contextlib.contextmanager
def _dispatcher_without(operators: Sequence[Any]) -> Iterator[None]:
    wanted = [(operator, key, kernel) for operator, key, kernel in dispatcher_kernels() if operator in operators]
    try:
        for operator, key, _ in wanted:
            del operator.py_kernels[key]
            operator._dispatch_cache.clear()
        yield
    finally:
        for operator, key, kernel in wanted:
            operator.py_kernels[key] = kernel
            operator._dispatch_cache.clear()


@contextlib.contextmanager
def _registrations_restored() -> Iterator[None]:
    """Forget the fallbacks that Inductor registers for operators it has no lowering for."""
    lowering = importlib.import_module("torch._inductor.lowering")
    known = set(lowering.lowerings)
    fallbacks: set[Any] = getattr(lowering, "fallbacks", set())
    before = set(fallbacks)
    try:
        yield
    finally:
        for added in set(lowering.lowerings) - known:
            del lowering.lowerings[added]
        for added in set(fallbacks) - before:
            fallbacks.discard(added)


@contextlib.contextmanager
def _without_ci() -> Iterator[None]:
    """``make_fallback`` refuses an operator that has a decomposition where the variable CI is set: torch's own gate."""
    kept = os.environ.pop("CI", None)
    try:
        yield
    finally:
        if kept is not None:
            os.environ["CI"] = kept
