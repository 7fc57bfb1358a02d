"""Inductor's launches of Triton kernels, and a user's own, as runs of the interpreter."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch._inductor import select_algorithm
from triton.backends.compiler import GPUTarget

from fuzzcompile.compiler.target import kernel_execution
from fuzzcompile.compiler.target.graph_placement import CpuMode
from fuzzcompile.compiler.target.kernel_execution import RunManner
from fuzzcompile.compiler.target.kernel_log import KernelLaunch, KernelLog, NotInterpreted, ProgramOrder
from fuzzcompile.model.targets import Target
from fuzzcompile.run.torch_attributes import ReplacedAttribute, Replacement, replace_with

# Programs of such kernels wait for each other; run one after another, the earlier ones must come first.
_WAITING = ("exclusive_scan_decoupled_lookback", "atomic_xchg", "atomic_cas")
_MEETING = "x_grid_barrier"
_HEURISTICS = "torch._inductor.runtime.triton_heuristics"


@dataclass(frozen=True)
class InterpreterSession:
    """One block of :func:`~fuzzcompile.compiler.target.target_process.interpret_triton`, whose arguments these are."""

    target: Target
    log: KernelLog
    order: ProgramOrder
    templates: bool


def _launch_inductor(session: InterpreterSession, tuner: Any, *args: Any, stream: object = None, **kwargs: Any) -> None:
    """In place of ``CachingAutotuner.run``: the first configuration, as nothing can be timed."""
    kwargs.pop("benchmark_run", None)
    config = tuner.configs[0]
    if len(tuner.configs) > 1:
        session.log.add_undecided("block sizes")
    positional, grid = tuner._interpret_args_grid(args, config)
    names, signature = tuner.fn.arg_names, tuner.triton_meta["signature"]
    known = tuner.triton_meta.get("constants", {})
    named = {(names[key[0]] if isinstance(key, tuple) else key): value for key, value in known.items()}
    constants = {name: value for name, value in named.items() if signature.get(name) == "constexpr"}
    # A size that is known to be 1 is a constant and passed all the same.
    fixed = {names[place] for place in tuner.fn.constexprs}
    passed = [name for name in names if name not in config.kwargs and name not in fixed]
    arguments = {**constants, **dict(zip(passed, positional, strict=True)), **kwargs, **config.kwargs}
    signature = {name: kind for name, kind in signature.items() if kind}
    _launch_kernel(session, tuner.fn, arguments, signature, grid, config.kwargs, len(tuner.configs))


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
    order, notes, start = session.order, tuple[str, ...](), time.monotonic()
    waits = any(word in source for word in _WAITING)
    manner = RunManner.MEETING if _MEETING in source else RunManner.ALONE if waits else RunManner.TOGETHER
    if order is ProgramOrder.BACKWARD and manner is RunManner.ALONE:
        order, notes = ProgramOrder.FORWARD, ("its programs wait for earlier ones and run forward only",)
    annotations = inspect.get_annotations(function.fn)
    constants = [key for key, kind in annotations.items() if "constexpr" in str(kind)]
    kinds = {**dict.fromkeys(constants, "constexpr"), **signature}
    try:
        notes += kernel_execution.run_kernel(name, function.fn, arguments, kinds, (x, y, z), order, manner=manner)
    except NotInterpreted as refusal:
        session.log.refused.setdefault(name, refusal.why)
        raise
    seconds = time.monotonic() - start
    session.log.launches.append(KernelLaunch(name, (x, y, z), dict(config), configs, seconds, notes))


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


def _make_driver(session: InterpreterSession, original: object) -> SimpleNamespace:
    """The driver that Triton asks for a device: it names the target to compile for, and never launches."""
    target = session.target
    major, minor = target.capability
    named = ("hip", target.arch) if target.kind == "rocm" else ("cuda", major * 10 + minor)
    return SimpleNamespace(
        launcher_cls=None,
        utils=None,
        is_active=lambda: True,
        get_current_target=lambda: GPUTarget(*named, target.warp),
        get_current_device=lambda: 0,
        set_current_device=_do_nothing,
        get_current_stream=lambda device=0: 0,
        get_device_capability=lambda device=0: target.capability,
        get_active_torch_device=lambda: torch.device("cpu"),  # where the tensors of kernels really are
    )


# Buffers of a compiled graph, on tensors of the CPU.


def _check_and_relay(session: InterpreterSession, original: Callable[..., Any]) -> Callable[..., Any]:
    """``assert_size_stride`` that gives the result of an operator the strides that the device's kernel gives it."""
    # A convolution, for one, lays its result out otherwise on a GPU than on the CPU.

    def check(tensor: Any, size: Sequence[int], stride: Sequence[int], *rest: Any) -> None:
        # The check names the operator; 2.11 and later say ``input`` for inputs of the graph.
        is_result = bool(rest) and isinstance(rest[0], str) and rest[0] != "input"
        if is_result and tuple(tensor.shape) == tuple(size) and tensor.stride() != tuple(stride):
            with torch.no_grad():
                made = torch.empty_strided(tensor.shape, tuple(stride), dtype=tensor.dtype).copy_(tensor)
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


_interpret_by = functools.partial(
    ReplacedAttribute, unprobed="Before kernels are interpreted its place is looked up, and checks run with values."
)
INTERPRETER_PLACES: tuple[ReplacedAttribute, ...] = (
    _interpret_by("triton.runtime.driver", "driver._active", _make_driver),
    _interpret_by("torch._inductor.runtime.triton_helpers", "set_driver_to_gpu", replace_with(_do_nothing)),
    _interpret_by(_HEURISTICS, "CachingAutotuner.run", _launch(_launch_inductor)),
    _interpret_by(_HEURISTICS, "DebugAutotuner.run", _launch(_launch_inductor)),
    _interpret_by(_HEURISTICS, "CachingAutotuner.precompile", replace_with(_do_nothing)),
    _interpret_by("torch._inductor.async_compile", "AsyncCompile.triton", _keep_source),
    _interpret_by("torch._inductor.async_compile", "get_compile_threads", replace_with(lambda: 1)),
    _interpret_by("torch._inductor.select_algorithm", "AlgorithmSelectorCache.__call__", choose_first),
    _interpret_by(
        "torch._C._dynamo.guards",
        "_empty_strided_cuda",
        replace_with(lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype)),
        optional=True,
    ),
    _interpret_by("torch._C._dynamo.guards", "assert_size_stride", _check_and_relay),
    _interpret_by("torch._inductor.output_code", "CompiledFxGraph.__call__", _call_on_cpu_tensors),
    _interpret_by("torch.utils._triton", "has_triton", replace_with(lambda *_, **__: True)),
    _interpret_by("triton.runtime.jit", "JITFunction.run", _launch(_launch_directly)),
    _interpret_by("triton.runtime.autotuner", "Autotuner.run", _launch(_launch_autotuned)),
    _interpret_by("triton.runtime.jit", "JITFunction.__call__", _call_function),
    _interpret_by("triton.runtime.interpreter", "InterpretedFunction.run", _launch(_launch_directly)),
    _interpret_by("triton.runtime.interpreter", "InterpretedFunction.__call__", _call_function),
)
#: What calls of Triton functions inside of a kernel need.
DEVICE_FUNCTIONS = tuple(place for place in INTERPRETER_PLACES if place.make is _call_function)
