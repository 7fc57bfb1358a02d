"""Install a watch in a process that has imported torch."""

from __future__ import annotations

import atexit
from pathlib import Path

from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from fuzzcompile.compiler.configs import config_of
from fuzzcompile.plants import run_plants
from fuzzcompile.watching.callables import Watched, observe_compiling
from fuzzcompile.watching.settings import WatchSettings
from fuzzcompile.watching.watcher import Watcher


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
        config_of("inductor").__setattr__("fallback_random", True)
    register_optimizer_step_pre_hook(watcher.optimizing)
    register_optimizer_step_post_hook(watcher.optimized)
    atexit.register(watcher.ended)
    return watcher
