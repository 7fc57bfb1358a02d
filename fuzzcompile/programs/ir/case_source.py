"""Write a :class:`Program` as readable Python: a case file with ``make()``."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from fuzzcompile.programs.ir.program import Fill, Input, Program, Ref, Statement, use_plain_names
from fuzzcompile.run.tensors import is_inexact, view_bytes

# Python expressions for inputs: their values, dtypes and strides.

# Most elements that are written out one by one.
MOST_LITERALS = 16


def input_expression(input_: Input, *, plain: bool = False) -> str:
    """Python text that makes the input; ``plain`` leaves out ``requires_grad``."""
    if input_.fill == "recorded":
        text = f'VALUES["{input_.name}"]'
        return f"{text}.requires_grad_()" if input_.requires_grad and not plain else text
    shape, suffix = _find_dense_shape(input_)
    text = _format_fill(input_, shape)
    grad = input_.requires_grad and not plain
    if grad and not suffix and input_.fill in ("randn", "rand", "zeros", "ones", "full"):
        return text[:-1] + ", requires_grad=True)"
    return text + suffix + (".requires_grad_()" if grad else "")


def _format_fill(input_: Input, shape: tuple[int, ...]) -> str:
    dtype = "" if input_.dtype is torch.get_default_dtype() else f", dtype={input_.dtype}"
    sizes = ", ".join(map(str, shape))
    values = input_.values
    if input_.fill == "literal":
        assert values is not None
        inferred = torch.tensor(values.tolist()).dtype if values.numel() else None
        literal = "" if inferred is input_.dtype else f", dtype={input_.dtype}"
        return f"torch.tensor({format_literal(_shorten(values.tolist(), input_.dtype))}{literal})"
    kind = "" if input_.dtype is torch.int64 else f", dtype={input_.dtype}"
    if input_.fill == "arange":
        kind = ".0" if input_.dtype is torch.float32 else kind
        text = f"torch.arange({torch.Size(shape).numel()}{kind})"
        return text if len(shape) == 1 else f"{text}.reshape({sizes})"
    if input_.fill == "randint":
        if input_.dtype is torch.bool:
            return f"torch.rand({sizes or '()'}) > 0.5" if not shape else f"(torch.rand({sizes}) > 0.5)"
        highest = max(1, int(values.max())) if values is not None and values.numel() else 1
        return f"torch.randint({highest + 1}, ({sizes}{',' if len(shape) == 1 else ''}){kind})"
    if input_.fill == "full":
        assert values is not None
        value = format_literal(_shorten(values.flatten()[0].item(), input_.dtype))
        return f"torch.full(({sizes}{',' if len(shape) == 1 else ''}), {value}{dtype})"
    if input_.fill == "tril":
        return f"torch.ones({sizes}{dtype}).tril()"
    if input_.fill in ("randn", "rand") and not input_.dtype.is_floating_point and not input_.dtype.is_complex:
        raise ValueError(f"{input_.dtype} has no {input_.fill}")
    return f"torch.{input_.fill}({sizes or '()'}{dtype})"


def _shorten(values: object, dtype: torch.dtype) -> object:
    """Numbers in as few digits as give the same value in a dtype: 4.83 for the float32 4.829999923706055."""
    if isinstance(values, list):
        return [_shorten(value, dtype) for value in values]
    if not isinstance(values, float) or not math.isfinite(values) or not dtype.is_floating_point:
        return values
    written = (float(f"{values:.{digits}g}") for digits in range(1, 17))
    return next((short for short in written if torch.tensor(short, dtype=dtype).item() == values), values)


def is_contiguous(input_: Input) -> bool:
    """Return whether the strides are those of a fresh tensor of its shape (where there is more than one element)."""
    return _is_dense(input_.shape, input_.stride)


def make_contiguous(input_: Input) -> Input:
    """The same input, freshly laid out."""
    values = input_.values.contiguous() if input_.values is not None else None
    return replace(input_, stride=_contiguous_strides(input_.shape), values=values)


def _contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return torch.empty(shape, device="meta").stride()


def _is_dense(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    return torch.empty_strided(shape, stride, device="meta").is_contiguous()


def _find_dense_shape(input_: Input) -> tuple[tuple[int, ...], str]:
    if is_contiguous(input_):
        return input_.shape, ""
    expanded = [
        d for d, (size, step) in enumerate(zip(input_.shape, input_.stride, strict=True)) if size > 1 and step == 0
    ]
    if expanded:
        shape = tuple(1 if d in expanded else size for d, size in enumerate(input_.shape))
        inner, suffix = _find_dense_shape(replace(input_, shape=shape, values=None))
        return inner, f"{suffix}.expand({', '.join(map(str, input_.shape))})"
    order = sorted(range(len(input_.shape)), key=lambda d: (-input_.stride[d], d))
    shape = tuple(input_.shape[d] for d in order)
    if _is_dense(shape, tuple(input_.stride[d] for d in order)):
        back = [order.index(d) for d in range(len(order))]
        moved = [d for d, place in enumerate(back) if place != d]
        if len(moved) == 2:
            return shape, f".transpose({moved[0]}, {moved[1]})"
        return shape, f".permute({', '.join(map(str, back))})"
    reach = 1 + sum((size - 1) * step for size, step in zip(input_.shape, input_.stride, strict=True))
    return (reach,), f".as_strided({input_.shape}, {input_.stride})"


def list_fills(input_: Input) -> list[Fill]:
    """The fills to try for an input, the plainest first."""
    if input_.dtype is torch.bool:
        choices: list[Fill] = ["ones", "zeros", "randint"]
        if len(input_.shape) >= 2:
            choices.insert(2, "tril")
    elif is_inexact(input_.dtype):
        choices = ["randn", "ones", "zeros", "arange", "rand"]
        choices = [fill for fill in choices if not (input_.dtype.is_complex and fill == "arange")]
    else:
        choices = ["arange", "zeros", "ones", "randint"]
    if torch.Size(input_.shape).numel() <= MOST_LITERALS and input_.values is not None:
        choices.append("literal")
    return choices


def resize_input(input_: Input, shape: tuple[int, ...]) -> Input:
    """The input with another shape, laid out in the same order of dimensions; recorded values are cropped."""
    if shape == input_.shape:
        return input_
    expanded = [size > 1 and step == 0 for size, step in zip(input_.shape, input_.stride, strict=True)]
    order = sorted(range(len(shape)), key=lambda d: (-input_.stride[d], d))
    dense = _contiguous_strides(tuple(1 if expanded[d] else shape[d] for d in order))
    stride = tuple(0 if expanded[d] else dense[order.index(d)] for d in range(len(shape)))
    if input_.values is None:
        return replace(input_, shape=shape, stride=stride)
    if any(new > old for new, old in zip(shape, input_.shape, strict=True)):
        fill: Fill = "randn" if input_.fill == "recorded" else input_.fill
        values = input_.values.flatten()[0].expand(shape) if fill == "full" and input_.values.numel() else None
        return replace(input_, shape=shape, stride=stride, values=values, fill=fill)
    cropped = input_.values[tuple(slice(0, size) for size in shape)]
    count = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) if 0 not in shape else 0
    values = torch.empty(count, dtype=input_.dtype).as_strided(shape, stride)
    if True in expanded:
        index = tuple(slice(0, 1) if wide else slice(None) for wide in expanded)
        values[index].copy_(cropped[index])
    else:
        values.copy_(cropped)
    return replace(input_, shape=shape, stride=stride, values=values)


_WIDTH = 96
# Statements nested into the expression that uses them, if it is the only one and the line is short.
_LIGHT_METHODS = (
    "transpose", "permute", "view", "reshape", "unsqueeze", "squeeze", "contiguous", "t", "mT", "T", "flatten",
    "expand", "float", "to", "unflatten", "size", "double", "half", "bfloat16", "chunk", "split", "clone",
)  # fmt: skip
_LIGHT_OPERATORS = ("*", "/", "@", "+", "-")
_ATOM, _UNARY, _PRODUCT, _SUM, _LOOSE = 9, 7, 6, 5, 1
_STRENGTH = {"**": 8, "@": _PRODUCT, "*": _PRODUCT, "/": _PRODUCT, "//": _PRODUCT, "%": _PRODUCT, "+": _SUM, "-": _SUM}


@dataclass(frozen=True)
class CaseText:
    """A case file, and the recorded values that it reads from ``values.pt`` beside it (none in a final result)."""

    source: str
    values: Mapping[str, torch.Tensor]

    @functools.cached_property
    def digest(self) -> str:
        """Identity: the text and the bits of the values."""
        parts = hashlib.sha256(self.source.encode())
        for name, tensor in self.values.items():
            parts.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {tensor.stride()}".encode())
            parts.update(view_bytes(tensor.cpu()).numpy().data)
        return parts.hexdigest()


def write_program(program: Program) -> CaseText:
    """The program as a case file, with the values that are still recorded ones."""
    # Named once: the text must read the values by the names under which they are kept.
    program = use_plain_names(program)
    body, result = _write_body(program)
    lines = ["from pathlib import Path\n"] if program.is_recorded else []
    lines.append("import torch")
    if any("F." in line for line in [*body, result]):
        lines.append("import torch.nn.functional as F")
    if program.as_module:
        lines.append("from torch import nn")
    if program.settings:
        lines += ["", *(f"{name} = {format_literal(value)}" for name, value in program.settings.items())]
    lines += ["", "", *_list_callable(program, body, result), "", "", *_list_make(program)]
    recorded = {x.name: x.values for x in program.inputs if x.fill == "recorded" and x.values is not None}
    return CaseText("\n".join(lines) + "\n", recorded)


def write_source(program: Program) -> str:
    """The text of a program's case file."""
    return write_program(program).source


def count_model_lines(source: str) -> int:
    """Count the lines of a case file that are neither blank nor imports."""
    lines = [line.strip() for line in source.splitlines()]
    return sum(1 for line in lines if line and not line.startswith(("import ", "from ", "#")))


def _list_callable(program: Program, body: Sequence[str], result: str) -> list[str]:
    if not program.as_module:
        arguments = ", ".join(input_.name for input_ in program.inputs)
        return [f"def program({arguments}):", *(f"    {line}" for line in body), f"    return {result}"]
    own = [input_ for input_ in program.inputs if input_.parameter]
    lines = ["class Model(nn.Module):", "    def __init__(self):", "        super().__init__()"]
    lines += [f"        self.{input_.name} = nn.Parameter({input_expression(input_, plain=True)})" for input_ in own]
    arguments = "".join(f", {input_.name}" for input_ in program.inputs if not input_.parameter)
    lines += ["", f"    def forward(self{arguments}):", *(f"        {line}" for line in body)]
    return [*lines, f"        return {result}"]


def _list_make(program: Program) -> list[str]:
    lines = ["def make():"]
    if program.is_recorded:
        lines.append('    VALUES = torch.load(Path(__file__).with_name("values.pt"))')
    if any("torch.rand" in input_expression(input_) for input_ in program.inputs):
        lines.append("    torch.manual_seed(0)")
    given = [input_ for input_ in program.inputs if not (program.as_module and input_.parameter)]
    expressions = [input_expression(input_) for input_ in given]
    model = "Model()" if program.as_module else "program"
    comma = "," if len(given) == 1 else ""
    short = f"    return {model}, ({', '.join(expressions)}{comma})"
    if len(short) <= _WIDTH:
        return [*lines, short]
    lines += [f"    {input_.name} = {expression}" for input_, expression in zip(given, expressions, strict=True)]
    return [*lines, f"    return {model}, ({', '.join(input_.name for input_ in given)}{comma})"]


# -- statements -------------------------------------------------------------------------------------


def _write_body(program: Program) -> tuple[list[str], str]:
    holders = {input_.name for input_ in program.inputs if program.as_module and input_.parameter}
    writer = Writer(holders)
    lines: list[str] = []
    depth = 0
    for index, statement in enumerate(program.statements):
        if statement.form == "exit":
            depth -= 1
            continue
        if _is_nested(program, index, writer):
            continue
        text = writer.line(statement, used=program.count_uses(statement.name) > 0)
        lines.append("    " * depth + text)
        depth += statement.form == "enter"
    text, several = writer.text(program.outputs), isinstance(program.outputs, tuple) and len(program.outputs) > 1
    return lines, text[1:-1] if several else text


class Writer:
    """Renders statements; ``inline`` holds the expressions of nested ones, and how strongly they bind."""

    def __init__(self, holders: set[str]) -> None:
        self.inline: dict[str, tuple[str, int]] = {}
        self.holders = holders

    def line(self, statement: Statement, *, used: bool) -> str:
        """A statement as one line."""
        if statement.form == "enter":
            return f"with {statement.target}:"
        if statement.form == "setitem":
            target, index, value = statement.args
            return f"{self._atom(target)}[{self._index(index)}] = {self.text(value)}"
        if statement.writes and statement.form == "operator":
            first, second = statement.args
            text = f"{self.text(first)} {statement.target} {self.text(second)}"
            # An augmented assignment binds the old name; later uses mean the same tensor.
            self.inline[statement.name] = (self.text(first), _ATOM)
            return text
        text, _ = self.expression(statement)
        if statement.writes and not used:
            return text
        return f"{statement.name} = {text}"

    def expression(self, statement: Statement) -> tuple[str, int]:
        """The statement's right-hand side and how strongly it binds."""
        form, target, args = statement.form, statement.target, statement.args
        if form == "operator" and target in ("-x", "~x", "+x"):
            return f"{target[0]}{self._at(args[0], _UNARY)}", _UNARY
        if form == "operator":
            strength = _STRENGTH.get(target, _LOOSE)
            left, right = self._at(args[0], strength), self._at(args[1], strength + 1)
            return f"{left} {target} {right}", strength
        if form == "attribute":
            return f"{self._atom(args[0])}.{target}", _ATOM
        if form == "getitem":
            return f"{self._atom(args[0])}[{self._index(args[1])}]", _ATOM
        if form == "method":
            return f"{self._atom(args[0])}.{target}({self._arguments(args[1:], statement.kwargs)})", _ATOM
        return f"{target}({self._arguments(args, statement.kwargs)})", _ATOM

    def _arguments(self, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
        return ", ".join([*(self.text(a) for a in args), *(f"{key}={self.text(v)}" for key, v in kwargs.items())])

    def _atom(self, value: object) -> str:
        """A value that an attribute or an index can follow."""
        text = self._at(value, _ATOM)
        return f"({text})" if text[:1] in "-0123456789" else text

    def _at(self, value: object, strength: int) -> str:
        """A value in an expression that binds with ``strength``."""
        text, own = self._ref(value) if isinstance(value, Ref) else (self.text(value), _ATOM)
        return text if own >= strength else f"({text})"

    def _ref(self, ref: Ref) -> tuple[str, int]:
        if ref.name in self.holders:
            return f"self.{ref.name}", _ATOM
        return self.inline.get(ref.name, (ref.name, _ATOM))

    def _index(self, value: object) -> str:
        if isinstance(value, tuple) and value:
            return ", ".join(self._index(part) for part in value) + ("," if len(value) == 1 else "")
        if isinstance(value, slice):
            parts = ["" if part is None else self.text(part) for part in (value.start, value.stop, value.step)]
            return ":".join(parts if parts[2] else parts[:2])
        return "..." if value is Ellipsis else self.text(value)

    def text(self, value: object) -> str:
        """A value as an argument."""
        if isinstance(value, Ref):
            return self._ref(value)[0]
        return format_literal(value, self.text)


def format_literal(value: object, inner: Callable[[object], str] | None = None) -> str:
    """A constant as Python text."""
    text = inner or format_literal
    if isinstance(value, tuple):
        return f"({', '.join(text(part) for part in value)}{',' if len(value) == 1 else ''})"
    if isinstance(value, list):
        return f"[{', '.join(text(part) for part in value)}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {text(part)}" for key, part in value.items()) + "}"
    if isinstance(value, slice):
        return f"slice({text(value.start)}, {text(value.stop)}, {text(value.step)})"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if value is Ellipsis:
        return "..."
    if isinstance(value, torch.device):
        return f'"{value}"'
    if isinstance(value, str):
        return f'"{value}"' if '"' not in value and "\\" not in value and value.isprintable() else repr(value)
    return repr(value)


# -- nesting --------------------------------------------------------------------------


def _is_nested(program: Program, index: int, writer: Writer) -> bool:
    """Return whether the statement is nested into its only use; ``writer.inline`` then has its expression.

    A statement that writes, or the start or end of a block, between the two prevents it.
    """
    statement, later = program.statements[index], program.statements[index + 1 :]
    if statement.form in ("enter", "setitem") or statement.writes or program.count_uses(statement.name) != 1:
        return False
    place = next((n for n, user in enumerate(later) if statement.name in user.refs()), len(later))
    if any(between.writes or between.form in ("enter", "exit") for between in later[: place + 1]):
        return False
    text, strength = writer.expression(statement)
    if place == len(later):
        fits = len(text) <= _WIDTH and isinstance(program.outputs, Ref)
    elif statement.form == "operator" and statement.target in _LIGHT_OPERATORS:
        # A product or a scale goes into the next operator, not into the arguments of a call.
        fits = len(text) <= 48 and later[place].form == "operator" and later[place].target in _LIGHT_OPERATORS
    else:
        light = statement.form == "method" and statement.target in _LIGHT_METHODS
        # A copied expression stands before ``.clone()``.
        copied = later[place].form == "method" and later[place].target == "clone"
        light |= copied and statement.form in ("function", "method")
        fits = len(text) <= 56 and (light or statement.form in ("getitem", "attribute"))
    if fits:
        writer.inline[statement.name] = (text, strength)
    return fits
