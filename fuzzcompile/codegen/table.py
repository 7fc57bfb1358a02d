"""Table of the code generators that have an adapter, and the choice of the one that wrote a kernel."""

from __future__ import annotations

from collections.abc import Iterator

from fuzzcompile.codegen.base import Code, CodeGenerator
from fuzzcompile.codegen.cpp import Cpp
from fuzzcompile.codegen.triton import Triton
from fuzzcompile.compiler.kernels.lowered import Lowered
from fuzzcompile.compiler.target.process import assumed

CODE_GENERATORS: tuple[CodeGenerator, ...] = (Cpp(), Triton())


class _Unknown(CodeGenerator):
    """A code generator without an adapter: its operators go by their own names, and no file is given."""

    name = "unknown"
    scheduling = ""
    settings = ({"max_fusion_size": 1},)
    assignment = Triton.assignment

    def code_of(self, operator: str, *, vectorised: bool = False) -> Code:
        return Code(operator)

    def fused_loops(self) -> Code:
        return Code("fused loops")

    def refused_lines(self, message: str) -> Iterator[str]:
        return iter(())

    def complaint(self, message: str) -> str | None:
        return None


UNKNOWN: CodeGenerator = _Unknown()


def generator_of(lowered: Lowered, kernel: str | None = None) -> CodeGenerator:
    """Return the adapter of the code generator that wrote ``kernel``, or that writes the graph's kernels.

    An adapter without knowledge of the language stands in for a generator that the table does not have.
    """
    classes = lowered.code_generators(kernel)
    if classes:
        return next((generator for generator in CODE_GENERATORS if generator.scheduling in classes), UNKNOWN)
    devices = getattr(lowered.graph, "device_types", ())
    return next((generator for generator in CODE_GENERATORS if set(generator.devices) & set(devices)), UNKNOWN)


def generator_named(name: object) -> CodeGenerator:
    """The adapter of that ``name``; without one of that name, that of the device which is compiled for.

    A target is a GPU; any other compile has C++ for its default.
    """
    device = "cpu" if assumed() is None else "cuda"
    named = (generator for generator in CODE_GENERATORS if generator.name == name)
    return next(named, None) or next(generator for generator in CODE_GENERATORS if device in generator.devices)
