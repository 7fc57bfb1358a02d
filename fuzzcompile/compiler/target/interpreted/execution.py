"""Runs the programs of one kernel, one after another, on tensors of the CPU."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers
from torch.utils._python_dispatch import _disable_current_modes
from triton.language.extra import libdevice as declarations
from triton.runtime import interpreter
from triton.runtime.jit import mangle_type

from fuzzcompile.compiler.target.interpreted import assembly, folding, libdevice, shapes
from fuzzcompile.compiler.target.interpreted.builder import MENDED
from fuzzcompile.compiler.target.interpreted.functions import Function, interpreted
from fuzzcompile.compiler.target.interpreted.log import Grid, KernelTooLarge, Limits, NotInterpreted, Order
from fuzzcompile.compiler.target.interpreted.meeting import Meeting
from fuzzcompile.compiler.target.interpreted.memory import Memory
from fuzzcompile.compiler.target.interpreted.numbers import Array

_builder = interpreter.interpreter_builder
_depth = 0
# At this function of Inductor's, the programs of a grid wait for each other.
_BARRIER = "x_grid_barrier"
_meetings: list[Meeting] = []
# Elements of one operand of programs that run together: NumPy's time for so many is as long as the interpreter's own.
_ELEMENTS = 2**15


# Functions of Inductor's that Triton's compiler calls with constants, which are plain values here.
_OF_CONSTANTS: dict[str, Function] = {
    "constexpr_next_power_of_2": lambda n: triton.next_power_of_2(tl.core._unwrap_if_constexpr(n)),
    "if_mask": lambda mask, value: None if tl.core._unwrap_if_constexpr(mask) is None else value,
}


class Manner(enum.Enum):
    """The ways in which the programs of a kernel run beside each other.

    ``TOGETHER``: many at once, one step of all at a time, which no program may notice. ``ALONE``: one after another, as
    later ones wait for earlier ones. ``MEETING``: in turns, as they wait for each other at barriers.
    """

    TOGETHER = "together"
    ALONE = "alone"
    MEETING = "meeting"


class KernelAssertion(RuntimeError):
    """A ``tl.device_assert`` of a kernel failed, as it would on a device."""


class InvalidKernel(RuntimeError):
    """A kernel that reads a variable before it is assigned, which Triton refuses."""


@contextlib.contextmanager
def language() -> Iterator[None]:
    """Make Triton's language compute on arrays for the time of the block, with its errors mended."""
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
        scope.set_attr(declarations, name, function)
    for name, function in _OF_CONSTANTS.items():
        scope.set_attr(triton_helpers, name, function)
    for name, operation in MENDED.items():
        scope.set_attr(_builder, name, types.MethodType(operation, _builder))
    options = dataclasses.replace(_builder.options, debug=True, sanitize_overflow=False)
    scope.set_attr(_builder, "options", options)
    scope.set_attr(_builder, "create_assert", _assert)
    scope.set_attr(tl.tensor, "__bool__", shapes.truth)
    scope.set_attr(tl.tensor, "__index__", lambda value: int(shapes.only(value)))
    scope.set_attr(tl.tensor, "T", property(shapes.transposed))
    for name in ("BlockPointerHandle", "TensorDescHandle"):
        if (kind := getattr(interpreter, name, None)) is not None:
            scope.set_attr(kind, "materialize_pointers", shapes.behind_programs(kind.materialize_pointers))


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
    if function.__name__ == _BARRIER and _meetings:
        return _meetings[-1].wait()
    return interpreted(function)(*args, **kwargs)


def run(
    name: str,
    function: Function,
    arguments: Mapping[str, object],
    signature: Mapping[str, str],
    grid: Grid,
    order: Order,
    limits: Limits,
    *,
    manner: Manner = Manner.TOGETHER,
) -> tuple[str, ...]:
    """Run every program of a kernel, and return notes on the run.

    Args:
        name: of the kernel, for messages.
        function: the body of the Triton function.
        arguments: by parameter; tensors of the CPU are written to.
        signature: Triton types by parameter (``*fp32``, ``i32``); a parameter without one, or with ``constexpr``, is
            passed as it is if it is a constant, and takes the type of its value otherwise.
        grid: programs in each dimension.
        order: which program runs first.
        limits: beyond which the kernel is refused.
        manner: how the programs run beside each other; backward they do not run together.

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
        tensors = [value for value in arguments.values() if isinstance(value, torch.Tensor)]
        _builder.memory = memory = Memory(tensors)
        given = {key: _argument(value, signature.get(key)) for key, value in arguments.items()}
        _builder.set_grid_dim(*grid)
        launch = _Launch(name, interpreted(function), given, grid, order, limits)
        try:
            if manner is Manner.MEETING:
                launch.run_in_turns()
            elif manner is Manner.ALONE or not launch.run_together(memory, tensors):
                launch.run_one_by_one()
        except (NotInterpreted, KernelAssertion):
            raise
        except UnboundLocalError as error:  # no lack of the interpreter: Triton would refuse the kernel too
            raise InvalidKernel(f"{name} would not compile: {error}") from error
        except Exception as error:  # whatever the interpreter raises where it lacks something
            raise NotInterpreted(name, _reason(error)) from error
    return tuple(memory.notes)


@dataclasses.dataclass
class _Launch:
    """One launch whose arguments are the interpreter's."""

    name: str
    body: Function
    given: Mapping[str, object]
    grid: Grid
    order: Order
    limits: Limits

    def __post_init__(self) -> None:
        self._programs = np.indices(self.grid, dtype=np.int32).reshape(3, -1).T
        self._end = time.monotonic() + self.limits.seconds

    def run_one_by_one(self) -> None:
        """Run the programs one after another."""
        for program in self._ordered:
            self._run(program[None])

    def run_in_turns(self) -> None:
        """Run each program up to the next barrier, then the following one."""
        _meetings.append(Meeting())
        try:
            _meetings[-1].run(
                lambda _: self.body(**self.given), [program[None] for program in self._ordered], self._enter
            )
        finally:
            _meetings.pop()

    @property
    def _ordered(self) -> Array:
        return self._programs if self.order is Order.FORWARD else self._programs[::-1]

    def run_together(self, memory: Memory, tensors: Sequence[torch.Tensor]) -> bool:
        """Run many programs at once; whether it could be done. If not, the tensors are as they were."""
        if self.order is not Order.FORWARD or len(self._programs) < 2:
            return False
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors}
        before = {start: storage.clone() for start, storage in storages.items()}  # type: ignore[no-untyped-call]
        try:
            self._run(self._programs[:1])  # shows how large its blocks are
            many = max(1, _ELEMENTS // memory.widest)
            for first in range(1, len(self._programs), many):
                self._run(self._programs[first : first + many])
        except shapes.Diverged:
            for start, storage in storages.items():
                storage.copy_(before[start])
            return False
        return True

    def _run(self, programs: Array) -> None:
        self._enter(programs)
        self.body(**self.given)

    def _enter(self, programs: Array) -> None:
        if time.monotonic() > self._end:
            raise KernelTooLarge(self.name, f"its programs took more than {self.limits.seconds:g} s")
        _builder.programs = programs


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
