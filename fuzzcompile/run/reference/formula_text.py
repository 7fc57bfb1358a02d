"""Formulas of operators as source text: a formula is run on arrays that write down what is done to them."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from fuzzcompile.run.reference.formulas import apply_formula

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
