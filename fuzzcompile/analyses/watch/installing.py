"""Install a watch in a process that has imported torch."""

from __future__ import annotations

import atexit
from pathlib import Path

from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from fuzzcompile.analyses.watch.callables import Watched, observe_compiling
from fuzzcompile.analyses.watch.settings import WatchSettings
from fuzzcompile.analyses.watch.watcher import Watcher
from fuzzcompile.compiler.torch_config import load_config
from fuzzcompile.run.plants import run_plants


def install_for_script(settings: WatchSettings) -> None:
    """Watch everything that this process compiles from now on."""
    run_plants([Path(path) for path in settings.plants])
    watcher = install(settings)

    def compiled(watched: Watched) -> None:
        watcher.state.callables.append(watched.name)

    observe_compiling(watcher, compiled)


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
