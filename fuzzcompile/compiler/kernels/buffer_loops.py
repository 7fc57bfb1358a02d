"""The loops of a kernel that write one buffer: their operators, in loops and in the graph."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from fuzzcompile.compiler.kernels.codegen_operators import code_operators
from fuzzcompile.compiler.kernels.lowered import Kernel

if TYPE_CHECKING:
    from torch._inductor.scheduler import BaseSchedulerNode

REDUCTION = "reduction"


def operators_of_loop(kernel: Kernel, buffer: str) -> list[str]:
    """The operators of the loop that writes a buffer, as Inductor calls them; :data:`REDUCTION` if it reduces."""
    names = code_operators(kernel.scheduled, buffer)
    reduces = any(loop.is_reduction() for loop in _loops(kernel) if buffer in _written(loop))
    return [*names, *([REDUCTION] if reduces else [])]


def operators_behind(kernel: Kernel, buffer: str, known: Collection[str]) -> list[str]:
    """As :func:`operators_of_loop`, with the loops of the kernel that it reads, up to ``known`` buffers."""
    names: list[str] = []
    waiting, done = [buffer], set[str]()
    while waiting:
        name = waiting.pop()
        done.add(name)
        names += operators_of_loop(kernel, name)
        reads = {read for loop in _loops(kernel) if name in _written(loop) for read in _read(loop)}
        waiting += sorted(reads - done - set(known))
    return names


def nodes_of_loop(kernel: Kernel, buffer: str) -> set[str]:
    """Names of the FX nodes behind the loop that writes a buffer."""
    loops = [loop for loop in _loops(kernel) if buffer in _written(loop)]
    return {origin.name for loop in loops for origin in getattr(loop.node, "origins", ())}


def _loops(kernel: Kernel) -> Iterator[BaseSchedulerNode]:
    for node in kernel.scheduled:
        yield from node.get_nodes() if hasattr(node, "get_nodes") else ()


def _written(loop: BaseSchedulerNode) -> list[str]:
    return [buffer.get_name() for buffer in loop.get_outputs()]


def _read(loop: BaseSchedulerNode) -> list[str]:
    return [str(dependence.name) for dependence in loop.read_writes.reads]
