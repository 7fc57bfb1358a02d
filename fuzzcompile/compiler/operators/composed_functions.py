"""Calls of functions that torch composes of several operators, seen in Python before they are taken apart."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy
import numpy.typing
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from fuzzcompile.compiler.operators.operator_application import Arguments, name_arguments
from fuzzcompile.run.reference.definitions import DEFINITIONS
from fuzzcompile.run.reference.formulas import apply_formula
from fuzzcompile.run.tensors import Operator


@dataclass(frozen=True)
class PythonFunction:
    """A function of Python's in an operator's place, named as programs spell it."""

    name: str

    def __str__(self) -> str:
        return f"F.{self.name}"


@dataclass(frozen=True)
class DefinedCall:
    """A call of a function of ``torch.nn.functional`` that has a definition."""

    name: str
    function: Callable[..., object]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self) -> Any:
        """Call it."""
        return self.function(*self.args, **self.kwargs)

    @functools.cached_property
    def operator(self) -> Operator:
        """The composite operator that stands for it, or the function itself, which has a name and nothing else."""
        composite = getattr(getattr(torch.ops.aten, self.name, None), "default", None)
        return cast("Operator", PythonFunction(self.name) if self._is_written_in_python else composite)

    @property
    def _is_written_in_python(self) -> bool:
        return inspect.isfunction(self.function)

    def define(self, arguments: Arguments) -> tuple[Any, ...]:
        """What the definition makes of arguments; empty where it says nothing."""
        if self._is_written_in_python:
            bound = inspect.signature(self.function).bind(*arguments[0], **arguments[1])
            bound.apply_defaults()
            named: Mapping[str, Any] = bound.arguments
        else:
            named = name_arguments(self.operator, arguments, defaults=True)
        return apply_formula(self.name, pytree.tree_map_only(torch.Tensor, make_array, dict(named)), DEFINITIONS)

    @contextlib.contextmanager
    def aside(self) -> Any:
        """A block whose operators neither the reference nor autograd sees."""
        with _disable_current_modes(), torch.no_grad():
            yield


class DefinedFunctions(TorchFunctionMode):
    """Have a function run the calls that have a definition, and give their results."""

    def __init__(self, run: Callable[[DefinedCall], object]) -> None:
        super().__init__()
        self._run = run
        # A composite operator may be called by its name in ``torch`` as well.
        named = ((getattr(torch, name, None), getattr(functional, name, None), name) for name in DEFINITIONS)
        self._names = {found: name for *both, name in named for found in both if found is not None}

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        name = self._names.get(func) if callable(func) else None
        inside = torch._C._functorch.peek_interpreter_stack() is not None
        if name is None or inside:
            return func(*args, **(kwargs or {}))
        return self._run(DefinedCall(name, func, args, kwargs or {}))


def make_array(tensor: torch.Tensor) -> numpy.typing.NDArray[Any]:
    """The values as NumPy computes with them: of short integers it would make short floats."""
    array = tensor.detach().cpu().numpy()
    return array.astype(numpy.int64) if array.dtype.kind in "iu" else array
