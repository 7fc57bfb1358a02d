"""A program made for one rule of the compiler, as plain data and as a case file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from fuzzcompile.model.templates import get_template
from fuzzcompile.programs.edits.tensor_values import LAYOUTS, InputLayout, fill_expression, find_functions, format_tuple

# Near misses of a program, each as plain data that can be made again on a program that was edited before.

Argument = str | int | float | bool


@dataclass(frozen=True)
class PatternEdit:
    """One near miss: the name of its kind, and where and how (see `fuzzcompile.programs.edits.near_miss_edits`)."""

    name: str
    arguments: tuple[Argument, ...] = ()


# A program made for one rule of the compiler, as plain data that a worker sends to the campaign's process.

Role = Literal["input", "parameter", "buffer"]
# How a program was derived from its rule.
Origin = Literal["search function", "pattern", "pass", "operator"]
GradMode = Literal["no_grad", "inference_mode", "enabled"]


@dataclass(frozen=True)
class Operand:
    """A tensor that a program takes.

    Attributes:
        name: its name in the statements.
        shape: its sizes.
        dtype: the name of its dtype.
        role: whether it is passed in, or the module holds it (what freezing makes a constant).
        high: integer values lie below this number, and at or above 0.
        layout: how it lies in memory, a key of `fuzzcompile.programs.edits.tensor_values.LAYOUTS`.
        strides: its strides where no layout says them; None if it is contiguous.
        values: how it is filled, a key of `fuzzcompile.programs.edits.tensor_values.VALUES`.
        same_as: the name of the operand that it is, or a view of: two inputs that share memory.
        trainable: whether a backward computes its gradient.
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

    Attributes:
        stage: the stage of the rule.
        rule: the name that a ledger and ``fuzzcompile passes`` give it.
        pass_name: the pass that runs it, if that is known.
        origin: how the program was derived.
        operands: the tensors that it takes.
        statements: the body, one line of Python each, over the operands' names, ``torch`` and ``F``.
        returns: the names that it returns.
        settings: entries of ``torch._inductor.config`` under which the rule runs.
        dynamo: entries of ``torch._dynamo.config`` without which no graph has what the rule looks for.
        grad: the mode of gradients.
        backward: whether gradients are computed.
        dynamic: the argument of ``torch.compile``.
        fires: whether the rule fired in a compile of this program; None if that was not tried.
        edits: the near misses that each, alone, leave a program that runs in eager mode.
        edited: the names of the edits that were made.
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

    def find_operand(self, name: str) -> Operand:
        """The operand of that name."""
        return next(operand for operand in self.operands if operand.name == name)


# Modules that register the operators of a namespace when they are imported.
_REGISTERED_BY = {"quantized_decomposed": "torch.ao.quantization.fx._decomposed"}
# Read while dynamo traces, so that they have to be in force around everything.
_READ_EARLY = "freezing"


def render_pattern_program(program: PatternProgram) -> str:
    """The source of a case file that needs torch alone."""
    inputs = [operand for operand in program.operands if operand.role == "input"]
    held = [operand for operand in program.operands if operand.role != "input"]
    made = {operand.name: _render_operand(operand) for operand in program.operands}
    return (
        get_template("pattern_case.py.j2")
        .render(
            imports=[
                module
                for namespace, module in _REGISTERED_BY.items()
                if any(f"torch.ops.{namespace}." in statement for statement in program.statements)
            ],
            label=program.label,
            edited=", ".join(program.edited) or "none",
            settings=list(_list_pattern_settings(program)),
            functions=find_functions(list(made.values())),
            held=[(operand, made[operand.name]) for operand in held],
            inputs=[(operand, made[operand.name]) for operand in inputs],
            arguments=", ".join(operand.name for operand in inputs),
            statements=program.statements,
            returns=", ".join(program.returns),
            backward=program.backward,
        )
        .rstrip()
        + "\n"
    )


def _list_pattern_settings(program: PatternProgram) -> Iterator[tuple[str, str]]:
    """The names and expressions at the top of the file that say how the case is compiled."""
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
    """The expression of an operand's tensor."""
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
