"""A program made for one rule of the compiler, as plain data and as a case file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from fuzzcompile.model.templates import get_template
from fuzzcompile.programs.edits.tensor_values import LAYOUTS, InputLayout, fill_expression, find_functions, format_tuple

Argument = str | int | float | bool


@dataclass(frozen=True)
class PatternEdit:
    """One near miss, to be made on a program that may have been edited before: its kind, where, and how.

    The kinds are those of `fuzzcompile.programs.edits.near_miss_edits`.
    """

    name: str
    arguments: tuple[Argument, ...] = ()


# A program made for one rule of the compiler, as plain data that a worker sends to the campaign's process.

Role = Literal["input", "parameter", "buffer"]
# How a program was derived from its rule.
Origin = Literal["search function", "pattern", "pass", "operator"]
GradMode = Literal["no_grad", "inference_mode", "enabled"]


@dataclass(frozen=True)
class Operand:
    """A tensor that a program takes, by its name in the statements.

    Its ``role``: it is passed in, or the module holds it (what freezing makes a constant). Integer values lie from 0 to
    below ``high``. ``layout`` and ``values`` are keys of `fuzzcompile.programs.edits.tensor_values`; ``strides`` are
    those where no layout says them (None: contiguous). ``same_as`` is the operand that it is, or a view of. Of a
    ``trainable`` one a backward computes the gradient.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    role: Role = "input"
    high: int = 2
    layout: InputLayout | None = None
    values: str | None = None
    strides: tuple[int, ...] | None = None
    same_as: str | None = None
    trainable: bool = True

    @property
    def floating(self) -> bool:
        """True if its values are real numbers that can have a gradient."""
        return self.dtype.startswith(("float", "bfloat")) and not self.dtype.startswith("float8")


@dataclass(frozen=True)
class PatternProgram:
    """A program that makes a rule fire, or is made to.

    ``rule`` is the name that a ledger and ``fuzzcompile passes`` give it, ``pass_name`` the pass that runs it.
    ``statements`` are lines of Python over the operands' names, ``torch`` and ``F``; ``returns`` are the names
    that are returned. The rule runs under the entries ``settings`` of ``torch._inductor.config``; without those of
    ``dynamo`` no graph has what it looks for. It ``fires`` if it did in a compile of this program (None: not tried).
    ``edits`` are the near misses that each, alone, leave a program that runs in eager; ``edited`` names those made.
    """

    stage: str
    rule: str
    pass_name: str | None
    origin: Origin
    operands: tuple[Operand, ...]
    statements: tuple[str, ...]
    returns: tuple[str, ...]
    settings: Mapping[str, object] = field(default_factory=dict)
    dynamo: Mapping[str, object] = field(default_factory=dict)
    grad: GradMode = "no_grad"
    backward: bool = False
    dynamic: bool | None = None
    fires: bool | None = None
    edits: tuple[PatternEdit, ...] = ()
    edited: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """``stage:rule``."""
        return f"{self.stage}:{self.rule}"


# Modules that register the operators of a namespace when they are imported.
_REGISTERED_BY = {"quantized_decomposed": "torch.ao.quantization.fx._decomposed"}
# Read while dynamo traces, so that they have to be in force around everything.
_READ_EARLY = "freezing"


def render_pattern_program(program: PatternProgram) -> str:
    """The source of a case file that needs torch alone."""
    made = [(operand, _render_operand(operand)) for operand in program.operands]
    body = "\n".join(program.statements)
    text = get_template("pattern_case.py.j2").render(
        program=program,
        imports=[module for namespace, module in _REGISTERED_BY.items() if f"torch.ops.{namespace}." in body],
        settings=list(_list_pattern_settings(program)),
        functions=find_functions([expression for _, expression in made]),
        held=[(operand, expression) for operand, expression in made if operand.role != "input"],
        inputs=[(operand, expression) for operand, expression in made if operand.role == "input"],
        arguments=", ".join(operand.name for operand in program.operands if operand.role == "input"),
    )
    return text.rstrip() + "\n"


def _list_pattern_settings(program: PatternProgram) -> Iterator[tuple[str, str]]:
    early = _READ_EARLY in program.settings
    around = {"inductor": program.settings if early else {}, "dynamo": program.dynamo}
    config = {name: dict(entries) for name, entries in around.items() if entries}
    yield "GRAD", repr("enabled" if program.backward else program.grad)
    if program.backward:
        yield "BACKWARD", "True"
    if program.settings and not early:
        yield "OPTIONS", _render_literal(program.settings)
    if config:
        yield "CONFIG", _render_literal(config)
    if program.dynamic is not None:
        yield "DYNAMIC", repr(program.dynamic)


def _render_literal(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f'"{key}": {_render_literal(inner)}' for key, inner in value.items()) + "}"
    return repr(value)


def _render_operand(operand: Operand) -> str:
    if operand.same_as is not None:
        return operand.same_as
    if operand.layout is None and operand.strides is not None and len(operand.strides) == len(operand.shape):
        reach = 1 + sum((size - 1) * stride for size, stride in zip(operand.shape, operand.strides, strict=True))
        sizes = f"{format_tuple(operand.shape)}, {format_tuple(operand.strides)}"
        return f"{_render_values(operand, (max(reach, 1),))}.as_strided({sizes})"
    if operand.layout is None:
        return _render_values(operand, operand.shape)
    layout = LAYOUTS[operand.layout]
    return _render_values(operand, layout.base(operand.shape)) + layout.view.format(shape=format_tuple(operand.shape))


def _render_values(operand: Operand, shape: tuple[int, ...]) -> str:
    size, dtype = format_tuple(shape), operand.dtype
    if dtype == "bool":
        return f"(torch.rand({size}) > 0.5)"
    if dtype.startswith(("int", "uint")):
        return f"torch.randint(0, {operand.high}, {size}, dtype=torch.{dtype})"
    if dtype.startswith("float8"):
        return f"torch.randn({size}).to(torch.{dtype})"
    option = "" if dtype == "float32" else f", dtype=torch.{dtype}"
    x = f"torch.randn({size}{option})"
    if operand.values is None:
        return x
    values = fill_expression(operand.values, x, x, shape=size, like=f"torch.{dtype}", option=option, dtype=dtype)
    return f"({values})"
