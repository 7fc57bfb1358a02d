"""Compiling a callable with ``torch.compile`` under fuzzcompile's eyes."""

from __future__ import annotations

import contextlib
import importlib
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from fuzzcompile.case import CompileSettings
from fuzzcompile.compiler import breaks, decompositions, fake, hooks
from fuzzcompile.compiler.kernels.control import UNCHANGED, Control
from fuzzcompile.compiler.kernels.kernels import watching
from fuzzcompile.compiler.ledger import Ledger
from fuzzcompile.compiler.reached import reaching
from fuzzcompile.compiler.recorder import Recorder
from fuzzcompile.compiler.settings import setting, untimed_guards
from fuzzcompile.errors import CaseError
from fuzzcompile.execution.observation import Failure

# On the stack only while something is compiled.
_CONVERTS = "torch/_dynamo/convert_frame.py"


@dataclass(frozen=True)
class Compilation:
    """How one compile is to be done.

    ``backend`` replaces the case's own (None leaves it), ``vetoes`` name rewrites to refuse (see
    :func:`fuzzcompile.compiler.labels.vetoes`), ``only`` names those that alone may apply beside the mandatory
    ones, ``record`` asks for a ledger with snapshots, ``screen`` interprets the graphs instead of generating code,
    ``config`` patches ``torch._inductor.config`` beyond the case's own options, ``mode`` takes the place of the
    case's own (its options stay). Without ``fallback_random`` the compiler draws from a stream of its own. Dynamo
    breaks the graph at the functions in ``disallowed``. ``timed`` asks for the run time of what was compiled.
    ``kernels`` keeps the IR of every graph and what its kernels write, ``control`` changes how graphs are lowered.
    The operators ``without_decompositions`` (``aten.gelu.default``) are not decomposed; those of ``kernel_metadata``
    have results of the dtype, shape and strides that their kernels give, whatever fake tensors say.
    """

    backend: str | None = None
    mode: str | None = None
    vetoes: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None
    record: bool = True
    screen: bool = False
    fallback_random: bool = True
    config: Mapping[str, Any] | None = None
    disallowed: tuple[Callable[..., Any], ...] = ()
    timed: bool = False
    kernels: bool = False
    control: Control = UNCHANGED
    without_decompositions: tuple[str, ...] = ()
    kernel_metadata: tuple[str, ...] = ()

    def with_vetoes(self, *names: str) -> Compilation:
        """The same compile with further rewrites refused."""
        return replace(self, vetoes=(*self.vetoes, *names))


@contextlib.contextmanager
def compiling(settings: CompileSettings, how: Compilation) -> Iterator[Session]:
    """Everything compiled in this block follows ``settings`` and ``how``; dynamo is reset before and after.

    Inductor's FX graph cache and AOTAutograd's cache are off: with them a second compile runs no passes at
    all, and a veto that never ran would look like a rewrite that is not needed.
    """
    recorder = Recorder(vetoed=how.vetoes, only=how.only, snapshots=how.record, screen=how.screen)
    recorder.capturing = how.record  # inputs are kept to replay snapshots on
    patches = {**settings.inductor, "fallback_random": how.fallback_random, **(how.config or {})}
    with (
        _configured(settings, patches),
        decompositions.without(how.without_decompositions),
        fake.metadata_from_kernels(how.kernel_metadata),
        hooks.installed(recorder),
        breaks.breaking_at(how.disallowed),
        watching(recorder, how.control, values=how.kernels),
        reaching(recorder.ledger) if how.record else contextlib.nullcontext(),
        untimed_guards(),
    ):
        before = breaks.Counted.now()
        try:
            yield Session(settings, how, recorder)
        finally:
            recorder.ledger.graphs = breaks.graphs_since(before)
            recorder.ledger.graph_breaks = breaks.breaks_since(before)


@contextlib.contextmanager
def plainly(settings: CompileSettings) -> Iterator[Session]:
    """All that :func:`compiling` sets, with nobody watching: what the cost of watching is measured against."""
    with _configured(settings, {**settings.inductor, "fallback_random": True}), untimed_guards():
        yield Session(settings, Compilation(), Recorder())


@contextlib.contextmanager
def _configured(settings: CompileSettings, inductor: Mapping[str, Any]) -> Iterator[None]:
    configs = _configs()
    caches = {"fx_graph_cache": False, "fx_graph_remote_cache": False}
    torch._dynamo.reset()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_patched(configs["inductor"], {**inductor, **caches}))
        stack.enter_context(_patched(configs["functorch"], {**settings.functorch, "enable_autograd_cache": False}))
        stack.enter_context(_patched(configs["dynamo"], {**settings.dynamo, "suppress_errors": False}))
        stack.callback(torch._dynamo.reset)
        yield


@dataclass(frozen=True)
class Session:
    """One watched compile; ``ledger`` fills while the compiled callable runs."""

    settings: CompileSettings
    how: Compilation
    recorder: Recorder

    @property
    def ledger(self) -> Ledger:
        """What the compile did so far."""
        return self.recorder.ledger

    def compile(self, target: Callable[..., Any]) -> Callable[..., Any]:
        """``torch.compile`` of ``target`` with the case's settings."""
        arguments: dict[str, Any] = {"fullgraph": self.settings.fullgraph, "dynamic": self.settings.dynamic}
        backend = self.how.backend or self.settings.backend
        own = self.how.backend is None or self.how.backend == self.settings.backend
        options, mode = (dict(self.settings.options), self.settings.mode) if own else ({}, None)
        options = {key: value for key, value in options.items() if key not in (self.how.config or {})}
        mode = self.how.mode or mode
        given = set(torch._inductor.list_mode_options(mode)) & set(self.how.config or {}) if mode else set()
        if mode and (options or given):  # torch.compile takes one of the two: a mode is nothing but options
            options = {**torch._inductor.list_mode_options(mode), **options}
            options, mode = {key: value for key, value in options.items() if key not in given}, None
        if options:
            arguments["options"] = options
        if mode and mode != "default":
            arguments["mode"] = mode
        return torch.compile(target, backend=backend, **arguments)

    def stop_capturing(self) -> None:
        """Keep no inputs of further calls: they are not those of the run that is judged."""
        self.recorder.capturing = False

    def describe_failure(self, error: BaseException) -> Failure:
        """Tell an error of the compiler from one of the compiled program."""
        compiler = _compiler_error(error)
        cause = _root_cause(error)
        message = str(cause).strip().splitlines()[0][:300] if str(cause).strip() else type(cause).__name__
        uncaptured = breaks.why_uncaptured(error)
        stage = self.ledger.failed_in.stage if self.ledger.failed_in is not None else None
        return Failure(
            type(cause).__name__,
            uncaptured or message,
            "compile" if compiler or self.ledger.failed_in is not None else "run",
            stage if stage is not None else ("dynamo" if compiler else None),
            unsupported=uncaptured is not None,
        )


def check_settings(settings: CompileSettings) -> None:
    """Refuse settings that the installed torch does not have.

    Raises:
        CaseError: naming the option, config entry or mode.
    """
    configs = _configs()
    if settings.backend != "inductor":
        return  # its options are its own
    wanted = {"inductor": settings.options, "dynamo": settings.dynamo, "functorch": settings.functorch}
    for name, changes in wanted.items():
        unknown = [key for key in changes if not _has(configs[name], key)]
        if unknown:
            raise CaseError(f"This torch's {name} config has no {', '.join(sorted(unknown))}; mend OPTIONS or CONFIG.")
    if settings.mode is not None and settings.mode not in modes():
        raise CaseError(f"torch.compile knows no mode {settings.mode!r}; use one of {', '.join(modes())}.")
    if settings.mode is not None and settings.options:
        raise CaseError("torch.compile takes MODE or OPTIONS, not both; keep one of them.")


def effective_setting(settings: CompileSettings, how: Compilation, key: str) -> object:
    """The entry of Inductor's config under which a case is compiled; ``MISSING`` where this torch has none such."""
    mode = how.mode or settings.mode
    given = torch._inductor.list_mode_options(mode) if mode in modes() and mode != "default" else {}
    options = {**settings.inductor, **given, **settings.options, **(how.config or {})}
    return options.get(key, setting(key))


def modes() -> tuple[str, ...]:
    """The modes that ``torch.compile`` takes."""
    return tuple(dict.fromkeys(("default", *torch._inductor.list_mode_options())))


def _configs() -> dict[str, Any]:
    names = {"dynamo": "torch._dynamo.config", "functorch": "torch._functorch.config"}
    names["inductor"] = "torch._inductor.config"
    return {name: importlib.import_module(module) for name, module in names.items()}


def _patched(config: Any, changes: Mapping[str, Any]) -> contextlib.AbstractContextManager[Any]:
    present = {key: value for key, value in changes.items() if _has(config, key)}
    return config.patch(present) if present else contextlib.nullcontext()


def _has(config: Any, key: str) -> bool:
    for part in key.split("."):
        if not hasattr(config, part):
            return False
        config = getattr(config, part)
    return True


def _compiler_error(error: BaseException) -> bool:
    """Whether the compiler raised: an exception of its own, or any that left dynamo's conversion of a frame."""
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor", "torch._functorch")):
        return True
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code.co_filename.endswith(_CONVERTS) for frame, _ in frames)


def _root_cause(error: BaseException) -> BaseException:
    """The exception that the compiler's own wrappers (BackendCompilerFailed, InductorError…) carry."""
    inner = getattr(error, "inner_exception", None)
    if isinstance(inner, BaseException) and inner is not error:
        return _root_cause(inner)
    return error
