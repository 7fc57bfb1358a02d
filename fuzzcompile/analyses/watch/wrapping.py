"""``from fuzzcompile import watch``: watch a step from within a user's own code."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

from torch import nn

from fuzzcompile.analyses.watch.callables import Watched, observed, watched_module
from fuzzcompile.analyses.watch.installing import install
from fuzzcompile.analyses.watch.settings import DEFAULT_EVERY, WatchSettings
from fuzzcompile.compiler.torch_api import unwrap_compiled
from fuzzcompile.model.errors import UsageError

Step = TypeVar("Step", bound=Callable[..., object])


def watch(step: Step, *, every: int = DEFAULT_EVERY, out: str | Path = "watch") -> Step:
    """Watch a step of a training or serving program: the same callable, with sampled calls judged beside the program.

    At every ``every``-th step this process forks; eager, float64 and perturbed runs go on from the same state in the
    forks, to the end of the step. What they show goes to ``steps.jsonl`` in a new folder; a step that rounding does
    not explain is announced on standard error, and its case and triage are there too. Nothing that happens in the
    forks reaches the program. Inductor's ``fallback_random`` is switched on for what is compiled from now on, because
    a step that draws other random numbers than eager cannot be compared.

    Args:
        step: a module (compiled or not), what ``torch.compile`` returned, or a function that calls such things.
        every: steps from one sample to the next.
        out: the folder; another number is appended for each further watch.

    Returns:
        A module: the same object. Anything else: a function that calls it, with its attributes.

    Raises:
        UsageError: ``step`` cannot be called, or ``every`` is less than 1.
    """
    if not callable(step) or isinstance(step, type):
        raise UsageError(f"watch() takes a module or a function, not {step!r:.80}; pass the step itself.")
    if every < 1:
        raise UsageError(f"watch(every={every}): sample at least every step, with every=1 or more.")
    watcher = install(WatchSettings(str(_new_folder(Path(out))), every), announce=True)
    watcher.state.callables.append(Watched(unwrap_compiled(step)).name)
    if isinstance(step, nn.Module):
        return cast("Step", watched_module(step, watcher))
    return cast("Step", observed(step, Watched(unwrap_compiled(step)), watcher))


def _new_folder(wanted: Path) -> Path:
    folder, number = wanted, 1
    while True:
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
            folder = wanted.with_name(f"{wanted.name}_{number}")
        except OSError as error:
            raise UsageError(f"Cannot make the folder {folder}: {os.strerror(error.errno or 0)}; pass out=.") from error
        else:
            return folder.resolve()
