"""An idiom and a detour from outside the package: drawn, judged and minimized like those inside, with no name known."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
import torch
from contributing import block
from pattern_tables import restored
from planting import ERROR
from torch._inductor.fx_passes import post_grad
from torch._inductor.pattern_matcher import CallFunction, KeywordArg, Match, register_graph_pattern

import fuzzcompile.fuzz.generation.cases
from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.triage_report import TriageReport
from fuzzcompile.fuzz.generation.cases import GeneratedCase, draw_case_at, from_choices
from fuzzcompile.fuzz.generation.profile import Profile, StaleRecipe
from fuzzcompile.fuzz.generation.recipes import GeneratedRecipe
from fuzzcompile.fuzz.generation.spec import NEAR_MISSES
from fuzzcompile.fuzz.idioms import registry
from fuzzcompile.fuzz.idioms.registry import idiom, idioms, register
from fuzzcompile.fuzz.near_misses import near_miss_registry
from fuzzcompile.model.judge_task import JudgeTask
from fuzzcompile.programs.casefiles.case_module import load_case

ATTENTION, DETOUR = "sigmoid_attention", "centred_in_place"
OFTEN = Profile(dtypes=("float32",)).steer({ATTENTION: 5000, DETOUR: 2000})
UNSPOILED = Profile(near_misses=False, dtypes=("float32",), training=False).steer({ATTENTION: 5000})


def forget_idiom(name: str) -> None:
    del registry._IDIOMS[name]
    idioms.cache_clear()


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    """The worked example of CONTRIBUTING.md for the time of this module."""
    block("tests/fuzz/generation/new_idiom.py").executed()
    yield
    forget_idiom(ATTENTION)
    del near_miss_registry._DETOURS[DETOUR]
    NEAR_MISSES[:] = [operator for operator in NEAR_MISSES if operator.name != DETOUR]


@pytest.fixture(scope="module")
def drawn() -> list[GeneratedCase]:
    """Cases in which the new idiom stands."""
    cases = (draw_case_at(3, index, OFTEN) for index in range(600))
    return [case for case in cases if ATTENTION in case.spec.idioms]


def test_it_is_drawn_with_the_near_misses_and_settings_that_it_allows(drawn: list[GeneratedCase]) -> None:
    assert len(drawn) > 100
    near_misses = {name for case in drawn for name in case.spec.near_misses}
    assert {"key_permuted", "tensor_scale", "odd_scale", "mask_rank", "mask_dtype", "five_dimensions"} <= near_misses
    assert {"keys_expanded", "weights_returned", "eval_dropout", DETOUR} <= near_misses
    assert "softmax_axis" not in near_misses
    choices = {name for case in drawn for name in case.spec.choices}
    assert {"freezing", "softcap", "second_call", "cross_attention", "plain"} <= choices
    assert "sink" not in choices


def test_the_detour_stands_only_where_its_writes_are_allowed(drawn: list[GeneratedCase]) -> None:
    for case in drawn:
        if DETOUR in case.spec.near_misses:
            assert not case.spec.backward
            assert case.spec.inputs not in ("expanded", "offset")
            assert "-= x.mean(" in case.source or "-= q.mean(" in case.source


def test_every_case_with_it_runs_in_eager(drawn: list[GeneratedCase]) -> None:
    for case in drawn[:60]:
        if "refused" in case.features:
            continue
        namespace: dict[str, object] = {}
        exec(compile(case.source, "case.py", "exec"), namespace)
        model, inputs = namespace["make"]()
        try:
            with torch.no_grad():
                namespace["run"](model, inputs) if "run" in namespace else model(*inputs)
        except IndexError:  # past the end, which is drawn for eager mode to refuse it
            assert any(name.startswith("indexed") for name in case.features)


def test_its_choices_replay_and_are_stale_without_it(drawn: list[GeneratedCase]) -> None:
    case = drawn[0]
    assert from_choices(case.choices, OFTEN) == case
    recipe = OFTEN.to_json()
    added = idiom(ATTENTION)
    forget_idiom(ATTENTION)
    try:
        with pytest.raises(StaleRecipe):
            Profile.from_json(recipe)
    finally:
        register(added)


# -- a bug that the new idiom alone stirs ---------------------------------------------------------------


def sigmoid_of_difference_off(match: Match, x: torch.Tensor, bias: float) -> None:
    match.replace_by_example(lambda x: torch.sigmoid(x - bias) * (1 + ERROR), [x])


@contextmanager
def planted() -> Iterator[None]:
    """Inductor takes sigmoid(x - bias) to be larger by `ERROR`."""
    table = post_grad.pass_patterns[1]
    with restored(table):
        pattern = CallFunction(
            torch.ops.aten.sigmoid.default,
            CallFunction(torch.ops.aten.sub.Tensor, KeywordArg("x"), KeywordArg("bias")),
        )
        register_graph_pattern(pattern, pass_dict=table)(sigmoid_of_difference_off)
        yield


@pytest.mark.slow
def test_a_bug_that_it_alone_stirs_is_found_and_minimized_to_a_case_that_has_it(tmp_path: Path) -> None:
    numbers = count()

    def judged(case: GeneratedCase, known: TriageReport | None = None) -> TriageReport:
        path = tmp_path / f"case_{next(numbers)}.py"
        path.write_text(case.source)
        hit = {(known.signature, known.verdict.kind)} if known else set()
        return triage(load_case(path), torch.device("cpu"), JudgeTask(screen=True, known=hit))

    cases = (draw_case_at(3, index, UNSPOILED) for index in count())
    large = next(case for case in cases if case.spec.idioms[0] == ATTENTION and len(case.spec.idioms) == 2)
    with planted():
        report = judged(large)
        assert report.is_bug
        assert report.attribution.culprit.rewrite == "sigmoid_of_difference_off"

        def holds(case: GeneratedCase) -> bool:
            again = judged(case, report)
            return again.is_bug and again.signature == report.signature

        recipe = GeneratedRecipe(large.choices, UNSPOILED)
        best = recipe.shrink(holds, max_tests=10, deadline=None, on_test=lambda case: None)
    assert best is not None and best.spec.idioms == (ATTENTION,)
    assert len(best.source) < len(large.source)
    assert "torch.sigmoid(scores - " in best.source


# -- no other module knows an idiom ---------------------------------------------------------------------


PACKAGE = Path(fuzzcompile.fuzz.generation.cases.__file__).parent
UNITS = {
    *(PACKAGE / "idioms").glob("*.py"),
}
MODULES = [*PACKAGE.rglob("*.py"), *(PACKAGE.parent / "variations").rglob("*.py")]
# Those that list modules name no idiom, though a module may be called like one.
MODULES = [path for path in MODULES if path.name != "__init__.py"]


def literals(path: Path) -> set[str]:
    """The string literals of a module."""
    constants = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
    return {node.value for node in constants if isinstance(node.value, str)}


def test_no_module_but_its_own_names_an_idiom_or_a_detour() -> None:
    known = {idiom.name for idiom in idioms()} | {miss.name for miss in NEAR_MISSES if miss.family == "detour"}
    places = {(name, path) for path in MODULES for name in literals(path) & known}
    assert not {place for place in places if place[1] not in UNITS}
    assert not [name for name, times in Counter(name for name, _ in places).items() if times > 1]
