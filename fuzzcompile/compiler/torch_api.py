"""Public side of the compiler: ``torch.compile`` results, ``torch._dynamo.optimize``, torch's accuracy check."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias, TypeVar, cast

import torch
from torch import nn

from fuzzcompile.compiler.torch_config import CONFIGS, load_config
from fuzzcompile.compiler.watch.torch_patch import Function
from fuzzcompile.run.case import CompileSettings
from fuzzcompile.run.torch_attributes import FAMILY, ReplacedAttribute

AnyCallable: TypeAlias = Callable[..., object]


def unwrap_compiled(value: object) -> AnyCallable:
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
    return unwrap_compiled(value) is not value or _find_compiled_call(value) is not None


def read_compile_settings(value: object) -> CompileSettings | None:
    """The arguments of ``torch.compile`` behind ``value``; None if it is not compiled.

    A mode is given as the options that it stands for: torch keeps no more of it. LookupError where torch keeps none.
    """
    call = _find_compiled_call(value)
    if call is None and unwrap_compiled(value) is value:
        return None
    compiled = value if call is None else call
    context = getattr(compiled, "dynamo_ctx", None)
    if not context and isinstance(compiled, types.FunctionType):
        context = inspect.getclosurevars(compiled).nonlocals.get("self")
    callback = getattr(context, "callback", None)
    if callback is None:
        raise LookupError("the arguments of torch.compile cannot be read from its result")
    backend: object = callback
    while (inner := getattr(backend, "_torchdynamo_orig_backend", None)) is not None:
        backend = inner
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


def _find_compiled_call(value: object) -> object:
    return vars(value).get("_compiled_call_impl") if isinstance(value, nn.Module) else None


# What scripts call of torch, replaced while they run, and what a program sets in the compiler's configs.

CUDA = ReplacedAttribute(
    "torch.cuda",
    FAMILY,
    unprobed="Without a GPU, a script alone calls the stand-ins; those for what is missing are left out.",
)

_Function = TypeVar("_Function", bound=Callable[..., object])


_TAKEN = {"model", "backend", "options", "mode", "dynamic", "fullgraph", "disable"}


def _probe_compile() -> str | None:
    lacking = _TAKEN - inspect.signature(torch.compile).parameters.keys()
    return f"takes no {', '.join(sorted(lacking))}" if lacking else None


def _probe_backward() -> str | None:
    called: list[object] = []
    with BACKWARD.replace(lambda tensors, *args, **kwargs: called.append(tensors)):
        torch.ones(1, requires_grad=True).backward()  # type: ignore[no-untyped-call]
    return None if called else "the method of tensors does not call it"


COMPILE = ReplacedAttribute("torch", "compile", probe=_probe_compile)
BACKWARD = ReplacedAttribute("torch.autograd", "backward", probe=_probe_backward)
OPTIMIZE = tuple(
    ReplacedAttribute("torch._dynamo", name, unprobed="Only old scripts call it; a torch without it needs nothing.")
    for name in ("optimize", "optimize_assert")
)


def get_compile() -> tuple[Function, Function]:
    """``torch.compile`` and ``torch._dynamo.optimize`` as they are now, for :func:`replace_compile`."""
    return torch.compile, torch._dynamo.optimize


@contextlib.contextmanager
def replace_compile(compile_: Function, optimize: Function) -> Iterator[None]:
    """Have ``torch.compile``, and ``torch._dynamo.optimize`` with its kin, call these inside the block."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(COMPILE.replace(compile_))
        for place in OPTIMIZE:
            if place.check_place() is None:
                stack.enter_context(place.replace(optimize))
        yield


def skip_tracing(function: Callable[..., object]) -> None:
    """Have dynamo run the frames of a function as they are; what the function calls may be compiled as ever."""
    importlib.import_module("torch._dynamo.eval_frame").skip_code(cast(types.FunctionType, function).__code__)


def disable_compile(function: _Function) -> _Function:
    """A decorator: dynamo leaves the function, and what it calls, alone."""
    left_alone: _Function = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return left_alone


def copy_configs() -> dict[str, dict[str, object]]:
    """Every entry of the compiler's configs, by config (``inductor``, ``dynamo``, ``functorch``)."""
    return {name: load_config(name).get_config_copy() for name in CONFIGS}


def diff_configs(before: Mapping[str, Mapping[str, object]]) -> dict[str, dict[str, object]]:
    """The entries that are not what they were in ``before``, by config."""
    return {
        name: {key: value for key, value in entries.items() if not _is_equal(value, before[name].get(key))}
        for name, entries in copy_configs().items()
    }


def reset_compiler() -> None:
    """Forget everything that was compiled."""
    torch._dynamo.reset()


def bisect(works: Callable[[], bool]) -> str | None:
    """The answer of torch's own ``CompilerBisector`` on what says whether a compile is right; None if it has none.

    Torch's caches must be off.
    """
    from torch._inductor.compiler_bisector import CompilerBisector

    answer = CompilerBisector.do_bisect(works)
    return None if answer is None else str(answer)


def _is_equal(before: object, after: object) -> bool:
    if before is after:
        return True
    try:
        return bool(before == after)
    except Exception:  # values of the user's, whose __eq__ may raise anything
        return False


# PyTorch's own accuracy check, reported because its bug template asks for it.


def check_torch_same(eager: torch.Tensor, compiled: torch.Tensor, reference: torch.Tensor) -> bool:
    """``torch._dynamo.utils.same`` at its defaults, NaN equal to NaN; wrong outputs of size 1e-5 pass it."""
    from torch._dynamo.utils import same

    # The verdict says what differs; the log need not.
    return bool(same(eager, compiled, fp64_ref=reference, equal_nan=True, log_error=lambda *args, **kwargs: None))
