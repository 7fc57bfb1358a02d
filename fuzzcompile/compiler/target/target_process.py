"""The target as torch sees it: everything that is replaced by an answer for it while something is compiled."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.metadata
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from fuzzcompile.compiler.target import attention_choice, cuda_dispatch, graph_placement
from fuzzcompile.compiler.target.cuda_dispatch import register_kernel
from fuzzcompile.compiler.target.graph_placement import CUDA, NotMoved, call_on_cpu, move_graph, move_tensor
from fuzzcompile.compiler.target.kernel_log import KernelLog, ProgramOrder
from fuzzcompile.compiler.torch_config import get_setting
from fuzzcompile.compiler.watch.torch_patch import IntendedError
from fuzzcompile.model.errors import UsageError, describe_error
from fuzzcompile.model.facts import Minor, parse_minor
from fuzzcompile.model.targets import Target
from fuzzcompile.run.torch_attributes import ReplacedAttribute, find_missing, replace_attributes, replace_with

# Choices that only a GPU can make, because Inductor times them there: made one way here, and reported.

PADDING = "padding of matrix products"
#: How the question begins whether a matrix template or a library call is taken.
TEMPLATES = "the kernel of"
_open_questions: list[str] = []


def take_open_questions() -> list[str]:
    """The questions that came up since the last call, in order."""
    questions, _open_questions[:] = list(_open_questions), []
    return questions


def decide_padding(*args: object, **kwargs: object) -> bool:
    """Return whether a matrix product is padded: a GPU would time both; here ``force_shape_pad`` decides."""
    _open_questions.append(PADDING)
    return bool(get_setting("force_shape_pad"))


_INTERFACE = "torch._dynamo.device_interface"
_FAKE = "torch._subclasses.fake_tensor"
_HIP = "6.4.0"


class _NoDeviceGuard(nullcontext[None]):
    """Stands for ``torch.cuda.device`` and its kin: there is one device, so that nothing changes."""

    idx = 0

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__()


def _make_properties(target: Target) -> types.SimpleNamespace:
    return types.SimpleNamespace(
        name=target.product,
        major=target.capability[0],
        minor=target.capability[1],
        total_memory=target.memory,
        multi_processor_count=target.processors,
        regs_per_multiprocessor=target.registers,
        max_threads_per_multi_processor=target.threads,
        max_threads_per_block=1024,
        warp_size=target.warp,
        shared_memory_per_block=min(49_152, target.shared_memory_of_block),
        shared_memory_per_block_optin=target.shared_memory_of_block,
        shared_memory_per_multiprocessor=target.shared_memory,
        L2_cache_size=target.l2_cache,
        gcnArchName=target.arch if target.kind == "rocm" else "",
        is_integrated=0,
        is_multi_gpu_board=0,
        clock_rate=target.clock,
        memory_clock_rate=target.memory_clock,
        memory_bus_width=target.memory_bus,
    )


def _answer(value: object) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


_zero, _nothing, _yes = _answer(0), _answer(None), _answer(True)
_IDLE_STREAM = types.SimpleNamespace(cuda_stream=0, device=None, wait_stream=_nothing, synchronize=_nothing)
# Functions in C that wrappers import by name; a CPU build has none of them.
_IN_C: dict[str, Callable[..., object]] = {
    "getDevice": _zero,
    "setDevice": _nothing,
    "synchronize": _nothing,
    "getCurrentRawStream": _zero,
    "getDeviceCount": lambda: 1,
    "exchangeDevice": _zero,
    "maybeExchangeDevice": _zero,
}


def list_replaced(target: Target) -> tuple[ReplacedAttribute, ...]:
    """List every attribute that is replaced for the target."""
    figures, rocm, capability = _make_properties(target), target.kind == "rocm", target.capability
    # What torch.cuda and Dynamo's interface to the device have in common.
    shared: dict[str, Callable[..., object]] = {
        "is_available": _yes,
        "device_count": lambda: 1,
        "current_device": _zero,
        "set_device": _nothing,
        "synchronize": _nothing,
        "get_device_properties": lambda device=None: figures,
        "current_stream": lambda device=None: _IDLE_STREAM,
        "is_bf16_supported": lambda including_emulation=True: including_emulation or rocm or capability >= (8, 0),
        "memory_allocated": _zero,
    }
    cuda: dict[str, object] = {
        "is_initialized": _yes,
        "get_device_name": lambda device=None: target.product,
        "get_device_capability": lambda device=None: capability,
        "get_arch_list": lambda: [target.arch],
        "mem_get_info": lambda device=None: (target.memory, target.memory),
        "get_rng_state": lambda device="cuda": torch.get_rng_state(),
        "set_rng_state": _nothing,
        "device": _NoDeviceGuard,
        "_DeviceGuard": _NoDeviceGuard,
        "_lazy_init": _nothing,
        "_exchange_device": _zero,
        "_maybe_exchange_device": _zero,
    }
    interface: dict[str, Callable[..., object]] = {
        "get_raw_stream": _zero,
        "exchange_device": _zero,
        "maybe_exchange_device": _zero,
        "is_triton_capable": lambda device=None: rocm or capability >= (7, 0),
        "raise_if_triton_unavailable": _nothing,
        "get_compute_capability": lambda device=None: target.arch if rocm else capability[0] * 10 + capability[1],
    }
    methods = {name: staticmethod(value) for name, value in (shared | interface).items()}
    rows = [
        *_replace_all("torch.cuda", "", shared | cuda),
        *_replace_all("torch._C", "_cuda_", {**_IN_C, "getArchFlags": lambda: target.arch}, optional=True),
        *_replace_all(_INTERFACE, "CudaInterface.", {**methods, "device": _NoDeviceGuard}),
        *_replace_all(_INTERFACE, "caching_worker_", {"device_properties": {"cuda": [figures]}}),
        *_replace_all(_INTERFACE, "caching_worker_", {"current_devices": {"cuda": 0}}),
        # Nothing may be allocated: fake tensors on CUDA begin by initialising it.
        *_replace_all(_FAKE, "", {"init_gpu_context": _nothing, "FakeTensorMode.avoid_device_init": property(_yes)}),
        *_replace_all("torch._inductor.fx_passes.pad_mm", "", {"_should_pad": decide_padding}),
        *_replace_all("torch.version", "", {"hip": _HIP} if rocm else {}),
        _answer_by(_FAKE, "FakeTensorConverter.from_real_tensor", graph_placement.wrap_conversion),
        _answer_by("torch._inductor.graph", "GraphLowering.add_tensor_constant", graph_placement.wrap_constant),
        _answer_by("torch.autograd", "grad", cuda_dispatch.wrap_grad),
    ]
    return tuple(rows)


def _replace_all(
    module: str, prefix: str, values: Mapping[str, object], *, optional: bool = False
) -> Iterator[ReplacedAttribute]:
    for name, value in values.items():
        yield _answer_by(module, prefix + name, replace_with(value), optional=optional)


# A process that tries them would compile for that target until it ends.
_answer_by = functools.partial(
    ReplacedAttribute, unprobed="`doctor --target` looks the place up, and tests/compiler/target compile with it."
)
HAS_TRITON = _answer_by("torch.utils._triton", "has_triton")


class TargetDescription:
    """The target as torch is told of it; EnvironmentUnfit where a small library for it could not be built."""

    def __init__(self, target: Target) -> None:
        self.target = target
        replaced = list_replaced(target)
        missing = find_missing(replaced)
        self._places = tuple(place for place in replaced if place.name not in missing)
        self.is_in_force = False  # whether torch is told of the target now
        library = cuda_dispatch.build_guard()
        if library is not None:
            ctypes.CDLL(str(library))  # never unloaded: it registers itself
        # Constant folding and the like really allocate for CUDA: the CPU does it.
        empty, strided = torch.ops.aten.empty.memory_format, torch.ops.aten.empty_strided.default
        register_kernel("empty.memory_format", lambda *args, **kw: empty(*args, **{**kw, "device": "cpu"}), "CUDA")
        register_kernel("empty_strided", lambda *args, **kw: strided(*args, **{**kw, "device": "cpu"}), "CUDA")
        attention_choice.install_attention(target)
        cuda_dispatch.install_autocast()
        module = importlib.import_module(_INTERFACE)
        module.get_registered_device_interfaces()
        for name in ("cuda", "cuda:0"):  # a CPU build lacks them
            if name not in module.device_interfaces:
                module.register_interface_for_device(name, module.CudaInterface)
        _patch_has_triton(self)
        _clear_caches()

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """Tell torch of the target for the time of the block."""
        if self.is_in_force:
            yield
            return
        before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        # Around the compiled program it is on for the CPU, which runs in the target's stead.
        torch.set_autocast_enabled("cuda", torch.is_autocast_enabled("cpu"))
        torch.set_autocast_dtype("cuda", torch.get_autocast_dtype("cpu"))
        self.is_in_force = True
        try:
            with replace_attributes(self, self._places):
                yield
        finally:
            self.is_in_force = False
            torch.set_autocast_enabled("cuda", before[0])
            torch.set_autocast_dtype("cuda", before[1])


def _patch_has_triton(description: TargetDescription) -> None:
    """Answer ``has_triton``, imported by name all over, which says whether Triton's code can be generated."""
    importlib.import_module("torch._inductor.compile_fx")
    original = HAS_TRITON.find_owner().has_triton

    @functools.wraps(original)
    def has_triton(*args: object, **kwargs: object) -> object:
        return True if description.is_in_force else original(*args, **kwargs)

    HAS_TRITON.put_everywhere(has_triton)


def _clear_caches() -> None:
    """Clear cached answers for the real device. Registered patterns stay: they can be registered only once."""
    prefixes = ("torch._inductor", "torch._dynamo", "torch._utils", "torch.utils._triton")
    for module in list(sys.modules.values()):
        if str(getattr(module, "__name__", "")).startswith(prefixes):
            for value in list(vars(module).values()):
                if getattr(value, "__name__", "") in cuda_dispatch.CACHED_ANSWERS and hasattr(value, "cache_clear"):
                    value.cache_clear()
    create = importlib.import_module("torch._inductor.runtime.hints").DeviceProperties.create
    getattr(create, "cache_clear", lambda: None)()


# The target that this process compiles for: one for the life of a process, as the compiler caches its properties.

_current: list[TargetDescription] = []


def current_target() -> Target | None:
    """The target that this process compiles for; None if it compiles for the device that runs."""
    return _current[0].target if _current else None


def assume_target(target: Target) -> None:
    """Compile everything in this process for ``target`` from now on; UsageError if it compiles for another already."""
    if not _current:
        _current.append(TargetDescription(target))
    elif _current[0].target != target:
        raise UsageError(f"This process compiles for {_current[0].target.name}; start another one for {target.name}.")


def find_value_device(traced: torch.device) -> torch.device:
    """Return the device of the values of a graph traced on ``traced``: the CPU if the process compiles for a target."""
    return torch.device("cpu") if current_target() is not None else traced


def describe_target() -> AbstractContextManager[None]:
    """Tell torch of the target for the time of the block; change nothing in a process without one."""
    return _current[0].in_force() if _current else nullcontext()


# Inductor's Triton kernels, run by Triton's interpreter on tensors of the CPU, where it computes right.

# What the metadata of torch's CUDA builds requires (`triton==3.6.0`, `==3.7.0`, `==3.7.1`, `~=3.8.0`, `~=3.9.0`).
_GOES_WITH: dict[Minor, Minor] = {(2, 11): (3, 6), (2, 12): (3, 7), (2, 13): (3, 7), (2, 14): (3, 8), (2, 15): (3, 9)}


@functools.cache
def explain_unfit_interpreter() -> str | None:
    """Return why kernels cannot be interpreted here, a sentence without its full stop; None if they can be."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed: run `pip install 'fuzzcompile[triton]'`"
    torch_version, triton_version = (importlib.metadata.version(name) for name in ("torch", "triton"))
    wanted = _GOES_WITH.get(parse_minor(torch_version))
    if wanted is None:
        return f"Which Triton goes with torch {torch_version} is not known to this version of fuzzcompile"
    if parse_minor(triton_version) != wanted:
        version = ".".join(map(str, wanted))
        return (
            f"Triton {triton_version} does not go with torch {torch_version}: run `pip install 'triton=={version}.*'`"
        )
    from fuzzcompile.compiler.target import interpreter_checks, kernel_launch  # import Triton

    for place, why in find_missing(kernel_launch.INTERPRETER_PLACES).items():
        return f"This torch or Triton has no {place}: {why}"
    failure = interpreter_checks.find_failed_check(kernel_launch.DEVICE_FUNCTIONS)
    return None if failure is None else f"Triton's interpreter fails a check of its values ({failure})"


def interpret_triton(
    target: Target, log: KernelLog, *, order: ProgramOrder = ProgramOrder.FORWARD, templates: bool = False
) -> AbstractContextManager[None]:
    """Interpret the Triton kernels that are compiled for ``target`` or launched in the block, which covers both.

    With ``templates``, the first Triton template is taken where a GPU would time it against a library call.
    """
    from fuzzcompile.compiler.target import kernel_launch  # imports Triton

    session = kernel_launch.InterpreterSession(target, log, order, templates)
    return replace_attributes(session, kernel_launch.INTERPRETER_PLACES)


def explain_unfit_kernels() -> str | None:
    """Return why no kernel of the target can be run here, in a few words; None if they can, and without a target."""
    return None if current_target() is None else explain_unfit_interpreter()


def interpret_own_kernels() -> AbstractContextManager[None]:
    """Run Triton kernels that a program launches itself in this block, eager runs included."""
    unfit = explain_unfit_kernels() is not None
    return nullcontext() if unfit else interpret_kernels(KernelLog())


def interpret_kernels(
    log: KernelLog, *, order: ProgramOrder = ProgramOrder.FORWARD, templates: bool = False
) -> AbstractContextManager[None]:
    """Run kernels that are compiled for the target in this block (:func:`interpret_triton`), if there is a target."""
    target = current_target()
    return nullcontext() if target is None else interpret_triton(target, log, order=order, templates=templates)


def move_to_target(model: object, inputs: object) -> object:
    """The inputs of a captured graph on the target, its graph rewritten for it; as they are without a target."""
    if current_target() is None or not isinstance(model, fx.GraphModule):
        return inputs
    try:
        return move_graph(model, cast("Sequence[object]", inputs))
    except NotMoved as error:
        raise IntendedError(error) from error
    except Exception as error:  # whatever it is, the graph must not be compiled for the CPU instead
        raise IntendedError(NotMoved(f"its graph cannot be moved there ({describe_error(error)})")) from error


# Decompositions as the target takes them: some depend on the device of their arguments.

DecomposedFunction = Callable[..., Any]


def decompose_on_target(function: DecomposedFunction) -> DecomposedFunction:
    """``function`` on tensors of the CPU, computed as it decomposes on the target; itself without a target.

    It is traced on fake tensors of the target; what cannot be traced (it asks for values) runs as it is.
    """
    if current_target() is None:
        return function

    @functools.wraps(function)
    def run(*args: object, **kwargs: object) -> object:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        try:
            graph, result_spec = _trace_function(function, leaves, spec)
        except Exception:  # of a decomposition, which may be any code: it is run on the CPU then, and judged there
            return function(*args, **kwargs)
        interpreter = fx.Interpreter(graph)
        vars(interpreter)["call_function"] = call_on_cpu
        results = interpreter.run(*tensors)
        return pytree.tree_unflatten(results, result_spec)

    return run


def _trace_function(
    function: DecomposedFunction, leaves: Sequence[object], spec: pytree.TreeSpec
) -> tuple[fx.GraphModule, Any]:
    shape: list[pytree.TreeSpec] = []

    def flat(*tensors: torch.Tensor) -> list[object]:
        remaining = iter(tensors)
        moved = [CUDA if isinstance(leaf, torch.device) and leaf.type == "cpu" else leaf for leaf in leaves]
        given = [next(remaining) if isinstance(leaf, torch.Tensor) else leaf for leaf in moved]
        args, kwargs = pytree.tree_unflatten(given, spec)
        results, result_spec = pytree.tree_flatten(function(*args, **kwargs))
        shape.append(result_spec)
        return results

    with _disable_current_modes(), torch.no_grad(), describe_target():
        mode = FakeTensorMode()
        fakes = [move_tensor(mode.from_tensor(leaf)) for leaf in leaves if isinstance(leaf, torch.Tensor)]
        with mode:
            graph = make_fx(flat, tracing_mode="real")(*fakes)
    return graph, shape[-1]
