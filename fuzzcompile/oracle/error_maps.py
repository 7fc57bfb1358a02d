"""Error maps: the errors over an output's elements, in a grid small enough to print."""

from __future__ import annotations

import itertools
import math

import torch

from fuzzcompile.contract import ErrorMapJson
from fuzzcompile.execution.tensors import dense
from fuzzcompile.oracle import metrics

# Rows and columns of a map, at most.
CELLS = 32
_DIGITS = 4  # significant digits of an error


def error_map(eager: torch.Tensor, compiled: torch.Tensor, exact: torch.Tensor) -> ErrorMapJson | None:
    """The errors of eager and compiled against ``exact``, each cell the largest of the elements that it covers.

    The tensor is read as a matrix: the last dimension of more than one element gives the columns, all others, one
    behind the other, the rows. Rows and columns beyond :data:`CELLS` are gathered into ranges of nearly equal length.

    Args:
        eager: the values of the eager run.
        compiled: those of the compiled run, of the same shape.
        exact: the float64 reference, of that shape.

    Returns:
        None for a tensor of fewer than two elements, or of another shape than the reference.
    """
    shape = dense(eager).shape
    if not (shape == dense(compiled).shape == dense(exact).shape) or shape.numel() < 2:
        return None
    split = max(dimension for dimension, size in enumerate(shape) if size > 1)
    rows, columns = shape[:split].numel(), shape[split]
    row_edges, column_edges = _edges(rows), _edges(columns)
    return {
        "shape": list(shape),
        "row_dims": split,
        "rows": row_edges,
        "columns": column_edges,
        "eager": _cells(metrics.distance(eager, exact).view(rows, columns), row_edges, column_edges),
        "compiled": _cells(metrics.distance(compiled, exact).view(rows, columns), row_edges, column_edges),
    }


def _edges(length: int) -> list[int]:
    """Return the start of each range, and the end of the last."""
    parts = min(length, CELLS)
    return [length * part // parts for part in range(parts + 1)]


def _cells(errors: torch.Tensor, rows: list[int], columns: list[int]) -> list[list[float | None]]:
    """The largest error of each cell; None where it is not finite."""
    in_rows = torch.stack([errors[start:end].amax(0) for start, end in itertools.pairwise(rows)])
    grid = torch.stack([in_rows[:, start:end].amax(1) for start, end in itertools.pairwise(columns)], 1)
    return [[_rounded(error) for error in row] for row in grid.tolist()]


def _rounded(error: float) -> float | None:
    return float(f"{error:.{_DIGITS}g}") if math.isfinite(error) else None
