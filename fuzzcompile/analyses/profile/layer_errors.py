"""How far two runs are apart in the results of one layer, and in its gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fuzzcompile.analyses.profile.taps import KeptTensor
from fuzzcompile.diagnosis.oracle import rounding as value_change
from fuzzcompile.run import metrics
from fuzzcompile.run.observation import Observation

# How far two results of a layer are apart: all of its floating outputs taken together.


@dataclass(frozen=True)
class Distance:
    """Absolute errors between two results, infinite where only one of them has a number that is not finite.

    ``size`` is the RMS of the second, ``value`` its magnitude at the largest error.
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


@dataclass(frozen=True)
class Layer:
    """One call of a layer, measured. What could not be measured is None, and ``note`` says why.

    ``own`` is the rounding error of the layer run eagerly on this side's input, in the coarser of both precisions, and
    ``rounding`` the program with every operator moved by an ulp, up to here, against the reference.
    """

    label: str  # its name, and its number from the second call on
    kind: str  # its class
    apart: Distance | None = None  # this side's output against the reference's
    made: Distance | None = None  # this side's output against the reference's layer on this side's own input
    inherited: Distance | None = None  # the reference's layer on this side's input, against the reference's output
    entering: Distance | None = None  # this side's input against the reference's
    noise: Distance | None = None  # what rounding does to this layer alone, on this side's input
    own: Distance | None = None
    rounding: Distance | None = None
    truth: Distance | None = None  # this side's output against float64
    reference_truth: Distance | None = None  # the reference's output against float64
    exact: float | None = None  # what this side, computed in float64, makes newly; relative to the size of the output
    exact_noise: float = 0.0  # what one ulp of float64 per operator makes of it, in the same units
    misshapen: bool = False  # whether the results of both sides differ in number or shape
    note: str = ""

    @property
    def changes_meaning(self) -> bool:
        """Return whether float64 shows an error made here that rounding does not explain."""
        return self.exact is not None and value_change.changes_meaning(self.exact, self.exact_noise)

    @property
    def amplification(self) -> float | None:
        """Relative inherited error over the relative error of the input; None if nothing was inherited."""
        if self.inherited is None or self.entering is None or not self.entering.relative:
            return None
        factor = self.inherited.relative / self.entering.relative
        return factor if math.isfinite(factor) else None


def apart(first: Sequence[KeptTensor], second: Sequence[KeptTensor]) -> Distance | None:
    """The distance of kept tensors, at the elements that both have; None if they do not correspond."""
    pairs = _pairs(first, second)
    return None if pairs is None else distance([a for a, _ in pairs], [b for _, b in pairs])


def relative_step(first: Sequence[KeptTensor], second: Sequence[KeptTensor]) -> float | None:
    """Return the largest relative change of kept tensors; None as for :func:`apart`."""
    pairs = _pairs(first, second)
    return None if pairs is None else max((value_change.relative_change(a, b) for a, b in pairs), default=0.0)


def _pairs(first: Sequence[KeptTensor], second: Sequence[KeptTensor]) -> list[tuple[torch.Tensor, torch.Tensor]] | None:
    if misshapen(first, second):
        return None
    pairs = [pair for one, other in zip(first, second, strict=True) if (pair := one.beside(other)) is not None]
    return pairs if len(pairs) == len(first) else None


def misshapen(first: Sequence[KeptTensor], second: Sequence[KeptTensor]) -> bool:
    """Return whether two results differ in the number of their tensors, or in a shape."""
    return [tensor.shape for tensor in first] != [tensor.shape for tensor in second]


# Gradients of a training case, by layer: those of the parameters that a layer holds.

SUFFIX = " (gradient)"
_OTHERS = "(others)"


def gradient_layers(
    names: Sequence[str],
    against: Observation,
    reference: Observation,
    *,
    truth: Observation,
    rounding: Observation,
    exact: Observation | None,
) -> list[Layer]:
    """The gradients of each layer's parameters, compared; empty for a case without a backward pass.

    The layers are ``names`` in the order in which they ended; the backward pass goes the other way, and so do the rows.
    Gradients of parameters that no layer holds, and of inputs, come last, under a name of their own. The runs are the
    program in float64 (``truth``), with every operator moved by an ulp (``rounding``), and the measured side in float64
    (``exact``, None if it has no such form).
    """
    runs = [_gradients(run) for run in (against, reference, truth, rounding, exact)]
    owned: dict[str, list[str]] = {owner: [] for owner in (*reversed(names), _OTHERS)}
    for name in runs[1]:
        path = name.rpartition(" ")[2]
        holders = [holder for holder in names if path.startswith(f"{holder}.")]
        owned[max(holders, key=len, default=_OTHERS)].append(name)
    layers = []
    for owner, gradients in owned.items():
        own, wanted, right, moved, double = ([run[name] for name in gradients if name in run] for run in runs)
        missing = [name for name in gradients if name not in runs[0]]
        layer = Layer(
            f"{owner}{SUFFIX}",
            "gradient",
            apart=distance(own, wanted),
            truth=distance(own, right),
            reference_truth=distance(wanted, right),
            rounding=distance(moved, wanted),
            exact=None if exact is None else _step(double, right),
            note=f"no gradient of {', '.join(missing[:3])}" if missing else "",
        )
        layers += [layer] if gradients else []
    return layers


def _gradients(observation: Observation | None) -> dict[str, torch.Tensor]:
    values = () if observation is None else observation.values
    kept = ((value.name, value.value) for value in values if value.kind == "gradient")
    return {name: value for name, value in kept if isinstance(value, torch.Tensor)}


def _step(doubled: Sequence[torch.Tensor], truth: Sequence[torch.Tensor]) -> float | None:
    """The relative change of gradients in float64, less what is lost in them where autograd rounds them.

    Autograd casts a gradient to the dtype of its parameter, in which both sides are therefore compared.
    """
    sizes = distance(truth, truth)
    if len(doubled) != len(truth) or sizes is None:
        return None
    # A gradient that is zero by symmetry, as that of a bias under a softmax, has no size of its own.
    units = [sizes.size] * len(truth)
    narrowest = max((torch.finfo(tensor.dtype).eps for tensor in doubled if tensor.is_floating_point()), default=0.0)
    return max(0.0, value_change.largest_change(doubled, truth, units) - 4 * narrowest)
