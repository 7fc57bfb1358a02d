"""The decompositions that stand between dynamo's graph and the one of Inductor's passes, and compiles without them.

There are two kinds. Those of Inductor's table are applied to ATen operators below autograd. Others are registered at
the dispatcher, in Python, for operators that consist of others (``aten.dropout``, ``aten.upsample_bilinear2d.vec``):
AOTAutograd traces with these in force, and eager mode runs the C++ of the same operator.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch

from fuzzcompile.compiler.configs import patched
from fuzzcompile.compiler.ledger import Ledger
from fuzzcompile.compiler.patching import Function
from fuzzcompile.compiler.unseen import Unseen

if TYPE_CHECKING:
    from torch._C import DispatchKey
    from torch._ops import OpOverload

COMPILE_FX = "torch._inductor.compile_fx"
_KEYS = ("CompositeImplicitAutograd", "Autograd")


def decomposition_table() -> Mapping[OpOverload, Function]:
    """The table that Inductor hands to AOTAutograd, as it is now; empty where this torch has none to be found.

    It depends on Inductor's config: see :func:`configured`.
    """
    try:
        return dict(importlib.import_module(COMPILE_FX).select_decomp_table())
    except (ImportError, AttributeError):
        return {}


@contextlib.contextmanager
def configured(config: Mapping[str, object]) -> Iterator[None]:
    """Entries of Inductor's config in force, as far as this torch has them: decompositions read them."""
    with patched("inductor", config):
        yield


def dispatcher_kernels() -> list[tuple[OpOverload, DispatchKey, Function]]:
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


def decomposition_of(operator: OpOverload, table: Mapping[OpOverload, Function]) -> tuple[OpOverload, Function] | None:
    """Return the form of ``operator`` after functionalization (``aten.add`` of ``aten.add_``) and its decomposition."""
    traced = functional_form(operator) or operator
    if traced._schema.is_mutable and any(argument.is_out for argument in traced._schema.arguments):
        return None
    return (traced, table[traced]) if traced in table else None


def functional_form(operator: OpOverload) -> OpOverload | None:
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
        return cast("OpOverload", getattr(getattr(getattr(torch.ops, namespace), functional), overload))
    except (AttributeError, RuntimeError):
        return None


def operator_name(operator: object) -> str:
    """``aten.gelu.default``."""
    return str(operator)


def operator_named(name: str) -> OpOverload | None:
    """The operator called ``aten.gelu.default``; None if this torch has none of that name."""
    namespace, _, rest = name.partition(".")
    packet_name, _, overload = rest.rpartition(".")
    try:
        return cast("OpOverload", getattr(getattr(getattr(torch.ops, namespace), packet_name), overload))
    except (AttributeError, RuntimeError):
        return None


def family_of_operator(name: str) -> str:
    """An operator's name without namespace and overload, nor the mark of writing in place: ``celu`` of ``celu_``."""
    parts = name.split(".")
    short = parts[1] if len(parts) > 1 else name
    return short[:-1] if short.endswith("_") and not short.endswith("__") else short


def can_take_out() -> bool:
    """Return whether this torch has the table that decompositions can be left out of."""
    try:
        return callable(importlib.import_module(COMPILE_FX).select_decomp_table)
    except (ImportError, AttributeError):
        return False


@dataclass(frozen=True)
class Removal:
    """Operators that a compile is to do without decompositions of, and its ledger.

    With an operator that writes in place goes the one that functionalization makes of it. Names that this torch does
    not know are passed over.
    """

    names: Sequence[str]
    ledger: Ledger

    @functools.cached_property
    def operators(self) -> tuple[OpOverload, ...]:
        """The operators, each with its functional form."""
        named = [operator for operator in map(operator_named, self.names) if operator is not None]
        return tuple(form for operator in named for form in (operator, functional_form(operator)) if form is not None)

    def missed(self, unseen: Unseen, error: BaseException | None = None) -> None:
        """Record a decomposition that could not be left out."""
        self.ledger.missed(unseen)


def wrap_table(removal: Removal, original: Function) -> Function:
    """Leave operators out of the table that Inductor hands to AOTAutograd."""

    def select_decomp_table() -> object:
        table = cast("Mapping[OpOverload, Function]", original())
        return {operator: function for operator, function in table.items() if operator not in removal.operators}

    return select_decomp_table


@contextlib.contextmanager
def undecomposed(removal: Removal) -> Iterator[None]:
    """Keep the Python dispatcher from decomposing the operators.

    They then reach Inductor, which lowers them or, where it has no lowering, calls the ATen kernel. What it registers
    for that is taken back at the end.
    """
    with _dispatcher_without(removal.operators), _registrations_restored(), _without_ci():
        yield


@contextlib.contextmanager
def _dispatcher_without(operators: Sequence[OpOverload]) -> Iterator[None]:
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
    fallbacks: set[object] = getattr(lowering, "fallbacks", set())
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
