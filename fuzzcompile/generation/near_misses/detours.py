"""Detours through casts, constants, indices, views, reductions and writes. See `detour_registry`."""

from __future__ import annotations

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.near_misses.detour_registry import detour, never
from fuzzcompile.generation.spec import Choices, Part


def _stays_floating(part: Part) -> bool:
    return not str(part["first"]).startswith("int")


@detour(3, has_gradient=_stays_floating)
def cast_twice(pen: Pen) -> Choices:
    """Two casts in a row, the first to a dtype of less range or precision.

    A chain of casts may be shortened only if the cast in the middle loses nothing.
    """
    return {
        "first": pen.one_of(("float16", "bfloat16", "float64", "int32", "int8")),
        "second": pen.one_of(("float32", "bfloat16", "float16", "float64")),
    }


@detour(4)
def constant_factor(pen: Pen) -> Choices:
    """A product with 0, 1 or −1, as a number or as a tensor of one value, of the activation's dtype or another.

    Removing or folding the product must keep NaN, signs of zero, dtypes and the identity of copies.
    """
    return {
        "by": pen.one_of((1, 0, -1)),
        "form": pen.one_of(("number", "full", "ones", "wide", "scalar", "wide_scalar")),
        "operator": pen.one_of(("*", "/", "+", "-")),
    }


@detour(3)
def counted(pen: Pen) -> Choices:
    """A cumulative sum of a constant tensor of a small or boolean dtype, along some axis, added.

    Sums of integers are int64 unless a dtype is given, and wrap around if it is small.
    """
    return {
        "dtype": pen.one_of(("int64", "bool", "int8", "uint8", "float16", "float32")),
        "fill": pen.one_of((1, 2, 100)),
        "asked": pen.one_of(("", "int8", "float32", "int32")),
        "axis": pen.one_of((-1, -2, 0)),
    }


@detour(4, has_gradient=never)
def shifted_in_place(pen: Pen) -> Choices:
    """Rows moved on by one within the same memory: x[1:] = x[:-1].clone().

    Source and target overlap: without the copy a loop reads elements that it has just written.
    """
    return {"axis": pen.one_of((-1, -2, 0)), "by": pen.one_of((1, -1)), "cloned": pen.chance(70)}


@detour(3)
def slice_written(pen: Pen) -> Choices:
    """A slice is overwritten by slice_scatter, select_scatter or assignment, with a step or from the end.

    A scatter that covers everything equals its source; any other must keep the remaining elements.
    """
    return {
        "by": pen.one_of(("assign", "slice_scatter", "select_scatter", "diagonal")),
        "step": pen.one_of((1, 2)),
        "source": pen.one_of(("number", "self", "wide")),
    }


@detour(4)
def index_written(pen: Pen) -> Choices:
    """Elements written by index_put, index_add, index_copy or scatter, some indices twice or negative.

    Accumulated writes to one place add up, whatever the order or the number of threads.
    """
    return {
        "by": pen.one_of(("index_put", "index_add", "index_fill", "scatter_add", "scatter_amax", "scatter_value")),
        "repeated": pen.chance(60),
        "accumulate": pen.chance(50),
    }


@detour(3)
def one_hot(pen: Pen) -> Choices:
    """A constant tensor with one value scattered into each row, of an integer, half or boolean dtype.

    Rewritten as a comparison with an arange, it must keep the constant's dtype.
    """
    return {
        "dtype": pen.one_of(("int64", "float32", "bool", "int8", "float16")),
        "value": pen.one_of((1, 0.5, 3)),
        "axis": pen.one_of((-1, -2)),
    }


@detour(4)
def cat_before_pointwise(pen: Pen) -> Choices:
    """Parts of other dtypes or sizes concatenated, viewed, then put through relu or tanh.

    Moved before the concatenation, the function gets each part in its own dtype, and a view may not fit.
    """
    return {
        "other": pen.one_of(("same", "float64", "int64", "bool", "float16", "empty")),
        "function": pen.one_of(("torch.relu", "torch.tanh", "relu", "relu_", "tanh")),
        "viewed": pen.chance(50),
        "axis": pen.one_of((-1, 0, -2)),
    }


@detour(3)
def cat_of_slices(pen: Pen) -> Choices:
    """A concatenation, a slice of it, and both concatenated again.

    Folded into one, it may read the first part alone only if the slice ends within it.
    """
    return {"taken": pen.one_of((1, 2, 5)), "copies": pen.one_of((2, 3)), "start": pen.one_of((0, 1))}


@detour(3)
def split_unevenly(pen: Pen) -> Choices:
    """Split into parts of different size, one of them perhaps empty or not used, and joined in another order."""
    return {
        "first": pen.one_of((1, 0)),
        "order": pen.one_of(("same", "reversed", "doubled")),
        "axis": pen.one_of((-1, -2)),
    }


@detour(2, has_gradient=never)
def view_reinterpreted(pen: Pen) -> Choices:
    """The bits viewed as integers of the same or another width, changed or not, and viewed back."""
    return {"narrow": pen.chance(40), "flipped": pen.chance(40)}


@detour(3)
def small_integers(pen: Pen) -> Choices:
    """Arithmetic in a small integer dtype: sums that wrap around, floor division, remainders and shifts of negatives.

    Kernels that compute in a wider type must wrap to the narrow one after each step.
    """
    return {
        "dtype": pen.one_of(("int8", "uint8", "int16", "int32")),
        "operator": pen.one_of(("+", "*", "//", "%", ">>", "-", "~")),
        "by": pen.one_of((3, 100, -3)),
    }


@detour(3)
def rounded(pen: Pen) -> Choices:
    """Rounding, truncation or division with a rounding mode, near the points where it jumps."""
    return {
        "how": pen.one_of(
            ("round", "decimals", "floor", "trunc", "floor_divide", "trunc_divide", "remainder", "fmod", "frac")
        ),
    }


@detour(3)
def clamped(pen: Pen) -> Choices:
    """Clamped between bounds that cross, that are tensors, infinite, or of another dtype."""
    return {"how": pen.one_of(("crossed", "tensors", "infinite", "integers", "minimum", "hardtanh"))}


@detour(4)
def scaled_softmax(pen: Pen) -> Choices:
    """Softmax or log-softmax of a product with a negative, zero, tensor-valued or infinite factor, along some axis.

    The factor may be moved out of the subtraction of the maximum only if its sign and shape allow it.
    """
    return {
        "factor": pen.one_of(("-2.0", "0.0", "1e30", "tensor", "flipped", "infinite")),
        "function": pen.one_of(("softmax", "log_softmax", "by_hand")),
        "axis": pen.one_of((-1, -2, 0)),
        "divides": pen.chance(40),
    }


@detour(3)
def powers(pen: Pen) -> Choices:
    """Powers with exponents 0, 1, ½, −1, integers as floats, and tensors; square roots and their reciprocals."""
    return {"exponent": pen.one_of(("1", "0", "1.0", "0.5", "-1", "3", "tensor", "base"))}


@detour(3)
def extremes(pen: Pen) -> Choices:
    """Maxima over one axis and over all, maxima with their places, sorted or top values, under ties.

    A partial reduction may be reused for the full one; of equal elements the index must stay that of the first.
    """
    return {"what": pen.one_of(("amax", "max", "argmax", "sort", "topk", "median", "cummax", "aminmax"))}


@detour(2)
def variances(pen: Pen) -> Choices:
    """Variance, standard deviation, norms and logsumexp over an axis that may have one element."""
    return {
        "what": pen.one_of(("var", "std", "norm", "logsumexp", "var_mean", "prod", "any", "nansum")),
        "axis": pen.one_of((-1, -2, 0)),
        "corrected": pen.chance(50),
    }


@detour(3)
def restrided(pen: Pen) -> Choices:
    """The same values in another memory layout: transposed copies, flips, rolls, as_strided, expanded and copied."""
    return {
        "how": pen.one_of(
            ("transposed_copy", "flip", "roll", "as_strided", "expanded", "unfolded", "movedim", "strided_copy")
        ),
    }


@detour(2)
def padded(pen: Pen) -> Choices:
    """Padding by amounts of zero, negative, reflected or circular, and cut off again."""
    return {"how": pen.one_of(("zero", "negative", "reflect", "constant", "circular", "replicate"))}


@detour(2)
def masked_values(pen: Pen) -> Choices:
    """Values filled, selected or replaced by a mask that comes from the values themselves."""
    return {
        "how": pen.one_of(
            ("where_nan", "nan_to_num", "masked_fill", "masked_scatter", "nonzero", "where_scalar", "isclose")
        ),
    }


@detour(3, has_gradient=never, writes=True)
def input_written(pen: Pen) -> Choices:
    """The activation, perhaps an input of the model, is changed in place: by a number, by itself, or through a view."""
    return {"by": pen.one_of(("number", "itself", "view", "transposed", "twice"))}


_PRODUCTS = ("sum_of_two", "addmm", "baddbmm", "einsum", "gram", "matvec", "int_mm", "add_alpha", "add_broadcast")


@detour(2)
def products(pen: Pen) -> Choices:
    """Products of the activation with itself and with constants: mm + mm, addmm with factors, einsum, outer."""
    return {"how": pen.one_of(_PRODUCTS)}


@detour(2)
def permuted_samples(pen: Pen) -> Choices:
    """A random choice of samples, read or added to by index, as stochastic depth in batches does it."""
    return {"how": pen.one_of(("index", "index_add"))}
