"""Gradients of a training case, by layer: those of the parameters that a layer holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from fuzzcompile.analyses.profile.distance import distance
from fuzzcompile.analyses.profile.measuring import Layer
from fuzzcompile.run.observation import Observation
from fuzzcompile.triage.oracle import value_change

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

    Gradients of parameters that no layer holds, and of inputs, come last, under a name of their own.

    Args:
        names: the layers in the order in which they ended; the backward pass goes the other way, and so do the rows.
        against: the side that is measured.
        reference: what it is compared with.
        truth: the program in float64.
        rounding: the program with every operator moved by an ulp.
        exact: the measured side in float64; None if it has no such form.
    """
    ours, theirs = _gradients(against), _gradients(reference)
    owners = [*reversed(names), _OTHERS]
    owned: dict[str, list[str]] = {owner: [] for owner in owners}
    for name in theirs:
        owned[_owner(name, names)].append(name)
    exactly, perturbed = _gradients(truth), _gradients(rounding)
    doubled = None if exact is None else _gradients(exact)
    layers = []
    for owner, gradients in owned.items():
        if not gradients:
            continue
        missing = [name for name in gradients if name not in ours]
        layers.append(
            Layer(
                f"{owner}{SUFFIX}",
                "gradient",
                apart=distance(_of(ours, gradients), _of(theirs, gradients)),
                truth=distance(_of(ours, gradients), _of(exactly, gradients)),
                reference_truth=distance(_of(theirs, gradients), _of(exactly, gradients)),
                rounding=distance(_of(perturbed, gradients), _of(theirs, gradients)),
                exact=None if doubled is None else _step(_of(doubled, gradients), _of(exactly, gradients)),
                note=f"no gradient of {', '.join(missing[:3])}" if missing else "",
            )
        )
    return layers


def _gradients(observation: Observation) -> dict[str, torch.Tensor]:
    return {
        value.name: value.value
        for value in observation.values
        if value.kind == "gradient" and isinstance(value.value, torch.Tensor)
    }


def _of(gradients: Mapping[str, torch.Tensor], names: Sequence[str]) -> list[torch.Tensor]:
    return [gradients[name] for name in names if name in gradients]


def _owner(gradient: str, names: Sequence[str]) -> str:
    """The innermost layer that holds the parameter, of which the observation says ``gradient of parameter NAME``."""
    path = gradient.rpartition(" ")[2]
    holders = [name for name in names if path.startswith(f"{name}.")]
    return max(holders, key=len, default=_OTHERS)


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
