"""A pattern program as a case file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fuzzcompile.generation.patterned.program import Operand, PatternProgram
from fuzzcompile.generation.tensors import LAYOUTS, as_tuple, filled, functions_in
from fuzzcompile.templating import template

# Modules that register the operators of a namespace when they are imported.
_REGISTERED_BY = {"quantized_decomposed": "torch.ao.quantization.fx._decomposed"}
# Read while dynamo traces, so that they have to be in force around everything.
_READ_EARLY = "freezing"


def render(program: PatternProgram) -> str:
    """The source of a case file that needs torch alone."""
    inputs = [operand for operand in program.operands if operand.role == "input"]
    held = [operand for operand in program.operands if operand.role != "input"]
    made = {operand.name: _made(operand) for operand in program.operands}
    return (
        template("pattern_case.py.j2")
        .render(
            imports=[
                module
                for namespace, module in _REGISTERED_BY.items()
                if any(f"torch.ops.{namespace}." in statement for statement in program.statements)
            ],
            label=program.label,
            edited=", ".join(program.edited) or "none",
            settings=list(_settings(program)),
            functions=functions_in(list(made.values())),
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


def _settings(program: PatternProgram) -> Iterator[tuple[str, str]]:
    """The names and expressions at the top of the file that say how the case is compiled."""
    early = _READ_EARLY in program.settings
    around = {"inductor": program.settings if early else {}, "dynamo": program.dynamo}
    config = {name: dict(entries) for name, entries in around.items() if entries}
    yield "GRAD", repr("enabled" if program.backward else program.grad)
    if program.backward:
        yield "BACKWARD", "True"
    if program.settings and not early:
        yield "OPTIONS", _literal(program.settings)
    if config:
        yield "CONFIG", _literal(config)
    if program.dynamic is not None:
        yield "DYNAMIC", repr(program.dynamic)


def _literal(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f'"{key}": {_literal(inner)}' for key, inner in value.items()) + "}"
    return repr(value)


def _made(operand: Operand) -> str:
    """The expression of an operand's tensor."""
    if operand.same_as is not None:
        return operand.same_as
    if operand.layout is None and operand.strides is not None and len(operand.strides) == len(operand.shape):
        reach = 1 + sum((size - 1) * stride for size, stride in zip(operand.shape, operand.strides, strict=True))
        sizes = f"{as_tuple(operand.shape)}, {as_tuple(operand.strides)}"
        return f"{_filled(operand, (max(reach, 1),))}.as_strided({sizes})"
    if operand.layout is None:
        return _filled(operand, operand.shape)
    layout = LAYOUTS[operand.layout]
    return _filled(operand, layout.base(operand.shape)) + layout.view.format(shape=as_tuple(operand.shape))


def _filled(operand: Operand, shape: tuple[int, ...]) -> str:
    size, dtype = as_tuple(shape), operand.dtype
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
    values = filled(operand.values, x, x, shape=size, like=f"torch.{dtype}", option=option, dtype=dtype)
    return f"({values})"
