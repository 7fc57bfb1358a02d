"""Run a user's script, watched: ``python -m fuzzcompile.analyses.watch.job SETTINGS SCRIPT ARGUMENTS...``.

The script runs as ``python SCRIPT ARGUMENTS...`` would run it. Nothing here imports torch, which reads its environment
when it is imported: the watch is installed once the script has imported it.
"""

from __future__ import annotations

import builtins
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path

from fuzzcompile.analyses.watch.step_records import WatchSettings


class _AfterTorch(importlib.abc.MetaPathFinder):
    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of torch, with a loader that goes on to ``then``."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def executed(module: types.ModuleType) -> None:
                execute(module)
                self._then()

            spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


def main(arguments: Sequence[str]) -> None:
    """Run the script of the command line; what it raises, and its exit status, are its own."""
    settings = WatchSettings.from_json(Path(arguments[0]).read_text(encoding="utf-8"))
    script, given = arguments[1], list(arguments[2:])

    def install() -> None:
        from fuzzcompile.analyses.watch.watcher import install_for_script

        install_for_script(settings)

    sys.meta_path.insert(0, _AfterTorch(install))
    path = Path(script)
    source = path.read_bytes()
    code = compile(source, str(path), "exec", dont_inherit=True)
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=script, __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = module
    sys.argv = [script, *given]
    sys.path[0] = str(path.resolve().parent)
    sys.excepthook = _without_our_frames
    exec(code, module.__dict__)


def _without_our_frames(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


if __name__ == "__main__":
    main(sys.argv[1:])
