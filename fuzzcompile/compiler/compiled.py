"""Results of ``torch.compile``, taken apart: the callable that the user wrote, and the arguments of the call."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias, cast

import torch
from torch import nn

from fuzzcompile.case import CompileSettings

AnyCallable: TypeAlias = Callable[..., object]


def innermost(value: object) -> AnyCallable:
    """Return the user's callable if ``value`` is a result of ``torch.compile``; else ``value``."""
    while True:
        inner = value._modules.get("_orig_mod") if isinstance(value, nn.Module) else None
        if inner is None:
            inner = getattr(value, "__dict__", {}).get("_torchdynamo_orig_callable")
        if inner is None or inner is value:
            break
        value = inner
    owner = getattr(value, "__self__", None)
    if isinstance(value, types.MethodType) and value.__func__ is nn.Module._call_impl and isinstance(owner, nn.Module):
        return owner  # module.compile() compiles the module's own call
    assert callable(value)
    return value


def is_compiled(value: object) -> bool:
    """Return whether ``value`` is a result of ``torch.compile``, or a module compiled in place."""
    if not isinstance(value, nn.Module | types.FunctionType | types.MethodType):
        return False
    return innermost(value) is not value or _own_call(value) is not None


def settings_of(value: object) -> CompileSettings | None:
    """The arguments of ``torch.compile`` behind ``value``; None if it is not compiled.

    A mode is given as the options that it stands for: torch keeps no more of it.

    Raises:
        LookupError: this torch keeps them elsewhere.
    """
    call = _own_call(value)
    if call is None and innermost(value) is value:
        return None
    compiled = value if call is None else call
    context = getattr(compiled, "dynamo_ctx", None) or _closed_over(compiled)
    callback = getattr(context, "callback", None)
    if callback is None:
        raise LookupError("the arguments of torch.compile cannot be read from its result")
    backend = [*_backends(callback)][-1]
    dynamic, fullgraph = getattr(backend, "dynamic", None), bool(getattr(callback, "_one_graph", False))
    config = getattr(backend, "config", None)
    if isinstance(config, Mapping) and getattr(backend, "compiler_name", None) == "inductor":
        return CompileSettings(options=dict(config), dynamic=dynamic, fullgraph=fullgraph)
    name = getattr(backend, "compiler_name", None)
    function = name if name in torch._dynamo.list_backends(None) else getattr(backend, "compiler_fn", backend)
    given: Mapping[str, object] = getattr(backend, "kwargs", {})
    return CompileSettings(
        backend=cast("str | AnyCallable", function),
        options=cast("Mapping[str, object]", given.get("options") or {}),
        mode=cast("str | None", given.get("mode")),
        dynamic=dynamic,
        fullgraph=fullgraph,
    )


def _own_call(value: object) -> object:
    """The compiled call of a module that was compiled in place."""
    return vars(value).get("_compiled_call_impl") if isinstance(value, nn.Module) else None


def _closed_over(function: object) -> object:
    """The context that a compiled function closes over."""
    if not isinstance(function, types.FunctionType):
        return None
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells}.get("self")


def _backends(callback: object) -> Iterator[object]:
    """The callback and the backends that it wraps, the outermost first."""
    backend: object = callback
    while backend is not None:
        yield backend
        backend = getattr(backend, "_torchdynamo_orig_backend", None)
