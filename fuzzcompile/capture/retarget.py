"""Run a script on another kind of device than the one it was written for.

The script's syntax tree is rewritten (string constants such as ``"cuda:0"`` and calls of ``.cuda()``), so that the
compiled code names the new device too. A mode that swaps devices at run time would be traced.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import re
import types
from collections.abc import Callable, Iterator, Mapping

import torch

_CUDA = re.compile(r"cuda(:\d+)?")
_CPU = re.compile(r"cpu(:\d+)?")


def retargeted(tree: ast.Module, device: torch.device) -> tuple[ast.Module, bool]:
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
        """A string that names the other kind of device."""
        if isinstance(node.value, str) and self._other.fullmatch(node.value):
            return self._replaced(node, self._device)
        if self._to_cpu and node.value == "nccl":
            return self._replaced(node, "gloo")
        return node

    def _replaced(self, node: ast.expr, text: str) -> ast.expr:
        self.changed = True
        return ast.copy_location(ast.Constant(text), node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        """An f-string that begins with ``cuda:``."""
        first = node.values[0] if node.values else None
        text = first.value if isinstance(first, ast.Constant) else ""
        if self._to_cpu and isinstance(text, str) and text.startswith("cuda:"):
            return self._replaced(node, self._device)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """``x.cuda()``, ``x.to(0)``, ``device=0``; ``device("cuda", 0)`` loses its index, which a CPU does not have."""
        self.generic_visit(node)
        if not self._to_cpu:
            return node
        for keyword in node.keywords:
            if keyword.arg == "device" and _is_index(keyword.value):
                keyword.value = self._replaced(keyword.value, self._device)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if method == "to" and node.args and _is_index(node.args[0]):
            node.args[0] = self._replaced(node.args[0], self._device)
        elif isinstance(node.func, ast.Attribute) and method == "cuda" and len(node.args) <= 1:
            self.changed = True
            node.func.attr, node.args, node.keywords = "to", [ast.Constant(self._device)], []
        elif method == "device" and len(node.args) == 2:
            node.args = node.args[:1]
        return node


def _is_index(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


@contextlib.contextmanager
def cuda_imitated() -> Iterator[None]:
    """Without a GPU, turn the parts of ``torch.cuda`` that scripts call around their programs into stand-ins."""
    if torch.cuda.is_available():
        yield
        return
    with _replaced(vars(torch.cuda), _IMITATED), _replaced(vars(torch.cuda.amp), _CPU_AMP):
        yield


@contextlib.contextmanager
def _replaced(namespace: dict[str, object], replacements: Mapping[str, object]) -> Iterator[None]:
    """Replace names of a module in the block; names that it does not have are left out."""
    kept = {name: namespace[name] for name in replacements if name in namespace}
    namespace.update((name, replacements[name]) for name in kept)
    try:
        yield
    finally:
        namespace.update(kept)


class _Event:
    """``torch.cuda.Event`` that measures nothing."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def record(self, *_: object) -> None:
        """Nothing to record."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def elapsed_time(self, _: object) -> float:
        """No time, in milliseconds."""
        return 0.0


class _Stream:
    """``torch.cuda.Stream`` that runs everything immediately."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def wait_stream(self, *_: object) -> None:
        """Nothing to wait for."""


def _nothing(*_: object, **__: object) -> None:
    return None


def _value(value: object) -> Callable[..., object]:
    return lambda *_, **__: value


_IMITATED: Mapping[str, object] = {
    "is_available": _value(True),
    "device_count": _value(1),
    "current_device": _value(0),
    "get_device_name": _value("CPU"),
    "get_device_capability": _value((8, 0)),
    "is_bf16_supported": _value(True),
    "memory_allocated": _value(0),
    "max_memory_allocated": _value(0),
    "memory_reserved": _value(0),
    "reset_peak_memory_stats": _nothing,
    "synchronize": _nothing,
    "empty_cache": _nothing,
    "set_device": _nothing,
    "get_device_properties": _value(types.SimpleNamespace(name="CPU", major=8, minor=0, total_memory=2**33)),
    "mem_get_info": _value((2**33, 2**33)),
    "Stream": _Stream,
    "stream": _value(contextlib.nullcontext()),
    "current_stream": lambda *_, **__: _Stream(),
    "device": _value(contextlib.nullcontext()),
    "Event": _Event,
    **{name: getattr(torch, name) for name in ("FloatTensor", "HalfTensor", "LongTensor", "DoubleTensor")},
}
_CPU_AMP: Mapping[str, object] = {
    "autocast": lambda enabled=True, dtype=None, cache_enabled=None: torch.autocast(
        "cpu", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled
    ),
    "GradScaler": functools.partial(torch.amp.GradScaler, "cpu"),
}
