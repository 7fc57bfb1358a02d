"""Parts of a program as a user writes them."""

from __future__ import annotations

import torch

from fuzzcompile.reduction.program import Input, Statement
from fuzzcompile.reduction.writing import Writer


def call(statement: Statement) -> str:
    """The right-hand side of a statement, its operands by name."""
    return Writer(set()).expression(statement)[0]


def dtype_name(dtype: torch.dtype) -> str:
    """``float16`` for ``torch.float16``."""
    return str(dtype).removeprefix("torch.")


def strides(input_: Input) -> str:
    """An input with its strides."""
    return f"{input_.name} with strides {input_.stride}"


def shape(input_: Input) -> str:
    """An input with its shape."""
    return f"{input_.name} of shape {input_.shape}"
