"""Observations with values of another run in place of their own, so that the rest can be judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from fuzzcompile.execution.observation import Observation, Value


def in_the_form_of(eager: Observation, values: Observation) -> Observation:
    """The values of ``values`` with the dtypes, devices, strides and aliases that eager gives them."""
    named = values.named()
    return replace(
        eager, values=tuple(_in_form(value, named[value.name]) for value in eager.values if value.name in named)
    )


def _in_form(form: Value, value: Value) -> Value:
    if isinstance(form.value, torch.Tensor) and isinstance(value.value, torch.Tensor):
        return replace(form, value=value.value.to(form.value.device, form.value.dtype))
    return replace(form, value=value.value)


def laid_out_as(eager: Observation, compiled: Observation) -> Observation:
    """The compiled run with eager's strides, so that nothing but the rest can differ."""
    own = eager.named()
    return replace(
        compiled,
        values=tuple(
            replace(value, stride=own[value.name].stride) if _alike(value, own.get(value.name)) else value
            for value in compiled.values
        ),
    )


def with_values_of(eager: Observation, compiled: Observation, names: Sequence[str]) -> Observation:
    """The compiled run with eager's values under these names, so that the rest can be judged value by value."""
    own = eager.named()
    return replace(
        compiled,
        values=tuple(
            _in_form(value, own[value.name]) if value.name in names and _alike(value, own.get(value.name)) else value
            for value in compiled.values
        ),
    )


def _alike(first: Value, second: Value | None) -> bool:
    if second is None or first.is_tensor != second.is_tensor:
        return False
    return not first.is_tensor or first.value.shape == second.value.shape
