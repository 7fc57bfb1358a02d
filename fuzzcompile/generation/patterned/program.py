"""A program made for one rule of the compiler, as plain data that a worker sends to the campaign's process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fuzzcompile.generation.patterned.edits import Edit
from fuzzcompile.generation.spec import InputLayout

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
        layout: how it lies in memory, a key of `fuzzcompile.generation.tensors.LAYOUTS`.
        strides: its strides where no layout says them; None if it is contiguous.
        values: how it is filled, a key of `fuzzcompile.generation.tensors.VALUES`.
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
    edits: tuple[Edit, ...] = ()
    edited: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """``stage:rule``."""
        return f"{self.stage}:{self.rule}"

    def operand(self, name: str) -> Operand:
        """The operand of that name."""
        return next(operand for operand in self.operands if operand.name == name)
