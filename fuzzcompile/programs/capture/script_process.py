"""Run a script on another kind of device than the one it was written for, and undo what it changes in its process.

The script's syntax tree is rewritten (string constants such as ``"cuda:0"`` and calls of ``.cuda()``), so that the
compiled code names the new device too. A mode that swaps devices at run time would be traced.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import logging
import os
import re
import shlex
import signal
import sys
import threading
import traceback
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from fuzzcompile.compiler.torch_api import CUDA
from fuzzcompile.compiler.torch_config import find_import_variables
from fuzzcompile.run.code_files import is_user_file


@contextlib.contextmanager
def preserve_process() -> Iterator[None]:
    """Restore ``__main__``, arguments, import path, environment, working folder and warning filters at the end."""
    main, argv, search_path = sys.modules.get("__main__"), sys.argv, list(sys.path)
    modules, environment, folder = set(sys.modules), dict(os.environ), _get_folder()
    with warnings.catch_warnings():
        try:
            yield
        finally:
            if main is not None:
                sys.modules["__main__"] = main
            sys.argv, sys.path[:] = argv, search_path
            for name in set(sys.modules) - modules:  # the next file may have other modules of the same names
                if is_user_file(getattr(sys.modules[name], "__file__", None) or ""):
                    del sys.modules[name]
            signal.setitimer(signal.ITIMER_REAL, 0)
            logging.disable(logging.NOTSET)
            for name in set(os.environ) - set(environment):
                del os.environ[name]
            os.environ.update({k: v for k, v in environment.items() if os.environ.get(k) != v})
            if folder is not None and _get_folder() != folder:
                with contextlib.suppress(OSError):
                    os.chdir(folder)


def _get_folder() -> Path | None:
    with contextlib.suppress(OSError):  # it has been removed
        return Path.cwd()
    return None


@contextlib.contextmanager
def silence_output() -> Iterator[None]:
    """Discard standard output, written by Python or below it: a script may print without end."""
    sys.stdout.flush()
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        with Path(os.devnull).open("w") as stream, contextlib.redirect_stdout(stream):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


# An alarm in no time at all would never ring.
_SOON_SECONDS = 0.01


@contextlib.contextmanager
def ring(seconds: float, then: Callable[[], None]) -> Iterator[None]:
    """Call ``then`` after so many seconds of the block, in the main thread; in another, which has no alarm, never."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGALRM, lambda number, frame: then())
    signal.setitimer(signal.ITIMER_REAL, max(seconds, _SOON_SECONDS))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if before is None else before)  # None: set outside of Python


_CUDA = re.compile(r"cuda(:\d+)?")
_CPU = re.compile(r"cpu(:\d+)?")


def retarget_script(tree: ast.Module, device: torch.device) -> tuple[ast.Module, bool]:
    """The script's syntax tree for ``device``, and whether anything in it had to change. Lines stay."""
    rewriter = _Rewriter(device)
    changed = rewriter.visit(tree)
    return ast.fix_missing_locations(changed), rewriter.changed


class _Rewriter(ast.NodeTransformer):
    def __init__(self, device: torch.device) -> None:
        self._device = str(device)
        self._other = _CPU if device.type == "cuda" else _CUDA
        self._to_cpu = device.type == "cpu"
        self.changed = False

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str) and self._other.fullmatch(node.value):
            return self._replace(node, self._device)
        return self._replace(node, "gloo") if self._to_cpu and node.value == "nccl" else node

    def _replace(self, node: ast.expr, text: str) -> ast.expr:
        self.changed = True
        return ast.copy_location(ast.Constant(text), node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        first = node.values[0] if node.values else None
        text = first.value if isinstance(first, ast.Constant) else ""
        begins = self._to_cpu and isinstance(text, str) and text.startswith("cuda:")
        return self._replace(node, self._device) if begins else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """``x.cuda()``, ``x.to(0)``, ``device=0``; ``device("cuda", 0)`` loses its index, which a CPU does not have."""
        self.generic_visit(node)
        if not self._to_cpu:
            return node
        for keyword in node.keywords:
            if keyword.arg == "device" and _is_index(keyword.value):
                keyword.value = self._replace(keyword.value, self._device)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if method == "to" and node.args and _is_index(node.args[0]):
            node.args[0] = self._replace(node.args[0], self._device)
        elif isinstance(node.func, ast.Attribute) and method == "cuda" and len(node.args) <= 1:
            self.changed = True
            node.func.attr, node.args, node.keywords = "to", [ast.Constant(self._device)], []
        elif method == "device" and len(node.args) == 2:
            node.args = node.args[:1]
        return node


def _is_index(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


@contextlib.contextmanager
def imitate_cuda() -> Iterator[None]:
    """Without a GPU, turn the parts of ``torch.cuda`` that scripts call around their programs into stand-ins."""
    if torch.cuda.is_available():
        yield
        return
    with contextlib.ExitStack() as stack:
        for name, stand_in in _IMITATED.items():
            place = CUDA.name_member(name)
            if place.check_place() is None:
                stack.enter_context(place.replace(stand_in))
        yield


def _nothing(*_: object, **__: object) -> None:
    return None


def _value(value: object) -> Callable[..., object]:
    return lambda *_, **__: value


def _is_asked_by_user() -> bool:
    """Return whether there is a GPU: yes for the script, no for a library, which has a way of its own without one."""
    return is_user_file(sys._getframe(1).f_code.co_filename)


# An event measures nothing; a stream runs everything immediately.
_MADE = {"__init__": _nothing, "synchronize": _nothing}
_Event = type("Event", (), {**_MADE, "record": _nothing, "elapsed_time": _value(0.0)})
_Stream = type("Stream", (), {**_MADE, "wait_stream": _nothing})
_IMITATED: Mapping[str, Any] = {
    "is_available": _is_asked_by_user,
    "device_count": _value(1),
    "current_device": _value(0),
    "get_device_name": _value("CPU"),
    "get_device_capability": _value((8, 0)),
    "is_bf16_supported": _value(True),
    **dict.fromkeys(("memory_allocated", "max_memory_allocated", "memory_reserved"), _value(0)),
    **dict.fromkeys(("reset_peak_memory_stats", "synchronize", "empty_cache", "set_device"), _nothing),
    "get_device_properties": _value(
        types.SimpleNamespace(name="CPU", gcnArchName="", major=8, minor=0, total_memory=2**33)
    ),
    "mem_get_info": _value((2**33, 2**33)),
    "Stream": _Stream,
    "stream": _value(contextlib.nullcontext()),
    "current_stream": _value(_Stream()),
    "device": _value(contextlib.nullcontext()),
    "Event": _Event,
    **{name: getattr(torch, name) for name in ("FloatTensor", "HalfTensor", "LongTensor", "DoubleTensor")},
    "amp.autocast": lambda enabled=True, dtype=None, cache_enabled=None: torch.autocast(
        "cpu", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled
    ),
    "amp.GradScaler": functools.partial(torch.amp.GradScaler, "cpu"),
}


# Variables that keep trackers of experiments from logging a run, where the user has not set them.
_MUTED = {
    "wandb": ("WANDB_MODE", "disabled"),
    "swanlab": ("SWANLAB_MODE", "disabled"),
    "neptune": ("NEPTUNE_MODE", "debug"),
}


def mute_trackers() -> None:
    """Keep the runs of a script that is judged, more than one, out of the user's trackers."""
    for name, value in _MUTED.values():
        os.environ.setdefault(name, value)


def name_muted() -> Iterator[str]:
    """Remarks on trackers that the script has imported."""
    for module, (name, value) in _MUTED.items():
        if module in sys.modules and os.environ.get(name) == value:
            yield f"{module} logs nothing while the script is judged ({name}={value}, unless you set it)"


# What ended a script: the errors behind one, and the arguments that it read or that a parser refused.


class WatchedArguments(list[str]):
    """The ``sys.argv`` of a script, which notes whether more of it than the script's name was asked for."""

    were_read = False

    def __getitem__(self, key: Any) -> Any:
        self.were_read |= key != 0
        return super().__getitem__(key)

    def __len__(self) -> int:
        self.were_read = True
        return super().__len__()

    def __reduce__(self) -> Any:
        """Pickle as a plain list: processes that the script starts get a copy."""
        return list, (list(self),)


def walk_causes(error: BaseException | None, *, contexts: bool = False) -> Iterator[BaseException]:
    """An exception and those that it names as its causes, the first of them last; ``contexts``: or was raised after."""
    while error is not None:
        yield error
        error = error.__cause__ or (error.__context__ if contexts else None)


def find_importer(error: ImportError) -> str | None:
    """The library that imported what is missing; None if the user's own code did."""
    frames = [
        frame for frame, _ in traceback.walk_tb(error.__traceback__) if "importlib" not in frame.f_code.co_filename
    ]
    if not frames or is_user_file(frames[-1].f_code.co_filename):
        return None
    return str(frames[-1].f_globals.get("__name__")).partition(".")[0]


def find_usage_error(error: BaseException) -> str | None:
    """Words of argparse or click on a script's arguments before it ended the process; None if neither did."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if Path(frame.f_code.co_filename).name == "argparse.py" and frame.f_code.co_name == "error":
            return " ".join(str(frame.f_locals.get("message")).split())
    refused = next(
        (e for e in walk_causes(error, contexts=True) if hasattr(e, "format_message") and hasattr(e, "exit_code")), None
    )
    return None if refused is None else " ".join(str(refused.format_message()).split())


# Environment variables that a script sets too late: torch has read them when it was imported.


def set_too_late(tree: ast.Module, before: Mapping[str, str]) -> Iterator[str]:
    """Remarks on variables that changed in a script since ``before``, its first environment, and had no effect."""
    changed = [name for name, value in os.environ.items() if before.get(name) != value]
    late = find_import_variables(changed)
    vain = [name for name in late if _follows_import(tree, name)]
    if vain:
        yield (
            f"the script sets {', '.join(vain)} after it imports torch, which reads it at import: without effect, "
            "here and in plain Python; set it before torch is imported"
        )
    if missed := [name for name in late if name not in vain]:
        export = shlex.join(["export", *(f"{name}={os.environ[name]}" for name in missed)])
        yield (
            f"the script sets {', '.join(missed)}, which torch reads when it is imported, and fuzzcompile imports it "
            f"before the script runs: without effect here; set it in the environment of fuzzcompile: `{export}`"
        )


def _follows_import(tree: ast.Module, name: str) -> bool:
    imports, names = [], []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            imports += [node.lineno] if (node.module or "").split(".")[0] == "torch" and not node.level else []
        elif isinstance(node, ast.Import):
            imports += [node.lineno for alias in node.names if alias.name.split(".")[0] == "torch"]
        elif isinstance(node, ast.Constant) and node.value == name:
            names.append(node.lineno)
    return bool(imports and names) and min(imports) < min(names)
