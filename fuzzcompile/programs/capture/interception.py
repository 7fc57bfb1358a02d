"""The ``torch.compile`` of a script that is being captured: it compiles nothing and records every call."""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.torch_api import get_compile, replace_compile
from fuzzcompile.programs.capture.state import Ambient, World, Worlds
from fuzzcompile.run.case import Arguments, Case, CompilePart, CompileSettings
from fuzzcompile.run.case_program import place_input
from fuzzcompile.run.code_files import find_owner
from fuzzcompile.run.reachable_state import ReachedObjects, is_holder, is_model, name_arguments
from fuzzcompile.run.tensors import StorageCopier, measure_storages, unwrap

# The calls that a script makes of its compiled callables: the arguments of each, and the state before it.

_MAX_HISTORY = 8
# What the states before earlier calls may take beyond what they share with the last; older ones are dropped.
_MAX_BYTES = 2**30
Kind = Sequence[object]


@dataclass(frozen=True)
class RecordedCall:
    """One call as the script makes it; ``kind`` is what a recompile depends on."""

    target: Callable[..., object]
    kind: Kind
    arguments: Arguments
    world: World


@dataclass
class CallHistory:
    """The calls of one compiled callable, the first of each kind of inputs and state.

    ``dropped`` says whether calls were left out because their state takes too much memory.
    """

    calls: deque[RecordedCall] = field(default_factory=lambda: deque(maxlen=_MAX_HISTORY))
    dropped: bool = False

    def add(self, target: Callable[..., object], arguments: Arguments) -> None:
        """Keep a call, unless one of its kind is kept already."""
        kind = _find_kind(arguments)
        if any(known.kind == kind and known.target == target for known in self.calls):
            return
        self.calls.append(record_call(target, arguments, self.calls, kind))
        while _bytes(self.calls) - _bytes([self.calls[-1]]) > _MAX_BYTES:
            self.calls.popleft()
            self.dropped = True

    def until(self, target: Callable[..., object], arguments: Arguments) -> list[RecordedCall]:
        """A call, after the earlier ones of other kinds."""
        kind = _find_kind(arguments)
        earlier = [call for call in self.calls if call.target == target and call.kind != kind]
        return [*earlier, record_call(target, arguments, self.calls, kind)][-_MAX_HISTORY:]


def _find_kind(arguments: Arguments) -> Kind:
    """Return the key of a recompile: shapes, strides and dtypes of the inputs and of tensors held by objects."""
    kinds: list[object] = []
    for name, leaf in (pair for named in name_arguments(arguments) for pair in unwrap(*named)):
        if isinstance(leaf, torch.Tensor):
            kinds += [name, _form(leaf)]
        elif not is_holder(leaf):
            kinds += [name, repr(leaf)[:100]]
        elif is_model(leaf):
            kinds += [name, id(leaf)]
        else:
            reached = ReachedObjects({name: leaf}, functions=False)
            kinds += [(held, _form(tensor)) for held, tensor in reached.tensors.items()]
            kinds.append(reached.plain_attributes())
    return kinds


def _form(tensor: torch.Tensor) -> tuple[object, ...]:
    return tuple(tensor.shape), tensor.dtype, tensor.layout == torch.strided and tensor.stride()


def roots_of_call(target: Callable[..., object], arguments: Arguments) -> dict[str, object]:
    """The callable, and the arguments that are not tensors: they may hold state."""
    named = {name: leaf for name, leaf in name_arguments(arguments) if not isinstance(leaf, torch.Tensor)}
    return {"": target, **named}


def record_call(
    target: Callable[..., object], arguments: Arguments, earlier: Sequence[RecordedCall], kind: Kind = ()
) -> RecordedCall:
    """A call as it is about to be made; copies of what has not changed since the last earlier call are shared with it.

    Tensors among the arguments that belong to the callable's state stay themselves.
    """
    world = World(roots_of_call(target, arguments), earlier[-1].world.known if earlier else None)
    copier = StorageCopier()

    def copy(leaf: object) -> object:
        return place_input(leaf, copier) if isinstance(leaf, torch.Tensor) and not world.owns(leaf) else leaf

    return RecordedCall(target, kind, pytree.tree_map(copy, arguments), world)


def _bytes(calls: Sequence[RecordedCall]) -> int:
    return sum(measure_storages([copy for call in calls for copy in call.world.originals()]).values())


def make_captured_case(
    calls: Sequence[RecordedCall],
    ambient: Ambient,
    settings: CompileSettings,
    *,
    name: str,
    path: Path,
    source: str,
    backward: bool,
    notes: Sequence[str],
) -> Case:
    """The last of some calls, after the earlier ones, as a case that runs in place, on the objects themselves.

    All that they reach is restored before every run.
    """
    first, *later = (call.arguments for call in calls)
    if not all(call.world.complete for call in calls):
        notes = [*notes, "the callable reaches more than 200 000 objects; what lies behind them is not restored"]
    return Case(
        name=name,
        path=path,
        source=source,
        make=lambda: (calls[-1].target, first),
        grad=ambient.grad,
        backward=backward,
        settings=settings,
        calls=later or None,
        run=None,
        ambient=ambient.enter,
        modes=ambient.modes,
        reseed=ambient.random.restore,
        state=Worlds([call.world for call in calls]),
        notes=tuple(notes),
    )


class CallReached(BaseException):
    """Unwinds a script from the wanted call. Not an ``Exception``, because scripts catch those."""


@dataclass
class CompiledCallable:
    """One callable that the script gave to ``torch.compile``; ``number`` identifies it.

    ``line`` is the line of that call, 0 if unknown, and ``place`` the same as a user knows it; ``calls`` counts the
    calls of the callable. ``methods`` are the methods of a compiled module that the script used: they call the module
    itself, not its compiled form.
    """

    target: Callable[..., object]
    settings: CompileSettings
    line: int
    calls: int = 0
    number: int = 0
    methods: set[str] = field(default_factory=set)
    place: str = ""

    def __str__(self) -> str:
        backend = self.settings.backend
        named = backend if isinstance(backend, str) else getattr(backend, "__name__", type(backend).__name__)
        where = [self.place] * bool(self.place) + [f"backend {named}"] * (named != "inductor")
        name = name_target(self.target)
        return f"{name} ({', '.join(where)})" if where else name


def name_target(target: Callable[..., object]) -> str:
    """The name a user knows: a function's name, a module's class."""
    owner = getattr(target, "__self__", None)
    if isinstance(owner, nn.Module):
        return f"{type(owner).__name__}.{getattr(target, '__name__', 'call')}"
    name = type(target).__name__
    return name if isinstance(target, nn.Module) else str(getattr(target, "__name__", name)).strip("<>")


class CompiledModule(nn.Module):
    """Replaces ``torch.compile(module)``: the same parameters under the same names, attributes passed through.

    Copies of the module, each of which is compiled separately, share ``call``, which calls them through the
    interception, and ``note_method``, which gets the names of the methods that the script uses: functions are not
    copied.
    """

    def __init__(self, module: nn.Module, call: Callable[..., object], note_method: Callable[[str], None]) -> None:
        super().__init__()
        self._orig_mod = module
        self.training = module.training
        self.__dict__["_intercepted_call"], self.__dict__["_note_method"] = call, note_method

    def forward(self, *args: object, **kwargs: object) -> object:
        """Call the module, through the interception."""
        return self.__dict__["_intercepted_call"](self._orig_mod, args, kwargs)

    def train(self, mode: bool = True) -> CompiledModule:
        """Set the mode of both modules."""
        self.training = mode
        self._orig_mod.train(mode)
        return self

    def __getattr__(self, name: str) -> Any:
        own = self._modules["_orig_mod"]
        assert own is not None
        if name == "_orig_mod":
            return own
        held = getattr(own, name)
        if isinstance(held, types.MethodType) and not hasattr(nn.Module, name):
            self.__dict__["_note_method"](name)
        return held

    def __setattr__(self, name: str, value: torch.Tensor | nn.Module) -> None:
        if name in ("_orig_mod", "training", "__class__") or "_orig_mod" not in self.__dict__.get("_modules", {}):
            super().__setattr__(name, value)
        else:
            setattr(self._orig_mod, name, value)


@dataclass
class CompileInterception:
    """Records compiled calls; ``on_call`` gets each outermost one with its number (1 is the first).

    ``place`` says a line of the script as a user knows it. The calls run eagerly, or what ``compile_part`` makes of
    the callable.
    """

    filename: str
    on_call: Callable[[CompiledCallable, Arguments, int], None]
    place: Callable[[int], str]
    compiled: list[CompiledCallable] = field(default_factory=list)
    calls: int = 0
    active: bool = True
    compile_part: CompilePart | None = None
    _parts: dict[tuple[int, int], Callable[..., object]] = field(default_factory=dict)
    _depth: int = 0
    _own: tuple[Any, Any] | None = None  # torch's own functions, while this stands in their place

    @contextlib.contextmanager
    def install(self) -> Iterator[None]:
        """Let scripts compile through this object in the block."""
        self._own = get_compile()
        with replace_compile(self.compile, self.optimize):
            yield

    @contextlib.contextmanager
    def suspend(self) -> Iterator[None]:
        """Let torch compile in the block, inside of :meth:`install`; calls of what the script compiled run eagerly."""
        assert self._own is not None, "it is installed"
        self.active = False
        try:
            with replace_compile(*self._own):
                yield
        finally:
            self.active = True

    def compile(self, model: object = None, **arguments: object) -> object:
        """Replaces ``torch.compile``."""
        if model is None:
            return functools.partial(self.compile, **arguments)
        if arguments.get("disable") or not callable(model) or _is_torchs_own(sys._getframe(1)):
            return model
        if isinstance(model, type):  # the calls of a decorated class's instances are compiled
            name = "_call_impl" if issubclass(model, nn.Module) else "__call__"
            setattr(model, name, self.compile(getattr(model, name), **arguments))
            return model
        given: dict[str, Any] = arguments
        settings = CompileSettings(
            backend=given.get("backend") or "inductor",
            options=dict(given.get("options") or {}),
            mode=given.get("mode"),
            dynamic=given.get("dynamic"),
            fullgraph=bool(given.get("fullgraph", False)),
        )
        return self.wrap(model, settings)

    def optimize(self, backend: object = "inductor", *, nopython: bool = False, **arguments: object) -> object:
        """Replaces ``torch._dynamo.optimize``, which older scripts call."""
        return functools.partial(self.compile, backend=backend, fullgraph=nopython, **arguments)

    def wrap(self, model: Callable[..., object], settings: CompileSettings) -> object:
        """A stand-in for ``model`` compiled under these settings."""
        target = original(model)
        if isinstance(target, types.MethodType) and target.__func__ in (nn.Module._call_impl, nn.Module.__call__):
            # module.compile() and torch.compile(module.__call__) compile the module's own call.
            target = target.__self__ if isinstance(target.__self__, nn.Module) else target
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self.filename:
            frame = frame.f_back
        line = frame.f_lineno if frame is not None else 0
        place = self.place(line) if line else ""
        record = CompiledCallable(target, settings, line, number=len(self.compiled), place=place)
        self.compiled.append(record)

        def call_module(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
            return self._call(record, module, args, kwargs, original(module))

        if isinstance(model, nn.Module):
            return CompiledModule(model, call_module, record.methods.add)

        def call(*args: object, **kwargs: object) -> object:
            return self._call(record, model, args, kwargs, record.target)

        with contextlib.suppress(AttributeError, TypeError):  # callables without a name
            call = functools.wraps(model)(call)
        call._intercepted = target  # type: ignore[attr-defined]
        call._torchdynamo_orig_callable = model  # type: ignore[attr-defined] # scripts ask for it
        return call

    def _call(
        self,
        record: CompiledCallable,
        model: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        target: Callable[..., object],
    ) -> object:
        """Call ``model`` as the compiled callable that ``target`` is without it."""
        if not self.active:
            return model(*args, **kwargs)
        if self._depth == 0:
            self.calls += 1
            record.calls += 1
            given = args
            if target is nn.Module._call_impl and isinstance(args[0], nn.Module):  # of a decorated class
                target, given = args[0], args[1:]
            self.on_call(replace(record, target=target), Arguments(given, kwargs), self.calls)
            if self.compile_part is not None:
                return self._call_compiled(record, self.compile_part, target, Arguments(given, kwargs))
        self._depth += 1
        try:
            return model(*args, **kwargs)
        finally:
            self._depth -= 1

    def _call_compiled(
        self, record: CompiledCallable, compile_part: CompilePart, target: Callable[..., object], given: Arguments
    ) -> object:
        key = record.number, id(target)
        with self.suspend():
            if key not in self._parts:
                self._parts[key] = compile_part(target, record.settings)
            return self._parts[key](*given.args, **given.kwargs)


def _is_torchs_own(frame: types.FrameType) -> bool:
    """Return whether torch compiles something of its own: an operator that eager mode cannot run, as ``while_loop``."""
    return find_owner(frame.f_code.co_filename) == "torch" and frame.f_code is not nn.Module.compile.__code__


def original(model: Callable[..., object]) -> Callable[..., object]:
    """The callable that was given to ``torch.compile``, if ``model`` is its result; else ``model``."""
    if isinstance(model, CompiledModule):
        return original(model._orig_mod)
    inner = getattr(model, "_intercepted", None) if isinstance(model, types.FunctionType) else None
    return model if inner is None else original(inner)
