"""Watched compiles: ``torch.compile`` with the patches of the patch table in force."""

from __future__ import annotations

import contextlib
import logging
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import torch

from fuzzcompile.compiler import graph_breaks
from fuzzcompile.compiler.compile_changes import (
    Backend,
    BypassedNodes,
    CompileChange,
    CompiledAnew,
    CompileMode,
    CompilePath,
    GraphsFromDisk,
    InductorSettings,
    Lowered,
    ProgramsInOrder,
    Templates,
    WatchedInstructions,
)
from fuzzcompile.compiler.custom_code import make_backend_label
from fuzzcompile.compiler.export import ExportedCallable, ExportError
from fuzzcompile.compiler.graph_breaks import DynamoCounts
from fuzzcompile.compiler.kernels.kernel_patches import LoweringWatch
from fuzzcompile.compiler.kernels.lowering_control import UNCHANGED
from fuzzcompile.compiler.operators import operator_crossref
from fuzzcompile.compiler.target import target_process
from fuzzcompile.compiler.target.kernel_log import ProgramOrder
from fuzzcompile.compiler.target.target_process import current_target, explain_unfit_kernels, interpret_kernels
from fuzzcompile.compiler.torch_config import get_setting, has_entry, load_config, patch_config
from fuzzcompile.compiler.watch import patch_table
from fuzzcompile.compiler.watch.compiler_errors import (
    describe_machine_fault,
    find_generated_place,
    find_inner_error,
    find_origin,
    list_causes,
    list_given,
    list_raise_frames,
)
from fuzzcompile.compiler.watch.fresh_calls import call_anew
from fuzzcompile.compiler.watch.guarding_settings import list_guarded_places
from fuzzcompile.compiler.watch.ledger import Ledger
from fuzzcompile.compiler.watch.recorder import Recorder
from fuzzcompile.compiler.watch.stage_patches import watch_backend
from fuzzcompile.compiler.watch.torch_patch import install_patches
from fuzzcompile.model.contract import COMPILE, EXPORTED
from fuzzcompile.model.errors import CaseError
from fuzzcompile.model.facts import facts
from fuzzcompile.model.stages import DYNAMO
from fuzzcompile.run.case import CompiledByParts, CompileSettings
from fuzzcompile.run.device import cut_message, shorten_message
from fuzzcompile.run.observation import Failure
from fuzzcompile.run.raise_sites import describe_errors, find_raise_site

# Silence of torch where failures are expected.


@contextlib.contextmanager
def silence_torch() -> Iterator[None]:
    """Neither warnings nor what torch logs: it would report each program that it cannot trace or compile."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


# What needs the target's device: graphs recorded on it, kernels timed against each other, wrappers in C++.
_NO_DEVICE = {
    "triton.cudagraphs": False,
    "triton.multi_kernel": 0,
    "benchmark_fusion": False,
    "benchmark_kernel": False,
    "cpp_wrapper": False,
}


C = TypeVar("C", bound=CompileChange)


@dataclass(frozen=True)
class Compilation:
    """One way to compile a case: what is changed, and what is watched."""

    # what is done in another way than the case asks, at most one of each kind; see :meth:`under`
    changes: tuple[CompileChange, ...] = ()
    record: bool = True  # keep a ledger with snapshots
    screen: bool = False  # interpret the graphs instead of generating code
    kernels: bool = False  # keep the IR of every graph and what its kernels write
    timed: bool = False  # measure the run time of what was compiled

    def under(self, *changes: CompileChange) -> Compilation:
        """The same compile with further changes, each together with an earlier one of its kind."""
        kept = {change.kind: change for change in self.changes}
        for change in changes:
            earlier = kept.get(change.kind)
            kept[change.kind] = change if earlier is None else change.after(earlier)
        screen = self.screen and not any(change.needs_code for change in changes)
        return replace(self, changes=tuple(kept.values()), screen=screen)

    def without(self, *kinds: type[CompileChange]) -> Compilation:
        """The same compile with no change of these kinds."""
        return replace(self, changes=tuple(change for change in self.changes if not isinstance(change, kinds)))

    def get(self, kind: type[C]) -> C | None:
        """The change of a kind; None if there is none."""
        return next((change for change in self.changes if isinstance(change, kind)), None)

    def get_name(self, kind: type[Backend | CompileMode | CompilePath]) -> str | None:
        """The name of a backend, mode or path in place of the case's own; None leaves it."""
        change = self.get(kind)
        return change.name if change is not None else None

    @property
    def backend(self) -> str | None:
        """The backend in place of the case's own; None leaves it."""
        return self.get_name(Backend)

    @property
    def config(self) -> Mapping[str, object]:
        """Entries of ``torch._inductor.config`` beyond the case's own options."""
        settings = self.get(InductorSettings)
        return settings.entries if settings is not None else {}

    @property
    def order(self) -> ProgramOrder:
        """The order in which programs of an interpreted kernel run."""
        programs = self.get(ProgramsInOrder)
        return programs.order if programs is not None else ProgramOrder.FORWARD

    @property
    def follows_eager_numbers(self) -> bool:
        """Return whether the compiler draws from eager's random stream, not from one of its own."""
        return bool(self.config.get("fallback_random", True))


@contextlib.contextmanager
def open_session(settings: CompileSettings, how: Compilation) -> Iterator[CompileSession]:
    """Everything compiled in this block follows ``settings`` and ``how``; dynamo is reset before and after.

    Inductor's FX graph cache and AOTAutograd's cache are off: with them a second compile runs no passes at
    all, and a veto that never ran would look like a rewrite that is not needed.
    """
    if isinstance(how.get(CompilePath), GraphsFromDisk):
        how = replace(how, record=False)  # no key is made of functions that are watched, and nothing is stored
    screen = how.screen or explain_unfit_kernels() is not None
    # Inputs are kept to replay snapshots on.
    recorder = Recorder(snapshots=how.record, screen=screen, capturing=how.record)
    lowered, log = how.get(Lowered), recorder.ledger.interpreted
    control = lowered.control if lowered is not None else UNCHANGED
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        enter(_apply_settings(settings))
        enter(_switch_off_caches())
        for change in how.changes:
            enter(change.apply(recorder))
        asked = settings.options
        enter(install_patches(recorder, patch_table.GRAPHS, lambda entry: asked.get(entry, get_setting(entry))))
        if how.kernels or control:  # values of kernels are to be kept, or something is to be changed
            watch = LoweringWatch(recorder, control, how.kernels)
            enter(install_patches(watch, patch_table.KERNELS))
            # One C++ compiler at a time, so that what it refuses is raised where the kernel is known.
            enter(patch_config("inductor", {"compile_threads": 1}))
            stack.callback(watch.close)
        enter(install_patches(recorder.ledger, patch_table.COVERAGE if how.record else ()))
        enter(install_patches(recorder, patch_table.SPEED))
        if not screen:
            enter(interpret_kernels(log, order=how.order, templates=how.get(Templates) is not None))
        before = DynamoCounts.now()
        try:
            yield CompileSession(settings, how, recorder)
        finally:
            for question in target_process.take_open_questions():
                log.add_undecided(question)
            # A program may clear the counters itself.
            recorder.ledger.graphs = max(0, DynamoCounts.now().graphs - before.graphs) + recorder.exported
            recorder.ledger.graph_breaks = graph_breaks.list_breaks(before)


@contextlib.contextmanager
def open_plain_session(settings: CompileSettings, how: Compilation | None = None) -> Iterator[CompileSession]:
    """All that :func:`open_session` sets, and nothing watched: a compile as users run it."""
    recorder = Recorder()
    with _apply_settings(settings), _switch_off_caches(), install_patches(recorder, patch_table.SPEED):
        yield CompileSession(settings, how or Compilation(), recorder)


@contextlib.contextmanager
def open_user_settings() -> Iterator[None]:
    """Compile in the block as the process is set, but for eager's random numbers, errors that rise, and no caches.

    What was compiled before stays: calls run its graphs as long as dynamo's guards hold.
    """
    raised, numbers = {"suppress_errors": False}, {"fallback_random": True}
    with patch_config("dynamo", raised), patch_config("inductor", numbers), _switch_off_caches():
        yield


@contextlib.contextmanager
def _apply_settings(settings: CompileSettings) -> Iterator[None]:
    torch._dynamo.reset()
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch_config("inductor", {**settings.inductor, "fallback_random": True}))
        stack.enter_context(patch_config("functorch", settings.functorch))
        stack.enter_context(patch_config("dynamo", {**settings.dynamo, "suppress_errors": False}))
        stack.callback(torch._dynamo.reset)
        yield


@contextlib.contextmanager
def _switch_off_caches() -> Iterator[None]:
    """What no case sets: compiles without caches and, for a target, without its device."""
    always: dict[str, object] = {"fx_graph_cache": False, "fx_graph_remote_cache": False}
    traced: dict[str, object] = {"enable_autograd_cache": False}
    if current_target() is not None:  # backward is compiled while torch is told of it, and nothing is recorded
        always |= _NO_DEVICE
        traced["force_non_lazy_backward_lowering"] = True
    with patch_config("inductor", always), patch_config("functorch", traced):
        yield


@dataclass(frozen=True)
class CompileSession:
    """One watched compile; ``ledger`` fills while the compiled callable runs."""

    settings: CompileSettings
    how: Compilation
    recorder: Recorder

    @property
    def ledger(self) -> Ledger:
        """The record of the compile so far."""
        return self.recorder.ledger

    def compile(self, target: Callable[..., object]) -> Callable[..., Any]:
        """``torch.compile`` of ``target`` with the case's settings, or what stands for it on another path."""
        if isinstance(target, CompiledByParts):
            return target.compile_by_parts(self.compile_part)
        compiled, anew = self._compile(target), self.how.get(CompiledAnew)
        if anew is None and self.how.get(WatchedInstructions) is not None:
            anew = CompiledAnew(facts=())  # the calls are counted, and none compiles anew
        return compiled if anew is None else call_anew(self.recorder, compiled, target, anew.facts, anew.eager_calls)

    def compile_part(self, part: Callable[..., object], settings: CompileSettings) -> Callable[..., Any]:
        """``torch.compile`` of a part of the case's callable with settings of its own."""
        return replace(self, settings=settings).compile(part)

    def _compile(self, target: Callable[..., object]) -> Callable[..., Any]:
        path = find_path(self.settings, self.how)
        if path in EXPORTED:
            options = {key: value for key, value in self.settings.options.items() if key not in self.how.config}
            dynamic = bool(self.settings.dynamic)
            return ExportedCallable(target, path, dynamic=dynamic, options=options, recorder=self.recorder)
        whole = self.settings.fullgraph and not any(change.breaks_graph for change in self.how.changes)
        arguments: dict[str, Any] = {"fullgraph": whole, "dynamic": self.settings.dynamic}
        if (anew := self.how.get(CompiledAnew)) is not None and anew.dynamic:
            arguments["dynamic"] = True
        backend = self.how.backend or self.settings.backend
        own = self.how.backend is None or self.how.backend == self.settings.backend
        options, mode = (dict(self.settings.options), self.settings.mode) if own else ({}, None)
        options = {key: value for key, value in options.items() if key not in self.how.config}
        mode = self.how.get_name(CompileMode) or mode
        asked = {**torch._inductor.list_mode_options().get(mode or "", {}), **options}
        if current_target() is not None and "triton.cudagraphs" in asked:
            options["triton.cudagraphs"] = False  # nothing can be recorded without a device
        given = set(torch._inductor.list_mode_options(mode)) & set(self.how.config) if mode else set()
        if mode and (options or given):  # torch.compile takes one of the two: a mode is nothing but options
            options = {**torch._inductor.list_mode_options(mode), **options}
            options, mode = {key: value for key, value in options.items() if key not in given}, None
        label = make_backend_label(backend)
        if own and not str(label.source).startswith("torch/"):
            backend = watch_backend(self.recorder, label, torch._dynamo.lookup_backend(cast(Any, backend)))
        bypassed = self.how.get(BypassedNodes)
        if bypassed is not None:
            return torch.compile(target, backend=operator_crossref.bypass_nodes(bypassed.names, backend), **arguments)
        if options:
            arguments["options"] = options
        if mode and mode != "default":
            arguments["mode"] = mode
        return torch.compile(target, backend=backend, **arguments)

    def stop_capturing(self) -> None:
        """Keep no inputs of further calls: they are not those of the run that is judged."""
        self.recorder.capturing = False

    @contextlib.contextmanager
    def interpret_in_float64(self) -> Iterator[None]:
        """Calls of what was compiled interpret each graph as it was lowered, in float64, casts dropped.

        The graphs are those of the program's own dtypes, so that a change of meaning shows without the rounding that
        hides it, and without another compile. Only a compile with a ledger (``how.record``) can be called so.
        """
        self.recorder.exact = True
        try:
            yield
        finally:
            self.recorder.exact = False

    def describe_failure(self, error: BaseException) -> Failure:
        """Tell an error of the compiler from one of the compiled program."""
        exporting = error if isinstance(error, ExportError) else None
        # An exception of the compiler's own, or any that left dynamo's conversion of a frame.
        own = type(error).__module__.startswith(("torch._dynamo", "torch._inductor", "torch._functorch"))
        files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
        converting = any(file.endswith(facts().errors.converting_file) for file in files)
        compiler = exporting is not None or own or converting
        cause = find_inner_error(error)
        origin = find_origin(cause)
        message, reason = shorten_message(cause), cut_message(str(origin))
        if type(cause).__module__.startswith("torch._dynamo") and reason not in message:
            message = cut_message(
                f"{message}: {reason}"
            )  # dynamo has a headline of its own, whatever an operator has raised
        uncaptured = graph_breaks.find_uncaptured_reason(error) if exporting is None else exporting.refused
        stage = self.ledger.failed_in.stage if self.ledger.failed_in is not None else None
        return Failure(
            type(cause).__name__,
            uncaptured or message,
            "compile" if compiler or self.ledger.failed_in is not None else "run",
            stage or (exporting.stage if exporting is not None else DYNAMO if compiler else None),
            unsupported=uncaptured is not None,
            machine="" if uncaptured else describe_machine_fault(cause),
            raised=list_raise_frames(cause),
            given=list_given(cause),
            origin=type(origin).__name__,
            worded=bool(str(origin)),
            generated=find_generated_place(cause),
            chain=describe_errors(list_causes(cause)),
            site=find_raise_site(origin),
            guarded=list_guarded_places(cause),
        )


def check_settings(settings: CompileSettings) -> None:
    """Raise CaseError for settings that the installed torch does not have."""
    if settings.backend != "inductor":
        return  # its options are its own
    wanted = {"inductor": settings.options, "dynamo": settings.dynamo, "functorch": settings.functorch}
    for name, changes in wanted.items():
        unknown = [key for key in changes if not has_entry(load_config(name), key)]
        if unknown:
            raise CaseError(f"This torch's {name} config has no {', '.join(sorted(unknown))}; mend OPTIONS or CONFIG.")
    if settings.mode is not None and settings.mode not in list_modes():
        raise CaseError(f"torch.compile knows no mode {settings.mode!r}; use one of {', '.join(list_modes())}.")
    if settings.mode is not None and settings.options:
        raise CaseError("torch.compile takes MODE or OPTIONS, not both; keep one of them.")


def find_path(settings: CompileSettings, how: Compilation) -> str:
    """Return the path that runs in place of a case compiled so (:mod:`fuzzcompile.model.contract`)."""
    return how.get_name(CompilePath) or (settings.path if how.backend is None else COMPILE)


def get_effective_setting(settings: CompileSettings, how: Compilation, key: str) -> object:
    """The entry of Inductor's config under which a case is compiled; ``MISSING`` where this torch has none such."""
    mode = how.get_name(CompileMode) or settings.mode
    given = torch._inductor.list_mode_options(mode) if mode in list_modes() and mode != "default" else {}
    options = {**settings.inductor, **given, **settings.options, **how.config}
    return options.get(key, get_setting(key))


def list_modes() -> tuple[str, ...]:
    """The modes that ``torch.compile`` takes."""
    return tuple(dict.fromkeys(("default", *torch._inductor.list_mode_options())))
