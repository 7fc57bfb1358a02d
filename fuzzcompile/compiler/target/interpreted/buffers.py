"""Buffers of a compiled graph, on tensors of the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fuzzcompile.compiler.target.placing import OnCpu


def empty_strided(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """In place of ``_empty_strided_cuda``: a buffer of a compiled graph, on the CPU."""
    return torch.empty_strided(tuple(size), tuple(stride), dtype=dtype)


def relaid(original: Callable[..., Any]) -> Callable[..., Any]:
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


def called(original: Callable[..., Any]) -> Callable[..., Any]:
    """``CompiledFxGraph.__call__`` on tensors of the CPU."""

    def call(graph: Any, inputs: Any) -> Any:
        with OnCpu():
            return original(graph, inputs)

    return call
