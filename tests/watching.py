"""Compiling a program under the recorder, as the tests of ledgers, vetoes and replays want it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from planting import Plant
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.compile_changes import (
    Backend,
    GraphBreak,
    InductorSettings,
    Lowered,
    MetadataFromKernel,
    OnlyRewrites,
    TracingSettings,
    Undecomposed,
    Veto,
)
from fuzzcompile.compiler.rule_catalogue import initialise_patterns
from fuzzcompile.compiler.session import Compilation, open_session
from fuzzcompile.compiler.watch.ledger import Ledger, Rewrite
from fuzzcompile.diagnosis.attribution.steps import Step, measure_steps
from fuzzcompile.run.case import CompileSettings
from fuzzcompile.run.device import seed_everything

SEED = 5
DEFAULT = CompileSettings()


@dataclass
class Watched:
    """What a watched compile recorded, and the values that its program computed."""

    ledger: Ledger
    values: list[torch.Tensor] = field(default_factory=list)

    @functools.cached_property
    def steps(self) -> list[Step]:
        """Every rewrite, replayed."""
        return measure_steps(self.ledger)

    @property
    def fired(self) -> list[str]:
        """Names of the recorded rewrites, in order."""
        return [rewrite.label.rewrite for _, _, rewrite in self.ledger.list_rewrites()]

    def rewrite(self, name: str) -> Rewrite:
        """The only rewrite of that name."""
        (found,) = [rewrite for _, _, rewrite in self.ledger.list_rewrites() if rewrite.label.rewrite == name]
        return found

    def step(self, name: str) -> Step:
        """The step of the only rewrite of that name."""
        (found,) = [step for step in self.steps if step.label.rewrite == name]
        return found

    def outcomes(self, name: str) -> dict[str, int]:
        """What became of the matches of a rule."""
        counts = self.ledger.coverage.items()
        return {outcome: count for (label, outcome), count in counts if label.rewrite == name}


_KINDS = {
    "backend": Backend,
    "config": InductorSettings,
    "control": Lowered,
    "disallowed": lambda calls: GraphBreak(tuple((str(call), call) for call in calls)),
    "fallback_random": lambda value: InductorSettings({"fallback_random": value}),
    "functorch": TracingSettings,
    "kernel_metadata": MetadataFromKernel,
    "only": OnlyRewrites,
    "vetoes": lambda names: Veto(tuple(names)),
    "without_decompositions": Undecomposed,
}


def make_compilation(**how: Any) -> Compilation:
    """A compilation from short names of its changes, and what it watches."""
    changes = [make(how.pop(name)) for name, make in _KINDS.items() if how.get(name) is not None]
    return Compilation(**{name: value for name, value in how.items() if name not in _KINDS}).under(*changes)


def watch(
    target: Callable[..., Any],
    *calls: Sequence[Any],
    vetoes: Sequence[str] = (),
    backward: bool = False,
    settings: CompileSettings = DEFAULT,
    **how: Any,
) -> Watched:
    """Compile ``target`` under the recorder and run it on each of ``calls``.

    The values are the outputs of all calls and, with ``backward``, all gradients.
    """
    initialise_patterns(torch.device("cpu"))
    with open_session(settings, make_compilation(vetoes=tuple(vetoes), **how)) as session:
        values = run(session.compile(target), target, *calls, backward=backward)
    return Watched(session.ledger, values)


def watch_plant(plant: Plant, *, vetoes: Sequence[str] = (), **how: Any) -> Watched:
    """Compile a plant's program with the plant."""
    target, inputs = plant.program()
    with plant.install():
        return watch(target, inputs, vetoes=vetoes, backward=plant.backward, config=plant.config, **how)


def run(compiled: Callable[..., Any], target: Any, *calls: Sequence[Any], backward: bool = False) -> list[torch.Tensor]:
    """Outputs of all calls of ``compiled`` and, with ``backward``, the gradients that they leave behind."""
    seed_everything(SEED)
    leaves = [t for t in pytree.tree_leaves(calls) if isinstance(t, torch.Tensor) and t.requires_grad]
    leaves += list(target.parameters()) if isinstance(target, torch.nn.Module) else []
    for leaf in leaves:
        leaf.grad = None
    values: list[torch.Tensor] = []
    for arguments in calls:
        with torch.set_grad_enabled(backward):
            outputs = pytree.tree_leaves(compiled(*arguments))
        if backward:
            generator = torch.Generator().manual_seed(SEED)
            torch.autograd.backward(outputs, [torch.randn(o.shape, generator=generator).to(o) for o in outputs])
        values += [o.detach().clone() for o in outputs if isinstance(o, torch.Tensor)]
    return values + [leaf.grad.clone() for leaf in leaves if leaf.grad is not None]


def eager(target: Callable[..., Any], *calls: Sequence[Any], backward: bool = False) -> list[torch.Tensor]:
    """The same values without any compiler."""
    return run(target, target, *calls, backward=backward)


def apart(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> float:
    """The largest difference, in units of the size of the value that it is in."""
    assert len(first) == len(second)
    return max(
        float((a.double() - b.double()).abs().max() / b.double().square().mean().sqrt().clamp_min(1e-300))
        for a, b in zip(first, second, strict=True)
    )
