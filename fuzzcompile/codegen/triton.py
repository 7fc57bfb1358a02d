"""Kernels in Triton, for GPUs (and for the CPU with ``cpu_backend = "triton"``)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from fuzzcompile.codegen.base import LOOPS, Code, CodeGenerator
from fuzzcompile.compiler.kernels.codegen_operators import LoopNode, code_operators, templates_of
from fuzzcompile.compiler.kernels.control import Control

_MODULE = "torch._inductor.codegen.triton"
# Triton's CompilationError: ``at 19:11:``, the kernel up to that line, a caret below it, and the reason.
_PLACE = re.compile(r"^at \d+:\d+:\n((?:.*\n)*?)( *\^)$", re.MULTILINE)


class Triton(CodeGenerator):
    """Inductor's Triton: one form of each operator, with no vectors of its own to go without.

    Its kernels were read, named and (in the tests) executed on CPU builds of torch; no GPU ran them.
    """

    name = "Triton"
    scheduling = "TritonScheduling"
    devices = ("cuda", "xpu")
    settings = ({"triton.persistent_reductions": False}, {"max_fusion_size": 1})
    assignment = re.compile(r"^\s*(\w+) = (.*?)\s*$")

    def rewritten(self) -> Mapping[str, Control]:
        """``masked``: a mask that the body's load takes may be all that is written for it; it can be applied again."""
        return {"masked": Control(selected=True)}

    def operators(self, scheduled: Sequence[LoopNode], buffer: str) -> list[str]:
        """Those of the loop body; a template as ``template:mm``."""
        return [*(f"template:{name}" for name in templates_of(scheduled, buffer)), *code_operators(scheduled, buffer)]

    def code_of(self, operator: str, *, vectorised: bool = False) -> Code:
        """A method of the overrides, where it is defined; of the kernel for reductions, loops and templates."""
        if operator.startswith("template:"):
            return self._defined(operator, "torch._inductor.select_algorithm:TritonTemplateKernel.render")
        if operator in LOOPS or operator.startswith("reduction:"):
            method = "reduction" if operator.startswith("reduction:") else "load"
            return self._defined(operator, f"{_MODULE}:TritonKernel.{method}")
        name = f"TritonKernelOverrides.{operator}"
        return self._defined(name, f"{_MODULE}:{name}")

    def fused_loops(self) -> Code:
        """The scheduling that Triton shares with other generators for SIMD devices."""
        return self._defined("fused loops", "torch._inductor.codegen.simd:SIMDScheduling.codegen_node_schedule")

    def stores(self) -> Code:
        """``TritonKernel.store``, which decides where each program writes."""
        return self._defined("race between programs", f"{_MODULE}:TritonKernel.store")

    def refused_lines(self, message: str) -> Iterator[str]:
        """The last line of the excerpt in each of Triton's compilation errors."""
        for place in _PLACE.finditer(message):
            yield place[1].rstrip("\n").rpartition("\n")[2]

    def complaint(self, message: str) -> str | None:
        """The line below the caret."""
        place = _PLACE.search(message)
        lines = message[place.end() :].strip().splitlines() if place is not None else []
        return lines[0] if lines else None
