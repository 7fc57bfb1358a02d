"""Single PTX instructions that Inductor writes into kernels, computed on arrays."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import triton.language as tl

from fuzzcompile.compiler.target.interpreted.numbers import Array, numbers, pack, tensor
from fuzzcompile.compiler.target.interpreted.shapes import aligned

# Modifiers say how to round, flush and approximate, which no verdict rests on.
_INSTRUCTION = re.compile(r"\s*([a-z0-9]+)((?:\.[a-z0-9]+)*)\s+\$0((?:\s*,\s*\$\d+)+)\s*;\s*")
_COMPUTED: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "fma": lambda x, y, z: x.astype(np.float64) * y + z,
    "rcp": np.reciprocal,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: np.reciprocal(np.sqrt(x)),
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "abs": np.abs,
    "neg": np.negative,
}


def elementwise(asm: Any, constraints: Any, args: Sequence[Any], dtype: Any, is_pure: Any, **options: object) -> Any:
    """``tl.inline_asm_elementwise`` for one instruction on floating operands.

    Raises:
        NotImplementedError: the code is anything else.
    """
    code = asm.value if isinstance(asm, tl.constexpr) else asm
    match = _INSTRUCTION.fullmatch(code)
    operation = _COMPUTED.get(match[1]) if match else None
    if match is None or operation is None or not match[2].endswith((".f32", ".f64")):
        raise NotImplementedError(f"the inline assembly {code!r}")
    order = [int(number) - 1 for number in re.findall(r"\$(\d+)", match[3])]
    operands = aligned([numbers(args[index].handle.data, args[index].dtype) for index in order])
    return _packed(operation(*operands), dtype)


def _packed(data: Array, dtype: Any) -> Any:
    return tensor(pack(data, dtype), dtype)
