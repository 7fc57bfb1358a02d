"""The mutants of bench/recall.py: what is changed, which are drawn, and what the cases judged make of them."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch._inductor.lowering
from recalling.answers import OUTCOMES, Answer, Attempt, outcome_of, read_answers
from recalling.calls import around, runs
from recalling.code_replacement import replace_code
from recalling.mutation import Mutation
from recalling.naming import named
from recalling.operators import mutations_of
from recalling.reading import Reading, estimate, plausible_totals, section
from recalling.sampling import Site, sampled, sites
from torch._inductor.codegen import cpp_utils

from fuzzcompile.compiler.source_probes import ROOT
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.focus_plan import Span

FILE = "torch/_inductor/codegen/cpp_utils.py"
ANSWERED = set(OUTCOMES) - {"not installable"}
SOURCE = '''
def fits(size, limit=4):
    """Whether it fits."""
    if size is None:
        return False
    log.debug("sizes %s", size - 1)
    size = padded(size, limit, dim=-1)
    register(size)
    return size < limit and all(size - limit for _ in [0] if limit)
'''


def changes(source: str = SOURCE) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for mutation in mutations_of("torch/x.py", ast.parse(source)):
        found.setdefault(mutation.operator, []).append(mutation.diff)
    return found


def test_each_operator_makes_the_mistakes_that_it_is_for():
    found = changes()
    assert "size is None → not size is None" in found["negated"]
    assert {"size is None → False", "size is None → True"} <= set(found["dropped_guard"])
    assert "size < limit → size <= limit" in found["comparison"]
    assert "all → any" in found["connective"]
    assert {"size - limit → size + limit", "size - limit → limit - size"} <= set(found["arithmetic"])
    assert "padded(size, limit, dim=-1) → padded(limit, size, dim=-1)" in found["swapped_operands"]
    assert {"-1 → 0", "False → True"} <= set(found["constant"])
    assert "padded(size, limit, dim=-1) → padded(size, limit)" in found["forgotten_argument"]
    assert found["dropped_statement"] == ["register(size) → (dropped)"]


def test_logs_defaults_and_code_outside_of_functions_are_left_alone():
    assert not any("log" in change or "4" in change for listed in changes().values() for change in listed)
    assert changes("LIMIT = 3 < 4\n") == {}


def mutant(operator: str, function) -> Mutation:
    found = mutations_of(FILE, ast.parse(Path(cpp_utils.__file__).read_text(encoding="utf-8")))
    return next(row for row in found if row.function == function.__qualname__ and row.operator == operator)


def test_a_mutant_runs_in_memory_says_so_and_can_be_taken_back():
    mutation, reached = mutant("comparison", cpp_utils.value_to_cpp), []
    own, right = cpp_utils.value_to_cpp.__code__, cpp_utils.value_to_cpp(1.5, "float")
    planted = replace_code(mutation.file, mutation.start, mutation.end, mutation.after, lambda: reached.append(1))
    planted.install()
    try:
        assert cpp_utils.value_to_cpp(1.5, "float") != right
        assert reached
    finally:
        planted.remove()
    assert cpp_utils.value_to_cpp.__code__ is own
    assert cpp_utils.value_to_cpp(1.5, "float") == right
    compile(mutation.plant(), "plant.py", "exec")


def test_what_does_not_stand_there_is_refused():
    with pytest.raises(UsageError, match="no expression or statement"):
        replace_code(FILE, (1, 0), (1, 3), "None", lambda: None)


def site(number: int, stage: str = "lowering") -> Site:
    mutation = Mutation("torch/x.py", "fits", (1, 9), (number, 0), (number, 4), "negated", "a", "not a")
    return Site(mutation, stage, number)


def test_a_sample_is_seeded_and_takes_each_line_once():
    found = [site(number) for number in range(20)]
    first, again, other = ([row.probe for row in sampled(found, seed)["lowering"]] for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert sorted(first) == list(range(20))


def test_a_mutation_belongs_to_the_innermost_probe_around_it():
    probes = [(FILE, 1, 0, 10**6, 0), (FILE, 10**6, 0, 10**6, 5)]
    assert {row.probe for row in sites({FILE: "lowering"}, probes)} == {0}


def answer(*attempts: Attempt) -> Answer:
    return outcome_of(Answer({}, "lowering"), attempts)


def test_outcomes():
    ran = {"screen": False, "reached": True}
    right = Attempt("a", **ran, verdict="equal")
    wrong = Attempt("b", **ran, verdict="miscompile", is_bug=True, named="rule", same_values=False)
    raising = Attempt("c", **ran, verdict="compile_error", is_bug=True, same_values=False)
    differing = Attempt("d", **ran, verdict="rounding", same_values=False, in_float64=True)
    uncleared = Attempt("e", **ran, verdict="rounding", same_values=False)
    elsewhere = Attempt("f", screen=True, verdict="equal")
    assert answer(right, wrong).outcome == "found"
    assert answer(raising, wrong).verdict == "miscompile"
    assert answer(right, raising).outcome == "found"
    assert answer(elsewhere, raising, raising).outcome == "loud"
    assert answer(right, elsewhere).outcome == "no change"
    assert answer(right, differing).outcome == "rounding"
    assert answer(right, differing, uncleared).outcome == "missed"
    assert answer(elsewhere).outcome == "not reached"


def test_how_precisely_a_report_names_the_mutated_function():
    mutation = Mutation("torch/x.py", "Pass.fits", (10, 20), (12, 0), (12, 4), "negated", "a", "not a")
    inside, beside = {"source": "torch/x.py", "line": 12}, {"source": "torch/x.py", "line": 99}
    assert named(mutation, {"culprit": inside}) == "function"
    assert named(mutation, {"culprit": {"source": None, "pass": "fits"}}) == "function"
    assert named(mutation, {"culprit": {"details": {"raised": [beside, inside]}}}) == "function"
    assert named(mutation, {"culprit": beside, "contributors": [inside]}) == "function"
    assert named(mutation, {"culprit": beside}) == "file"
    assert named(mutation, {"culprit": {"source": "torch/y.py", "line": 12}}) == ""
    assert named(mutation, {"culprit": None}) == ""


def span_of(function) -> Span:
    lines, first = inspect.getsourcelines(inspect.unwrap(function))
    name = Path(inspect.getsourcefile(inspect.unwrap(function))).relative_to(ROOT).as_posix()
    return Span(
        name, first + next(n for n, line in enumerate(lines) if line.startswith("def ")), first + len(lines) - 1
    )


def test_a_rule_runs_what_its_decorators_call_in_another_file():
    clamp, promotion = span_of(torch._refs.clamp), span_of(torch._prims_common.elementwise_dtypes)
    assert runs(around(clamp.file, clamp.first), promotion)
    assert not runs(around(clamp.file, clamp.first), span_of(torch._refs.native_group_norm))


@pytest.mark.slow
def test_equal_names_in_another_file_are_no_call():
    normalised = span_of(torch._inductor.lowering.mean)
    assert not runs([normalised], span_of(torch._refs.mean))
    assert runs([normalised], span_of(torch._inductor.lowering.make_reduction))


def test_a_lowering_is_named_by_its_operator_and_a_lost_worker_by_its_stack():
    reduction = span_of(torch._inductor.lowering.make_reduction)
    mutation = Mutation(reduction.file, "make_reduction", (reduction.first, reduction.last), (1, 0), (1, 1), "", "", "")
    mean = {"stage": "lowering", "rewrite": "aten.mean.dim", "source": "torch/_inductor/ir.py", "line": 1}
    assert named(mutation, {"culprit": mean}) == "rule"
    assert named(mutation, {"culprit": {**mean, "stage": "codegen"}}) == ""
    stood = {"source": reduction.file, "line": reduction.last, "function": "inner"}
    assert named(mutation, {"culprit": {"details": {"stack": [{**stood, "source": "x"}, stood]}}}) == "function"


@pytest.mark.slow
def test_a_mutant_is_hunted_and_not_hunted_again(tmp_path):
    bench = Path(__file__).parents[1] / "bench" / "recall.py"
    asked = ["--state", tmp_path / "state", "--cases", 3, "--full", 1, "--mutants", 1, "--budget", 20, "--workers", 1]
    command = [sys.executable, bench, *asked, "--stages", "lowering"]
    for _ in range(2):
        ended = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)
        assert ended.returncode == 0, ended.stderr
    (stored,) = [row for row in read_answers(tmp_path / "state" / "answers-steered.jsonl") if row.outcome in ANSWERED]
    assert stored.stage == "lowering"
    assert stored.tried
    assert f"| {stored.of.id} |" in ended.stdout


def unchanged(place: str) -> Answer:
    mutation = Mutation("torch/a.py", place, (1, 2), (1, 0), (1, 4), "negated", "a", "not a")
    return Answer({**vars(mutation), "after": place}, "lowering", outcome="no change")


def test_totals_that_a_draw_allows():
    assert plausible_totals(8, 30, 107) == (16, 46)
    assert plausible_totals(3, 10, 10) == (3, 3), "all were read"


def test_mutants_without_a_change_are_estimated_from_those_that_were_read():
    rows = [unchanged(f"f{number}") for number in range(4)]
    found = Answer(rows[0].mutation | {"after": "g"}, "lowering", outcome="found")
    first, second = (row.of.id for row in rows[:2])
    reading = Reading(30, {second: "changed", first: "none"})
    text = "\n".join(estimate([*rows, found], reading))
    assert "2 of the 4 without a change" in text and "1 change what" in text
    assert "some 2 of the 4 do (95 %: 1 to 3)" in text
    assert "1 of 3 (33%; 95 %: 25% to 50%) silent" in text
    table = [line for line in section([*rows, found], reading, {first: "As before."}) if line.startswith("| ")]
    assert [line.split(" | ")[0][2:] for line in table[1:]] == [second, first], "in the order of the draw"
    assert table[2].endswith("| none | As before. |")
    assert not list(estimate(rows, Reading(0, {})))
