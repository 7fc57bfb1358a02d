"""A setting that a user can put into the program today, run and seen to repair the divergence."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from fuzzcompile.compiler.custom_code import make_config_without
from fuzzcompile.compiler.graph_breaks import CallTarget, find_captured_calls, is_function
from fuzzcompile.compiler.session import Compilation, find_path
from fuzzcompile.compiler.torch_config import MISSING, get_setting
from fuzzcompile.model.contract import COMPILE, EXPORT, PATHS
from fuzzcompile.model.stages import GRAPH_STAGES
from fuzzcompile.triage.attribution.ablation import Ablator, OutOfTime
from fuzzcompile.triage.attribution.culprit import Culprit, Workaround
from fuzzcompile.triage.oracle.judgement import largest_error
from fuzzcompile.triage.stages.stage import format_tracing_settings
from fuzzcompile.triage.stages.stage_table import get_stage

# Compiles that the search may spend; candidates that are screened first cost no compile until they help.
_COMPILES = 4
# The rest of the compiler without the stage at fault, the one that keeps most of it first.
_BACKENDS = ("aot_eager_decomp_partition", "aot_eager")


@dataclass(frozen=True)
class _Candidate:
    how: str
    change: Callable[[Compilation], Compilation]
    config: Mapping[str, object] = field(default_factory=dict)
    screenable: bool = True


def find_workaround(ablator: Ablator, culprit: Culprit) -> Workaround | None:
    """The narrowest setting that repairs the divergence; None if there is none, or no time to look for it.

    Where eager mode is what is wrong, a setting that made compiled agree with it would mend nothing.
    """
    if culprit.details.get("aten_kernel", {}).get("wrong_in") == "eager":
        return None
    start, before = time.perf_counter(), ablator.experiments.compiles
    try:
        workaround = _find_first(ablator, _iter_candidates(culprit, ablator), screen=culprit.stage in GRAPH_STAGES)
    except OutOfTime:
        return None
    if workaround is None:
        return None
    spent = ablator.experiments.compiles - before
    return replace(workaround, compiles=spent, seconds=time.perf_counter() - start)


def _find_first(ablator: Ablator, candidates: Iterator[_Candidate], *, screen: bool) -> Workaround | None:
    tried = 0
    for candidate in candidates:
        how = candidate.change(replace(ablator.how, record=ablator.replays))
        # The first is nearly always right, and a compile is needed all the same.
        first_screened = tried > 0 and screen and candidate.screenable and ablator.screens
        if first_screened and not ablator.attempt(replace(how, screen=True), candidate.how)[1]:
            continue
        if tried == _COMPILES:
            return None
        tried += 1
        trial, repaired = ablator.attempt(replace(how, timed=True), candidate.how)
        if repaired:
            base = ablator.experiments.runtime
            ratio = trial.runtime / base if trial.runtime is not None and base else None
            return Workaround(candidate.how, candidate.config, largest_error(trial.judgement), ratio)
    return None


def _iter_candidates(culprit: Culprit, ablator: Ablator) -> Iterator[_Candidate]:
    left_out = make_config_without(culprit.pass_name)
    if left_out:
        yield _leave_out(culprit, left_out)
        return
    yield from map(_make_setting, _iter_settings(culprit, ablator))
    tracing = get_stage(culprit.stage).tracing_settings(culprit)
    if tracing:
        yield _Candidate(
            format_tracing_settings(tracing), lambda how: replace(how, functorch=tracing), screenable=False
        )
    if culprit.stage not in GRAPH_STAGES:
        calls = find_captured_calls(ablator.trial.ledger, culprit.site, culprit.nodes)
        functions = {name: call for name, call in calls.items() if is_function(call)}
        if functions:
            yield _break_at(functions)
    path = find_path(ablator.experiments.case.settings, ablator.how)
    if path != COMPILE:
        yield from map(_replace_path, PATHS[: PATHS.index(path)])
        return
    own = ablator.experiments.case.settings.backend != "inductor"
    for backend in ("inductor", *_BACKENDS) if own else _BACKENDS:
        yield _make_backend(backend)


def _iter_settings(culprit: Culprit, ablator: Ablator) -> Iterator[dict[str, object]]:
    """The stage's settings, as far as the installed torch has them and they change anything."""
    for settings in get_stage(culprit.stage).workarounds(culprit, _list_own_settings(ablator)):
        changed = {key: value for key, value in settings.items() if _get_current(key, ablator) not in (MISSING, value)}
        if changed:
            yield changed


def _list_own_settings(ablator: Ablator) -> dict[str, object]:
    """The entries of Inductor's config that the case sets itself."""
    settings = ablator.experiments.case.settings
    return {**settings.inductor, **settings.options}


def _get_current(key: str, ablator: Ablator) -> object:
    """The entry as the case is compiled; ``MISSING`` where this torch has none such."""
    return _list_own_settings(ablator).get(key, get_setting(key))


def _make_setting(config: Mapping[str, object]) -> _Candidate:
    text = ", ".join(f"torch._inductor.config.{key} = {value!r}" for key, value in config.items())
    return _Candidate(text, lambda how: replace(how, config={**(how.config or {}), **config}), config)


def _leave_out(culprit: Culprit, config: Mapping[str, object]) -> _Candidate:
    """The compiler without a pass of the user's own."""
    said = ", ".join(f"torch._inductor.config.{key} = {value!r}" for key, value in config.items())
    alone = {key: value for key, value in config.items() if value is None}  # other passes are no JSON
    text = f"leave the pass {culprit.pass_name} out: {said}"
    return _Candidate(text, lambda how: replace(how, config={**(how.config or {}), **config}), alone)


def _break_at(functions: Mapping[str, CallTarget]) -> _Candidate:
    text = ", ".join(f"torch._dynamo.disallow_in_graph({name})" for name in functions)
    return _Candidate(text, lambda how: replace(how, disallowed=tuple(functions.values())), screenable=False)


def _replace_path(path: str) -> _Candidate:
    text = {COMPILE: "torch.compile(...)", EXPORT: "torch.export.export(...).module()"}[path]
    return _Candidate(text, lambda how: replace(how, path=path), screenable=False)


def name_backend_workaround(backend: str) -> str:
    """Return the call by which a user selects another backend."""
    return f'torch.compile(..., backend="{backend}")'


def _make_backend(name: str) -> _Candidate:
    return _Candidate(name_backend_workaround(name), lambda how: replace(how, backend=name), screenable=False)
