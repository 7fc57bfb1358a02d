"""Choices of the program's own that are at fault.

A setting or the path of the case: with torch's default of one, the program is right. Or a branch of Python that only
compiled programs take: eager mode on it agrees with the compiled program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch

from fuzzcompile.compiler.compile_changes import (
    SETTINGS,
    CompileChange,
    CompilePath,
    DynamoSettings,
    InductorSettings,
    TracingSettings,
)
from fuzzcompile.compiler.compiling_predicate import AskingPlace, pretend_compiling
from fuzzcompile.compiler.kernels.kernel_loops import find_definition
from fuzzcompile.compiler.session import find_path
from fuzzcompile.compiler.torch_config import MISSING, get_setting
from fuzzcompile.diagnosis.attribution.culprit import Ablator, Attribution, Culprit
from fuzzcompile.diagnosis.stages.tracing_ways import run_first_eagerly
from fuzzcompile.diagnosis.trials.experiments import Experiments
from fuzzcompile.model.contract import AOTI, COMPILE, EXPORT
from fuzzcompile.model.culprit_contract import DetailsJson
from fuzzcompile.model.evidence import ObservableName
from fuzzcompile.model.facts import DesignedBranch, facts
from fuzzcompile.model.stages import CODEGEN, DYNAMO, FUNCTIONALIZATION
from fuzzcompile.model.verdicts import Comparison, Verdict
from fuzzcompile.run import metrics, runs
from fuzzcompile.run.case import CompileSettings
from fuzzcompile.run.case_program import build
from fuzzcompile.run.observation import StateBefore, save_state

# Places that are tried one by one: each takes the runs of eager mode anew.
_MOST_PLACES = 12


def prove_compiling_branch(ablator: Ablator) -> Attribution | None:
    """The branches that make eager mode agree with the compiled program, the fewest; None if none do."""
    if not (ablator.is_of_values or _accepts(ablator)):
        return None
    asked = tuple(run_first_eagerly(ablator.experiments, pretend_compiling) or ())
    if not asked:
        return None
    agrees, of_values = partial(_agrees, ablator), not _accepts(ablator)
    by_design = tuple(place for place in asked if _find_designs([place], of_values=False))
    if by_design and agrees(by_design):
        needed = by_design
    elif agrees(asked):
        needed = asked
    else:
        return None
    fewest = len(needed) <= _MOST_PLACES
    for place in reversed(needed) if fewest else ():
        rest = tuple(each for each in needed if each != place)
        if rest and agrees(rest):
            needed = rest
    designs, toggle = _find_designs(needed, of_values=of_values), _describe(needed)
    details: DetailsJson = {"kind": "branch", "agrees": toggle}
    if designs:
        why, sources = ([getattr(design, name) for design in designs] for name in ("why", "source"))
        details |= {"design": "; ".join(why), "design_source": "; ".join(sources)}
    first, *others = (
        Culprit(DYNAMO, None, place.function, place.function, source=place.file, line=place.line) for place in needed
    )
    confidence = "high" if fewest else "low"  # which of many is needed was not tried
    return Attribution(replace(first, necessary=True, confidence=confidence, details=details), others)


def _agrees(ablator: Ablator, places: Sequence[AskingPlace]) -> bool:
    return ablator.attempt_in_eager(pretend_compiling(places), _describe(places))


def _describe(places: Sequence[AskingPlace]) -> str:
    where = ", ".join(map(str, places)) if len(places) <= 2 else f"{len(places)} places"
    return f"eager mode in which torch.compiler.is_compiling() is true in {where}"


def _accepts(ablator: Ablator) -> bool:
    return ablator.verdict is Verdict.ACCEPTS_INVALID


def _find_designs(places: Sequence[AskingPlace], *, of_values: bool) -> list[DesignedBranch]:
    """The reasons why compiled programs are meant to take these branches; none if one of torch's has none."""
    own = [str(place) for place in places if not place.is_of_torch]
    of_torch = {f"{place.file}:{place.function}" for place in places if place.is_of_torch}
    designs = facts().find_designs(of_torch, of_values=of_values)
    if of_torch and not designs:
        return []
    said = "the program itself asks there whether it is compiled"
    return [*designs, *(DesignedBranch(places=frozenset(), why=said, source=place) for place in own[:1])]


def measure_against_updates(experiments: Experiments, comparisons: Sequence[Comparison]) -> float:
    """The largest error of what a program changes in place, in units of that change (RMS); 0 where it changes none."""
    case, states, largest = experiments.case, list[StateBefore](), 0.0
    program = build(case, experiments.device)

    def run(model: Callable[..., object], arguments: object) -> object:
        states.append(save_state(program, arguments))
        return runs.drive(case, model, arguments)

    values = runs.observe(replace(case, run=run), program, program.model).index_by_name()
    for comparison in comparisons:
        observable = ObservableName.parse(comparison.name)
        now = values[comparison.name].value if observable.after and comparison.name in values else None
        old = states[observable.call or 0].bits.get(observable.what) if now is not None else None
        if isinstance(now, torch.Tensor) and old is not None and old.shape == now.shape and now.is_floating_point():
            moved = metrics.rms(metrics.distance(now, old))
            largest = max(largest, comparison.rms_error_compiled / moved if moved else 0.0)
    return largest


_MOST = 6
# The stage that heeds a config; of Inductor's entries, each has its own.
_STAGES = {TracingSettings.config: FUNCTIONALIZATION, DynamoSettings.config: DYNAMO}


class _OwnSetting(NamedTuple):
    stage: str
    key: str
    without: CompileChange


def prove_own_setting(ablator: Ablator) -> Attribution | None:
    """The setting without which the program is right; None where it draws random numbers, which settings change."""
    if ablator.experiments.runs.draws:
        return None
    for own in list(_iter_settings(ablator.experiments.case.settings))[:_MOST]:
        trial, is_right = ablator.attempt_under(own.without)
        if is_right:
            culprit = Culprit(own.stage, None, own.key, own.key, necessary=True, details={"kind": "own setting"})
            # Other graphs may be right because they are others.
            parted = len(trial.ledger.frames) > len(ablator.trial.ledger.frames)
            return Attribution(replace(culprit, confidence="low") if parted else culprit)
    return _prove_package(ablator)


def _prove_package(ablator: Ablator) -> Attribution | None:
    """AOTInductor, where the exported program is right as it is, and the program where it is compiled just in time."""
    if find_path(ablator.experiments.case.settings, ablator.how) != AOTI:
        return None
    if not all(ablator.is_repaired_by(CompilePath(path)) for path in (COMPILE, EXPORT)):
        return None
    culprit = Culprit(CODEGEN, None, "AOTInductor", "AOTInductor", (), *find_definition(facts().places.package))
    return Attribution(replace(culprit, necessary=True, details={"kind": "own setting"}))


def _iter_settings(settings: CompileSettings) -> Iterator[_OwnSetting]:
    """The settings that are not as torch has them, by the stage that heeds them."""
    stages = {key: stage for stage, keys in facts().settings.listed.items() for key in keys}
    entries = {**settings.config_patches, InductorSettings.config: settings.own_config}
    for config, changes in SETTINGS.items():
        for key, value in entries.get(config, {}).items():
            stage, default = _STAGES.get(config) or stages.get(key), get_setting(key, config)
            if stage is not None and default not in (value, MISSING):
                yield _OwnSetting(stage, key, changes({key: default}))
