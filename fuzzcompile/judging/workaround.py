"""A setting that a user can put into the program today, run and seen to repair the divergence."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fuzzcompile.attribution.ablating import Ablator, OutOfTime
from fuzzcompile.attribution.culprit import Culprit, Workaround
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.compiler.settings import MISSING, setting
from fuzzcompile.compiler.sources import captured_functions
from fuzzcompile.facts import facts
from fuzzcompile.oracle.judgement import error_of

_GRAPH_STAGES = ("pre_grad", "joint_graph", "post_grad", "freezing")
# Compiles that the search may spend; candidates that are screened first cost no compile until they help.
_COMPILES = 4
# Settings that switch off one pass, by the name of the pass or of its rule.
_OWN_SETTING = facts().settings.switching_off
_OF_STAGE: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "pre_grad": ({"split_cat_fx_passes": False}, {"pattern_matcher": False}, {"use_pre_grad_passes": False}),
    "joint_graph": ({"pattern_matcher": False}, {"use_joint_graph_passes": False}),
    "post_grad": ({"pattern_matcher": False}, {"use_post_grad_passes": False}),
    "freezing": ({"freezing": False},),
    "scheduler": ({"epilogue_fusion": False}, {"max_fusion_size": 1}, {"inplace_buffers": False}),
    "runtime": ({"allow_buffer_reuse": False, "inplace_buffers": False},),
    "cudagraphs": ({"triton.cudagraphs": False},),
    "codegen": ({"cpp.simdlen": 1}, {"max_fusion_size": 1}),
    "lowering": ({"cpp.simdlen": 1},),
}
# The rest of the compiler without the stage at fault, the one that keeps most of it first.
_BACKENDS = ("aot_eager_decomp_partition", "aot_eager")


@dataclass(frozen=True)
class _Candidate:
    how: str
    change: Callable[[Compilation], Compilation]
    config: Mapping[str, Any] = field(default_factory=dict)
    screenable: bool = True


def find_workaround(ablator: Ablator, culprit: Culprit) -> Workaround | None:
    """The narrowest setting that repairs the divergence; None if there is none, or no time to look for it."""
    start, before = time.perf_counter(), ablator.experiments.compiles
    try:
        found = _first(ablator, _candidates(culprit, ablator), screen=culprit.stage in _GRAPH_STAGES)
    except OutOfTime:
        return None
    if found is None:
        return None
    spent = ablator.experiments.compiles - before
    return replace(found, compiles=spent, seconds=time.perf_counter() - start)


def _first(ablator: Ablator, candidates: Iterator[_Candidate], *, screen: bool) -> Workaround | None:
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
            return Workaround(candidate.how, candidate.config, error_of(trial.judgement), ratio)
    return None


def _candidates(culprit: Culprit, ablator: Ablator) -> Iterator[_Candidate]:
    yield from map(_setting, _settings(culprit, ablator))
    if culprit.stage not in _GRAPH_STAGES:
        functions = captured_functions(ablator.trial.ledger, culprit.site, culprit.nodes)
        if functions:
            yield _breaking_at(functions)
    own = ablator.experiments.case.settings.backend != "inductor"
    for backend in ("inductor", *_BACKENDS) if own else _BACKENDS:
        yield _backend(backend)


def _settings(culprit: Culprit, ablator: Ablator) -> Iterator[dict[str, Any]]:
    """Config entries, the narrowest first, as far as the installed torch has them and they change anything."""
    names = [name for name in (culprit.rewrite, culprit.pass_name) if name]
    wanted: list[Mapping[str, Any]] = [_OWN_SETTING[name] for name in names if name in _OWN_SETTING]
    if culprit.stage in _GRAPH_STAGES:
        wanted += _of_the_case(names, ablator)
        if culprit.pass_name:
            wanted.append({"disabled_passes": culprit.pass_name})
    wanted += _OF_STAGE.get(culprit.stage, ())
    for settings in wanted:
        changed = {key: value for key, value in settings.items() if _now(key, ablator) not in (MISSING, value)}
        if changed:
            yield changed


def _of_the_case(names: Sequence[str], ablator: Ablator) -> list[Mapping[str, Any]]:
    """Entries of the case's own settings that name the pass, without it, or that give it (a user's own)."""
    found: list[Mapping[str, Any]] = []
    for key, value in _given(ablator).items():
        if key in names and callable(value):
            found.append({key: None})
        if isinstance(value, Mapping) and any(name in value for name in names):
            found.append({key: {name: options for name, options in value.items() if name not in names}})
    return found


def _given(ablator: Ablator) -> dict[str, Any]:
    """The entries of Inductor's config that the case sets itself."""
    settings = ablator.experiments.case.settings
    return {**settings.inductor, **settings.options}


def _now(key: str, ablator: Ablator) -> Any:
    """The entry as the case is compiled; ``MISSING`` where this torch has none such."""
    return _given(ablator).get(key, setting(key))


def _setting(config: Mapping[str, Any]) -> _Candidate:
    text = ", ".join(f"torch._inductor.config.{key} = {value!r}" for key, value in config.items())
    return _Candidate(text, lambda how: replace(how, config={**(how.config or {}), **config}), config)


def _breaking_at(functions: Mapping[str, Callable[..., Any]]) -> _Candidate:
    text = ", ".join(f"torch._dynamo.disallow_in_graph({name})" for name in functions)
    return _Candidate(text, lambda how: replace(how, disallowed=tuple(functions.values())), screenable=False)


def workaround_by(backend: str) -> str:
    """How a user types another backend."""
    return f'torch.compile(..., backend="{backend}")'


def _backend(name: str) -> _Candidate:
    return _Candidate(workaround_by(name), lambda how: replace(how, backend=name), screenable=False)
