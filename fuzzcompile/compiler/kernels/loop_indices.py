"""Arithmetic of the index expressions of Inductor's loops."""

from __future__ import annotations

import torch


class Indices:
    """Index expressions on integers and on tensors of them, for torch's interpreter of sympy expressions."""

    constant = staticmethod(lambda value, dtype: float(value) if dtype is torch.double else int(value))
    add = staticmethod(lambda a, b: a + b)
    sym_sum = staticmethod(sum)
    mul = staticmethod(lambda a, b: a * b)
    sub = staticmethod(lambda a, b: a - b)
    floordiv = staticmethod(lambda a, b: a // b)
    int_truediv = staticmethod(lambda a, b: a / b)
    truediv = staticmethod(lambda a, b: a / b)
    mod = staticmethod(lambda a, b: a % b)
    python_mod = staticmethod(lambda a, b: a % b)
    modular_indexing = staticmethod(lambda a, divisor, modulus: (a // divisor) % modulus)
    pow_by_natural = staticmethod(lambda a, b: a**b)
    pow = staticmethod(lambda a, b: a**b)
    identity = staticmethod(lambda a: a)
    abs = staticmethod(lambda a: abs(a))
    eq = staticmethod(lambda a, b: a == b)
    ne = staticmethod(lambda a, b: a != b)
    lt = staticmethod(lambda a, b: a < b)
    le = staticmethod(lambda a, b: a <= b)
    gt = staticmethod(lambda a, b: a > b)
    ge = staticmethod(lambda a, b: a >= b)
    and_ = staticmethod(lambda a, b: a & b)
    or_ = staticmethod(lambda a, b: a | b)
    not_ = staticmethod(lambda a: torch.logical_not(torch.as_tensor(a)))
    trunc_to_int = staticmethod(lambda a, dtype: torch.trunc(torch.as_tensor(a)).to(dtype))
    floor_to_int = staticmethod(lambda a, dtype: torch.floor(torch.as_tensor(a)).to(dtype))
    ceil_to_int = staticmethod(lambda a, dtype: torch.ceil(torch.as_tensor(a)).to(dtype))
    round_to_int = staticmethod(lambda a, dtype: torch.round(torch.as_tensor(a)).to(dtype))

    @staticmethod
    def to_dtype(value: object, dtype: torch.dtype) -> torch.Tensor:
        """The value in another dtype."""
        return torch.as_tensor(value).to(dtype)

    @staticmethod
    def where(condition: object, then: object, otherwise: object) -> torch.Tensor:
        """``then`` where the condition holds, else ``otherwise``."""
        return torch.where(torch.as_tensor(condition), torch.as_tensor(then), torch.as_tensor(otherwise))

    @staticmethod
    def minimum(a: object, b: object) -> torch.Tensor:
        """The smaller one."""
        return torch.minimum(torch.as_tensor(a), torch.as_tensor(b))

    @staticmethod
    def maximum(a: object, b: object) -> torch.Tensor:
        """The larger one."""
        return torch.maximum(torch.as_tensor(a), torch.as_tensor(b))
