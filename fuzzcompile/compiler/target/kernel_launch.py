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
    LaunchLimits,
    NotInterpreted,
    ProgramOrder,
)
from fuzzcompile.compiler.target.target_patches import ReplacedAttribute, Replacement, replace_with
from fuzzcompile.model.targets import Target

# Programs of such kernels wait for each other; run one after another, the earlier ones must come first.
_WAITING = ("exclusive_scan_decoupled_lookback", "atomic_xchg", "atomic_cas")
_MEETING = "x_grid_barrier"
_HEURISTICS = "torch._inductor.runtime.triton_heuristics"


@dataclass(frozen=True)
class InterpreterSession:
    """One block of :func:`~fuzzcompile.compiler.target.interpreter.interpret_triton`, whose arguments these are."""

    target: Target
    log: KernelLog
    order: ProgramOrder
    limits: LaunchLimits
    templates: bool


def _launch_inductor(session: InterpreterSession, tuner: Any, *args: Any, stream: object = None, **kwargs: Any) -> None:
    """In place of ``CachingAutotuner.run``: the first configuration, as nothing can be timed."""
    kwargs.pop("benchmark_run", None)
    config = tuner.configs[0]
    if len(tuner.configs) > 1:
        session.log.add_undecided("block sizes")
    positional, grid = tuner._interpret_args_grid(args, config)
    signature: Mapping[str, str] = tuner.triton_meta["signature"]
    constants = _find_constants(tuner)
    passed = [name for name in tuner.fn.arg_names if name not in config.kwargs and name not in constants]
    arguments = {**dict(zip(passed, positional, strict=False)), **constants, **kwargs, **config.kwargs}
    signature = {name: kind for name, kind in signature.items() if kind}
    _launch_kernel(session, tuner.fn, arguments, signature, grid, config.kwargs, len(tuner.configs))


def _find_constants(tuner: Any) -> dict[str, object]:
    names = tuner.fn.arg_names
    signature = tuner.triton_meta["signature"]
    constants = tuner.triton_meta.get("constants", {})
    named = {(names[key[0]] if isinstance(key, tuple) else key): value for key, value in constants.items()}
    return {name: value for name, value in named.items() if signature.get(name) == "constexpr"}


def _launch_directly(
    session: InterpreterSession, function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any
) -> None:
    """In place of ``JITFunction.run``: a kernel that a program launches itself."""
    if warmup:
        return
    known = {key: value for key, value in kwargs.items() if key in function.arg_names}
    bound = inspect.signature(function.fn).bind(*args, **known)
    bound.apply_defaults()
    sizes = grid(bound.arguments) if callable(grid) else grid
    _launch_kernel(session, function, bound.arguments, {}, sizes, {}, 1)


def _launch_autotuned(session: InterpreterSession, tuner: Any, *args: Any, **kwargs: Any) -> None:
    """In place of ``Autotuner.run``: a kernel of the program with the first of its configurations."""
    session.log.add_undecided("block sizes")
    tuner.fn.run(*args, **{**kwargs, **tuner.configs[0].kwargs})


def _launch_kernel(
    session: InterpreterSession,
    function: Any,
    arguments: Mapping[str, object],
    signature: Mapping[str, str],
    sizes: Sequence[int],
    config: Mapping[str, object],
    configs: int,
) -> None:
    name, source = function.__name__, getattr(function, "src", None) or inspect.getsource(function.fn)
    x, y, z = (*map(int, sizes), 1, 1)[:3]
    notes: tuple[str, ...] = ()
    order = session.order
    start = time.monotonic()
    try:
        manner = _find_manner(source)
        if order is ProgramOrder.BACKWARD and manner is RunManner.ALONE:
            order, notes = ProgramOrder.FORWARD, ("its programs wait for earlier ones and run forward only",)
        annotations = inspect.get_annotations(function.fn)
        constants = [key for key, kind in annotations.items() if "constexpr" in str(kind)]
        kinds = {**dict.fromkeys(constants, "constexpr"), **signature}
        notes += kernel_execution.run_kernel(
            name, function.fn, arguments, kinds, (x, y, z), order, session.limits, manner=manner
        )
    except NotInterpreted as refusal:
        session.log.refused.setdefault(name, refusal.why)
        raise
    seconds = time.monotonic() - start
    session.log.launches.append(KernelLaunch(name, (x, y, z), dict(config), configs, seconds, notes))


def _find_manner(source: str) -> RunManner:
    if _MEETING in source:
        return RunManner.MEETING
    return RunManner.ALONE if any(word in source for word in _WAITING) else RunManner.TOGETHER


def _keep_source(session: InterpreterSession, original: Callable[..., Any]) -> Callable[..., Any]:
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
        preferred = select_algorithm.TritonTemplateCaller if session.templates else select_algorithm.ExternKernelCaller
        choice = next((choice for choice in choices if isinstance(choice, preferred)), choices[0])
        node = choice.output_node()
        return (node, choice) if always_both or kwargs.get("return_choice") else node

    return call


class _TargetDriver:
    """The driver that Triton asks for a device: it names the target to compile for, and never launches."""

    launcher_cls = None
    utils = None

    def __init__(self, target: Target) -> None:
        self._target = target

    @classmethod
    def is_active(cls) -> bool:
        return True

    def get_current_target(self) -> Any:
        if self._target.kind == "rocm":
            return GPUTarget("hip", self._target.arch, self._target.warp)
        major, minor = self._target.capability
        return GPUTarget("cuda", major * 10 + minor, self._target.warp)

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        return self._target.capability

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")  # where the tensors of kernels really are


# Buffers of a compiled graph, on tensors of the CPU.


def _empty_strided(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(tuple(size), tuple(stride), dtype=dtype)


def _check_and_relay(session: InterpreterSession, original: Callable[..., Any]) -> Callable[..., Any]:
    """``assert_size_stride`` that gives the result of an operator the strides that the device's kernel gives it.

    A convolution, for one, lays its result out otherwise on a GPU than on the CPU. Inputs of the graph are checked as
    they are.
    """

    def check(tensor: Any, size: Sequence[int], stride: Sequence[int], *rest: Any) -> None:
        # The check names the operator; 2.11 and later say ``input`` for inputs of the graph.
        is_result = bool(rest) and isinstance(rest[0], str) and rest[0] != "input"
        if is_result and tuple(tensor.shape) == tuple(size) and tensor.stride() != tuple(stride):
            with torch.no_grad():
                made = _empty_strided(tensor.shape, stride, tensor.dtype)
                made.copy_(tensor)
                tensor.set_(made.untyped_storage(), 0, made.shape, made.stride())
        original(tensor, size, stride, *rest)

    return check


def _call_on_cpu_tensors(session: InterpreterSession, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(graph: Any, inputs: Any) -> Any:
        with CpuMode():
            return original(graph, inputs)

    return call


# Every attribute of torch and Triton that is replaced while kernels are interpreted.


def _launch(launch: Callable[..., Any]) -> Replacement:
    return lambda session, _: lambda *args, **kwargs: launch(session, *args, **kwargs)


def _do_nothing(*_: object, **__: object) -> None:
    return None


def _call_function(session: object, original: object) -> Callable[..., Any]:
    return lambda function, *args, **kwargs: kernel_execution.call(function.fn, *args, **kwargs)


INTERPRETER_PLACES: tuple[ReplacedAttribute, ...] = (
    ReplacedAttribute("triton.runtime.driver", "driver._active", lambda session, _: _TargetDriver(session.target)),
    ReplacedAttribute("torch._inductor.runtime.triton_helpers", "set_driver_to_gpu", replace_with(_do_nothing)),
    ReplacedAttribute(_HEURISTICS, "CachingAutotuner.run", _launch(_launch_inductor)),
    ReplacedAttribute(_HEURISTICS, "DebugAutotuner.run", _launch(_launch_inductor)),
    ReplacedAttribute(_HEURISTICS, "CachingAutotuner.precompile", replace_with(_do_nothing)),
    ReplacedAttribute("torch._inductor.async_compile", "AsyncCompile.triton", _keep_source),
    ReplacedAttribute("torch._inductor.async_compile", "get_compile_threads", replace_with(lambda: 1)),
    ReplacedAttribute("torch._inductor.select_algorithm", "AlgorithmSelectorCache.__call__", choose_first),
    ReplacedAttribute("torch._C._dynamo.guards", "_empty_strided_cuda", replace_with(_empty_strided), optional=True),
    ReplacedAttribute("torch._C._dynamo.guards", "assert_size_stride", _check_and_relay),
    ReplacedAttribute("torch._inductor.output_code", "CompiledFxGraph.__call__", _call_on_cpu_tensors),
    ReplacedAttribute("torch.utils._triton", "has_triton", replace_with(lambda *_, **__: True)),
    ReplacedAttribute("triton.runtime.jit", "JITFunction.run", _launch(_launch_directly)),
    ReplacedAttribute("triton.runtime.autotuner", "Autotuner.run", _launch(_launch_autotuned)),
    ReplacedAttribute("triton.runtime.jit", "JITFunction.__call__", _call_function),
    ReplacedAttribute("triton.runtime.interpreter", "InterpretedFunction.run", _launch(_launch_directly)),
    ReplacedAttribute("triton.runtime.interpreter", "InterpretedFunction.__call__", _call_function),
)
#: What calls of Triton functions inside of a kernel need.
DEVICE_FUNCTIONS = tuple(place for place in INTERPRETER_PLACES if place.make is _call_function)
