"""Runs the programs of one kernel, one after another, on tensors of the CPU."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
import triton.language as tl
from torch.utils._python_dispatch import _disable_current_modes
from triton.runtime import interpreter
from triton.runtime.jit import mangle_type

from fuzzcompile.compiler.target.interpreted import assembly, folding, libdevice
from fuzzcompile.compiler.target.interpreted.builder import MENDED
from fuzzcompile.compiler.target.interpreted.functions import Function, interpreted
from fuzzcompile.compiler.target.interpreted.log import Grid, KernelTooLarge, Limits, NotInterpreted, Order
from fuzzcompile.compiler.target.interpreted.memory import Memory

_builder = interpreter.interpreter_builder
_depth = 0


class KernelAssertion(RuntimeError):
    """A ``tl.device_assert`` of a kernel failed, as it would on a device."""


class InvalidKernel(RuntimeError):
    """A kernel that reads a variable before it is assigned, which Triton refuses."""


@contextlib.contextmanager
def language() -> Iterator[None]:
    """Triton's language computes on arrays for the time of the block, with what is wrong in it mended."""
    global _depth
    _depth += 1
    try:
        if _depth > 1:
            yield
            return
        scope = interpreter._patch_lang(types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
        try:
            _mend(scope)
            with np.errstate(all="ignore"):
                yield
        finally:
            scope.restore()
    finally:
        _depth -= 1


def _mend(scope: Any) -> None:
    for module in (tl, tl.core):
        scope.set_attr(module, "reduce", folding.reduce)
        scope.set_attr(module, "associative_scan", folding.scan)
        scope.set_attr(module, "inline_asm_elementwise", assembly.elementwise)
    for name, function in libdevice.functions().items():
        scope.set_attr(tl.extra.libdevice, name, function)
    for name, operation in MENDED.items():
        scope.set_attr(_builder, name, types.MethodType(operation, _builder))
    options = dataclasses.replace(_builder.options, debug=True, sanitize_overflow=False)
    scope.set_attr(_builder, "options", options)
    scope.set_attr(_builder, "create_assert", _assert)


def _assert(condition: Any, message: str) -> None:
    if not condition.data.all():
        raise KernelAssertion(message)


def call(function: Function, *args: Any, **kwargs: Any) -> Any:
    """Call a Triton function from a kernel that is running, as ``JITFunction.__call__`` would.

    Raises:
        RuntimeError: no kernel is running.
    """
    if not _depth:
        raise RuntimeError("Cannot call @triton.jit'd outside of the scope of a kernel")
    return interpreted(function)(*args, **kwargs)


def run(
    name: str,
    function: Function,
    arguments: Mapping[str, object],
    signature: Mapping[str, str],
    grid: Grid,
    order: Order,
    limits: Limits,
) -> tuple[str, ...]:
    """Run every program of a kernel; gives notes on what it did.

    Args:
        name: of the kernel, for messages.
        function: the body of the Triton function.
        arguments: by parameter; tensors of the CPU are written to.
        signature: Triton types by parameter (``*fp32``, ``i32``); a parameter without one, or with ``constexpr``, is
            passed as it is if it is a constant, and takes the type of its value otherwise.
        grid: programs in each dimension.
        order: which program runs first.
        limits: beyond which the kernel is refused.

    Raises:
        KernelTooLarge: there are more programs than ``limits`` allows, or they took longer.
        NotInterpreted: the interpreter cannot run the kernel.
        KernelAssertion: an assertion of the kernel failed.
        InvalidKernel: it reads a variable before it is assigned.
    """
    programs = grid[0] * grid[1] * grid[2]
    if programs > limits.programs:
        raise KernelTooLarge(name, f"it has {programs} programs, more than {limits.programs}")
    with _disable_current_modes(), language():
        memory = Memory(value for value in arguments.values() if isinstance(value, torch.Tensor))
        _builder.memory = memory
        given = {key: _argument(value, signature.get(key)) for key, value in arguments.items()}
        _builder.set_grid_dim(*grid)
        try:
            _run_programs(name, interpreted(function), given, grid, order, limits)
        except (NotInterpreted, KernelAssertion):
            raise
        except UnboundLocalError as error:  # no lack of the interpreter: Triton would refuse the kernel too
            raise InvalidKernel(f"{name} would not compile: {error}") from error
        except Exception as error:  # whatever the interpreter raises where it lacks something
            raise NotInterpreted(name, _reason(error)) from error
    return tuple(memory.notes)


def _run_programs(
    name: str, body: Function, given: Mapping[str, object], grid: Grid, order: Order, limits: Limits
) -> None:
    start = time.monotonic()
    programs = list(itertools.product(*map(range, grid)))
    for index in programs if order is Order.FORWARD else reversed(programs):
        if time.monotonic() - start > limits.seconds:
            raise KernelTooLarge(name, f"its programs took more than {limits.seconds:g} s")
        _builder.grid_idx = index
        body(**given)


def _argument(value: object, kind: str | None) -> object:
    """An argument as the interpreter passes it; ``kind`` is its Triton type."""
    if kind == "constexpr" or value is None or not isinstance(value, (torch.Tensor, int, float)):
        return interpreter._implicit_cvt(value) if isinstance(value, tuple) else value
    if kind is None and isinstance(value, float):
        return value
    dtype = tl.str_to_ty(mangle_type(value) if kind is None else kind, None)
    if isinstance(value, torch.Tensor) and dtype.is_ptr():
        held = np.array([value.data_ptr()], dtype=np.uint64)
    else:
        plain = value.item() if isinstance(value, torch.Tensor) else value
        held = np.array([plain]).astype(interpreter._get_np_dtype(dtype))
    return tl.tensor(interpreter.TensorHandle(held, dtype), dtype)


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
