"""Looks for an ATen kernel that is wrong by itself on the inputs that eager mode or a compiled program gives it.

Its reference are the same values in contiguous memory, and if these have the same result, other code for the operator.

``python -m fuzzcompile.programs.scripts.kernels repro.py [OPERATOR]`` runs a case in a process of its own,
because such a kernel may crash; it prints one JSON object, or nothing if no kernel is at fault.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from fuzzcompile.compiler.operators.graph_capture import AtenCall, record_operator_calls
from fuzzcompile.compiler.operators.operator_application import OperatorPlace, compare_contiguous, name_arguments
from fuzzcompile.compiler.operators.operator_gradients import measure_gradient_miss
from fuzzcompile.compiler.operators.second_reference import compute_otherwise
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.programs.ir.case_source import (
    MOST_LITERALS,
    format_literal,
    input_expression,
    is_contiguous,
    make_contiguous,
)
from fuzzcompile.programs.ir.program import Fill, Input
from fuzzcompile.run.reference.formulas import apply_formula
from fuzzcompile.run.tensors import copy_tree, is_inexact, list_tensors

# Beyond rounding: relative to the largest element of the result.
_SHARE = 1e-3
# Characters of a formula that a reader takes in.
_LONGEST_FORMULA = 240


def main(path: str, operator: str | None = None) -> None:
    """Print the operator at fault and scripts that call it, as JSON.

    Operators are called as eager mode does it first, and then as they are decomposed for Inductor: a program may be
    wrong in eager mode, where the kernel is, and right once it is compiled. The first script has random values, the
    last those that were seen. Where these make NaN, of a negative variance say, positive values are tried first.
    """
    for decomposed in (False, True):
        for call in record_operator_calls(load_case(Path(path)), torch.device("cpu"), decomposed=decomposed):
            if operator is not None and str(call.operator) != operator:
                continue
            if _depends_on_layout(call):
                scripts = [_write_script(call, "rand")] if _holds_nan(call) else []
                scripts += [_write_script(call, values) for values in ("drawn", "seen")]
            elif operator is None:  # other code than the kernel is asked about one that is under suspicion
                scripts = []
            else:  # of wrong values, the gradient is no further evidence
                scripts = [*_write_expecting_script(call)] or [*_write_gradient_script(call)]
            if scripts:
                sys.stdout.write(f"{json.dumps({'operator': str(call.operator), 'scripts': scripts})}\n")
                return


def _depends_on_layout(call: AtenCall) -> bool:
    compared = compare_contiguous(call.operator, tuple(call.args), dict(call.kwargs), OperatorPlace())
    if compared is None or compared.other.error is not None:
        return False  # an operator that refuses contiguous inputs is no reference
    # Whatever the kernel raises, it does not for the same values in another layout.
    return compared.kernel.error is not None or any(
        isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor) and _differ(left, right)
        for left, right in zip(compared.kernel.results, compared.other.results, strict=True)
    )


def _differ(left: torch.Tensor, right: torch.Tensor) -> bool:
    if left.shape != right.shape or not left.is_floating_point():
        return not torch.equal(left, right)
    largest = right.abs().nan_to_num(0, 0, 0).max().item() if right.numel() else 0.0
    return not torch.allclose(left, right, rtol=_SHARE, atol=_SHARE * largest, equal_nan=True)


def _holds_nan(call: AtenCall) -> bool:
    try:
        results = call.operator(*copy_tree(call.args), **copy_tree(dict(call.kwargs)))
    except Exception:  # raised for the layout, which may be the fault
        return False
    return any(bool(each.isnan().any()) for each in list_tensors(results) if is_inexact(each))


def _write_script(call: AtenCall, values: Literal["rand", "drawn", "seen"]) -> str:
    drawn = values != "seen"
    lines, arguments, kwargs = _write_arguments(call, drawn=drawn)
    lines = [line.replace("torch.randn(", "torch.rand(") if values == "rand" else line for line in lines]
    return _join(
        *lines,
        f"args = [{', '.join(arguments)}]",
        "contiguous = [x.contiguous() if torch.is_tensor(x) else x for x in args]",
        f"op = {_name_operator(call)}",
        f"torch.testing.assert_close(op(*args{kwargs}), op(*contiguous{kwargs}), equal_nan=True)",
        drawn=drawn,
    )


def _join(*lines: str, drawn: bool = False, modules: Collection[str] = ()) -> str:
    """A script of these lines, with the ``modules`` that it needs beside torch."""
    own = (["import math", ""] if "math" in modules else []) + (["import numpy"] if "numpy" in modules else [])
    seed = ["torch.manual_seed(0)"] if drawn else []
    return "\n".join([*own, "import torch", "", *seed, *lines]) + "\n"


def _write_expecting_script(call: AtenCall) -> Iterator[str]:
    """Scripts that hold a wrong result of a call against its formula, or the values that other code computes."""
    own = call.operator(*copy_tree(call.args), **copy_tree(dict(call.kwargs)))
    results = own if isinstance(own, tuple | list) else (own,)
    expected = compute_otherwise(call.operator, (tuple(call.args), dict(call.kwargs))) or []
    for number, (result, values) in enumerate(zip(results, expected, strict=False)):
        if not isinstance(result, torch.Tensor) or values is None or not _differ(result, values.to(result.dtype)):
            continue
        taken = f"[{number}]" if isinstance(own, tuple | list) else ""
        yield from _write_formula_script(call, number, taken)
        if values.numel() <= MOST_LITERALS:
            values = values.to(result.dtype)
            lines, arguments, kwargs = _write_arguments(call, drawn=False)
            literal = input_expression(replace(Input.from_tensor("expected", values), fill="literal"))
            yield _join(
                *lines,
                f"expected = {literal}",
                f"result = {_name_operator(call)}({', '.join(arguments)}{kwargs}){taken}",
                "torch.testing.assert_close(result, expected, equal_nan=True)",
            )


def _write_gradient_script(call: AtenCall) -> Iterator[str]:
    """Scripts that hold the gradient of a call against differences, of random values and of those that were seen."""
    given = copy_tree((tuple(call.args), dict(call.kwargs)), double=True)
    listed = any(isinstance(value, list | tuple) and any(map(torch.is_tensor, value)) for value in call.args)
    if listed or not any(measure_gradient_miss(call.operator, given, lacking=each) for each in (False, True)):
        return
    wide = AtenCall(call.operator, *given)
    for drawn in (True, False):
        lines, arguments, kwargs = _write_arguments(wide, drawn=drawn)
        yield _join(
            *lines,
            f"args = [{', '.join(arguments)}]",
            "[x.requires_grad_() for x in args if torch.is_tensor(x) and (x.is_floating_point() or x.is_complex())]",
            f"torch.autograd.gradcheck(lambda *args: {_name_operator(call)}(*args{kwargs}), args)",
            drawn=drawn,
        )


def _write_formula_script(call: AtenCall, number: int, taken: str) -> Iterator[str]:
    """A script that holds result ``number`` of a call against its formula; none where it has no short text."""
    tensors = dict[str, torch.Tensor]()

    def write(name: str, value: object) -> object:
        if isinstance(value, list | tuple):
            return [write(f"{name}{place}", part) for place, part in enumerate(value)]
        if not isinstance(value, torch.Tensor):
            return value
        variable = _name_variable(name)
        tensors[variable] = value
        return WrittenArray((value.detach().double() if value.is_floating_point() else value).numpy(), variable)

    given = name_arguments(call.operator, (tuple(call.args), dict(call.kwargs)), defaults=True)
    written = write_formulas(call.operator._opname, {name: write(name, value) for name, value in given.items()})
    text = written[number] if number < len(written) else None
    if text is None or len(text) > _LONGEST_FORMULA:
        return
    used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    arrays = [f"{name} = {name}{'.double()' if x.is_floating_point() else ''}.numpy()" for name, x in tensors.items()
              if name in used]  # fmt: skip
    # A backward operator gets results of its forward one, which random values are not.
    drawn = "backward" not in call.operator._opname
    lines, arguments, kwargs = _write_arguments(call, drawn=drawn)
    yield _join(
        *lines,
        f"result = {_name_operator(call)}({', '.join(arguments)}{kwargs}){taken}",
        *arrays,
        f"expected = {text}",
        "torch.testing.assert_close(result, torch.as_tensor(expected, dtype=result.dtype), equal_nan=True)",
        drawn=drawn,
        modules=used,
    )


def _name_variable(argument: str) -> str:
    return argument if argument != "self" else "x"


def _name_operator(call: AtenCall) -> str:
    overload = call.operator._overloadname
    return f"torch.ops.aten.{call.operator._opname}" + ("" if overload == "default" else f".{overload}")


def _write_arguments(call: AtenCall, *, drawn: bool) -> tuple[list[str], list[str], str]:
    """The lines that make the tensors of a call, its arguments, and its keyword arguments with a comma before each."""
    named = name_arguments(call.operator, (tuple(call.args), {}))
    made: dict[str, list[str]] = {}  # the tensors of each expression

    def write(name: str, value: object) -> str:
        if isinstance(value, torch.Tensor):
            variable = _name_variable(name)
            made.setdefault(_expression(variable, value, drawn=drawn), []).append(variable)
            return variable
        if isinstance(value, list | tuple):
            return f"[{', '.join(write(f'{name}{number}', part) for number, part in enumerate(value))}]"
        return format_literal(value)

    arguments = [write(name, value) for name, value in named.items()]
    kwargs = "".join([f", {key}={write(key, value)}" for key, value in call.kwargs.items()])
    return [line for each in made.items() for line in _assign(*each)], arguments, kwargs


def _assign(expression: str, variables: Sequence[str]) -> list[str]:
    """The lines that make tensors of one expression: those that are drawn are the parts of one, in one line."""
    drawn = re.fullmatch(r"(torch\.randn?)\((\d.*\))", expression)
    if drawn is None or len(variables) < 2 or drawn[2].count(")") > 1:
        return [f"{variable} = {expression}" for variable in variables]
    return [f"{', '.join(variables)} = {drawn[1]}({len(variables)}, {drawn[2]}"]


def _expression(name: str, tensor: torch.Tensor, *, drawn: bool) -> str:
    input_ = Input.from_tensor(name, tensor.detach())
    fill: Fill = "randn" if is_inexact(tensor) else "zeros"
    if tensor.is_floating_point() and tensor.numel() and not bool((tensor < 0).any()):
        fill = "rand"  # a variance, a probability
    if tensor.numel() > MOST_LITERALS or (drawn and fill in ("randn", "rand")):
        return input_expression(replace(input_, fill=fill))
    text = input_expression(make_contiguous(replace(input_, fill="literal")))
    if is_contiguous(input_):
        return text
    return f"torch.empty_strided({input_.shape}, {input_.stride}, dtype={input_.dtype}).copy_({text})"


# Formulas as source text: one is run on arrays that write down what is done to them.

_INFIX = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "true_divide": "/", "floor_divide": "//",
    "power": "**", "matmul": "@", "greater": ">", "greater_equal": ">=", "less": "<", "less_equal": "<=", "equal": "==",
    "not_equal": "!=", "bitwise_and": "&", "bitwise_or": "|",
}  # fmt: skip


class WrittenArray(np.lib.mixins.NDArrayOperatorsMixin):
    """An array and the expression that makes it; what NumPy does to it makes another."""

    def __init__(self, value: Any, text: str) -> None:
        self.value, self.text = value, text

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method == "reduce":
            return _call(ufunc.reduce, f"numpy.{ufunc.__name__}.reduce", inputs, kwargs)
        if method != "__call__":
            return NotImplemented  # it writes to an array
        value, texts = ufunc(*map(_value, inputs), **kwargs), [_text(each) for each in inputs]
        if ufunc.__name__ == "positive":
            return WrittenArray(value, texts[0])
        if ufunc.__name__ == "negative":
            return WrittenArray(value, f"(-{texts[0]})")
        if ufunc.__name__ in _INFIX:
            return WrittenArray(value, f"({texts[0]} {_INFIX[ufunc.__name__]} {texts[1]})")
        named, _, ours = ufunc.__name__.partition(" ")  # "erf (vectorized)", a function of math
        function = f"numpy.vectorize(math.{named})" if ours else f"numpy.{named}"
        return WrittenArray(value, f"{function}({', '.join(texts)})")

    def __array_function__(self, function: Any, types: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return _call(function, f"numpy.{function.__name__}", args, kwargs)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.value, name)
        return (lambda *args, **kw: _call(found, f"{self.text}.{name}", args, kw)) if callable(found) else found

    def __getitem__(self, index: Any) -> WrittenArray:
        return WrittenArray(self.value[_value(index)], f"{self.text}[{_text(index)}]")


def _call(function: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> WrittenArray:
    result = function(*map(_value, args), **{key: _value(value) for key, value in kwargs.items()})
    return WrittenArray(
        result, f"{name}({', '.join([*map(_text, args), *(f'{k}={_text(kwargs[k])}' for k in kwargs)])})"
    )


def _value(given: Any) -> Any:
    if isinstance(given, list | tuple):
        return type(given)(map(_value, given))
    return given.value if isinstance(given, WrittenArray) else given


def _text(given: Any) -> str:
    if isinstance(given, WrittenArray):
        return given.text
    if isinstance(given, list):
        return f"[{', '.join(map(_text, given))}]"
    if isinstance(given, tuple):
        return f"({''.join(f'{_text(each)}, ' for each in given)})"
    if isinstance(given, np.generic):
        given = given.item()
    if given is not None and not isinstance(given, bool | int | float):
        raise TypeError(f"{type(given).__name__} has no short text")
    text = repr(given)
    return re.sub("inf|nan", r"math.\g<0>", text) if isinstance(given, float) else text


def write_formulas(operator: str, arguments: Mapping[str, Any]) -> list[str | None]:
    """The formula of each result of an operator as an expression; empty where it has none that can be written.

    ``operator`` is the name of a row of ``FORMULAS``; arrays among the ``arguments`` are `WrittenArray`, by the names
    that they have in the expression, which uses the modules ``math`` and ``numpy``.
    """
    results = apply_formula(operator, arguments)
    return [ast.unparse(ast.parse(each.text)) if isinstance(each, WrittenArray) else None for each in results]


if __name__ == "__main__":
    main(*sys.argv[1:])
