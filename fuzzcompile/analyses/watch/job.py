"""Run a user's script, watched: ``python -m fuzzcompile.analyses.watch.job SETTINGS SCRIPT ARGUMENTS...``.

The script runs as ``python SCRIPT ARGUMENTS...`` would run it. Nothing here imports torch, which reads its environment
when it is imported: the watch is installed once the script has imported it.
"""

from __future__ import annotations

import builtins
import importlib.abc
import importlib.machinery
import importlib.util
import pickle
import sys
import types
from collections.abc import Sequence
from pathlib import Path

from fuzzcompile.analyses.watch.step_records import WatchSettings


class _WatchAfterTorch(importlib.abc.MetaPathFinder):
    """Installs the watch once torch is imported."""

    def __init__(self, settings: WatchSettings) -> None:
        self._settings = settings

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of torch, with a loader that goes on to the watch."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def executed(module: types.ModuleType) -> None:
                execute(module)
                from fuzzcompile.analyses.watch.watcher import install, observe_compiling
                from fuzzcompile.run.plants import run_plants
                from fuzzcompile.run.ranks import limit_collectives

                if self._settings.size > 1:
                    limit_collectives(self._settings.seconds)
                run_plants(self._settings.plants)
                observe_compiling(install(self._settings))

            spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


def main(arguments: Sequence[str]) -> None:
    """Run the script of the command line; what it raises, and its exit status, are its own."""
    settings, script = arguments[0], Path(arguments[1])
    sys.meta_path.insert(0, _WatchAfterTorch(pickle.loads(Path(settings).read_bytes())))
    code = compile(script.read_bytes(), str(script), "exec", dont_inherit=True)
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=arguments[1], __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = module
    sys.argv = list(arguments[1:])
    sys.path[0] = str(script.resolve().parent)
    sys.excepthook = _without_our_frames
    exec(code, module.__dict__)


def _without_our_frames(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


if __name__ == "__main__":
    main(sys.argv[1:])
