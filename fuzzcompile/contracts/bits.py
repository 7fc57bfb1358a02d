"""Differences of bits between two values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fuzzcompile.execution.observation import Observation, Value
from fuzzcompile.execution.tensors import dense

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Difference:
    """Difference between the bits of two values of one name.

    Bits are compared, so that two zeros of different sign differ and so do two NaN of different payload. Both are
    counted apart from values: IEEE 754 leaves the payload of a NaN open, and torch promises none.

    Attributes:
        elements: how many there are.
        differing: how many have other bits.
        max_ulps: the largest distance in units in the last place of the dtype, over the elements that are numbers in
            both; None for values that are no floating-point tensors of one dtype and shape.
        zero_signs: of the differing elements, those that are zero in both.
        nan_payloads: of the differing elements, those that are NaN in both.
    """

    name: str
    elements: int
    differing: int
    max_ulps: int | None = None
    zero_signs: int = 0
    nan_payloads: int = 0
    detail: str = ""

    @property
    def share(self) -> float:
        """The share of the elements that differ."""
        return self.differing / max(self.elements, 1)

    @property
    def only_payloads(self) -> bool:
        """Return whether nothing but the payloads of NaN differs."""
        return self.differing == self.nan_payloads and not self.detail

    @property
    def only_zero_signs(self) -> bool:
        """Return whether nothing but payloads and the signs of zeros differs."""
        return self.differing == self.nan_payloads + self.zero_signs and not self.detail

    def __str__(self) -> str:
        if self.detail:
            return self.detail
        ulps = "" if self.max_ulps is None else f", by up to {self.max_ulps} ulp"
        return f"{self.differing} of {self.elements} elements differ{ulps}"


def difference(name: str, first: torch.Tensor, second: torch.Tensor) -> Difference | None:
    """Compare two tensors; None if they have the same dtype, shape and bits."""
    if first.dtype != second.dtype or first.shape != second.shape:
        forms = [f"{value.dtype} {tuple(value.shape)}" for value in (first, second)]
        return Difference(name, second.numel(), second.numel(), detail=f"{forms[0]} against {forms[1]}")
    left, right = (_real(value) for value in (first, second))
    bits = _INTEGERS[left.element_size()]
    apart = left.view(bits) != right.view(bits)
    count = int(apart.sum())
    if not count:
        return None
    if not left.is_floating_point():
        return Difference(name, left.numel(), count)
    zeros, payloads = apart & (left == 0) & (right == 0), apart & left.isnan() & right.isnan()
    ulps = _ulps(left, right, bits)
    return Difference(name, left.numel(), count, ulps, int(zeros.sum()), int(payloads.sum()))


def differences(first: Observation, second: Observation, *, kinds: Sequence[str] = ()) -> list[Difference]:
    """The values of two runs that differ, by name; ``kinds`` of values, all by default."""
    there = second.named()
    pairs = [(value, there.get(value.name)) for value in first.values if not kinds or value.kind in kinds]
    known = {value.name for value in first.values}
    found = [_between(value, paired) for value, paired in pairs]
    found += [
        Difference(value.name, 1, 1, detail="only one of the runs has it")
        for value in second.values
        if value.name not in known and (not kinds or value.kind in kinds)
    ]
    return [apart for apart in found if apart is not None]


def _between(value: Value, paired: Value | None) -> Difference | None:
    if paired is None or value.is_tensor != paired.is_tensor:
        return Difference(value.name, 1, 1, detail="only one of the runs has it")
    if value.is_tensor:
        return difference(value.name, value.value, paired.value)
    if isinstance(value.value, float) and isinstance(paired.value, float):
        numbers = [torch.tensor(number, dtype=torch.float64) for number in (value.value, paired.value)]
        return difference(value.name, *numbers)
    if value.value == paired.value:
        return None
    return Difference(value.name, 1, 1, detail=f"{value.value!r} against {paired.value!r}"[:200])


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in a row on the CPU, complex numbers as pairs."""
    values = dense(tensor).detach().cpu().contiguous().reshape(-1)
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj()).reshape(-1)
    return values


def _ulps(left: torch.Tensor, right: torch.Tensor, bits: torch.dtype) -> int | None:
    """The largest distance in steps from one representable number to the next."""
    numbers = ~(left.isnan() | right.isnan())
    if left.element_size() == 1 or not bool(numbers.any()):
        return None
    first, second = (_ordered(value[numbers].view(bits)) for value in (left, right))
    return int((first - second).abs().max())


def _ordered(bits: torch.Tensor) -> torch.Tensor:
    """Signed magnitudes as integers in the order of the numbers; both zeros are 0."""
    wide = bits.to(torch.int64)
    lowest = torch.iinfo(bits.dtype).min
    return torch.where(wide < 0, lowest - wide, wide)
