"""Values to try for the arguments that a rule leaves open."""

from __future__ import annotations

import itertools
import math
import operator
import random
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fuzzcompile.fuzz.rules.skeleton import ArgumentHole, CallResult, CallSkeleton, RuleCall, annotate_holes
from fuzzcompile.programs.edits.pattern_program import Operand

# The sizes that the shapes of one attempt are made of: distinct ones first, which tell dimensions apart; with one size
# alone almost every operator finds its operands to agree.
PALETTES: tuple[tuple[int, ...], ...] = ((4, 8), (4, 8), (2, 4, 8), (8,), (3, 4, 5), (16, 32), (1, 4, 8), (1, 8))
_RANKS = (0, 1, 1, 2, 2, 2, 2, 2, 3, 3, 4, 4)
# What arguments of these names usually are in ATen's schemas: the plainest values, for one and for two dimensions.
_NAMED_VALUES: dict[str, tuple[object, ...]] = {
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
_SCALARS = (2, 0.5, 1.0, 2.0, 0.125, -1.0, 0, 1)


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

    def draw_value(self, hole: ArgumentHole, operands: Sequence[torch.Tensor]) -> object:
        """A value for a hole of a call whose tensors so far are ``operands``."""
        if hole.first is not None and self.rng.random() < 0.9:
            return hole.first
        kind = hole.kind
        if kind.startswith("Optional["):
            kind = kind.removeprefix("Optional[").removesuffix("]")
            if self.rng.random() < 0.4:
                return None
        if hole.parameter.startswith(("quantize.", "dequantize.")):
            return self._draw_quantisation(*hole.parameter.split("."))
        named = self._draw_named(hole.parameter or hole.name)
        if named is not None and self.rng.random() < 0.85 and "Tensor" not in kind:
            return named
        return self._draw_kind(kind or self._guess_kind(hole.name), hole.name, operands)

    def _draw_kind(self, kind: str, name: str, operands: Sequence[torch.Tensor]) -> object:
        rng = self.rng
        if kind.startswith("List["):
            inner = kind.removeprefix("List[").removesuffix("]")
            if inner in ("int", "SymInt"):
                return self._draw_sizes(name, operands)
            return [
                self._draw_kind(inner.removeprefix("Optional["), name, operands)
                for _ in range(rng.choice((1, 2, 2, 3)))
            ]
        match kind.rstrip("]"):
            case "Tensor" if name == "other" and operands and rng.random() < 0.2:
                return rng.choice(_SCALARS)  # of two operands, the second may be a number
            case "Tensor":
                return self.draw_operand(name, operands)
            case "int" | "SymInt":
                return self._draw_integer(name, operands)
            case "float" | "number":
                return (
                    rng.choice([c for c in self.constants if type(c) in (int, float)] or _SCALARS)
                    if rng.random() < 0.3
                    else rng.choice(_SCALARS)
                )
            case "bool":
                return rng.random() < 0.5
            case "str":
                return rng.choice([c for c in self.constants if isinstance(c, str)] or ["none"])
            case "ScalarType":
                return self._draw_dtype(operands)
            case "Device":
                return torch.device("cpu")
            case "MemoryFormat":
                return torch.contiguous_format
            case "Layout":
                return torch.strided
        return None

    def draw_operand(self, name: str, beside: Sequence[torch.Tensor] = ()) -> Operand:
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

    def _draw_quantisation(self, operator: str, parameter: str) -> object:
        """Arguments of quantising operators, those of one program alike."""
        dtype, least, most = self.quantised
        if parameter == "input":
            operand = self.draw_operand("")
            return replace(operand, dtype=dtype if operator == "dequantize" else "float32", high=100)
        if parameter in ("scale", "scales"):
            return 0.1
        own = {"quant_min": least, "quant_max": most, "dtype": getattr(torch, dtype), "zero_point": 10}
        return own.get(parameter)

    def _draw_named(self, name: str) -> object:
        for key, values in _NAMED_VALUES.items():
            if name == key or (len(key) > 2 and name.endswith(f"_{key}")):
                return self.rng.choice(values)
        return None

    def _guess_kind(self, name: str) -> str:
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

    def _draw_integer(self, name: str, operands: Sequence[torch.Tensor]) -> int:
        if "dim" in name and operands and operands[0].dim():
            if self.dim is None or self.rng.random() < 0.4:
                self.dim = self.rng.randrange(-operands[0].dim(), operands[0].dim())
            return self.dim  # calls along one dimension are what most rules look for
        if operands and self.rng.random() < 0.3 and operands[0].dim():
            return self.rng.choice(tuple(operands[0].shape))
        return self.rng.choice(_INTEGERS)

    def _draw_dtype(self, operands: Sequence[torch.Tensor]) -> torch.dtype:
        if operands and self.rng.random() < 0.3:
            return operands[0].dtype
        named = [c for c in self.constants if isinstance(c, torch.dtype)]
        return self.rng.choice(named or [torch.float32, torch.bfloat16, torch.float16, torch.float32, torch.int64])

    def _draw_sizes(self, name: str, operands: Sequence[torch.Tensor]) -> list[int]:
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
            return joined if joined and rng.random() < 0.3 else self._draw_parts(rng.choice(shape))
        return rng.choice(list(_list_reshapes(shape)))

    def _draw_parts(self, size: int) -> list[int]:
        count = self.rng.choice([n for n in (2, 3, 4, size) if 0 < n <= max(size, 2)])
        if size % count == 0 and self.rng.random() < 0.7:
            return [size // count] * count
        return [1, size - 1] if count == 2 else [*[1] * (count - 1), max(size - count + 1, 0)]


def _list_reshapes(shape: list[int]) -> list[list[int]]:
    """Shapes with as many elements, and expansions of ``shape``."""
    total = math.prod(shape)
    joined = [[*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]] for at in range(len(shape) - 1)]
    cut = [[*shape[:at], 2, size // 2, *shape[at + 1 :]] for at, size in enumerate(shape) if size % 2 == 0]
    return [shape, *joined, *cut, [total], [-1, shape[-1]], [1, *shape], list(itertools.chain(shape, [1]))]


# Values for the holes of a skeleton, found by running it eagerly on tiny tensors.

# Values that are tried for one call before an earlier one is given others, and calls that one filling may try.
_WIDTH, _MOST_CALLS = 40, 800
_SECONDS = 1.5
# Results of more elements than this are no tiny program's.
_MOST_ELEMENTS = 1 << 16


@dataclass(frozen=True)
class FilledSkeleton:
    """A skeleton with a value for each hole: an operand for a tensor, else the value itself."""

    skeleton: CallSkeleton
    values: dict[ArgumentHole, object]


def fill_skeleton(
    skeleton: CallSkeleton, rng: random.Random, dtype: str, constants: Sequence[object] = ()
) -> FilledSkeleton | None:
    """Values with which all calls run in eager mode; None if none were found."""
    for call in skeleton.calls:
        annotate_holes(call, rng)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _FillSearch(skeleton, Candidates(rng, dtype, constants)).run()


def recast_operands(filled: FilledSkeleton, dtype: str) -> FilledSkeleton | None:
    """The same with all floating operands of another dtype; None where the calls do not take it."""

    def cast(value: object) -> object:
        return replace(value, dtype=dtype) if isinstance(value, Operand) and value.floating else value

    values = {hole: pytree.tree_map(cast, value, is_leaf=_is_operand) for hole, value in filled.values.items()}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return (
            FilledSkeleton(filled.skeleton, values)
            if _FillSearch.from_values(filled.skeleton, values).runs_all()
            else None
        )


class _FillSearch:
    def __init__(self, skeleton: CallSkeleton, candidates: Candidates) -> None:
        self.skeleton, self.candidates = skeleton, candidates
        self.values: dict[ArgumentHole, object] = {}
        self.tensors: dict[ArgumentHole, object] = {}
        self.results: list[object] = []
        self.left, self.until = _MOST_CALLS, time.monotonic() + _SECONDS

    @classmethod
    def from_values(cls, skeleton: CallSkeleton, values: dict[ArgumentHole, object]) -> _FillSearch:
        """A search that is at its end."""
        search = cls(skeleton, Candidates(random.Random(0), "float32"))
        search.values = values
        search.tensors = {
            hole: pytree.tree_map(_as_tensor, value, is_leaf=_is_operand) for hole, value in values.items()
        }
        return search

    def runs_all(self) -> bool:
        """Return whether all calls run."""
        return all(self._run_call(call) for call in self.skeleton.calls)

    def run(self) -> FilledSkeleton | None:
        return FilledSkeleton(self.skeleton, dict(self.values)) if self._fill_from(0) else None

    def _fill_from(self, index: int) -> bool:
        """Fill the calls from ``index`` on."""
        if index == len(self.skeleton.calls):
            return True
        call = self.skeleton.calls[index]
        open_holes = [hole for hole in call.list_holes() if hole not in self.values]
        for _ in range(_WIDTH if open_holes else 1):
            if self.left <= 0 or time.monotonic() > self.until:
                return False
            self.left -= 1
            self._draw_holes(call, open_holes)
            if self._run_call(call) and self._fill_from(index + 1):
                return True
            del self.results[index:]
            for hole in open_holes:
                self.values.pop(hole, None)
                self.tensors.pop(hole, None)
        return False

    def _draw_holes(self, call: RuleCall, holes: Sequence[ArgumentHole]) -> None:
        known = [leaf for leaf in map(self._resolve, call.iter_leaves()) if isinstance(leaf, torch.Tensor)]
        for hole in holes:
            value = self.candidates.draw_value(hole, known) if hole.like is None else self.values.get(hole.like)
            self.values[hole] = value
            self.tensors[hole] = pytree.tree_map(_as_tensor, value, is_leaf=_is_operand)
            known += [leaf for leaf in pytree.tree_leaves(self.tensors[hole]) if isinstance(leaf, torch.Tensor)]

    def _run_call(self, call: RuleCall) -> bool:
        args, kwargs = pytree.tree_map(self._resolve, (call.args, call.kwargs), is_leaf=_is_open)
        try:
            if _is_private(call.target):
                call_target(call.target, *pytree.tree_map(_make_meta_tensor, (args, kwargs)))
            result = call_target(call.target, args, kwargs)
        except Exception:  # of any kind: these are not the values that the operator takes
            return False
        self.results.append(result)
        tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        return bool(tensors) and all(tensor.numel() <= _MOST_ELEMENTS for tensor in tensors)

    def _resolve(self, leaf: object) -> object:
        if isinstance(leaf, CallResult):
            return self.results[leaf.index]
        return self.tensors.get(leaf) if isinstance(leaf, ArgumentHole) else leaf


def call_target(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> object:
    """The result of a call; a target that is a string is a method of the first argument."""
    if isinstance(target, str):
        return getattr(args[0], target)(*args[1:], **kwargs)
    if target is operator.getitem:
        return args[0][args[1]]
    return target(*args, **kwargs)


def _is_private(target: object) -> bool:
    """Whether an operator is meant for torch's own use: its kernel may take any arguments, and crash on wrong ones."""
    return isinstance(target, torch._ops.OpOverload) and target._schema.name.partition("::")[2].startswith("_")


def _make_meta_tensor(value: object) -> object:
    """A tensor without values, for which an operator's meta function checks its arguments."""
    return value.to("meta") if isinstance(value, torch.Tensor) else value


def _is_open(leaf: object) -> bool:
    return isinstance(leaf, (ArgumentHole, CallResult))


def _is_operand(leaf: object) -> bool:
    return isinstance(leaf, Operand)


def _as_tensor(value: object) -> object:
    return make_tensor(value) if isinstance(value, Operand) else value


def make_tensor(operand: Operand) -> torch.Tensor:
    """A tensor like an operand."""
    dtype = getattr(torch, operand.dtype)
    if operand.dtype == "bool":
        return torch.rand(operand.shape) > 0.5
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(operand.shape).to(dtype)
    return torch.randint(0, operand.high, operand.shape, dtype=dtype)


def name_operands(filled: FilledSkeleton) -> FilledSkeleton:
    """The same with names for the operands, in the order in which they are used."""
    number = 0

    def name(value: object) -> object:
        nonlocal number
        if not isinstance(value, Operand):
            return value
        number += 1
        return replace(value, name=f"x{number - 1}")

    values = {hole: pytree.tree_map(name, value, is_leaf=_is_operand) for hole, value in filled.values.items()}
    return FilledSkeleton(filled.skeleton, values)
