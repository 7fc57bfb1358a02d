"""Callables that report their calls, in place of those that ``torch.compile`` returns or that a user names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from fuzzcompile.compiler.torch_api import skip_tracing, unwrap_compiled
from fuzzcompile.run.case import Arguments

# Arguments of torch.compile that a case file can hold.
_CASE_ARGUMENTS = ("mode", "options", "dynamic", "fullgraph")


@dataclass(frozen=True)
class Watched:
    """A callable that is watched: what the user wrote, and the arguments of ``torch.compile``."""

    target: Callable[..., object]
    settings: Mapping[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name a user knows: a function's name, a module's class."""
        owner = getattr(self.target, "__self__", None)
        if isinstance(owner, nn.Module):
            return f"{type(owner).__name__}.{self.target.__name__}"
        if isinstance(self.target, nn.Module):
            return type(self.target).__name__
        return getattr(self.target, "__qualname__", type(self.target).__name__)

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer whose ``step`` this is."""
        owner = getattr(self.target, "__self__", None)
        return owner if isinstance(owner, Optimizer) else None


class Listener(Protocol):
    """What calls are reported to (:class:`fuzzcompile.analyses.watch.watcher.Watcher`)."""

    def enter(self, watched: Watched, arguments: Arguments) -> bool:
        """Before a call; whether ``leave`` or ``failed`` must follow."""

    def leave(self, watched: Watched, output: object) -> None:
        """After a call."""

    def failed(self, error: BaseException) -> None:
        """After a call that raised."""


def observed(real: Callable[..., object], watched: Watched, listener: Listener) -> Callable[..., object]:
    """``real`` with its calls reported; dynamo inlines what it would inline of ``real``."""

    def call(*args: object, **kwargs: object) -> object:
        if not listener.enter(watched, Arguments(args, kwargs)):
            return real(*args, **kwargs)
        try:
            output = real(*args, **kwargs)
        except BaseException as error:
            listener.failed(error)
            raise
        listener.leave(watched, output)
        return output

    skip_tracing(call)
    try:
        call = functools.wraps(real)(call)
    except (AttributeError, TypeError):  # a callable without a name
        return call
    return call


class _Hooks:
    """Forward hooks of a module; copies of the module report to the same listener, pickled ones to none."""

    def __init__(self, watched: Watched, listener: Listener) -> None:
        self._watched, self._listener = watched, listener
        self._entered = False

    def before(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._entered = self._listener.enter(self._watched, Arguments(args, kwargs)) or self._entered

    def after(self, module: nn.Module, args: object, kwargs: object, output: object) -> None:
        if self._entered:
            self._entered = False
            self._listener.leave(self._watched, output)


def watched_module(module: nn.Module, listener: Listener) -> nn.Module:
    """The same module, with its calls reported."""
    original = unwrap_compiled(module)
    watched = Watched(original)
    compiled_call = module.__dict__.get("_compiled_call_impl")
    if compiled_call is not None:  # by module.compile()
        module.__dict__["_compiled_call_impl"] = observed(compiled_call, watched, listener)
    elif original is not module:
        module.forward = observed(module.forward, watched, listener)
    else:
        hooks = _Hooks(watched, listener)
        module.register_forward_pre_hook(hooks.before, prepend=True, with_kwargs=True)
        module.register_forward_hook(hooks.after, with_kwargs=True, always_call=True)
    return module


def observe_compiling(listener: Listener, on_compile: Callable[[Watched], None]) -> None:
    """Have everything that ``torch.compile`` returns from now on report its calls."""
    namespace = vars(torch)
    original = namespace["compile"]

    @functools.wraps(original)
    def compile_(model: object = None, **arguments: object) -> object:
        if model is None:
            return functools.partial(compile_, **arguments)
        compiled = original(model, **arguments)
        if arguments.get("disable") or isinstance(model, type) or not callable(compiled):
            return compiled
        try:
            return reported(compiled, model, arguments)
        except Exception:  # ours, of whatever kind: the script gets what torch made
            return compiled

    def reported(compiled: object, model: object, arguments: Mapping[str, object]) -> object:
        settings = {name: arguments[name] for name in _CASE_ARGUMENTS if arguments.get(name) is not None}
        watched = Watched(unwrap_compiled(model), settings)
        on_compile(watched)
        if isinstance(compiled, nn.Module):
            compiled.forward = observed(compiled.forward, watched, listener)
            return compiled
        assert callable(compiled)
        return observed(compiled, watched, listener)

    namespace["compile"] = compile_


def observe_backward(
    before: Callable[[object], None], after: Callable[[], None], failed: Callable[[BaseException], None]
) -> None:
    """Have every backward pass from now on reported: ``before`` gets its roots, ``failed`` what it raises."""
    namespace = vars(torch.autograd)
    original = namespace["backward"]

    @functools.wraps(original)
    def backward(tensors: object, *args: object, **kwargs: object) -> object:
        if torch.compiler.is_compiling():
            return original(tensors, *args, **kwargs)
        before(tensors)
        try:
            result = original(tensors, *args, **kwargs)
        except BaseException as error:
            failed(error)
            raise
        after()
        return result

    skip_tracing(backward)
    namespace["backward"] = backward
