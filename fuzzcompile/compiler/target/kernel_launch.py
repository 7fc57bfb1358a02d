"""Inductor's launches of Triton kernels, and a user's own, as runs of the interpreter."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor import select_algorithm
from triton.backends.compiler import GPUTarget

from fuzzcompile.compiler.target import kernel_execution
from fuzzcompile.compiler.target.graph_placement import CpuMode
from fuzzcompile.compiler.target.kernel_execution import RunManner
from fuzzcompile.compiler.target.kernel_log import (
    KernelLaunch,
    KernelLog,
    LaunchGrid,
    LaunchLimits,
    NotInterpreted,
    ProgramOrder,
)
from fuzzcompile.model.targets import Target

# Programs of such kernels wait for each other; run one after another, the earlier ones must come first.
_WAITING = ("exclusive_scan_decoupled_lookback", "atomic_xchg", "atomic_cas")
_MEETING = "x_grid_barrier"


@dataclass(frozen=True)
class InterpreterSession:
    """One block of :func:`~fuzzcompile.compiler.target.interpreter.interpret_triton`.

    Attributes:
        target: the device that kernels are made for.
        log: where launches are written down.
        order: in which programs run.
        limits: what a kernel may cost.
        templates: whether a matrix template is taken where a GPU would time it against a library.
    """

    target: Target
    log: KernelLog
    order: ProgramOrder
    limits: LaunchLimits
    templates: bool


def launch_inductor(session: InterpreterSession, tuner: Any, *args: Any, stream: object = None, **kwargs: Any) -> None:
    """In place of ``CachingAutotuner.run``: the first configuration, as nothing can be timed.

    Raises:
        NotInterpreted: see :func:`~fuzzcompile.compiler.target.kernel_execution.run_kernel`.
    """
    kwargs.pop("benchmark_run", None)
    config = tuner.configs[0]
    if len(tuner.configs) > 1:
        session.log.add_undecided("block sizes")
    positional, grid = tuner._interpret_args_grid(args, config)
    signature: Mapping[str, str] = tuner.triton_meta["signature"]
    constants = _find_constants(tuner)
    passed = [name for name in tuner.fn.arg_names if name not in config.kwargs and name not in constants]
    arguments = {**dict(zip(passed, positional, strict=False)), **constants, **kwargs, **config.kwargs}
    _launch_kernel(session, tuner.fn, arguments, signature, _pad_grid(grid), config.kwargs, len(tuner.configs))


def _find_constants(tuner: Any) -> dict[str, object]:
    """Values that the kernel is specialised on and that its wrapper does not pass."""
    names = tuner.fn.arg_names
    signature = tuner.triton_meta["signature"]
    constants = tuner.triton_meta.get("constants", {})
    named = {(names[key[0]] if isinstance(key, tuple) else key): value for key, value in constants.items()}
    return {name: value for name, value in named.items() if signature.get(name) == "constexpr"}


def launch_directly(
    session: InterpreterSession, function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any
) -> None:
    """In place of ``JITFunction.run``: a kernel that a program launches itself.

    Raises:
        NotInterpreted: see :func:`~fuzzcompile.compiler.target.kernel_execution.run_kernel`.
    """
    if warmup:
        return
    known = {key: value for key, value in kwargs.items() if key in function.arg_names}
    bound = inspect.signature(function.fn).bind(*args, **known)
    bound.apply_defaults()
    sizes = grid(bound.arguments) if callable(grid) else grid
    _launch_kernel(session, function, bound.arguments, {}, _pad_grid(sizes), {}, 1)


def launch_autotuned(session: InterpreterSession, tuner: Any, *args: Any, **kwargs: Any) -> None:
    """In place of ``Autotuner.run``: a kernel of the program with the first of its configurations."""
    session.log.add_undecided("block sizes")
    tuner.fn.run(*args, **{**kwargs, **tuner.configs[0].kwargs})


def _pad_grid(grid: Sequence[int]) -> LaunchGrid:
    x, y, z = (*map(int, grid), 1, 1)[:3]
    return x, y, z


def _launch_kernel(
    session: InterpreterSession,
    function: Any,
    arguments: Mapping[str, object],
    signature: Mapping[str, str],
    grid: LaunchGrid,
    config: Mapping[str, object],
    configs: int,
) -> None:
    name, source = function.__name__, getattr(function, "src", None) or inspect.getsource(function.fn)
    notes: tuple[str, ...] = ()
    order = session.order
    start = time.monotonic()
    try:
        manner = _find_manner(source)
        if order is ProgramOrder.BACKWARD and manner is RunManner.ALONE:
            order, notes = ProgramOrder.FORWARD, ("its programs wait for earlier ones and run forward only",)
        kinds = {**dict.fromkeys(_list_constexprs(function), "constexpr"), **_find_types(signature)}
        notes += kernel_execution.run_kernel(
            name, function.fn, arguments, kinds, grid, order, session.limits, manner=manner
        )
    except NotInterpreted as refusal:
        session.log.refused.setdefault(name, refusal.why)
        raise
    seconds = time.monotonic() - start
    session.log.launches.append(KernelLaunch(name, grid, dict(config), configs, seconds, notes))


def _find_manner(source: str) -> RunManner:
    if _MEETING in source:
        return RunManner.MEETING
    return RunManner.ALONE if any(word in source for word in _WAITING) else RunManner.TOGETHER


def _list_constexprs(function: Any) -> list[str]:
    annotations = inspect.get_annotations(function.fn)
    return [name for name, kind in annotations.items() if "constexpr" in str(kind)]


def _find_types(signature: Mapping[str, str]) -> dict[str, str]:
    return {name: kind for name, kind in signature.items() if kind}


def keep_source(session: InterpreterSession, original: Callable[..., Any]) -> Callable[..., Any]:
    """``AsyncCompile.triton`` that writes down what it is given."""

    def triton(compiler: Any, kernel_name: str, source_code: str, *args: Any, **kwargs: Any) -> Any:
        session.log.sources[kernel_name] = source_code
        return original(compiler, kernel_name, source_code, *args, **kwargs)

    return triton


# Choices that Inductor leaves to timing on a device, made without one.


def choose_first(session: InterpreterSession, original: Callable[..., Any]) -> Callable[..., Any]:
    """``AlgorithmSelectorCache.__call__`` that takes the first library call, or the first Triton template.

    torch 2.11 returns the node, and the choice too only where it is asked for; torch 2.13 always returns both.
    """
    always_both = "return_choice" not in inspect.signature(original).parameters

    @functools.wraps(original)  # replaced twice, it still has its signature
    def call(selector: Any, name: str, choices: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        for preprocess in getattr(selector, "preprocessing_fns", ()):
            choices = preprocess(choices)
        if not choices:
            return original(selector, name, choices, *args, **kwargs)
        if len(choices) > 1:
            session.log.add_undecided(f"the kernel of {name} among {len(choices)}")
        choice = _select_preferred(choices, session.templates)
        node = choice.output_node()
        return (node, choice) if always_both or kwargs.get("return_choice") else node

    return call


def _select_preferred(choices: Sequence[Any], templates: bool) -> Any:
    kind = select_algorithm.TritonTemplateCaller if templates else select_algorithm.ExternKernelCaller
    return next((choice for choice in choices if isinstance(choice, kind)), choices[0])


# The driver that Triton queries for a device, for a target that is not there.


class TargetDriver:
    """The driver of a target: it names the device to compile for, and never launches."""

    launcher_cls = None
    utils = None

    def __init__(self, target: Target) -> None:
        self._target = target

    @classmethod
    def is_active(cls) -> bool:
        """Return True: Triton may use this driver."""
        return True

    def get_current_target(self) -> Any:
        """The architecture, as Triton's compiler takes it."""
        if self._target.kind == "rocm":
            return GPUTarget("hip", self._target.arch, self._target.warp)
        major, minor = self._target.capability
        return GPUTarget("cuda", major * 10 + minor, self._target.warp)

    def get_current_device(self) -> int:
        """The index of the device."""
        return 0

    def set_current_device(self, device: int) -> None:
        """Do nothing: there is one device."""

    def get_current_stream(self, device: int = 0) -> int:
        """The handle of the default stream."""
        return 0

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        """Major and minor number of the architecture."""
        return self._target.capability

    def get_active_torch_device(self) -> torch.device:
        """Return the device on which the tensors of kernels really are: the CPU."""
        return torch.device("cpu")


# Buffers of a compiled graph, on tensors of the CPU.


def empty_strided(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """In place of ``_empty_strided_cuda``: a buffer of a compiled graph, on the CPU."""
    return torch.empty_strided(tuple(size), tuple(stride), dtype=dtype)


def check_and_relay(original: Callable[..., Any]) -> Callable[..., Any]:
    """``assert_size_stride`` that gives the result of an operator the strides that the device's kernel gives it.

    A convolution, for one, lays its result out otherwise on a GPU than on the CPU. Inputs of the graph are checked as
    they are.
    """

    def check(tensor: Any, size: Sequence[int], stride: Sequence[int], *rest: Any) -> None:
        if _is_result(rest) and tuple(tensor.shape) == tuple(size) and tensor.stride() != tuple(stride):
            _lay_out(tensor, stride)
        original(tensor, size, stride, *rest)

    return check


def _is_result(rest: Sequence[Any]) -> bool:
    """Return whether the check names an operator; 2.11 and later say ``input`` for inputs of the graph."""
    return bool(rest) and isinstance(rest[0], str) and rest[0] != "input"


def _lay_out(tensor: torch.Tensor, stride: Sequence[int]) -> None:
    with torch.no_grad():
        made = torch.empty_strided(tuple(tensor.shape), tuple(stride), dtype=tensor.dtype)
        made.copy_(tensor)
        tensor.set_(made.untyped_storage(), 0, made.shape, made.stride())


def call_on_cpu_tensors(original: Callable[..., Any]) -> Callable[..., Any]:
    """``CompiledFxGraph.__call__`` on tensors of the CPU."""

    def call(graph: Any, inputs: Any) -> Any:
        with CpuMode():
            return original(graph, inputs)

    return call
