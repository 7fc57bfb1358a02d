"""How far two results of a layer are apart: all of its floating outputs taken together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fuzzcompile.run import metrics


@dataclass(frozen=True)
class Distance:
    """Errors between two results, absolute; ``size`` is the RMS of the second, ``value`` its magnitude at the largest.

    ``largest`` and ``rms`` are infinite where one result has a number that is not finite and the other has not.
    """

    largest: float
    rms: float
    size: float
    cosine: float | None
    finite: bool
    value: float = 0.0

    @property
    def relative(self) -> float:
        """The RMS error in units of the size; the error itself where the size is 0."""
        return self.rms / self.size if self.size else self.rms


def distance(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> Distance | None:
    """The distance of two lists of tensors; None if their numbers or shapes differ or there are none.

    Integers and booleans count as the numbers that they are.
    """
    if len(first) != len(second) or any(a.shape != b.shape for a, b in zip(first, second, strict=True)):
        return None
    count, largest, squares, size, product, own = 0, 0.0, 0.0, 0.0, 0.0, 0.0
    finite, value = True, 0.0
    for left, right in zip(first, second, strict=True):
        for _, (a, b) in metrics.iter_pieces(left, right):
            apart = (a - b).abs()
            apart = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, apart).nan_to_num(math.inf, math.inf)
            count += a.numel()
            worst = int(apart.argmax())
            if float(apart[worst]) > largest:
                largest, value = float(apart[worst]), float(b[worst].abs())
            squares += float(apart.square().sum())
            own += float(a.abs().square().nansum())
            size += float(b.abs().square().nansum())
            product += float((a * b.conj()).real.nansum()) if a.is_complex() else float((a * b).nansum())
            finite = finite and bool(b.isfinite().all()) and bool(a.isfinite().all())
    if not count:
        return None
    norm = math.sqrt(own) * math.sqrt(size)
    cosine = product / norm if finite and norm and math.isfinite(norm) else None
    return Distance(largest, math.sqrt(squares / count), math.sqrt(size / count), cosine, finite, value)
