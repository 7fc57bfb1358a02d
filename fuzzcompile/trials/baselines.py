"""Baselines that the compiled program is compared with: eager, or another way to run the case."""

from __future__ import annotations

import functools
from dataclasses import replace

import torch

from fuzzcompile.case import Case
from fuzzcompile.compiler.session import Compilation, modes, path_of
from fuzzcompile.errors import EnvironmentUnfit, UsageError
from fuzzcompile.execution import runs
from fuzzcompile.execution.observation import Observation
from fuzzcompile.oracle.substitution import in_the_form_of
from fuzzcompile.sides import AOTI, COMPILE, EXPORT
from fuzzcompile.trials.against import BASELINES, check_against
from fuzzcompile.trials.compiled import compiled_run
from fuzzcompile.trials.runs import Runs
from fuzzcompile.trials.trial import Counts


class Baseline:
    """The run that compiled is compared with, made on first use.

    Args:
        runs: the runs of the case.
        against: one of :data:`BASELINES` or a mode of ``torch.compile``, as :func:`check_baseline` admits it.
        how: how the case is compiled for the verdict; a baseline in another mode differs in nothing else.
        counts: where a compile of the baseline is counted.
    """

    def __init__(self, runs: Runs, against: str, how: Compilation, counts: Counts) -> None:
        self.against = against
        self._runs, self._how, self._counts = runs, how, counts

    def of(self, runs: Runs) -> Baseline:
        """The same baseline of other runs of the case."""
        return Baseline(runs, self.against, self._how, self._counts)

    @functools.cached_property
    def observation(self) -> Observation:
        """Observation of the baseline; that of the eager run itself if eager raises.

        Raises:
            EnvironmentUnfit: the case runs in eager mode and fails as this baseline.
        """
        eager = self._runs.eager
        if eager.failure or not self._is_run_of_its_own:
            return eager
        observation = self._observed()
        name = self._runs.case.name
        if observation.failure:
            raise EnvironmentUnfit(f"{name} cannot be compared with {self.against}: {observation.failure}.")
        if self.against == "float64" and not self._runs.reference_draws_alike:
            raise EnvironmentUnfit(f"{name} cannot be compared with float64: it draws other random numbers there.")
        return in_the_form_of(eager, observation) if self.against in ("float64", "cpu") else observation

    @property
    def compiled_as(self) -> Compilation | None:
        """Compilation of the baseline; None for a baseline that runs in eager mode."""
        if self.against == "aot_eager":
            return Compilation(backend="aot_eager", record=False)
        if self.against in (EXPORT, AOTI):
            return replace(self._how, backend=None, path=self.against, record=False, screen=False)
        if self.against in BASELINES:
            return None
        return replace(self._how, backend="inductor", path=COMPILE, mode=self.against, record=False, screen=False)

    @property
    def pair(self) -> str:
        """Kind of pair that this baseline and Inductor form in the table of tolerances."""
        if self.against == "cpu" and self._runs.device.type != "cpu":
            return "across_devices"
        return {"aot_eager": "across_backends", "float64": "across_dtypes"}.get(self.against, "same_backend")

    @property
    def draws_on_this_device(self) -> bool:
        """Return whether the baseline draws its random numbers on the device of the case, as eager does."""
        return not (self._runs.draws and self.against == "cpu" and self._runs.device.type != "cpu")

    @property
    def _is_run_of_its_own(self) -> bool:
        return self.against != "eager" and not (self.against == "cpu" and self._runs.device.type == "cpu")

    def _observed(self) -> Observation:
        if self.against == "float64":
            return self._runs.reference
        if self.against == "cpu":
            return runs.run_eager(self._runs.case, torch.device("cpu"))
        assert self.compiled_as is not None
        return compiled_run(self._runs, self.compiled_as, self._counts).observation


def check_baseline(case: Case, against: str, how: Compilation) -> None:
    """Refuse a baseline that this case, compiled so, cannot have.

    Raises:
        UsageError: ``against`` is unknown, or is how the case itself is compiled; AOTInductor computes no gradients.
    """
    check_against(against, modes())
    if against == AOTI and case.backward:
        raise UsageError(f"AOTInductor computes no gradients, and {case.name} needs some; compare it with {EXPORT!r}.")
    own = path_of(case.settings, how)
    if own in (EXPORT, AOTI) and against == own:
        raise UsageError(f"{case.name} is run by {against!r} itself; name another way to compare with.")
    is_inductor = case.settings.backend == "inductor" and own == COMPILE
    if against not in BASELINES and is_inductor and against == (case.settings.mode or "default"):
        raise UsageError(f"{case.name} is compiled in mode {against!r} itself; name another mode to compare with.")
