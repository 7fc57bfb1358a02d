"""One watched compile for each planted rewrite, which the tests look at together."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from planted import PLANTED, Planted
from watching import Watched, apart, eager, watch


@dataclass(frozen=True)
class Tried:
    """A planted rewrite, compiled with it, with it vetoed, and screened; ``right`` is what eager computes."""

    plant: Planted
    watched: Watched
    vetoed: Watched
    screened: Watched | None
    right: list[torch.Tensor]

    def error(self, watched: Watched) -> float:
        """How far its values are from eager's."""
        return apart(watched.values, self.right)


@pytest.fixture(scope="session", params=PLANTED, ids=str)
def tried(request: pytest.FixtureRequest) -> Tried:
    plant: Planted = request.param
    target, inputs = plant.program(), plant.inputs()
    if isinstance(target, torch.nn.Module):
        target.train(plant.backward)
    if plant.backward:
        inputs.requires_grad_()
    right = eager(target, (inputs,), backward=plant.backward)
    arguments = {"backward": plant.backward, "config": plant.config}
    with plant.install():
        watched = watch(target, (inputs,), **arguments)
        vetoed = watch(target, (inputs,), vetoes=[f"{plant.stage}:={plant.rewrite}"], **arguments)
        screened = watch(target, (inputs,), screen=True, **arguments) if plant.screens else None
    return Tried(plant, watched, vetoed, screened, right)
