"""Runs the programs of one kernel, one after another, on tensors of the CPU."""

from __future__ import annotations

import ast
import collections
import contextlib
import dataclasses
import enum
import functools
import inspect
import textwrap
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch.utils._python_dispatch import _disable_current_modes
from triton.runtime import interpreter
from triton.runtime.jit import mangle_type

from fuzzcompile.compiler.target import block_values, kernel_operations
from fuzzcompile.compiler.target.block_values import Array, LaunchMemory
from fuzzcompile.compiler.target.kernel_log import KernelTooLarge, LaunchGrid, NotInterpreted, ProgramOrder
from fuzzcompile.compiler.target.kernel_operations import CORRECTED_OPERATIONS
from fuzzcompile.run.torch_attributes import FAMILY, ReplacedAttribute

# Programs of a grid that wait for each other at a barrier: each has a thread, and one thread runs at a time.


class _AbandonedProgram(Exception):
    """Raised in the threads of programs when another program failed."""


class BarrierSchedule:
    """Runs programs, given by their numbers, in turns; a turn ends where the program waits, or ends."""

    def __init__(self, run: Callable[[], object], programs: Sequence[Array], enter: Callable[[Array], None]) -> None:
        self._run, self._programs, self._enter = run, programs, enter
        # Of those that have not ended; it is the first one's turn.
        self._turns = collections.deque(range(len(programs)))
        self._released = [threading.Semaphore(0) for _ in programs]
        self._error: BaseException | None = None

    def run_all(self) -> None:
        """Run all programs in the order given, and raise what the first one that failed raised."""
        threads = [threading.Thread(target=self._run_program, args=(index,), daemon=True) for index in self._turns]
        for thread in threads:
            thread.start()
        self._released[0].release()
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error

    def wait(self) -> None:
        """End the turn of the program that calls; return when all programs have come here or ended."""
        mine = self._turns[0]
        self._turns.rotate(-1)
        self._released[self._turns[0]].release()
        self._begin_turn(mine)

    def _begin_turn(self, index: int) -> None:
        self._released[index].acquire()
        if self._error is not None:
            raise _AbandonedProgram
        self._enter(self._programs[index])

    def _run_program(self, index: int) -> None:
        try:
            with np.errstate(all="ignore"):
                self._begin_turn(index)
                self._run()
        except _AbandonedProgram:
            return
        except BaseException as error:  # re-raised in the thread that asked
            self._error = error
            for semaphore in self._released:
                semaphore.release()
            return
        self._turns.popleft()
        if self._turns:
            self._released[self._turns[0]].release()


# Triton functions as Python functions that the interpreter can run.

TritonFunction = Callable[..., Any]
_plain = tl.core._unwrap_if_constexpr
# What code names that Triton's own rewriter made.
_REWRITTEN_NAMES = ("interpreter_semantic", "_InterpreterComparison")


@functools.cache
def make_interpretable(function: TritonFunction) -> TritonFunction:
    """``function``, the body of a Triton function, as Python on Triton tensors, with logic on blocks."""
    source = textwrap.dedent(inspect.getsource(function))
    definition = next(node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    definition.decorator_list = []
    for parameter in (*definition.args.posonlyargs, *definition.args.args, *definition.args.kwonlyargs):
        parameter.annotation = None
    definition.returns = None
    module = ast.Module([definition], type_ignores=[])
    module = interpreter.FunctionRewriter.ast_transformer.visit(_LogicRewriter().visit(module))
    first = inspect.getsourcelines(function)[1]
    file = inspect.getsourcefile(function) or function.__code__.co_filename
    code = compile(ast.increment_lineno(ast.fix_missing_locations(module), first - 1), file, "exec")
    known = {name: getattr(interpreter, name) for name in _REWRITTEN_NAMES if hasattr(interpreter, name)}
    logic = {"_logical": _logical, "_negated": _negated, "_decided": _decided}
    made: dict[str, TritonFunction] = {}
    exec(code, {**function.__globals__, **known, **logic, **inspect.getclosurevars(function).nonlocals}, made)
    result = made[definition.name]
    result.__defaults__, result.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return result


class _LogicRewriter(ast.NodeTransformer):
    """Rewrites logic and branches as calls of functions that know blocks: Python would ask a block for its truth."""

    def visit(self, node: ast.AST) -> ast.AST:
        result: ast.AST = super().visit(node)
        if isinstance(result, (ast.If, ast.While, ast.IfExp)):
            test = ast.Call(ast.Name("_decided", ast.Load()), [result.test], [])
            result.test = ast.copy_location(test, result.test)
        return result

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        kind = ast.Constant("logical_and" if isinstance(node.op, ast.And) else "logical_or")
        nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        later: list[ast.expr] = [ast.Lambda(args=nothing, body=value) for value in node.values]
        return ast.copy_location(
            ast.Call(func=ast.Name("_logical", ast.Load()), args=[kind, *later], keywords=[]), node
        )

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Not):
            return node
        return ast.copy_location(ast.Call(ast.Name("_negated", ast.Load()), args=[node.operand], keywords=[]), node)


def _logical(kind: str, first: Callable[[], Any], *later: Callable[[], Any]) -> Any:
    """``and`` and ``or``: those of Triton between tensors, those of Python (which stop early) otherwise."""
    result = first()
    for following in later:
        if not isinstance(result, tl.tensor):
            if bool(_plain(result)) == (kind == "logical_or"):
                return result
            result = following()
            continue
        value = following()
        operand = value if isinstance(value, tl.tensor) else interpreter.interpreter_semantic.to_tensor(value, False)
        truth, other = (each if each.dtype == tl.int1 else each != 0 for each in (result, operand))
        result = getattr(truth, kind)(other)
    return result


def _decided(test: Any) -> Any:
    """A condition; Triton has no branches on blocks."""
    if isinstance(test, tl.tensor) and test.type.is_block() and test.numel.value > 1:
        raise NotImplementedError("a branch on a block")
    return test


def _negated(value: Any) -> Any:
    return value.__not__() if isinstance(value, tl.tensor) else not _plain(value)


# What is replaced while kernels run, by the modules that hold it.
LANGUAGE_PLACES = tuple(
    ReplacedAttribute(
        module, FAMILY, unprobed="The checks of the interpreter compare values that are computed with it."
    )
    for module in (
        "triton.language",
        "triton.language.core",
        "triton.language.extra.libdevice",
        "torch._inductor.runtime.triton_helpers",
        "triton.runtime.interpreter",
    )
)
_LANGUAGE, _CORE, _LIBDEVICE, _HELPERS, _INTERPRETER = LANGUAGE_PLACES


@functools.cache
def _name(module: ReplacedAttribute, name: str) -> ReplacedAttribute:
    return module.name_member(name)


def _name_builder(name: str) -> ReplacedAttribute:
    return _name(_INTERPRETER, f"interpreter_builder.{name}")


_builder = interpreter.interpreter_builder
_MEMORY, _PROGRAMS = map(_name_builder, ("memory", "programs"))
_patched = False  # whether the language computes on arrays
# At this function of Inductor's, the programs of a grid wait for each other.
_BARRIER = "x_grid_barrier"
_meetings: list[BarrierSchedule] = []
# Elements of one operand of programs that run together: NumPy's time for so many is as long as the interpreter's own.
_ELEMENTS = 2**15
MOST_PROGRAMS = 2**17
"""Programs of one launch that are run; and the seconds that they may take."""
_MOST_SECONDS = 20.0


# Functions of Inductor's that Triton's compiler calls with constants, which are plain values here.
_CONSTANT_KINDS: dict[str, TritonFunction] = {
    "constexpr_next_power_of_2": lambda n: triton.next_power_of_2(_plain(n)),
    "if_mask": lambda mask, value: None if _plain(mask) is None else value,
}


class RunManner(enum.Enum):
    """The ways in which the programs of a kernel run beside each other."""

    TOGETHER = "many at once, one step of all at a time, which no program may notice"
    ALONE = "one after another, as later ones wait for earlier ones"
    MEETING = "in turns, as they wait for each other at barriers"


class KernelAssertion(RuntimeError):
    """A ``tl.device_assert`` of a kernel failed, as it would on a device."""


class InvalidKernel(RuntimeError):
    """A kernel that reads a variable before it is assigned, which Triton refuses."""


@contextlib.contextmanager
def patch_language() -> Iterator[None]:
    """Make Triton's language compute on arrays for the time of the block, with its errors mended."""
    global _patched
    if _patched:  # a kernel launched by another's
        yield
        return
    scope = interpreter._patch_lang(types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    _patched = True
    try:
        with contextlib.ExitStack() as stack:
            for place, value in _list_mended():
                stack.enter_context(place.replace(value))
            stack.enter_context(np.errstate(all="ignore"))
            yield
    finally:
        scope.restore()
        _patched = False


def _check_assertion(condition: Any, message: str) -> None:
    if not condition.data.all():
        raise KernelAssertion(message)


def _list_mended() -> Iterator[tuple[ReplacedAttribute, object]]:
    for module in (_LANGUAGE, _CORE):
        yield _name(module, "reduce"), block_values.reduce_blocks
        yield _name(module, "associative_scan"), block_values.scan_blocks
        yield _name(module, "inline_asm_elementwise"), kernel_operations.compute_assembly
    for name, function in kernel_operations.make_libdevice_functions().items():
        yield _name(_LIBDEVICE, name), function
    for name, function in _CONSTANT_KINDS.items():
        yield _name(_HELPERS, name), function
    for name, operation in CORRECTED_OPERATIONS.items():
        yield _name_builder(name), types.MethodType(operation, _builder)
    yield _name_builder("options"), dataclasses.replace(_builder.options, debug=True, sanitize_overflow=False)
    yield _name_builder("create_assert"), _check_assertion
    yield _name(_LANGUAGE, "tensor.__bool__"), block_values.test_truth
    yield _name(_LANGUAGE, "tensor.__index__"), lambda value: int(block_values.require_uniform(value))
    yield _name(_LANGUAGE, "tensor.T"), property(block_values.transpose)
    for name in ("BlockPointerHandle", "TensorDescHandle"):
        if (kind := getattr(interpreter, name, None)) is not None:
            place = _name(_INTERPRETER, f"{name}.materialize_pointers")
            yield place, block_values.wrap_materialize(kind.materialize_pointers)


def call(function: TritonFunction, *args: Any, **kwargs: Any) -> Any:
    """Call a Triton function from a kernel that is running, as ``JITFunction.__call__`` would."""
    if not _patched:
        raise RuntimeError("Cannot call @triton.jit'd outside of the scope of a kernel")
    if function.__name__ == _BARRIER and _meetings:
        return _meetings[-1].wait()
    return make_interpretable(function)(*args, **kwargs)


def run_kernel(
    name: str,
    function: TritonFunction,
    arguments: Mapping[str, object],
    signature: Mapping[str, str],
    grid: LaunchGrid,
    order: ProgramOrder,
    *,
    manner: RunManner = RunManner.TOGETHER,
) -> tuple[str, ...]:
    """Run every program of a kernel, whose body is ``function``, and return notes on the run.

    ``signature`` has Triton types by parameter (``*fp32``, ``i32``); an argument without one, or with ``constexpr``, is
    passed as it is if it is a constant, and takes the type of its value otherwise. Raises KernelTooLarge for more
    programs than :data:`MOST_PROGRAMS` or too much time, NotInterpreted, and what the kernel itself does wrong.
    """
    programs = grid[0] * grid[1] * grid[2]
    if programs > MOST_PROGRAMS:
        raise KernelTooLarge(name, f"it has {programs} programs, more than {MOST_PROGRAMS}")
    with _disable_current_modes(), patch_language():
        tensors = [value for value in arguments.values() if isinstance(value, torch.Tensor)]
        memory = LaunchMemory(tensors)
        _MEMORY.put(memory)
        given = {key: _make_argument(value, signature.get(key)) for key, value in arguments.items()}
        _builder.set_grid_dim(*grid)
        launch = _KernelRun(name, make_interpretable(function), given, grid, order)
        try:
            if manner is not RunManner.TOGETHER or not launch.run_together(memory, tensors):
                launch.run_apart(meet=manner is RunManner.MEETING)
        except (NotInterpreted, KernelAssertion):
            raise
        except UnboundLocalError as error:  # no lack of the interpreter: Triton would refuse the kernel too
            raise InvalidKernel(f"{name} would not compile: {error}") from error
        except Exception as error:  # whatever the interpreter raises where it lacks something
            message = next(iter(str(error).strip().splitlines()), "no message")
            raise NotInterpreted(name, f"{type(error).__name__}: {message}") from error
    return tuple(memory.notes)


@dataclasses.dataclass
class _KernelRun:
    name: str
    body: TritonFunction
    given: Mapping[str, object]
    grid: LaunchGrid
    order: ProgramOrder

    def __post_init__(self) -> None:
        self._programs = np.indices(self.grid, dtype=np.int32).reshape(3, -1).T
        self._end = time.monotonic() + _MOST_SECONDS

    def run_apart(self, *, meet: bool) -> None:
        """Run one program after another, or all in turns."""
        programs = [program[None] for program in self._programs[:: 1 if self.order is ProgramOrder.FORWARD else -1]]
        if not meet:
            for program in programs:
                self._run(program)
            return
        _meetings.append(BarrierSchedule(lambda: self.body(**self.given), programs, self._enter))
        try:
            _meetings[-1].run_all()
        finally:
            _meetings.pop()

    def run_together(self, memory: LaunchMemory, tensors: Sequence[torch.Tensor]) -> bool:
        """Run many programs at once; whether it could be done. If not, the tensors are as they were."""
        if self.order is not ProgramOrder.FORWARD or len(self._programs) < 2:
            return False
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors}
        before = {start: storage.clone() for start, storage in storages.items()}  # type: ignore[no-untyped-call]
        try:
            self._run(self._programs[:1])  # shows how large its blocks are
            many = max(1, _ELEMENTS // memory.widest)
            for first in range(1, len(self._programs), many):
                self._run(self._programs[first : first + many])
        except block_values.Diverged:
            for start, storage in storages.items():
                storage.copy_(before[start])
            return False
        return True

    def _run(self, programs: Array) -> None:
        self._enter(programs)
        self.body(**self.given)

    def _enter(self, programs: Array) -> None:
        if time.monotonic() > self._end:
            raise KernelTooLarge(self.name, f"its programs took more than {_MOST_SECONDS:g} s")
        _PROGRAMS.put(programs)


def _make_argument(value: object, kind: str | None) -> object:
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
