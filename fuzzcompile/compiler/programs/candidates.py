"""Values to try for the arguments that a rule leaves open."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace

import torch

from fuzzcompile.compiler.programs.skeleton import Hole
from fuzzcompile.generation.patterned import Operand

# The sizes that the shapes of one attempt are made of: distinct ones first, which tell dimensions apart; with one size
# alone almost every operator finds its operands to agree.
PALETTES: tuple[tuple[int, ...], ...] = ((4, 8), (4, 8), (2, 4, 8), (8,), (3, 4, 5), (16, 32), (1, 4, 8), (1, 8))
_RANKS = (0, 1, 1, 2, 2, 2, 2, 2, 3, 3, 4, 4)
# What arguments of these names usually are in ATen's schemas: the plainest values, for one and for two dimensions.
_NAMED: dict[str, tuple[object, ...]] = {
    "stride": ([1, 1], [1], [2, 2]),
    "padding": ([0, 0], [0], [1, 1], [1]),
    "dilation": ([1, 1], [1]),
    "output_padding": ([0, 0], [0]),
    "kernel_size": ([2, 2], [2], [3, 3]),
    "output_size": ([2, 2], [2], [4, 4]),
    "normalized_shape": ([8], [4]),
    "groups": (1, 2),
    "eps": (1e-5,),
    "beta": (1, 1, 2),
    "alpha": (1, 1, 2),
    "reduction": (1, 0, 2),
    "transposed": (False,),
    "quant_min": (0, -128),
    "quant_max": (255, 127),
    "qmin": (0, -128),
    "qmax": (255, 127),
    "scale": (0.1, 1.0, 2.0),
    "zp": (0, 10),
    "zero_point": (0, 10),
    "p": (0.5, 2.0),
    "negative_slope": (0.01,),
    "min_value": (0.0, -1.0, -0.5),
    "max_value": (6.0, 1.0, 0.5),
    "correction": (1, 0),
    "equation": ("ij,jk->ik", "bij,bjk->bik", "bij,bijk->bik", "ij,ijk->ik"),
    "approximate": ("none", "tanh"),
    "training": (False, True),
    "layout": (torch.strided,),
    "pin_memory": (False, None),
}
_INDICES = ("index", "indices", "selector", "target", "batch1_idx", "idx", "offsets")
_MASKS = ("mask", "condition", "cond")
_OTHER_DTYPES = ("int64", "bool", "float32", "int8", "uint8")
_INTEGERS = (0, 1, 2, -1, 4, 8, 3)
_NUMBERS = (2, 0.5, 1.0, 2.0, 0.125, -1.0, 0, 1)


class Candidates:
    """Draws values for holes; tensors are drawn as operands.

    Args:
        rng: the choices.
        dtype: the dtype of floating tensors.
        constants: numbers, strings and dtypes that the code of the rule names.
    """

    def __init__(self, rng: random.Random, dtype: str, constants: Sequence[object] = ()) -> None:
        self.rng, self.dtype, self.constants = rng, dtype, constants
        self.palette = rng.choice(PALETTES)
        self.quantised = rng.choice((("uint8", 0, 255), ("int8", -128, 127)))
        self.floating = rng.choice((0.95, 0.95, 0.4))
        self.shapes: list[tuple[int, ...]] = []
        self.dim: int | None = None

    def value(self, hole: Hole, operands: Sequence[torch.Tensor]) -> object:
        """A value for a hole of a call whose tensors so far are ``operands``."""
        if hole.first is not None and self.rng.random() < 0.9:
            return hole.first
        kind = hole.kind
        if kind.startswith("Optional["):
            kind = kind.removeprefix("Optional[").removesuffix("]")
            if self.rng.random() < 0.4:
                return None
        if hole.parameter.startswith(("quantize.", "dequantize.")):
            return self._of_quantisation(*hole.parameter.split("."))
        named = self._named(hole.parameter or hole.name)
        if named is not None and self.rng.random() < 0.85 and "Tensor" not in kind:
            return named
        return self._of_kind(kind or self._guessed(hole.name), hole.name, operands)

    def _of_kind(self, kind: str, name: str, operands: Sequence[torch.Tensor]) -> object:
        rng = self.rng
        if kind.startswith("List["):
            inner = kind.removeprefix("List[").removesuffix("]")
            if inner in ("int", "SymInt"):
                return self._sizes(name, operands)
            return [
                self._of_kind(inner.removeprefix("Optional["), name, operands) for _ in range(rng.choice((1, 2, 2, 3)))
            ]
        match kind.rstrip("]"):
            case "Tensor" if name == "other" and operands and rng.random() < 0.2:
                return rng.choice(_NUMBERS)  # of two operands, the second may be a number
            case "Tensor":
                return self.operand(name, operands)
            case "int" | "SymInt":
                return self._integer(name, operands)
            case "float" | "number":
                return (
                    rng.choice([c for c in self.constants if type(c) in (int, float)] or _NUMBERS)
                    if rng.random() < 0.3
                    else rng.choice(_NUMBERS)
                )
            case "bool":
                return rng.random() < 0.5
            case "str":
                return rng.choice([c for c in self.constants if isinstance(c, str)] or ["none"])
            case "ScalarType":
                return self._dtype(operands)
            case "Device":
                return torch.device("cpu")
            case "MemoryFormat":
                return torch.contiguous_format
            case "Layout":
                return torch.strided
        return None

    def operand(self, name: str, beside: Sequence[torch.Tensor] = ()) -> Operand:
        """An operand, of a shape that others have or of a new one, and often of the dtype of what stands ``beside``."""
        rng = self.rng
        if self.shapes and rng.random() < 0.4:
            shape = rng.choice(self.shapes)
        else:
            shape = tuple(rng.choice(self.palette) for _ in range(rng.choice(_RANKS)))
        self.shapes.append(shape)
        if any(part in name for part in _INDICES) and rng.random() < 0.9:
            return Operand("", shape, "int64", high=2)
        if any(part in name for part in _MASKS) and rng.random() < 0.9:
            return Operand("", shape, "bool")
        if beside and rng.random() < 0.5:
            return Operand("", shape, str(beside[0].dtype).removeprefix("torch."))
        dtypes = [str(c).removeprefix("torch.") for c in self.constants if isinstance(c, torch.dtype)]
        if dtypes and rng.random() < 0.3:
            return Operand("", shape, rng.choice(dtypes))
        return Operand(
            "", shape, self.dtype if rng.random() < 0.9 else rng.choice(("int64", "bool", "float32", "int8"))
        )

    def _of_quantisation(self, operator: str, parameter: str) -> object:
        """Arguments of quantising operators, those of one program alike."""
        dtype, least, most = self.quantised
        if parameter == "input":
            operand = self.operand("")
            return replace(operand, dtype=dtype if operator == "dequantize" else "float32", high=100)
        if parameter in ("scale", "scales"):
            return 0.1
        own = {"quant_min": least, "quant_max": most, "dtype": getattr(torch, dtype), "zero_point": 10}
        return own.get(parameter)

    def _named(self, name: str) -> object:
        for key, values in _NAMED.items():
            if name == key or (len(key) > 2 and name.endswith(f"_{key}")):
                return self.rng.choice(values)
        return None

    def _guessed(self, name: str) -> str:
        """A kind for an argument of which the name is all that is known."""
        if "dim" in name:
            return "int"
        if any(part in name for part in ("section", "sizes", "shape", "size", "perm")):
            return self.rng.choice(("List[int]", "List[int]", "int"))
        if "dtype" in name or name.startswith("to_"):
            return "ScalarType"
        if "scale" in name or "value" in name:
            return self.rng.choice(("Tensor", "number"))
        if name == "keepdim":
            return "bool"
        return self.rng.choice(("Tensor",) * 8 + ("int", "List[int]", "number", "ScalarType"))

    def _integer(self, name: str, operands: Sequence[torch.Tensor]) -> int:
        if "dim" in name and operands and operands[0].dim():
            if self.dim is None or self.rng.random() < 0.4:
                self.dim = self.rng.randrange(-operands[0].dim(), operands[0].dim())
            return self.dim  # calls along one dimension are what most rules look for
        if operands and self.rng.random() < 0.3 and operands[0].dim():
            return self.rng.choice(tuple(operands[0].shape))
        return self.rng.choice(_INTEGERS)

    def _dtype(self, operands: Sequence[torch.Tensor]) -> torch.dtype:
        if operands and self.rng.random() < 0.3:
            return operands[0].dtype
        named = [c for c in self.constants if isinstance(c, torch.dtype)]
        return self.rng.choice(named or [torch.float32, torch.bfloat16, torch.float16, torch.float32, torch.int64])

    def _sizes(self, name: str, operands: Sequence[torch.Tensor]) -> list[int]:
        """Whole numbers: dimensions, a permutation, parts of a size, or another shape of the first operand."""
        rng, shape = self.rng, list(operands[0].shape) if operands else []
        if not shape:
            return [rng.choice(self.palette) for _ in range(rng.choice((1, 2, 2, 3)))]
        if "perm" in name or name == "dims":
            return rng.sample(range(len(shape)), len(shape))
        if "dim" in name:
            return rng.sample(range(-len(shape), 0), rng.choice((1, min(2, len(shape)))))
        if "section" in name or "split" in name:
            joined = [given[self.dim or 0] for given in self.shapes if -len(given) <= (self.dim or 0) < len(given)]
            return joined if joined and rng.random() < 0.3 else self._parts(rng.choice(shape))
        return rng.choice(list(_reshaped(shape)))

    def _parts(self, size: int) -> list[int]:
        count = self.rng.choice([n for n in (2, 3, 4, size) if n <= max(size, 2)])
        if size % count == 0 and self.rng.random() < 0.7:
            return [size // count] * count
        return [1, size - 1] if count == 2 else [*[1] * (count - 1), max(size - count + 1, 0)]


def _reshaped(shape: list[int]) -> list[list[int]]:
    """Shapes with as many elements, and expansions of ``shape``."""
    total = math.prod(shape)
    joined = [[*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]] for at in range(len(shape) - 1)]
    cut = [[*shape[:at], 2, size // 2, *shape[at + 1 :]] for at, size in enumerate(shape) if size % 2 == 0]
    return [shape, *joined, *cut, [total], [-1, shape[-1]], [1, *shape], list(itertools.chain(shape, [1]))]
