"""Judge programs whose random numbers cannot be aligned: compare two samples of runs under many seeds.

If eager and compiled draw in a different order, their values do not correspond one to one, but if the compiler is
right, their runs under *any* seeds come from one distribution. So both run under K seeds each (:data:`SEEDS`, none in
both samples), and the hypothesis "the 2K runs are exchangeable" is tested for every output, mutation and gradient
that varies with the seed. Nothing is assumed about the distribution itself:

* **Ranks of summaries** (:data:`SUMMARIES`: the share of exact zeros, of NaN and infinities, mean, RMS, smallest,
  largest): Mann-Whitney's U with its exact null distribution; ties count towards the null hypothesis. With K = 16
  the smallest possible p is 2/C(32,16) = 3.3e-9. (``scipy.stats.mannwhitneyu`` is no substitute. Its exact method is
  defined without ties only: of 16 zeros and 15 values of 0.1 beside one zero it makes p = 2e-7, not 3e-6. Its
  asymptotic one cannot go below 1.5e-6 at K = 16, which is above the threshold once three values vary.)
* **Means element by element**, of x, of x² and of [x = 0], each in units of its deviation over all runs: the squared
  distance between the mean vectors of both samples, D² = sᵀGs with G the centred Gram matrix of the 2K runs and
  s = ±1/K their labels, against D² under :data:`PERMUTATIONS` random labels. It detects what summaries miss: right
  numbers in wrong places, and a small shift of many elements. A finding needs D² beyond :data:`MARGIN` times the
  largest of them: where one direction dominates (the worst case), D is Gaussian under random labels, the largest of
  50 000 lies near 4.3σ, and √1.25 times it near 4.8σ, p ≈ 2e-6. A real difference passes, because the best of 50 000
  random labels agree with the real ones to 0.78, and 0.78² = 0.61 < 1/1.25.
* **The gradient's mask**: where in *every* eager run an output and a gradient of the same shape are zero at the same
  places, and these places vary with the seed, backward uses the mask of forward; then compiled must do so too, but
  for :data:`STRAY` of the elements (products may underflow).

A rank test counts at p < :data:`ERROR_RATE` / (number of tests). In addition, a difference must be larger than
rounding: :data:`SMALLEST` (64 ulp for short types) of the RMS of the values. False alarms are thus
below 1e-4 a case; the price is power: a summary must be off by about two of its standard deviations from run to run,
an element in a thousand independent ones by about half of its own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from fuzzcompile.model.thresholds import ROUNDING_FACTOR
from fuzzcompile.model.verdicts import Comparison
from fuzzcompile.run import metrics
from fuzzcompile.run.observation import Observation
from fuzzcompile.run.tensors import is_inexact

SEEDS = 16
# Fewest runs of either side that are compared.
FEWEST = 10
ERROR_RATE = 2e-5
PERMUTATIONS = 50_000
MARGIN = 1.25
SMALLEST = 1e-3
STRAY = 1e-3
SUMMARIES = ("share of zeros", "share of NaN and infinities", "mean", "RMS", "smallest", "largest")
# Elements of a tensor that are kept of each run, evenly spaced: 32 runs of every gradient would not fit into memory.
_MOST_ELEMENTS = 4096
_PERMUTATION_SEED = 13


@dataclass(frozen=True)
class Sample:
    """One value of one run, summarised (:data:`SUMMARIES`), and a part of its elements in float64.

    ``bits`` is a hash of all elements, before any of them counts as zero.
    """

    kind: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    summaries: tuple[float, ...]
    elements: torch.Tensor
    bits: int


SampledRun = Mapping[str, Sample]


@dataclass(frozen=True)
class DistributionDifference:
    """Difference between two samples in one value; ``scale`` is the RMS of eager's values, ``size`` is unscaled."""

    name: str
    kind: str
    test: str
    eager: float
    compiled: float
    size: float
    scale: float

    def __str__(self) -> str:
        return (
            f"{self.test} differs over seeds: eager {self.eager:.4g}, compiled {self.compiled:.4g} (mean over the runs)"
        )


def sample_run(observation: Observation, floors: Mapping[str, float] | None = None) -> dict[str, Sample]:
    """The values of a run that are numbers, summarised.

    ``floors`` are sizes by name up to which an element may be rounding alone, and counts as zero: of a gradient that is
    zero by symmetry, two implementations leave other remains (:func:`measure_floors`).
    """
    samples = dict[str, Sample]()
    for value in observation.values:
        tensor = torch.tensor(value.value) if isinstance(value.value, bool | int | float | complex) else value.value
        if isinstance(tensor, torch.Tensor):
            samples[value.name] = _summarise(value.kind, tensor, (floors or {}).get(value.name, 0.0))
    return samples


def measure_floors(eager: Observation, perturbed: Sequence[Observation]) -> dict[str, float]:
    """The size of rounding in each floating value: what moves in perturbed runs that draw the same random numbers."""
    floors = dict[str, float]()
    for noisy in perturbed:
        moved = noisy.index_by_name()
        for value in eager.values:
            shifted = moved.get(value.name)
            tensors = shifted is not None and value.is_tensor and shifted.is_tensor and value.value.is_floating_point()
            if shifted is not None and tensors and value.value.shape == shifted.value.shape:
                apart = metrics.widen(shifted.value) - metrics.widen(value.value)
                largest = metrics.largest(apart.abs().nan_to_num(0.0, 0.0, 0.0))
                floors[value.name] = max(floors.get(value.name, 0.0), ROUNDING_FACTOR * largest)
    return floors


def find_varying(*sides: Sequence[SampledRun]) -> tuple[str, ...]:
    """Names of the values that are not the same in all runs of a side: the others depend on no random number.

    Both sides count, and each bit: of a mask that rarely drops anything, or of numbers that mostly count as rounding,
    the runs of one side may well be alike.
    """
    names = dict.fromkeys(name for runs in sides for run in runs for name in run)
    return tuple(name for name in names if any(len({_read_bits(run, name) for run in runs}) > 1 for runs in sides))


def _read_bits(run: SampledRun, name: str) -> tuple[object, ...] | None:
    sample = run.get(name)
    return None if sample is None else (sample.shape, sample.bits)


def find_differences(eager: Sequence[SampledRun], compiled: Sequence[SampledRun]) -> list[DistributionDifference]:
    """The values in which the two samples of runs cannot have come from one distribution (see the module's text)."""
    names = find_varying(eager, compiled)
    alpha = ERROR_RATE / max(1, len(names) * len(SUMMARIES))
    differing = []
    for name in names:
        expected = [run[name] for run in eager if name in run]
        actual = [run[name] for run in compiled if name in run]
        if min(len(expected), len(actual)) < FEWEST:
            continue
        difference = _summary_difference(name, expected, actual, alpha) or _element_difference(name, expected, actual)
        if difference is not None:
            differing.append(difference)
    return differing or _mask_differences(names, eager, compiled)


def rank_p_value(first: Sequence[float], second: Sequence[float]) -> float:
    """Exact two-sided p of Mann-Whitney's U; ties count as evidence of equality."""
    above = sum(a > b for a in first for b in second)
    below = sum(a < b for a in first for b in second)
    counts = _count_u(len(first), len(second))
    extreme = max(above, below)
    return min(1.0, 2 * sum(counts[extreme:]) / sum(counts))


def apply_distribution(
    comparison: Comparison, names: Sequence[str], differences: Sequence[DistributionDifference]
) -> Comparison:
    """The comparison of a value as its distribution shows it; unchanged if it is not one of ``names``, judged so."""
    difference = next((each for each in differences if each.name == comparison.name), None)
    if difference is not None:
        return replace(
            comparison,
            finding="far",
            max_abs_error_compiled=difference.size,
            scale=difference.scale,
            within_default_tolerance=False,
            within_scaled_tolerance=False,
            detail=str(difference),
        )
    if comparison.name in names and comparison.finding == "same":
        return replace(comparison, finding="close", detail="random: the same distribution over seeds")
    return comparison


def _summarise(kind: str, tensor: torch.Tensor, floor: float) -> Sample:
    wide = metrics.widen(tensor)
    flat = torch.view_as_real(wide).flatten() if wide.is_complex() else wide.flatten()
    bits = hash(flat.cpu().numpy().tobytes())
    if floor:
        flat = flat.masked_fill(flat.abs() <= floor, 0.0)
    finite = flat[torch.isfinite(flat)]
    count = max(1, flat.numel())
    values = finite if finite.numel() else torch.zeros(1, dtype=torch.float64)
    zeros, others = float((flat == 0).sum()) / count, (flat.numel() - finite.numel()) / count
    summaries = (zeros, others, float(values.mean()), metrics.rms(values), float(values.min()), float(values.max()))
    step = max(1, math.ceil(flat.numel() / _MOST_ELEMENTS))
    elements = flat[::step].nan_to_num(0.0, 0.0, 0.0).clone()
    return Sample(kind, tuple(tensor.shape), tensor.dtype, summaries, elements, bits)


def _summary_difference(
    name: str, eager: Sequence[Sample], compiled: Sequence[Sample], alpha: float
) -> DistributionDifference | None:
    scale = _measure_scale(eager)
    for position, summary in enumerate(SUMMARIES):
        expected = [sample.summaries[position] for sample in eager]
        actual = [sample.summaries[position] for sample in compiled]
        means = math.fsum(expected) / len(expected), math.fsum(actual) / len(actual)
        apart = abs(means[0] - means[1])
        unit = 1.0 if summary.startswith("share") else scale
        if apart > _smallest_difference(eager[0].dtype) * unit and rank_p_value(expected, actual) < alpha:
            return DistributionDifference(name, eager[0].kind, f"the {summary}", *means, apart, scale)
    return None


def _element_difference(
    name: str, eager: Sequence[Sample], compiled: Sequence[Sample]
) -> DistributionDifference | None:
    if len({sample.shape for sample in (*eager, *compiled)}) > 1 or not eager[0].elements.numel():
        return None
    expected, actual = (torch.stack([sample.elements for sample in samples]) for samples in (eager, compiled))
    scale = _measure_scale(eager)
    features = {
        "the mean of single elements": (expected, actual, scale),
        "the mean square of single elements": (expected.square(), actual.square(), scale**2),
        "where the zeros are": ((expected == 0).double(), (actual == 0).double(), 1.0),
    }
    for feature, (first, second, unit) in features.items():
        apart = float((first.mean(0) - second.mean(0)).square().mean().sqrt())
        least = _smallest_difference(eager[0].dtype) * unit
        if apart > least and _beyond_permutations(first, second, least):
            sizes = float(first.mean(0).square().mean().sqrt()), float(second.mean(0).square().mean().sqrt())
            return DistributionDifference(name, eager[0].kind, feature, *sizes, apart, scale)
    return None


def _beyond_permutations(first: torch.Tensor, second: torch.Tensor, least: float) -> bool:
    """Return whether the distance between the two samples' means is larger than under random labels.

    Each element counts in units of its deviation over all runs, so that a few large elements do not hide the rest;
    elements that deviate by less than ``least``, at most by rounding, count in units of ``least``.
    """
    pooled = torch.cat([first, second])
    centred = pooled - pooled.mean(0)
    centred = centred / centred.square().mean(0).sqrt().clamp(min=max(least, torch.finfo(torch.float64).tiny))
    gram = centred @ centred.T
    own, shuffled, square = _draw_labels(len(first), len(second))
    observed = float(own @ gram @ own)
    # The average under random labels: their largest need not be computed if even this is not exceeded.
    usual = square * float(gram.trace()) * (1 + 1 / (len(pooled) - 1))
    if observed <= MARGIN * usual:
        return False
    return observed > MARGIN * float(((shuffled @ gram) * shuffled).sum(1).max())


@functools.cache
def _draw_labels(first: int, second: int) -> tuple[torch.Tensor, torch.Tensor, float]:
    """The labels of two samples, random permutations of them (one a row), and the mean of their squares."""
    own = torch.cat([torch.full((first,), 1 / first), torch.full((second,), -1 / second)]).double()
    generator = torch.Generator().manual_seed(_PERMUTATION_SEED)
    order = torch.rand(PERMUTATIONS, first + second, generator=generator).argsort(1)
    return own, own[order], float(own.square().mean())


def _mask_differences(
    names: Sequence[str], eager: Sequence[SampledRun], compiled: Sequence[SampledRun]
) -> list[DistributionDifference]:
    """Gradients that share the zeros of an output in every eager run, but not in the compiled runs."""
    runs = [run for run in compiled if all(name in run for name in names)]
    if not runs or any(name not in run for run in eager for name in names):
        return []
    kinds = {name: eager[0][name].kind for name in names}
    differing = []
    for output in (name for name in names if kinds[name] == "output"):
        for gradient in (name for name in names if kinds[name] == "gradient"):
            if not _share_mask(output, gradient, eager):
                continue
            apart = max(_mask_distance(run[output], run[gradient]) for run in runs)
            if apart > STRAY:
                test = f"the mask that it shares with {output}"
                differing.append(DistributionDifference(gradient, "gradient", test, 0.0, apart, apart, 1.0))
                break
    return differing


def _share_mask(output: str, gradient: str, eager: Sequence[SampledRun]) -> bool:
    first = eager[0][output]
    if any(run[name].shape != first.shape for run in eager for name in (output, gradient)):
        return False
    if any(_mask_distance(run[output], run[gradient]) > 0 for run in eager):
        return False
    masks = [run[output].elements == 0 for run in eager]
    return any(not torch.equal(mask, masks[0]) for mask in masks)


def _mask_distance(output: Sample, gradient: Sample) -> float:
    if output.elements.shape != gradient.elements.shape:
        return 1.0
    return float(((output.elements == 0) != (gradient.elements == 0)).double().mean())


def _measure_scale(samples: Sequence[Sample]) -> float:
    return math.sqrt(math.fsum(sample.summaries[3] ** 2 for sample in samples) / len(samples))


def _smallest_difference(dtype: torch.dtype) -> float:
    if not is_inexact(dtype):
        return 0.0
    return max(SMALLEST, 64 * torch.finfo(dtype).eps)


@functools.cache
def _count_u(first: int, second: int) -> tuple[int, ...]:
    """The number of orders of both samples in which U has each value: coefficients of a Gaussian binomial."""
    counts = [0] * (first * second + 1)
    counts[0] = 1
    for step in range(1, second + 1):
        high, low = first + step, step
        for position in range(len(counts) - 1, high - 1, -1):
            counts[position] -= counts[position - high]
        for position in range(low, len(counts)):
            counts[position] += counts[position - low]
    return tuple(counts)
