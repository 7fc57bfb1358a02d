"""Kernels in C++ for the CPU, in vectors or in scalars."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from fuzzcompile.codegen.base import LOOPS, Code, CodeGenerator
from fuzzcompile.compiler.kernels.control import Control

_MODULE = "torch._inductor.codegen.cpp"
# ``kernel.cpp:12:7: error: …``; the line itself is repeated below it, behind its number and a bar.
_PLACE = re.compile(r"^(\S+\.cpp):(\d+):\d+: (?!note)", re.MULTILINE)
_REPEATED = re.compile(r"^ *\d+ \|(.*)$", re.MULTILINE)
_ERROR = re.compile(r"^.*error: .*$", re.MULTILINE)


class Cpp(CodeGenerator):
    """Inductor's C++: ``CppVecOverrides`` writes operators in vectors, ``CppOverrides`` in scalars."""

    name = "C++"
    scheduling = "CppScheduling"
    devices = ("cpu",)
    scalars: ClassVar[Mapping[str, object]] = {"cpp.simdlen": 1}
    all_vectors: ClassVar[Mapping[str, object]] = {"cpp.enable_tiling_heuristics": False}
    settings = (scalars, {"max_fusion_size": 1})
    assignment = re.compile(r"^\s*(?:auto|[\w:<>]+) (\w+) = (.*);\s*$")

    def is_vectorised(self, source: str) -> bool:
        """Return whether the source uses ATen's vectors."""
        return "at::vec::" in source

    def in_scalars(self, operators: Sequence[str]) -> Control:
        """Have the vectorised form of these operators compute each element by the scalar form."""
        return Control(scalarised=tuple(operators))

    def code_of(self, operator: str, *, vectorised: bool = False) -> Code:
        """A method of the overrides, or of the kernel for reductions and loops."""
        if operator in LOOPS or operator.startswith("reduction:"):
            method = "reduction" if operator.startswith("reduction:") else "load"
            kernel = "CppVecKernel" if vectorised else "CppKernel"
            return self._defined(
                f"{'vectorised' if vectorised else 'scalar'} {operator}", f"{_MODULE}:{kernel}.{method}"
            )
        name = f"{'CppVecOverrides' if vectorised else 'CppOverrides'}.{operator}"
        return self._defined(name, f"{_MODULE}:{name}")

    def fused_loops(self) -> Code:
        """``CppKernelProxy``, which generates the loops of a kernel in both forms."""
        code = self._defined("fused loops", f"{_MODULE}:CppKernelProxy.codegen_functions")
        older = f"{_MODULE}:CppKernelProxy.codegen_nodes"
        return code if code.source is not None else self._defined("fused loops", older)

    def refused_lines(self, message: str) -> Iterator[str]:
        """The lines of the errors and warnings of GCC or Clang."""
        for place in _PLACE.finditer(message):
            repeated = _REPEATED.match(message, message.find("\n", place.end()) + 1)
            if repeated is not None:
                yield repeated[1]
                continue
            path, number = Path(place[1]), int(place[2])
            try:
                yield path.read_text(errors="replace").splitlines()[number - 1]
            except (OSError, IndexError):
                continue

    def complaint(self, message: str) -> str | None:
        """Return the text after the first ``error:``."""
        first = _ERROR.search(message)
        return first[0].partition("error: ")[2].strip() if first is not None else None
