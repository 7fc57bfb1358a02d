"""Code generators of Inductor as data: all that depends on the language that a kernel is written in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

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


@dataclass(frozen=True)
class CodeGenerator:
    """One code generator of Inductor: how to recognise its kernels, read them, and change what it generates.

    Operators are those of Inductor's loop bodies (``exp``), a reduction (``reduction:sum``), or one of ``LOOPS``. As it
    stands, it is a code generator of which nothing is known: operators go by their own names, and no file is given.

    ``scheduling`` is the class of Inductor that defines the kernels. ``settings`` may work around wrong code. With
    ``scalars`` no loop is vectorised, with ``all_vectors`` every one, and ``vectors`` is what only their code has.
    ``forms`` are operators whose code can be written in another form that means the same, in all kernels. ``overrides``
    and ``kernels`` are the classes of ``module`` that write operators, and loops with their reductions, in scalars and
    in vectors; ``fusion`` writes the loops that one kernel computes together (the newest place first), ``outer_loops``
    those of other ranges under one loop, ``loop_split`` makes two loops of one, ``store`` writes its stores,
    ``template`` its templates. ``assignment`` matches a variable and its expression, ``refused_lines`` are those that a
    compiler's message names, and the last group of ``complaint`` is its first error. With the flags ``strict`` a
    compiler does to the code what it says and no more; each has a name for what is done without it.
    """

    name: str = "unknown"
    scheduling: str = ""
    devices: tuple[str, ...] = ()
    settings: tuple[Mapping[str, object], ...] = ({"max_fusion_size": 1},)
    scalars: Mapping[str, object] = field(default_factory=dict)
    all_vectors: Mapping[str, object] = field(default_factory=dict)
    vectors: str | None = None
    forms: Mapping[str, Control] = field(default_factory=dict)
    module: str = ""
    overrides: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    fusion: tuple[str, ...] = ()
    outer_loops: str | None = None
    loop_split: str | None = None
    store: str | None = None
    template: str | None = None
    assignment: re.Pattern[str] = re.compile(r"^\s*(\w+) = (.*?)\s*$")
    refused_lines: Callable[[str], Iterator[str]] = lambda message: iter(())
    complaint: re.Pattern[str] | None = None
    strict: Mapping[str, str] = field(default_factory=dict)

    def is_vectorised(self, source: str) -> bool:
        """Return whether the generated source of a kernel uses vectors, so that ``scalars`` changes it."""
        return self.vectors is not None and self.vectors in source

    def scalarise(self, operators: Sequence[str]) -> Control | None:
        """Do these operators of vectorised loops element by element; None if the code generator has no vectors."""
        return Control(scalarised=tuple(operators)) if self.vectors is not None else None

    def list_operators(self, scheduled: Sequence[LoopNode], buffer: str) -> list[str]:
        """The operators of the loop that writes ``buffer``, most telling first; ``scheduled`` are a kernel's nodes.

        Inductor's own code generators write them one by one. A template is ``template:mm``.
        """
        templates = list_templates(scheduled, buffer) if self.template else ()
        return [*(f"template:{name}" for name in templates), *list_code_operators(scheduled, buffer)]

    def find_code(self, operator: str, *, vectorised: bool = False) -> CodeSource:
        """Return the function that writes the code of an operator, of a reduction, of a template or a loop as such."""
        if self.template and operator.startswith("template:"):
            return _locate(operator, self.template)
        if not self.overrides:
            return CodeSource(operator)
        if operator in LOOPS or operator.startswith("reduction:"):
            form = "" if self.vectors is None else "vectorised " if vectorised else "scalar "
            method = "load" if operator in LOOPS else "reduction"
            return _locate(form + operator, f"{self.module}:{self.kernels[vectorised]}.{method}")
        name = f"{self.overrides[vectorised]}.{operator}"
        return _locate(name, f"{self.module}:{name}")

    def find_fusion_code(self, name: str = "fused loops") -> CodeSource:
        """Return the function that writes the loops that one kernel computes together."""
        return _locate(name, *self.fusion)

    def find_outer_loop_code(self) -> CodeSource | None:
        """Return the function that writes loops of other ranges under one outer loop; None if nothing does."""
        return _locate_function(self.outer_loops)

    def find_loop_split(self) -> CodeSource | None:
        """Return the function that makes two loops of one for a division in an index; None if nothing does."""
        return _locate_function(self.loop_split)

    def find_store_code(self) -> CodeSource:
        """Return the function that writes the stores of a kernel whose programs race."""
        return _locate("race between programs", *([self.store] if self.store else []))

    def find_complaint(self, message: str) -> str | None:
        """The first error of a compiler's message; None if there is none."""
        first = self.complaint.search(message) if self.complaint is not None else None
        return first.groups()[-1].strip() if first is not None else None

    def list_refused_operators(self, statements: Sequence[KernelStatement], message: str) -> tuple[str, ...]:
        """The operators whose statements a compiler refused, that of its first complaint first."""
        names = (self.find_operator(statements, line) for line in self.refused_lines(message))
        return tuple(dict.fromkeys(name for name in names if name is not None))

    def find_operator(self, statements: Sequence[KernelStatement], line: str) -> str | None:
        """The operator that a line of a kernel was written for, by its expression, else by its variable."""
        assigned = self.assignment.match(line)
        text = (assigned[2] if assigned is not None else line).strip().rstrip(";")
        for statement in statements if len(text) >= _SHORTEST else ():
            if text == statement.expression.strip() or (assigned is None and text in statement.expression):
                return statement.operator
        variables = sorted(_VARIABLE.findall(line), key=lambda name: "acc" not in name)
        named = {statement.variable: statement.operator for statement in reversed(statements)}
        return next((named[variable] for variable in variables if variable in named), None)


def _locate(name: str, *places: str) -> CodeSource:
    found = (CodeSource(name, *find_definition(place)) for place in places)
    return next((code for code in found if code.source is not None), CodeSource(name))


def _locate_function(place: str | None) -> CodeSource | None:
    return None if place is None else _locate(place.partition(":")[2], place)


# ``kernel.cpp:12:7: error: …``; the line itself is repeated below it, behind its number and a bar.
_CPP_ERROR_PLACE = re.compile(r"^(\S+\.cpp):(\d+):\d+: (?!note)", re.MULTILINE)
_REPEATED = re.compile(r"^ *\d+ \|(.*)$", re.MULTILINE)
# Triton's CompilationError: ``at 19:11:``, the kernel up to that line, a caret below it, and the reason.
_TRITON_ERROR_PLACE = re.compile(r"^at \d+:\d+:\n((?:.*\n)*?) *\^$", re.MULTILINE)


def _iter_lines_refused_by_cpp(message: str) -> Iterator[str]:
    for place in _CPP_ERROR_PLACE.finditer(message):
        repeated = _REPEATED.match(message, message.find("\n", place.end()) + 1)
        if repeated is not None:
            yield repeated[1]
            continue
        try:
            yield Path(place[1]).read_text(errors="replace").splitlines()[int(place[2]) - 1]
        except (OSError, IndexError):
            continue


def _iter_lines_refused_by_triton(message: str) -> Iterator[str]:
    for place in _TRITON_ERROR_PLACE.finditer(message):
        yield place[1].rstrip("\n").rpartition("\n")[2]


_SCALARS = {"cpp.simdlen": 1}
CPP = CodeGenerator(
    "C++",
    "CppScheduling",
    ("cpu",),
    settings=(_SCALARS, {"max_fusion_size": 1}),
    scalars=_SCALARS,
    all_vectors={"cpp.enable_tiling_heuristics": False},
    vectors="at::vec::",
    module="torch._inductor.codegen.cpp",
    overrides=("CppOverrides", "CppVecOverrides"),
    kernels=("CppKernel", "CppVecKernel"),
    fusion=tuple(
        f"torch._inductor.codegen.cpp:CppKernelProxy.{method}" for method in ("codegen_functions", "codegen_nodes")
    ),
    outer_loops="torch._inductor.codegen.cpp:CppScheduling.codegen_outer_loop_node",
    loop_split="torch._inductor.codegen.cpp:CppScheduling.try_loop_split",
    assignment=re.compile(r"^\s*(?:auto|[\w:<>]+) (\w+) = (.*);\s*$"),
    refused_lines=_iter_lines_refused_by_cpp,
    complaint=re.compile(r"^.*?error: (.*)$", re.MULTILINE),
    strict={
        "ffp-contract=off": "enable_floating_point_contract_flag",
        "fno-unsafe-math-optimizations": "enable_unsafe_math_opt_flag",
        "fno-finite-math-only": "finite-math-only",
        "fsigned-zeros": "no-signed-zeros",
        "ftrapping-math": "no-trapping-math",
        "fmath-errno": "no-math-errno",
        "O0": "optimization by the C++ compiler",
    },
)
"""Inductor's C++ for the CPU, in vectors or in scalars."""
TRITON = CodeGenerator(
    "Triton",
    "TritonScheduling",
    ("cuda", "xpu"),
    settings=({"triton.persistent_reductions": False}, {"max_fusion_size": 1}),
    # A mask that the body's load takes may be all that is written for it; it can be applied again.
    forms={"masked": Control(selected=True)},
    module="torch._inductor.codegen.triton",
    overrides=("TritonKernelOverrides",),
    kernels=("TritonKernel",),
    fusion=("torch._inductor.codegen.simd:SIMDScheduling.codegen_node_schedule",),
    store="torch._inductor.codegen.triton:TritonKernel.store",
    template="torch._inductor.select_algorithm:TritonTemplateKernel.render",
    refused_lines=_iter_lines_refused_by_triton,
    complaint=re.compile(_TRITON_ERROR_PLACE.pattern + r"\s*(.*)$", re.MULTILINE),
)
"""Inductor's Triton (on the CPU too, with ``cpu_backend = "triton"``): read and run on CPU builds of torch; no GPU ran
it."""
CODE_GENERATORS = (CPP, TRITON)
_UNKNOWN = CodeGenerator()


def find_generator(lowered: LoweredGraph, kernel: str | None = None) -> CodeGenerator:
    """The code generator that wrote ``kernel``, or writes the graph's; one of which nothing is known, else."""
    classes = lowered.list_code_generators(kernel)
    if classes:
        return next((generator for generator in CODE_GENERATORS if generator.scheduling in classes), _UNKNOWN)
    devices = set(getattr(lowered.graph, "device_types", ()))
    return next((generator for generator in CODE_GENERATORS if devices.intersection(generator.devices)), _UNKNOWN)


def get_generator(name: object) -> CodeGenerator:
    """The code generator of that ``name``, else of the device that is compiled for: a target is a GPU, else a CPU."""
    device = "cpu" if current_target() is None else "cuda"
    named = (generator for generator in CODE_GENERATORS if generator.name == name)
    return next(named, None) or next(generator for generator in CODE_GENERATORS if device in generator.devices)
