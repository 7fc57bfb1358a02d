"""Observations made by hand, and their verdicts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fuzzcompile.diagnosis.oracle.judgement import Judgement, Observations, judge
from fuzzcompile.run.observation import Observation, Value
from fuzzcompile.run.tensors import double_dtype, list_significant_strides

NAMES = {"output": "out", "mutation": "input", "gradient": "gradient of input"}


def seen(*values: object, kind: str = "output", aliases: Sequence[tuple[str, ...]] = ()) -> Observation:
    """An observation of these outputs (mutated inputs, gradients)."""
    made = []
    for index, value in enumerate(values):
        strides = list_significant_strides(value) if isinstance(value, torch.Tensor) else ()
        shared = aliases[index] if index < len(aliases) else ()
        made.append(Value(f"{NAMES[kind]}{index}", value, kind, strides, shared))
    return Observation(tuple(made))


def wide(observation: Observation) -> Observation:
    """The reference that a native run without any error has."""
    return Observation(
        tuple(
            Value(
                v.name, v.value.to(double_dtype(v.value.dtype)) if v.is_tensor else v.value, v.kind, v.stride, v.aliases
            )
            for v in observation.values
        )
    )


def judged(
    eager: Observation,
    compiled: Observation,
    reference: Observation | None = None,
    noisy: Sequence[Observation] = (),
) -> Judgement:
    """The first verdict."""
    return judge(Observations(eager, eager, reference or wide(eager), noisy, compiled))


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    """Standard normal numbers in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rounded_runs(exact: torch.Tensor, dtype: torch.dtype, count: int = 4) -> list[torch.Tensor]:
    """Runs of a few operators' rounding each: the exact values moved by up to one unit in the last place."""
    eps = torch.finfo(dtype).eps
    generator = torch.Generator().manual_seed(1000)
    draws = (2 * torch.rand(exact.shape, generator=generator, dtype=torch.float64) - 1 for _ in range(count))
    return [(exact * (1 + eps * draw)).to(dtype) for draw in draws]
