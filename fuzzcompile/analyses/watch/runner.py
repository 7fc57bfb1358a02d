"""A run beside the script: a fork that goes on in the script's code, and ends with the step."""

from __future__ import annotations

import atexit
import json
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from torch.utils._python_dispatch import TorchDispatchMode

from fuzzcompile.analyses.watch.containment import guard, only_writes_below
from fuzzcompile.analyses.watch.graphs import Graphs
from fuzzcompile.analyses.watch.modes import Mode, enter
from fuzzcompile.analyses.watch.records import append_end
from fuzzcompile.analyses.watch.settings import WatchSettings
from fuzzcompile.analyses.watch.values import StepValues
from fuzzcompile.run.float64 import Float64Mode


class Runner:
    """What the script's code meets in such a process.

    Args:
        mode: how the step is run.
        path: where its values are written; None for a run that is only followed.
        folder: the folder of the watch.
        step: the step in which it begins.
        settings: the watch.
        case_settings: module-level names of the case files that a run of the kind ``graphs`` writes.
    """

    def __init__(
        self,
        mode: Mode,
        path: Path | None,
        folder: Path,
        step: int,
        settings: WatchSettings,
        case_settings: Mapping[str, object],
    ) -> None:
        self.mode = mode
        self._path = path
        self._folder = folder
        self._step = step
        self._last = step + settings.trajectory - 1
        self._state_bytes = settings.state_bytes
        self._case_settings = case_settings
        self._graphs = Graphs()
        self._entered: TorchDispatchMode | None = None

    @property
    def trajectory(self) -> str:
        """The name of its trajectory; empty if it has none."""
        return "" if self.mode.kind != "followed" else "perturbed" if self.mode.seed else "eager"

    def start(self, on_act: Callable[[str], None]) -> None:
        """Enter the mode; ``on_act`` is called before the script does something that others could see."""
        threading.excepthook = lambda arguments: None
        atexit.register(os._exit, 0)  # none of the script's own handlers
        only_writes_below(self._folder)
        self._entered = enter(self.mode)
        if self.mode.kind == "graphs":
            self._graphs.capture()
        guard.watch(on_act)

    def begin(self, step: int) -> None:
        """Another step begins."""
        if self.mode.kind != "followed" or step > self._last:
            self.end()

    def fail(self, error: BaseException) -> NoReturn:
        """The script raises: the run ends."""
        guard.on_act = None
        if self._path is not None:
            values = StepValues(failure=(type(error).__name__, " ".join(str(error).split())[:300]))
            values.save(self._path)
        self.end(f"the script raises {type(error).__name__} in eager mode")

    def finish(self, values: StepValues) -> None:
        """The step is complete."""
        guard.on_act = None
        if isinstance(self._entered, Float64Mode):
            values.casts = self._entered.saw_cast
            self._entered.__exit__(None, None, None)
        elif self._entered is not None:
            self._entered.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        if self.mode.kind == "followed":
            return
        assert self._path is not None
        if self.mode.kind == "graphs":
            self._write_cases(self._path.with_suffix(".json"))
        else:
            values.save(self._path)
        os._exit(0)

    def _write_cases(self, path: Path) -> None:
        folder = self._folder / f"step_{self._step}"
        folder.mkdir(exist_ok=True)
        cases = self._graphs.write(folder, self._case_settings, self._state_bytes)
        draft = path.with_suffix(".part")
        draft.write_text(json.dumps({"cases": [str(case) for case in cases], "left_out": self._graphs.left_out}))
        draft.replace(path)

    def end(self, reason: str = "") -> NoReturn:
        """End the process."""
        guard.on_act = None
        if self.trajectory and reason:
            append_end(self._folder, self.trajectory, reason)
        os._exit(0)
