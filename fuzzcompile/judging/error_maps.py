"""Error maps: the places in its outputs at which a compiled program is wrong."""

from __future__ import annotations

import torch

from fuzzcompile.contract import ErrorMapJson
from fuzzcompile.oracle.error_maps import error_map
from fuzzcompile.trials.compiles import Experiments, Trial

# Findings with errors to show, and those of them that are no fault.
_HARMLESS = ("close", "wild")
_MEASURED = ("far", "nonfinite", "integer", *_HARMLESS)
_MOST = 6  # outputs of one report


def error_maps_of(experiments: Experiments, trial: Trial) -> dict[str, ErrorMapJson]:
    """Return the error maps of the worst outputs, by name, among those that were measured and differ."""
    exact = experiments.runs.exact if trial.judgement.casts_dropped else experiments.runs.reference
    runs = [run.named() for run in (experiments.baseline, trial.observation, exact)]
    random = trial.sampled or ()
    measured = [c for c in trial.judgement.comparisons if c.finding in _MEASURED and c.name not in random]
    maps = dict[str, ErrorMapJson]()
    for comparison in sorted(measured, key=lambda c: (c.finding in _HARMLESS, -c.relative_error))[:_MOST]:
        values = [run[comparison.name].value for run in runs if comparison.name in run]
        if len(values) == len(runs) and all(isinstance(value, torch.Tensor) for value in values):
            drawn = error_map(*values)
            maps |= {} if drawn is None else {comparison.name: drawn}
    return maps
