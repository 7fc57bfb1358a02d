"""Inductor's Triton code generator on a CPU build of torch, and its kernels executed without Triton.

Inductor generates Triton for the CPU with ``cpu_backend = "triton"``; what it asks of the package ``triton`` meanwhile
is answered here, unless it is installed. A kernel is the source that Inductor generated, run by Python on whole
tensors: ``tl`` is a namespace of torch operators, a pointer is a flat tensor with indices, and the grid has one
program. That covers pointwise kernels and reductions that fit into one block.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from unittest import mock

import torch
import torch._inductor.compile_fx
import torch._inductor.runtime.triton_heuristics
import torch.utils._triton
from torch._dynamo.device_interface import CpuInterface
from torch._inductor import config
from torch._inductor import utils as inductor_utils
from torch._inductor.async_compile import AsyncCompile


class Pointer:
    """An argument of a kernel: the elements of a tensor, and the indices of those that are meant."""

    def __init__(self, tensor: torch.Tensor, index: torch.Tensor | int = 0) -> None:
        self.flat, self.index = tensor.reshape(-1), index
        assert self.flat.data_ptr() == tensor.data_ptr()

    def __add__(self, index: torch.Tensor) -> Pointer:
        pointer = Pointer(self.flat)
        pointer.index = self.index + index
        return pointer


def load(pointer: Pointer, mask: object = None, other: float = 0.0, **_: object) -> torch.Tensor:
    index = torch.as_tensor(pointer.index)
    wanted = torch.ones_like(index, dtype=torch.bool) if mask is None else torch.as_tensor(mask).expand(index.shape)
    values = pointer.flat[torch.where(wanted, index, 0)]
    return torch.where(wanted, values, torch.full_like(values, other))


def store(pointer: Pointer, value: torch.Tensor, mask: object = None) -> None:
    index = torch.as_tensor(pointer.index)
    wanted = torch.ones_like(index, dtype=torch.bool) if mask is None else torch.as_tensor(mask)
    index, value, wanted = torch.broadcast_tensors(index, value, wanted)
    pointer.flat[index[wanted]] = value[wanted].to(pointer.flat.dtype)


LANGUAGE = types.SimpleNamespace(
    constexpr=int,
    float32=torch.float32,
    int32=torch.int32,
    int1=torch.bool,
    load=load,
    store=store,
    program_id=lambda axis: 0,
    arange=torch.arange,
    full=lambda shape, value, dtype: torch.full(shape, value, dtype=dtype),
    broadcast_to=lambda value, shape: value.broadcast_to(shape),
    where=lambda condition, one, other: torch.where(condition, one, torch.as_tensor(other, dtype=one.dtype)),
    sum=lambda value, axis: value.sum(axis),
    sigmoid=torch.sigmoid,
)
MATH = types.SimpleNamespace(exp=torch.exp, sin=torch.sin, cos=torch.cos, erf=torch.erf, abs=torch.abs, tanh=torch.tanh)


class InterpretedKernel:
    """A kernel as Inductor's wrapper calls it."""

    def __init__(self, name: str, source: str) -> None:
        namespace = {"tl": LANGUAGE, "tl_math": MATH, "libdevice": MATH, "triton_helpers": MATH}
        body = source[source.index("def ") :]
        exec(compile(body, name, "exec"), namespace)
        self.function = namespace[name]

    def run(self, *arguments: object, stream: object = None) -> None:
        pointers = [Pointer(value) if isinstance(value, torch.Tensor) else value for value in arguments]
        blocks = self.function.__code__.co_varnames[len(pointers) : self.function.__code__.co_argcount]
        # One program covers everything: its block is as large as any number of elements in the tests.
        self.function(*pointers, **dict.fromkeys(blocks, 1024))


class CompilationError(Exception):
    """As Triton words it: the kernel up to the line at fault, a caret, the reason."""

    def __init__(self, lines: list[str], reason: str) -> None:
        column = len(lines[-1]) - len(lines[-1].lstrip())
        super().__init__("\n".join([f"at {len(lines)}:{column}:", *lines, " " * column + "^", reason]))


def interpreted(self: AsyncCompile, kernel_name: str, source_code: str, device_str: str = "cpu") -> InterpretedKernel:
    """Stands in for ``AsyncCompile.triton``; refuses what calls ``no_such_function``."""
    lines = source_code[source_code.index("def ") :].splitlines()
    refused = next((number for number, line in enumerate(lines, 1) if "no_such_function" in line), None)
    if refused is not None:
        raise CompilationError(lines[:refused], "NameError('no_such_function is not defined')")
    return InterpretedKernel(kernel_name, source_code)


@contextlib.contextmanager
def triton_on_cpu() -> Iterator[None]:
    """Inductor generates Triton for the CPU in this block, and the kernels are interpreted."""
    package, language = types.ModuleType("triton"), types.ModuleType("triton.language")
    package.language = language
    latest = inductor_utils.TritonAttrsDescriptorVersion.V4_DICT
    patches = [
        mock.patch.object(inductor_utils, "get_triton_attrs_descriptor_version", lambda: latest),
        mock.patch.object(torch.utils._triton, "triton_hash_with_backend", lambda: "none"),
        mock.patch.object(CpuInterface, "raise_if_triton_unavailable", staticmethod(lambda device=None: None)),
        mock.patch.object(CpuInterface, "is_triton_capable", staticmethod(lambda device=None: True)),
        mock.patch.object(AsyncCompile, "triton", interpreted),
        config.patch(cpu_backend="triton", fx_graph_cache=False),
    ]
    with contextlib.ExitStack() as stack:
        if importlib.util.find_spec("triton") is None:
            stack.enter_context(mock.patch.dict(sys.modules, {"triton": package, "triton.language": language}))
        for patch in patches:
            stack.enter_context(patch)
        yield
