"""Error maps: the places at which a compiled program's outputs are wrong, in a grid small enough to print."""

from __future__ import annotations

import itertools
import math

import torch

from fuzzcompile.model.contract import ErrorMapJson
from fuzzcompile.run import metrics
from fuzzcompile.run.tensors import dense
from fuzzcompile.triage.trials.case_runs import Trial
from fuzzcompile.triage.trials.experiments import Experiments

# Rows and columns of a map, at most.
CELLS = 32
_DIGITS = 4  # significant digits of an error


def make_error_map(eager: torch.Tensor, compiled: torch.Tensor, exact: torch.Tensor) -> ErrorMapJson | None:
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
    row_edges, column_edges = _list_edges(rows), _list_edges(columns)
    return {
        "shape": list(shape),
        "row_dims": split,
        "rows": row_edges,
        "columns": column_edges,
        "eager": _fill_cells(metrics.distance(eager, exact).view(rows, columns), row_edges, column_edges),
        "compiled": _fill_cells(metrics.distance(compiled, exact).view(rows, columns), row_edges, column_edges),
    }


def _list_edges(length: int) -> list[int]:
    """Return the start of each range, and the end of the last."""
    parts = min(length, CELLS)
    return [length * part // parts for part in range(parts + 1)]


def _fill_cells(errors: torch.Tensor, rows: list[int], columns: list[int]) -> list[list[float | None]]:
    """The largest error of each cell; None where it is not finite."""
    in_rows = torch.stack([errors[start:end].amax(0) for start, end in itertools.pairwise(rows)])
    grid = torch.stack([in_rows[:, start:end].amax(1) for start, end in itertools.pairwise(columns)], 1)
    return [[_round_error(error) for error in row] for row in grid.tolist()]


def _round_error(error: float) -> float | None:
    return float(f"{error:.{_DIGITS}g}") if math.isfinite(error) else None


# Error maps: the places in its outputs at which a compiled program is wrong.

# Findings with errors to show, and those of them that are no fault.
_HARMLESS = ("close", "wild")
_MEASURED = ("far", "nonfinite", "integer", *_HARMLESS)
_MOST = 6  # outputs of one report


def make_error_maps(experiments: Experiments, trial: Trial) -> dict[str, ErrorMapJson]:
    """Return the error maps of the worst outputs, by name, among those that were measured and differ."""
    exact = experiments.runs.exact if trial.judgement.casts_dropped else experiments.runs.reference
    runs = [run.named() for run in (experiments.baseline, trial.observation, exact)]
    random = trial.sampled or ()
    measured = [c for c in trial.judgement.comparisons if c.finding in _MEASURED and c.name not in random]
    maps = dict[str, ErrorMapJson]()
    for comparison in sorted(measured, key=lambda c: (c.finding in _HARMLESS, -c.relative_error))[:_MOST]:
        values = [run[comparison.name].value for run in runs if comparison.name in run]
        if len(values) == len(runs) and all(isinstance(value, torch.Tensor) for value in values):
            drawn = make_error_map(*values)
            maps |= {} if drawn is None else {comparison.name: drawn}
    return maps
