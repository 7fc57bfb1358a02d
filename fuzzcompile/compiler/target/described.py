"""The target as torch sees it: one table of everything that is replaced, in force while something is compiled.

Nothing here reaches a GPU. Each row replaces an attribute by an answer for the target; a row whose place this torch
lacks is left out, and :func:`missing_places` names it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fuzzcompile.compiler.target import attention, autocast, constants, gradients, guard, undecided
from fuzzcompile.compiler.target.places import Place, Replace, always, installed, missing_of
from fuzzcompile.compiler.target.registering import register
from fuzzcompile.targets import Target

_CUDA = "torch.cuda"
_C = "torch._C"
_INTERFACE = "torch._dynamo.device_interface"
_FAKE = "torch._subclasses.fake_tensor"
_GRAPH = "torch._inductor.graph"
# Functions that remember an answer which depends on the device.
_REMEMBER = {
    "is_big_gpu",
    "get_gpu_type",
    "get_max_num_sms",
    "get_num_sms",
    "get_tma_workspace_arg",
    "get_gpu_shared_memory",
    "get_device_tflops",
    "get_gpu_dram_gbps",
    "get_backend_options",
    "cuda_is_available",
    "is_gpu",
    "init_backend_registration",
    "has_triton",
    "has_triton_tma",
    "has_triton_tma_device",
    "has_triton_stable_tma_api",
    "has_triton_tensor_descriptor_host_tma",
    "has_triton_experimental_host_tma",
    "_device_supports_tensor_descriptor",
    "_warn_tf32_disabled",
}
_HIP = "6.4.0"


class Stream:
    """A stream on which nothing runs."""

    cuda_stream = 0
    device = None

    def __init__(self, *args: object, **kwargs: object) -> None: ...

    def wait_stream(self, stream: object) -> None:
        """Return at once: nothing runs on this device."""

    def synchronize(self) -> None:
        """Return at once: nothing runs on this device."""


class DeviceGuard:
    """Stands for ``torch.cuda.device`` and its kin: there is one device, so that nothing changes."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        self.idx = 0

    def __enter__(self) -> DeviceGuard:
        """Change nothing."""
        return self

    def __exit__(self, *error: object) -> None:
        """Restore nothing."""


def properties(target: Target) -> types.SimpleNamespace:
    """Return the result of ``torch.cuda.get_device_properties`` for the target."""
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


def places(target: Target) -> tuple[Place, ...]:
    """Every attribute that is replaced for the target."""
    figures = properties(target)
    capability = target.capability

    def zero(*args: object, **kwargs: object) -> int:
        return 0

    def none(*args: object, **kwargs: object) -> None:
        return None

    def yes(*args: object, **kwargs: object) -> bool:
        return True

    asked: dict[str, Callable[..., object]] = {
        "is_available": yes,
        "is_initialized": yes,
        "device_count": lambda: 1,
        "current_device": zero,
        "set_device": none,
        "synchronize": none,
        "get_device_properties": lambda device=None: figures,
        "current_stream": lambda device=None: Stream(),
        "is_bf16_supported": lambda including_emulation=True: (
            including_emulation or target.kind == "rocm" or capability >= (8, 0)
        ),
        "memory_allocated": zero,
    }
    rows = [Place(_CUDA, name, always(value)) for name, value in asked.items()]
    rows += [
        Place(_CUDA, name, always(value))
        for name, value in {
            "get_device_name": lambda device=None: target.product,
            "get_device_capability": lambda device=None: capability,
            "get_arch_list": lambda: [target.arch],
            "mem_get_info": lambda device=None: (target.memory, target.memory),
            "get_rng_state": lambda device="cuda": torch.get_rng_state(),
            "set_rng_state": none,
            "device": DeviceGuard,
            "_DeviceGuard": DeviceGuard,
            "_lazy_init": none,
            "_exchange_device": zero,
            "_maybe_exchange_device": zero,
        }.items()
    ]
    # Functions in C that wrappers import by name; a CPU build has none of them.
    rows += [
        Place(_C, f"_cuda_{name}", always(value), optional=True)
        for name, value in {
            "getDevice": zero,
            "setDevice": none,
            "synchronize": none,
            "getCurrentRawStream": zero,
            "getDeviceCount": lambda: 1,
            "exchangeDevice": zero,
            "maybeExchangeDevice": zero,
            "getArchFlags": lambda: target.arch,
        }.items()
    ]
    # Dynamo's interface to the device holds copies of some of them.
    interface: dict[str, Callable[..., object]] = {
        name: value for name, value in asked.items() if name not in ("is_available", "is_initialized")
    }
    interface |= {
        "is_available": yes,
        "get_raw_stream": zero,
        "exchange_device": zero,
        "maybe_exchange_device": zero,
        "is_triton_capable": lambda device=None: target.kind == "rocm" or capability >= (7, 0),
        "raise_if_triton_unavailable": none,
        "get_compute_capability": lambda device=None: (
            target.arch if target.kind == "rocm" else capability[0] * 10 + capability[1]
        ),
    }
    rows += [
        Place(_INTERFACE, f"CudaInterface.{name}", always(staticmethod(value))) for name, value in interface.items()
    ]
    rows += [
        Place(_INTERFACE, "CudaInterface.device", always(DeviceGuard)),
        Place(_INTERFACE, "caching_worker_device_properties", always({"cuda": [figures]})),
        Place(_INTERFACE, "caching_worker_current_devices", always({"cuda": 0})),
        # Nothing may be allocated: fake tensors on CUDA begin by initialising it.
        Place(_FAKE, "init_gpu_context", always(none)),
        Place(_FAKE, "FakeTensorMode.avoid_device_init", always(property(yes))),
        Place(_FAKE, "FakeTensorConverter.from_real_tensor", _wrapped_by(constants.wrap_conversion)),
        Place(_GRAPH, "GraphLowering.add_tensor_constant", _wrapped_by(constants.wrap_constant)),
        Place("torch.autograd", "grad", _wrapped_by(gradients.wrap)),
        Place("torch._inductor.fx_passes.pad_mm", "_should_pad", always(undecided.pad)),
    ]
    if target.kind == "rocm":
        rows.append(Place("torch.version", "hip", always(_HIP)))
    return tuple(rows)


def _wrapped_by(wrap: Callable[[Any], object]) -> Replace:
    return lambda session, original: wrap(original)


def missing_places(target: Target) -> dict[str, str]:
    """The attributes that this torch lacks, and why."""
    return missing_of(places(target))


class Description:
    """The target as torch is told of it, in force inside of ``with description.in_force():`` blocks, nested or not.

    Args:
        target: what is described.

    Raises:
        EnvironmentUnfit: a CPU build of torch needs a small library for it, which could not be built.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self._places = tuple(place for place in places(target) if place.missing() is None)
        self._depth = 0
        self._entered = contextlib.ExitStack()
        self._autocast = False, torch.float16
        library = guard.built()
        if library is not None:
            ctypes.CDLL(str(library))  # never unloaded: it registers itself
        _allocate_on_the_cpu()
        attention.install(target)
        autocast.install()
        _register_interface()
        _answer_for_triton(self)
        _forget_answers()

    @property
    def is_in_force(self) -> bool:
        """True while torch is told of the target."""
        return self._depth > 0

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """Tell torch of the target for the time of the block."""
        self._depth += 1
        if self._depth == 1:
            self._enter()
        try:
            yield
        finally:
            if self._depth == 1:
                self._leave()
            self._depth -= 1

    def _enter(self) -> None:
        self._autocast = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        # Around the compiled program it is on for the CPU, which runs in the target's stead.
        torch.set_autocast_enabled("cuda", torch.is_autocast_enabled("cpu"))
        torch.set_autocast_dtype("cuda", torch.get_autocast_dtype("cpu"))
        self._entered.enter_context(installed(self, self._places))

    def _leave(self) -> None:
        torch.set_autocast_enabled("cuda", self._autocast[0])
        torch.set_autocast_dtype("cuda", self._autocast[1])
        self._entered.close()


def _allocate_on_the_cpu() -> None:
    """Let the CPU allocate the tensors that constant folding and the like really allocate for CUDA."""

    def on_cpu(operator: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return lambda *args, **kwargs: operator(*args, **{**kwargs, "device": "cpu"})

    register("empty.memory_format", on_cpu(torch.ops.aten.empty.memory_format), "CUDA")
    register("empty_strided", on_cpu(torch.ops.aten.empty_strided.default), "CUDA")


def _register_interface() -> None:
    """Register an interface to CUDA devices, which a CPU build lacks."""
    module = importlib.import_module(_INTERFACE)
    module.get_registered_device_interfaces()
    if "cuda" not in module.device_interfaces:
        for name in ("cuda", "cuda:0"):
            module.register_interface_for_device(name, module.CudaInterface)


def _answer_for_triton(description: Description) -> None:
    """Answer ``has_triton``, imported by name all over, which says whether Triton's code can be generated."""
    importlib.import_module("torch._inductor.compile_fx")
    original = importlib.import_module("torch.utils._triton").has_triton

    @functools.wraps(original)
    def has_triton(*args: object, **kwargs: object) -> object:
        return True if description.is_in_force else original(*args, **kwargs)

    for module in list(sys.modules.values()):
        if vars(module).get("has_triton") is original:
            setattr(module, "has_triton", has_triton)  # noqa: B010 - a module has no such attribute for mypy


def _forget_answers() -> None:
    """Clear cached answers for the real device. Registered patterns stay: they can be registered only once."""
    prefixes = ("torch._inductor", "torch._dynamo", "torch._utils", "torch.utils._triton")
    for module in list(sys.modules.values()):
        if str(getattr(module, "__name__", "")).startswith(prefixes):
            for value in list(vars(module).values()):
                if getattr(value, "__name__", "") in _REMEMBER and hasattr(value, "cache_clear"):
                    value.cache_clear()
    create = importlib.import_module("torch._inductor.runtime.hints").DeviceProperties.create
    getattr(create, "cache_clear", lambda: None)()
