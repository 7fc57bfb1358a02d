"""Code generators of Inductor, an adapter each: all that depends on the language that a kernel is written in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from fuzzcompile.compiler.kernels.kernel_loops import LoopNode, find_definition, list_code_operators, list_templates
from fuzzcompile.compiler.kernels.lowering_control import Control
from fuzzcompile.compiler.target.target_process import current_target
from fuzzcompile.compiler.watch.ledger import KernelStatement, LoweredGraph

# What is written for a loop as such, in place of an operator's name.
LOOPS = ("loop", "load")
# The variables that Inductor makes, whatever stands around their names.
_VARIABLE = re.compile(r"tmp(?:_acc)?\d+")
_SHORTEST = 4


class CodeSource(NamedTuple):
    """Function of Inductor that writes the code of an operator: its name for the reader, its file and line."""

    name: str
    source: str | None = None
    line: int | None = None


class CodeGenerator:
    """One code generator of Inductor: how to recognise its kernels, read them, and change what it generates.

    Operators are those of Inductor's loop bodies (``exp``), a reduction (``reduction:sum``), or one of ``LOOPS``. As it
    stands, it is a code generator without an adapter: operators go by their own names, and no file is given.

    ``scheduling`` is the class of Inductor that defines the kernels. ``settings`` may work around wrong code; with
    ``scalars`` no loop is vectorised, with ``all_vectors`` every one. ``assignment`` matches a variable and its
    expression.
    """

    name: ClassVar[str] = "unknown"
    scheduling: ClassVar[str] = ""
    devices: ClassVar[tuple[str, ...]] = ()
    settings: ClassVar[tuple[Mapping[str, object], ...]] = ({"max_fusion_size": 1},)
    scalars: ClassVar[Mapping[str, object]] = {}
    all_vectors: ClassVar[Mapping[str, object]] = {}
    assignment: ClassVar[re.Pattern[str]] = re.compile(r"^\s*(\w+) = (.*?)\s*$")

    def is_vectorised(self, source: str) -> bool:
        """Return whether the generated source of a kernel uses vectors, so that ``scalars`` changes it."""
        return False

    def scalarise(self, operators: Sequence[str]) -> Control | None:
        """Do these operators of vectorised loops element by element; None if the code generator has no vectors."""
        return None

    def alternative_forms(self) -> Mapping[str, Control]:
        """Operators whose code can be written in another form that means the same, in all kernels, and how."""
        return {}

    def operators(self, scheduled: Sequence[LoopNode], buffer: str) -> list[str]:
        """The operators of the loop that writes ``buffer``, most telling first; ``scheduled`` are a kernel's nodes.

        By default those of the loop body, which Inductor's own code generators write one by one.
        """
        return list_code_operators(scheduled, buffer)

    def find_code(self, operator: str, *, vectorised: bool = False) -> CodeSource:
        """Return the function that writes the code of an operator, of a reduction, or of a loop as such."""
        return CodeSource(operator)

    def find_fusion_code(self) -> CodeSource:
        """Return the function that writes the loops that one kernel computes together."""
        return CodeSource("fused loops")

    def find_store_code(self) -> CodeSource:
        """Return the function that writes the stores of a kernel whose programs race."""
        return CodeSource("race between programs")

    def iter_refused_lines(self, message: str) -> Iterator[str]:
        """The lines of a kernel that a compiler's error message names, in its order."""
        return iter(())

    def find_complaint(self, message: str) -> str | None:
        """The first error of a compiler's message, without the name of a file; None if there is none."""
        return None

    def list_refused_operators(self, statements: Sequence[KernelStatement], message: str) -> tuple[str, ...]:
        """The operators whose statements a compiler refused, that of its first complaint first."""
        names = (self.find_operator(statements, line) for line in self.iter_refused_lines(message))
        return tuple(dict.fromkeys(name for name in names if name is not None))

    def find_operator(self, statements: Sequence[KernelStatement], line: str) -> str | None:
        """The operator that a line of a kernel was written for, by its expression, else by its variable."""
        assigned = self.assignment.match(line)
        text = (assigned[2] if assigned is not None else line).strip().rstrip(";")
        if len(text) >= _SHORTEST:
            for statement in statements:
                if text == statement.expression.strip() or (assigned is None and text in statement.expression):
                    return statement.operator
        variables = sorted(_VARIABLE.findall(line), key=lambda name: "acc" not in name)
        return next(
            (statement.operator for name in variables for statement in statements if statement.variable == name), None
        )

    def _locate(self, name: str, place: str) -> CodeSource:
        return CodeSource(name, *find_definition(place))


# Kernels in C++ for the CPU, in vectors or in scalars.

_CPP_MODULE = "torch._inductor.codegen.cpp"
# ``kernel.cpp:12:7: error: …``; the line itself is repeated below it, behind its number and a bar.
_CPP_ERROR_PLACE = re.compile(r"^(\S+\.cpp):(\d+):\d+: (?!note)", re.MULTILINE)
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

    def scalarise(self, operators: Sequence[str]) -> Control:
        """Have the vectorised form of these operators compute each element by the scalar form."""
        return Control(scalarised=tuple(operators))

    def find_code(self, operator: str, *, vectorised: bool = False) -> CodeSource:
        """A method of the overrides, or of the kernel for reductions and loops."""
        if operator in LOOPS or operator.startswith("reduction:"):
            method = "reduction" if operator.startswith("reduction:") else "load"
            kernel = "CppVecKernel" if vectorised else "CppKernel"
            return self._locate(
                f"{'vectorised' if vectorised else 'scalar'} {operator}", f"{_CPP_MODULE}:{kernel}.{method}"
            )
        name = f"{'CppVecOverrides' if vectorised else 'CppOverrides'}.{operator}"
        return self._locate(name, f"{_CPP_MODULE}:{name}")

    def find_fusion_code(self) -> CodeSource:
        """``CppKernelProxy``, which generates the loops of a kernel in both forms."""
        code = self._locate("fused loops", f"{_CPP_MODULE}:CppKernelProxy.codegen_functions")
        older = f"{_CPP_MODULE}:CppKernelProxy.codegen_nodes"
        return code if code.source is not None else self._locate("fused loops", older)

    def iter_refused_lines(self, message: str) -> Iterator[str]:
        """The lines of the errors and warnings of GCC or Clang."""
        for place in _CPP_ERROR_PLACE.finditer(message):
            repeated = _REPEATED.match(message, message.find("\n", place.end()) + 1)
            if repeated is not None:
                yield repeated[1]
                continue
            path, number = Path(place[1]), int(place[2])
            try:
                yield path.read_text(errors="replace").splitlines()[number - 1]
            except (OSError, IndexError):
                continue

    def find_complaint(self, message: str) -> str | None:
        """Return the text after the first ``error:``."""
        first = _ERROR.search(message)
        return first[0].partition("error: ")[2].strip() if first is not None else None


# Kernels in Triton, for GPUs (and for the CPU with ``cpu_backend = "triton"``).

_TRITON_MODULE = "torch._inductor.codegen.triton"
# Triton's CompilationError: ``at 19:11:``, the kernel up to that line, a caret below it, and the reason.
_TRITON_ERROR_PLACE = re.compile(r"^at \d+:\d+:\n((?:.*\n)*?)( *\^)$", re.MULTILINE)


class Triton(CodeGenerator):
    """Inductor's Triton, without vectors of its own: read, named and executed on CPU builds of torch; no GPU ran it."""

    name = "Triton"
    scheduling = "TritonScheduling"
    devices = ("cuda", "xpu")
    settings = ({"triton.persistent_reductions": False}, {"max_fusion_size": 1})

    def alternative_forms(self) -> Mapping[str, Control]:
        """``masked``: a mask that the body's load takes may be all that is written for it; it can be applied again."""
        return {"masked": Control(selected=True)}

    def operators(self, scheduled: Sequence[LoopNode], buffer: str) -> list[str]:
        """Those of the loop body; a template as ``template:mm``."""
        return [
            *(f"template:{name}" for name in list_templates(scheduled, buffer)),
            *list_code_operators(scheduled, buffer),
        ]

    def find_code(self, operator: str, *, vectorised: bool = False) -> CodeSource:
        """A method of the overrides, where it is defined; of the kernel for reductions, loops and templates."""
        if operator.startswith("template:"):
            return self._locate(operator, "torch._inductor.select_algorithm:TritonTemplateKernel.render")
        if operator in LOOPS or operator.startswith("reduction:"):
            method = "reduction" if operator.startswith("reduction:") else "load"
            return self._locate(operator, f"{_TRITON_MODULE}:TritonKernel.{method}")
        name = f"TritonKernelOverrides.{operator}"
        return self._locate(name, f"{_TRITON_MODULE}:{name}")

    def find_fusion_code(self) -> CodeSource:
        """The scheduling that Triton shares with other generators for SIMD devices."""
        return self._locate("fused loops", "torch._inductor.codegen.simd:SIMDScheduling.codegen_node_schedule")

    def find_store_code(self) -> CodeSource:
        """``TritonKernel.store``, which decides where each program writes."""
        return self._locate("race between programs", f"{_TRITON_MODULE}:TritonKernel.store")

    def iter_refused_lines(self, message: str) -> Iterator[str]:
        """The last line of the excerpt in each of Triton's compilation errors."""
        for place in _TRITON_ERROR_PLACE.finditer(message):
            yield place[1].rstrip("\n").rpartition("\n")[2]

    def find_complaint(self, message: str) -> str | None:
        """The line below the caret."""
        place = _TRITON_ERROR_PLACE.search(message)
        lines = message[place.end() :].strip().splitlines() if place is not None else []
        return lines[0] if lines else None


# Table of the code generators that have an adapter, and the choice of the one that wrote a kernel.

CODE_GENERATORS: tuple[CodeGenerator, ...] = (Cpp(), Triton())
_UNKNOWN = CodeGenerator()


def find_generator(lowered: LoweredGraph, kernel: str | None = None) -> CodeGenerator:
    """The adapter of the code generator that wrote ``kernel``, or writes the graph's; one that knows nothing, else."""
    classes = lowered.list_code_generators(kernel)
    if classes:
        return next((generator for generator in CODE_GENERATORS if generator.scheduling in classes), _UNKNOWN)
    devices = getattr(lowered.graph, "device_types", ())
    return next((generator for generator in CODE_GENERATORS if set(generator.devices) & set(devices)), _UNKNOWN)


def get_generator(name: object) -> CodeGenerator:
    """The adapter of that ``name``, else of the device that is compiled for: a target is a GPU, else a CPU."""
    device = "cpu" if current_target() is None else "cuda"
    named = (generator for generator in CODE_GENERATORS if generator.name == name)
    return next(named, None) or next(generator for generator in CODE_GENERATORS if device in generator.devices)
