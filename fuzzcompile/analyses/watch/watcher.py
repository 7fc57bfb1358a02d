"""Counts the steps of a script, and takes samples of them; everything that happens in the script's own process.

A *step* begins with an outermost call of a watched callable and ends with the ``optimizer.step()`` after it, or with
the call itself where no gradients are recorded, or else where the next step begins. Calls between belong to the step
(gradient accumulation, blocks that are compiled one by one).

At a sampled step the process forks. The fork, and forks of it, go on in the script's own code from the same state in
other ways (:mod:`fuzzcompile.analyses.watch.modes`), to the end of the step; the script itself goes on, and leaves a
copy of
the step's values. Nothing of ours that fails may reach the script: it is reported, and nothing is watched any more.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from torch.optim.optimizer import Optimizer

from fuzzcompile.analyses.watch.callables import Watched, observe_backward
from fuzzcompile.analyses.watch.containment import guard
from fuzzcompile.analyses.watch.graphs import case_settings
from fuzzcompile.analyses.watch.modes import Mode
from fuzzcompile.analyses.watch.queue import Queue
from fuzzcompile.analyses.watch.recording import Recording
from fuzzcompile.analyses.watch.records import STOP, JobState, append_loss, write_job
from fuzzcompile.analyses.watch.runner import Runner
from fuzzcompile.analyses.watch.settings import WatchSettings
from fuzzcompile.analyses.watch.sidecar import StepFiles, follow, supervise
from fuzzcompile.analyses.watch.values import named_state
from fuzzcompile.compiler.torch_api import copy_configs, disable_compile
from fuzzcompile.run.case import Arguments

_NONE: Mapping[str, object] = MappingProxyType({})
# Calls after which a step is taken to have no optimizer.step() after all.
_MOST_CALLS = 256


class Stopped(SystemExit):
    """Ends the script where the user asked for it; a clean exit."""

    def __init__(self) -> None:
        super().__init__(0)


class Watcher:
    """Watches the callables of one process; all calls come from the thread that made it.

    Args:
        settings: how often to sample, and when to end the script.
        announce: say on the script's standard error what a sample shows, because nobody else does.
    """

    def __init__(self, settings: WatchSettings, *, announce: bool = False) -> None:
        self.settings = settings
        self.state = JobState()
        self._announce = announce
        self._folder = Path(settings.folder)
        self._thread = threading.get_ident()
        self._process = os.getpid()
        self._configs = copy_configs()
        self._depth = 0
        self._optimizers = False  # whether the script calls optimizer.step()
        self._unfinished = False  # a step is waiting for its optimizer.step()
        self._calls = 0
        self._open: Recording | None = None
        self._runner: Runner | None = None
        self._queue = Queue(self.state)
        self._followed: range | None = None
        self._hears_backward = False

    def __deepcopy__(self, memo: object) -> Watcher:
        return self

    # -- what happens in the script ---------------------------------------------------------------

    @disable_compile
    def enter(self, watched: Watched, arguments: Arguments) -> bool:
        """Before a call of a watched callable; whether :meth:`leave` must follow it."""
        if self._depth or self._is_off or threading.get_ident() != self._thread or torch.compiler.is_compiling():
            return False
        self._depth += 1
        try:
            self._begin(watched, arguments)
            if watched.optimizer is not None:
                self.optimizing(watched.optimizer)
        except Exception as error:  # ours, of whatever kind: the script must go on
            self._give_up(error)
        except BaseException:
            self._depth -= 1
            raise
        return True

    @disable_compile
    def leave(self, watched: Watched, output: object) -> None:
        """After such a call."""
        self._depth -= 1
        try:
            self._returned(watched, output)
        except Exception as error:  # ours, as above
            self._give_up(error)

    def failed(self, error: BaseException) -> None:
        """Instead of :meth:`leave`, if the call raised."""
        self._depth -= 1
        if self._runner is not None and not isinstance(error, Stopped):
            self._runner.fail(error)
        self._open = None

    def optimizing(self, optimizer: Optimizer, *_: object) -> None:
        """Before an ``optimizer.step()``: gradients are complete."""
        if torch.compiler.is_compiling() or self._open is None or self._is_off:
            return
        try:
            self._open.accumulated(optimizer)
        except Exception as error:  # ours, as above
            self._give_up(error)

    def optimized(self, optimizer: Optimizer, *_: object) -> None:
        """After an ``optimizer.step()``: the step is complete."""
        if torch.compiler.is_compiling() or self._is_off:
            return
        try:
            if not self._optimizers and self._runner is None:  # what looked like steps of their own was one
                self.state.steps -= max(0, self._calls - 1) if self._unfinished else 0
            self._optimizers = True
            self._unfinished, self._calls = False, 0
            if self._open is not None:
                self._open.stepped(optimizer)
                if not self._depth:  # else once the call has returned its outputs
                    self.finish()
        except Exception as error:  # ours, as above
            self._give_up(error)

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
        try:
            self.finish()
            self._queue.reap()
        except Exception as error:  # ours, as above
            self._give_up(error)
        self.state.ended = True
        self._write()
        if self._announce and self.state.sampled:
            steps = ", ".join(map(str, self.state.sampled[:8]))
            print(f"fuzzcompile watch: sampled steps {steps}; see {self._folder}", file=sys.stderr)  # noqa: T201

    @property
    def _is_off(self) -> bool:
        """Whether nothing is watched here: after a failure of ours, and in forks that are none of our runs."""
        return self.state.error is not None or (os.getpid() != self._process and self._runner is None)

    # -- steps --------------------------------------------------------------------------------------

    def _begin(self, watched: Watched, arguments: Arguments) -> None:
        self.state.calls += 1
        if self._continues():
            self._calls += 1
            return
        self.finish()
        self.state.steps += 1
        graded = torch.is_grad_enabled()
        # Before the first optimizer.step(), nobody knows whether there will be one.
        self._calls = self._calls + 1 if self._unfinished and not self._optimizers else 1
        self._unfinished = graded
        number, limit = self.state.steps, self.settings.steps
        if self._runner is not None:
            self._runner.begin(number)
            return
        if self._is_over(limit):
            self._write()
            raise Stopped
        if number % self.settings.every == 0:
            self._sample(number, watched, arguments)

    def _continues(self) -> bool:
        return self._optimizers and self._unfinished and self._calls < _MOST_CALLS

    def _is_over(self, limit: int | None) -> bool:
        stopped = self.settings.stop_at_first and (self._folder / STOP).exists()
        if stopped or (limit is not None and self.state.steps > limit):
            self.state.steps -= 1  # it does not take place
            return True
        return False

    def _returned(self, watched: Watched, output: object) -> None:
        opened = self._open
        if opened is not None:
            opened.returned(output)
        if watched.optimizer is not None:  # compiled: its own hooks are traced, and do nothing
            self.optimized(watched.optimizer)
        elif opened is not None and (opened.optimized or not torch.is_grad_enabled()):
            self.finish()

    # -- samples ------------------------------------------------------------------------------------

    def _sample(self, number: int, watched: Watched, arguments: Arguments) -> None:
        named = named_state(watched.target, arguments)
        refusal = self._queue.refusal(named.values())
        if refusal is not None:
            self.state.skipped[refusal] = self.state.skipped.get(refusal, 0) + 1
            return
        if self._followed is None and torch.is_grad_enabled():
            self._followed = range(number, number + self.settings.trajectory)
            self._follow()
        if self._runner is None:
            files = StepFiles.of(self._folder, number)
            opened = Recording(named, files.values("compiled"))
            mode = self._queue.forked(
                lambda keep: supervise(files, self.settings, keep, announce=self._announce), files.lock
            )
            if mode is not None:
                self._run_as(mode, files.values(mode.name), case_settings(watched.settings, self._configs))
            else:
                self.state.sampled.append(number)
                self._write()
            self._watch_backward()
            self._open = opened

    def _follow(self) -> None:
        """Follow eager trajectories from here on, beside the script."""
        lock = self._folder.joinpath(".work", "followed.lock")
        mode = self._queue.forked(lambda keep: follow(self.settings, keep), lock, counts=False)
        if mode is not None:
            self._run_as(mode, None)
        self._watch_backward()

    def _run_as(self, mode: Mode, path: Path | None, case_settings: Mapping[str, object] = _NONE) -> None:
        """Turn this process, a fork, into a run beside the script."""
        self._runner = Runner(mode, path, self._folder, self.state.steps, self.settings, case_settings)
        self._runner.start(self._blocked)
        sys.excepthook = lambda kind, error, trace: self._blocked(f"raising {kind.__name__}: {error}"[:200])
        atexit.register(self.finish)

    def _blocked(self, act: str) -> None:
        """The script's code, in a run beside it, is about to do something that others would see."""
        reason = f"a run beside the script ends: it goes on with {act}"
        self.finish(reason)
        assert self._runner is not None
        self._runner.end(reason)

    # -- the loss -----------------------------------------------------------------------------------

    def _watch_backward(self) -> None:
        """Have the roots of backward passes recorded: losses."""
        if not self._hears_backward:
            self._hears_backward = True
            observe_backward(self._differentiating, self._differentiated, self._not_differentiated)

    def _not_differentiated(self, error: BaseException) -> None:
        if self._runner is not None:
            self._runner.fail(error)

    @disable_compile
    def _differentiated(self) -> None:
        """After a backward pass: its gradients, if it is the first of the step."""
        if self._open is None:
            return
        try:
            self._open.differentiated()
        except Exception as error:  # ours, as above
            self._give_up(error)

    @disable_compile
    def _differentiating(self, tensors: object) -> None:
        try:
            roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)  # type: ignore[call-overload]
            scalars = [root for root in roots if root.numel() == 1]
            if self._open is not None:
                for root in scalars:
                    self._open.values.add("loss", "loss", root)
            run = "compiled" if self._runner is None else self._runner.trajectory
            if run and scalars and self._followed is not None and self.state.steps in self._followed:
                with guard.paused():
                    append_loss(self._folder, run, self.state.steps, float(scalars[0].detach()))
        except Exception as error:  # ours, as above
            self._give_up(error)

    # -- our own failures ----------------------------------------------------------------------------

    def _give_up(self, error: Exception) -> None:
        if self._runner is not None:
            self._runner.fail(error)
        self._open = None
        self.state.error = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        self._write()

    def _write(self) -> None:
        try:
            write_job(self._folder, self.state)
        except OSError as error:
            self.state.error = f"{type(error).__name__}: {error}"
