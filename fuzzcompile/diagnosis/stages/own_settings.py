"""Settings of the case's own that are at fault, or its path: with torch's default of one, the program is right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from fuzzcompile.compiler.compile_changes import (
    SETTINGS,
    CompileChange,
    CompilePath,
    DynamoSettings,
    InductorSettings,
    TracingSettings,
)
from fuzzcompile.compiler.kernels.kernel_loops import find_definition
from fuzzcompile.compiler.session import find_path
from fuzzcompile.compiler.torch_config import MISSING, get_setting
from fuzzcompile.diagnosis.attribution.culprit import Ablator, Attribution, Culprit
from fuzzcompile.model.contract import AOTI, COMPILE, EXPORT
from fuzzcompile.model.facts import facts
from fuzzcompile.model.stages import CODEGEN, DYNAMO, FUNCTIONALIZATION
from fuzzcompile.run.case import CompileSettings

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
