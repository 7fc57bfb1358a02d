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

from fuzzcompile.compiler.watch.ledger import Ledger
from fuzzcompile.compiler.watch.torch_patch import Function
from fuzzcompile.compiler.watch.unseen import Unseen
from fuzzcompile.model.facts import facts
from fuzzcompile.run.torch_attributes import ReplacedAttribute

if TYPE_CHECKING:
    from torch._C import DispatchKey
    from torch._ops import OpOverload

_KEYS = ("CompositeImplicitAutograd", "Autograd")


def read_decomposition_table() -> Mapping[OpOverload, Function]:
    """The table that Inductor hands to AOTAutograd under its present config; empty where this torch has none."""
    make = getattr(importlib.import_module("torch._inductor.compile_fx"), "select_decomp_table", dict)
    return dict(cast("Mapping[OpOverload, Function]", make()))


def list_dispatcher_kernels() -> list[tuple[OpOverload, DispatchKey, Function]]:
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


def put_dispatcher_kernel(operator: OpOverload, key: DispatchKey, kernel: Function | None) -> None:
    """Give an operator a kernel of the Python dispatcher; None for no kernel there."""
    DISPATCHER_KERNELS.put_entry(key, kernel, operator)
    operator._dispatch_cache.clear()


def _probe_dispatcher_kernels() -> str | None:
    operator, x, called = torch.ops.aten.dropout.default, torch.ones(1), list[object]()

    def kernel(*args: object) -> object:
        called.append(args)
        return x

    dispatching = importlib.import_module("torch._dispatch.python").enable_python_dispatcher
    kernels = [(operator, getattr(torch._C.DispatchKey, name), kernel) for name in _KEYS]
    with replace_dispatcher_kernels(kernels), dispatching():
        operator(x, 0.5, False)
    return None if called else "they are not called"


# Every operator has its own.
DISPATCHER_KERNELS = ReplacedAttribute("torch", "ops.aten.dropout.default.py_kernels", probe=_probe_dispatcher_kernels)


@contextlib.contextmanager
def replace_dispatcher_kernels(kernels: Sequence[tuple[OpOverload, DispatchKey, Function | None]]) -> Iterator[None]:
    """Other kernels of the Python dispatcher in the block; None for no kernel there."""
    before = [(operator, key, operator.py_kernels[key]) for operator, key, _ in kernels]

    def register(kernels: Sequence[tuple[OpOverload, DispatchKey, Function | None]]) -> None:
        for operator, key, kernel in kernels:
            put_dispatcher_kernel(operator, key, kernel)

    try:
        register(kernels)
        yield
    finally:
        register(before)


def find_decomposition(
    operator: OpOverload, table: Mapping[OpOverload, Function]
) -> tuple[OpOverload, Function] | None:
    """Return the form of ``operator`` after functionalization (``aten.add`` of ``aten.add_``) and its decomposition."""
    traced = find_functional_form(operator) or operator
    if traced._schema.is_mutable and any(argument.is_out for argument in traced._schema.arguments):
        return None
    return (traced, table[traced]) if traced in table else None


def find_functional_form(operator: OpOverload) -> OpOverload | None:
    """The operator that computes anew what ``operator`` writes in place; None if there is none.

    It takes the same arguments, save those that are there for their results (``out=``); its overload has the same name
    or, where none has, is the one with these arguments (``aten.bernoulli.p`` of ``aten.bernoulli_.float``).
    """
    if not operator._schema.is_mutable:
        return None
    namespace, _, name = operator._schema.name.partition("::")
    overload = operator._overloadname
    if overload == "out" or overload.endswith("_out"):
        functional, overload = name, overload[:-4] or "default"
    else:
        functional = name[:-1] if name.endswith("_") and not name.endswith("__") else f"{name}_functional"
    named = find_operator(f"{namespace}.{functional}.{overload}")
    packet = getattr(getattr(torch.ops, namespace), functional, None)
    if named is not None or packet is None:
        return named
    taken = _list_arguments(operator)
    return next(
        (form for form in (getattr(packet, each) for each in packet.overloads()) if _list_arguments(form) == taken),
        None,
    )


def _list_arguments(operator: OpOverload) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in operator._schema.arguments]


def find_operator(name: str) -> OpOverload | None:
    """The operator called ``aten.gelu.default``; None if this torch has none of that name."""
    namespace, _, rest = name.partition(".")
    packet_name, _, overload = rest.rpartition(".")
    try:
        return cast("OpOverload", getattr(getattr(getattr(torch.ops, namespace), packet_name), overload))
    except (AttributeError, RuntimeError):
        return None


def list_forms_called(operator: OpOverload) -> tuple[str, ...]:
    """The operator and, where its kernel consists of calls of others, those of its name: one may be decomposed alike.

    The kernel of ``aten.upsample_nearest2d.vec`` calls ``aten.upsample_nearest2d.default``.
    """
    name = str(operator.name())  # type: ignore[no-untyped-call]
    if not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"):
        return (str(operator),)
    packet = operator.overloadpacket
    others = (name for name in packet.overloads() if not name.endswith("out") and name != operator._overloadname)
    return (str(operator), *(f"{packet}.{name}" for name in others))


def get_operator_family(name: str) -> str:
    """An operator's name without namespace and overload, nor the mark of writing in place: ``celu`` of ``celu_``."""
    parts = name.split(".")
    short = parts[1] if len(parts) > 1 else name
    return short[:-1] if short.endswith("_") and not short.endswith("__") else short


def is_mutating(operator: object) -> bool:
    """Return whether an operator writes to an argument; what has no schema does not."""
    return bool(getattr(getattr(operator, "_schema", None), "is_mutable", False))


def leaves_unwritten(operator: object) -> bool:
    """Return whether an operator gives memory that nobody has written to: its values are any."""
    return get_operator_family(str(operator)) in facts().operators.uninitialised


def is_view(operator: object) -> bool:
    """Return whether an operator gives memory of an argument and writes nothing; what has no schema does not."""
    returned = getattr(getattr(operator, "_schema", None), "returns", ())
    return not is_mutating(operator) and any(value.alias_info is not None for value in returned)


@dataclass(frozen=True)
class ChosenOperators:
    """Operators that a compile treats in another way, by their names, and the ledger of the compile.

    With an operator that writes in place goes the one that functionalization makes of it. Names that this torch does
    not know are passed over.
    """

    names: Sequence[str]
    ledger: Ledger

    @functools.cached_property
    def operators(self) -> tuple[OpOverload, ...]:
        """The operators, each with its functional form."""
        named = [operator for operator in map(find_operator, self.names) if operator is not None]
        forms = (form for operator in named for form in (operator, find_functional_form(operator)))
        return tuple(form for form in forms if form is not None)

    def record_unseen(self, unseen: Unseen, error: BaseException | None = None) -> None:
        """Record an operator that could not be treated so."""
        self.ledger.record_unseen(unseen)


def wrap_table(removed: ChosenOperators, original: Function) -> object:
    """Leave operators out of the table that Inductor hands to AOTAutograd."""
    table = cast("Mapping[OpOverload, Function]", original())
    return {operator: function for operator, function in table.items() if operator not in removed.operators}


@contextlib.contextmanager
def keep_undecomposed(removed: ChosenOperators) -> Iterator[None]:
    """Keep the Python dispatcher from decomposing the operators.

    They then reach Inductor, which lowers them or, where it has no lowering, calls the ATen kernel. What it registers
    for that is taken back at the end. It refuses to do so for an operator that has a decomposition where the variable
    CI is set, torch's own gate, which is unset here.
    """
    kernels = [(operator, key, None) for operator, key, _ in list_dispatcher_kernels() if operator in removed.operators]
    lowering = importlib.import_module("torch._inductor.lowering")
    fallbacks: set[object] = getattr(lowering, "fallbacks", set())
    known, before = set(lowering.lowerings), set(fallbacks)
    ci = os.environ.pop("CI", None)
    try:
        with replace_dispatcher_kernels(kernels):
            yield
    finally:
        for added in set(lowering.lowerings) - known:
            del lowering.lowerings[added]
        fallbacks &= before
        if ci is not None:
            os.environ["CI"] = ci
