"""Counts the steps of a script, in its own process, and forks at sampled ones; a failure of ours ends the watch alone.

A *step* begins with an outermost call of a watched callable and ends with the ``optimizer.step()`` after it, or with
the call itself where no gradients are recorded, or else where the next step begins.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from fuzzcompile.analyses.watch.side_processes import Mode, Queue, Runner, guard
from fuzzcompile.analyses.watch.sidecar import StepSupervisor, follow
from fuzzcompile.analyses.watch.step_graphs import case_settings
from fuzzcompile.analyses.watch.step_records import (
    DEFAULT_EVERY,
    STOP,
    TRAJECTORY,
    JobState,
    WatchSettings,
    append,
    write_json,
)
from fuzzcompile.analyses.watch.step_values import StepRecording, named_state
from fuzzcompile.compiler.collectives import find_size, share_text
from fuzzcompile.compiler.torch_api import (
    BACKWARD,
    COMPILE,
    copy_configs,
    disable_compile,
    skip_tracing,
    unwrap_compiled,
)
from fuzzcompile.compiler.torch_config import load_config
from fuzzcompile.model.errors import UsageError, describe_error
from fuzzcompile.report.output_files import make_next_folder
from fuzzcompile.run.case import Arguments
from fuzzcompile.run.sharded_tensors import find_rank

# Callables that report their calls, in place of those that ``torch.compile`` returns or that a user names.

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
        kind = type(self.target)
        return (
            kind.__name__ if isinstance(self.target, nn.Module) else getattr(self.target, "__qualname__", kind.__name__)
        )

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer whose ``step`` this is."""
        owner = getattr(self.target, "__self__", None)
        return owner if isinstance(owner, Optimizer) else None


def observed(real: Callable[..., object], watched: Watched, listener: Watcher) -> Callable[..., object]:
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
    with contextlib.suppress(AttributeError, TypeError):  # a callable without a name
        call = functools.wraps(real)(call)
    return call


class _Hooks:
    """Forward hooks of a module; copies of the module report to the same listener, pickled ones to none."""

    def __init__(self, watched: Watched, listener: Watcher) -> None:
        self._watched, self._listener, self._entered = watched, listener, False

    def before(self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        self._entered = self._listener.enter(self._watched, Arguments(args, kwargs)) or self._entered

    def after(self, module: nn.Module, args: object, kwargs: object, output: object) -> None:
        if self._entered:
            self._entered = False
            self._listener.leave(self._watched, output)


def watched_module(module: nn.Module, listener: Watcher) -> nn.Module:
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


def observe_compiling(listener: Watcher) -> None:
    """Have everything that ``torch.compile`` returns from now on report its calls."""
    original: Any = torch.compile

    @functools.wraps(original)
    def compile_(model: object = None, **arguments: object) -> object:
        if model is None:
            return functools.partial(compile_, **arguments)
        compiled = original(model, **arguments)
        if arguments.get("disable") or isinstance(model, type) or not callable(compiled):
            return compiled
        try:
            settings = {name: arguments[name] for name in _CASE_ARGUMENTS if arguments.get(name) is not None}
            watched = Watched(unwrap_compiled(model), settings)
            listener.state.callables.append(watched.name)
            if not isinstance(compiled, nn.Module):
                return observed(compiled, watched, listener)
            compiled.forward = observed(compiled.forward, watched, listener)
        except Exception as error:  # ours, of whatever kind: the script gets what torch made
            listener.state.skipped[f"of a callable that cannot be watched ({describe_error(error)})"] = 1
        return compiled

    COMPILE.put(compile_)


# Calls after which a step is taken to have no optimizer.step() after all.
_MOST_CALLS = 256


class WatchStopped(SystemExit):
    """Ends the script where the user asked for it, with exit status 0."""


class Watcher:
    """Watches the callables of one process; all calls come from the thread that made it.

    With ``announce``, it says on the script's standard error what a sample shows, because nobody else does.
    """

    def __init__(self, settings: WatchSettings, *, announce: bool = False) -> None:
        self.settings = settings
        self.state = JobState()
        self._announce, self._folder = announce, settings.folder
        self._thread, self._process = threading.get_ident(), os.getpid()
        self._configs = copy_configs()
        self._depth = 0
        self._optimizers = False  # whether the script calls optimizer.step()
        self._unfinished = False  # a step is waiting for its optimizer.step()
        self._calls = 0
        self._open: StepRecording | None = None
        self._runner: Runner | None = None
        self._queue = Queue(self.state, settings.size)
        self._followed: range | None = None
        self._hears_backward = False

    def __deepcopy__(self, memo: object) -> Watcher:
        return self

    @disable_compile
    def enter(self, watched: Watched, arguments: Arguments) -> bool:
        """Before a call of a watched callable; whether :meth:`leave` must follow it."""
        if self._depth or self._is_off or threading.get_ident() != self._thread or torch.compiler.is_compiling():
            return False
        if torch._C._current_graph_task_id() != -1:
            return False  # called by a hook of a backward pass: a part of it
        self._depth += 1
        try:
            with self._contained():
                self._begin(watched, arguments)
                if watched.optimizer is not None:
                    self.optimizing(watched.optimizer)
        except BaseException:
            self._depth -= 1
            raise
        return True

    @disable_compile
    def leave(self, watched: Watched, output: object) -> None:
        """After such a call."""
        self._depth -= 1
        with self._contained():
            if self._open is not None:
                self._open.returned(output)
            if watched.optimizer is not None:  # compiled: its own hooks are traced, and do nothing
                self.optimized(watched.optimizer)
            elif self._open is not None and (self._open.optimized or not torch.is_grad_enabled()):
                self.finish()

    def failed(self, error: BaseException) -> None:
        """Instead of :meth:`leave`, if the call raised."""
        self._depth -= 1
        if self._runner is not None and not isinstance(error, WatchStopped):
            self._runner.fail(error)
        self._open = None

    def optimizing(self, optimizer: Optimizer, *_: object) -> None:
        """Before an ``optimizer.step()``: gradients are complete."""
        if torch.compiler.is_compiling() or self._open is None or self._is_off:
            return
        with self._contained():
            self._open.accumulated(optimizer)

    def optimized(self, optimizer: Optimizer, *_: object) -> None:
        """After an ``optimizer.step()``: the step is complete."""
        if torch.compiler.is_compiling() or self._is_off:
            return
        with self._contained():
            if not self._optimizers and self._runner is None:  # what looked like steps of their own was one
                self.state.steps -= max(0, self._calls - 1) if self._unfinished else 0
            self._optimizers = True
            self._unfinished, self._calls = False, 0
            if self._open is not None:
                self._open.stepped(optimizer)
                if not self._depth:  # else once the call has returned its outputs
                    self.finish()

    def finish(self, reason: str = "") -> None:
        """End the sampled step, if there is one: its values are complete, or as complete as ``reason`` allows."""
        opened, self._open = self._open, None
        if opened is None:
            return
        opened.end(reason)
        if self._runner is not None:
            self._runner.finish(opened.values)
        opened.values.save(opened.path)
        if self.settings.stop_at_first:
            self._queue.wait(until=(self._folder / STOP).exists)

    def ended(self) -> None:
        """The script has ended."""
        if os.getpid() != self._process:
            return  # a fork of the script's own
        with self._contained():
            self.finish()
            self._queue.reap()
        self.state.ended = True
        self._write()
        if self._announce and self.state.sampled:
            steps = ", ".join(map(str, self.state.sampled[:8]))
            print(f"fuzzcompile watch: sampled steps {steps}; see {self._folder}", file=sys.stderr)  # noqa: T201

    @property
    def _is_off(self) -> bool:
        """Return whether nothing is watched here: after a failure of ours, and in forks that are none of our runs."""
        return self.state.error is not None or (os.getpid() != self._process and self._runner is None)

    def _begin(self, watched: Watched, arguments: Arguments) -> None:
        self.state.calls += 1
        if self._optimizers and self._unfinished and self._calls < _MOST_CALLS:
            self._calls += 1
            return
        self.finish()
        self.state.steps += 1
        # Before the first optimizer.step(), nobody knows whether there will be one.
        self._calls = self._calls + 1 if self._unfinished and not self._optimizers else 1
        self._unfinished = torch.is_grad_enabled()
        number, limit = self.state.steps, self.settings.steps
        if self._runner is not None:
            self._runner.begin(number)
            return
        stopped = self.settings.stop_at_first and (self._folder / STOP).exists()
        if stopped or (limit is not None and number > limit):
            self.state.steps -= 1  # it does not take place
            self._write()
            raise WatchStopped(0)
        if number % self.settings.every == 0:
            self._sample(number, watched, arguments)

    def _sample(self, number: int, watched: Watched, arguments: Arguments) -> None:
        named = named_state(watched.target, arguments)
        refusal = self._queue.refusal(named.values())
        if refusal is not None:
            if self.settings.size > 1:
                self.settings.refused(number).parent.mkdir(parents=True, exist_ok=True)
                self.settings.refused(number).write_text(refusal, encoding="utf-8")
            self.state.skipped[refusal] = self.state.skipped.get(refusal, 0) + 1
            return
        if self._followed is None and torch.is_grad_enabled():
            self._followed = range(number, number + self.settings.trajectory)
            lock = self.settings.work / "followed.lock"
            mode = self._queue.forked(lambda keep: follow(self.settings, keep), lock, counts=False)
            if mode is not None:
                self._run_as(mode, None, {})
        if self._runner is None:
            supervisor = StepSupervisor(self.settings, number, announce=self._announce)
            opened = StepRecording(named, supervisor.path("compiled"))
            mode = self._queue.forked(supervisor.supervise, supervisor.lock)
            if mode is not None:
                self._run_as(mode, supervisor.path(mode.name), case_settings(watched.settings, self._configs))
            else:
                self.state.sampled.append(number)
                self._write()
            self._open = opened
        self._watch_backward()

    def _run_as(self, mode: Mode, path: Path | None, case_settings: Mapping[str, object]) -> None:
        self._runner = Runner(mode, path, self.state.steps, self.settings, case_settings)
        self._runner.start(self._blocked)
        sys.excepthook = lambda kind, error, trace: self._blocked(f"raising {kind.__name__}: {error}"[:200])
        atexit.register(self.finish)

    def _blocked(self, act: str) -> None:
        reason = f"a run beside the script ends: it goes on with {act}"
        self.finish(reason)
        assert self._runner is not None
        self._runner.end(reason)

    def _watch_backward(self) -> None:
        """Have every backward pass from now on reported."""
        if self._hears_backward:
            return
        self._hears_backward = True
        original: Any = torch.autograd.backward

        @functools.wraps(original)
        def backward(tensors: object, *args: object, **kwargs: object) -> object:
            if torch.compiler.is_compiling():
                return original(tensors, *args, **kwargs)
            self._differentiating(tensors)
            try:
                result = original(tensors, *args, **kwargs)
            except BaseException as error:
                if self._runner is not None:
                    self._runner.fail(error)
                raise
            self._differentiated()
            return result

        skip_tracing(backward)
        BACKWARD.put(backward)

    @disable_compile
    def _differentiated(self) -> None:
        with self._contained():
            if self._open is not None:
                self._open.differentiated()

    @disable_compile
    def _differentiating(self, tensors: object) -> None:
        with self._contained():
            roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)  # type: ignore[call-overload]
            scalars = [root for root in roots if root.numel() == 1]
            if self._open is not None:
                for root in scalars:
                    self._open.values.add("loss", "loss", root)
            run, step = "compiled" if self._runner is None else self._runner.trajectory, self.state.steps
            if run and scalars and self._followed is not None and step in self._followed:
                loss = float(scalars[0].detach())
                entry = {"run": run, "step": step, "loss": loss, "rank": self.settings.rank}
                with guard.paused():
                    append(self._folder / TRAJECTORY, entry)

    @contextlib.contextmanager
    def _contained(self) -> Iterator[None]:
        """Whatever fails in the block is ours: the script must go on."""
        try:
            yield
        except Exception as error:
            if self._runner is not None:
                self._runner.fail(error)
            self._open = None
            self.state.error = describe_error(error)
            self._write()

    def _write(self) -> None:
        try:
            write_json(self.settings.job, asdict(self.state))
        except OSError as error:
            self.state.error = describe_error(error)


def install(settings: WatchSettings, *, announce: bool = False) -> Watcher:
    """A watcher that hears of every ``optimizer.step()`` and of the end of the process."""
    watcher = Watcher(settings, announce=announce)
    if not settings.own_random:
        # The compiler draws random numbers of its own otherwise, and no step with dropout could be compared.
        load_config("inductor").__setattr__("fallback_random", True)
    register_optimizer_step_pre_hook(watcher.optimizing)
    register_optimizer_step_post_hook(watcher.optimized)
    atexit.register(watcher.ended)
    return watcher


_MEETING_SECONDS = 60.0
_watches = itertools.count()  # of this process; of all ranks, if they call `watch` alike


def _find_place() -> tuple[int, int]:
    """The rank of this process among those of the program, and how many there are."""
    size = find_size()
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if size is None and started > 1:
        raise UsageError(
            f"This is one of {started} processes, which cannot agree yet on what to watch: call "
            "torch.distributed.init_process_group() before fuzzcompile.watch()."
        )
    if size is None or size == 1:
        return 0, 1
    if int(os.environ.get("LOCAL_WORLD_SIZE", size)) != size:
        raise UsageError("watch() reaches the processes of one machine, and the program runs on several: use one.")
    return find_rank(), size


def _choose_folder(out: Path, rank: int, size: int) -> Path:
    """A new folder for what is seen; the first rank makes it, and the others learn of it."""
    made = make_next_folder(out, "out=").resolve() if rank == 0 else None
    if size == 1 and made is not None:
        return made
    key = f"fuzzcompile.watch.{next(_watches)}"
    try:
        return Path(share_text(key, None if made is None else str(made), _MEETING_SECONDS))
    except RuntimeError as error:
        raise UsageError("The first rank does not call fuzzcompile.watch(): call it in every process.") from error


Step = TypeVar("Step", bound=Callable[..., object])


def watch(step: Step, *, every: int = DEFAULT_EVERY, out: str | Path = "watch") -> Step:
    """Watch a step of a training or serving program: the same callable, with sampled calls judged beside the program.

    At every ``every``-th step this process forks; eager, float64 and perturbed runs go on from the same state in the
    forks, to the end of the step, and nothing that happens there reaches the program. What they show goes to
    ``steps.jsonl`` in the folder ``out`` (with a number for each further watch); a step that rounding does not explain
    is announced on standard error, and its case and triage are there too. Inductor's ``fallback_random`` is switched on
    for what is compiled from now on, because a step that draws other random numbers than eager cannot be compared.

    ``step`` is a module (compiled or not), what ``torch.compile`` returned, or a function that calls such things. A
    module is returned as it is, else a function that calls it, with its attributes. UsageError if it cannot be called,
    or for an ``every`` below 1.

    A program that ``torchrun`` has started calls it in every process, once they have formed their group: a step is
    judged over all of them together, in the folder of the first. UsageError before they have, for processes on
    several machines, and where the first rank does not call it within a minute.
    """
    if not callable(step) or isinstance(step, type):
        raise UsageError(f"watch() takes a module or a function, not {step!r:.80}; pass the step itself.")
    if every < 1:
        raise UsageError(f"watch(every={every}): sample at least every step, with every=1 or more.")
    rank, size = _find_place()
    settings = WatchSettings(_choose_folder(Path(out), rank, size), every, rank=rank, size=size)
    watcher = install(settings, announce=rank == 0)
    watcher.state.callables.append(Watched(unwrap_compiled(step)).name)
    if isinstance(step, nn.Module):
        return cast("Step", watched_module(step, watcher))
    return cast("Step", observed(step, Watched(unwrap_compiled(step)), watcher))
