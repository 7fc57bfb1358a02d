"""Minimising whole cases: real bugs on real compiles, and the searches that go wrong."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.diagnosis.probe import SignatureLock
from fuzzcompile.diagnosis.worker.minimization import CandidateTools, capture_programs, make_job
from fuzzcompile.diagnosis.worker.minimize_task import LocalAsker
from fuzzcompile.front.minimize_case import MinimizeSubject, read_state, write_state
from fuzzcompile.fuzz.generation.profile import Profile
from fuzzcompile.fuzz.generation.recipes import GeneratedRecipe
from fuzzcompile.model.errors import UsageError
from fuzzcompile.programs.ir.case_source import CaseText, count_model_lines
from fuzzcompile.programs.ir.case_text import extract_case
from fuzzcompile.programs.ir.program import Input, Program, Ref, Statement
from fuzzcompile.programs.scripts import issue_script
from fuzzcompile.programs.scripts.clean_process import FinishedProcess
from fuzzcompile.programs.shrink.minimize import find_neighbour, minimize
from fuzzcompile.programs.shrink.outcome import MinimizeResult, ProbeResult, SearchTally
from fuzzcompile.programs.shrink.search import CandidateTests, MinimizeJob, SearchBudget, SearchProgress, same_bug

KNOWN = Path(__file__).parents[2] / "known_issues"
BURIED = Path(__file__).parents[2].parent / "bench" / "buried"
CPU = torch.device("cpu")
of_2_13 = pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="a bug of torch 2.13")


def minimized(path: Path, report: dict, progress: list[SearchProgress] | None = None) -> MinimizeResult:
    tools = CandidateTools(LocalAsker(), SignatureLock.of(report), report)
    seen = progress if progress is not None else []
    job = make_job(path.read_text(), report, None)
    return minimize(job, tools, SearchBudget(150, time.monotonic() + 240), on_progress=seen.append)


@pytest.fixture(scope="module")
def attention(triaged) -> tuple[MinimizeResult, list[SearchProgress]]:
    progress: list[SearchProgress] = []
    path = KNOWN / "issue_195320.py"
    return minimized(path, triaged(path), progress), progress


@pytest.mark.slow
def test_a_module_becomes_one_attention_expression(attention):
    outcome, progress = attention
    assert outcome.how == "graph" and outcome.changed and outcome.finished
    assert outcome.operators <= 6 < outcome.operators_before
    assert count_model_lines(extract_case(outcome.reproducer)) <= 12
    assert "nn.Linear" not in outcome.source and "VALUES" not in outcome.source
    assert outcome.tally.tests <= 60
    assert progress[-1].compiles + progress[-1].screens <= outcome.tally.tests


@pytest.mark.slow
def test_the_product_shows_the_bug_alone_and_is_the_same_bug(attention):
    outcome, _ = attention
    assert outcome.confirmed, outcome.confirmation
    assert outcome.report["signature"] == "joint_graph:torch/_inductor/fx_passes/fuse_attention.py:sfdp:permute(dims)"
    assert "torch._inductor." not in extract_case(outcome.reproducer) and "/tmp" not in outcome.reproducer


@pytest.fixture(scope="module")
def accepted(triaged) -> MinimizeResult:
    path = KNOWN / "issue_195579.py"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(issue_script, "confirm_reproducer", lambda text, **_: FinishedProcess(1, text, True))
        return minimized(path, triaged(path))


@pytest.mark.slow
def test_what_eager_refuses_and_compiled_accepts_is_minimized_too(accepted):
    assert accepted.how == "graph" and "torch.addmm(" in accepted.source
    assert "class" not in accepted.source and accepted.report["verdict"] == "accepts_invalid"


def test_minimizing_it_again_changes_nothing(accepted, tmp_path, monkeypatch):
    monkeypatch.setattr(issue_script, "confirm_reproducer", lambda text, **_: FinishedProcess(1, text, True))
    path = tmp_path / "repro.py"
    path.write_text(accepted.reproducer)
    again = minimized(path, dict(accepted.report))
    assert not again.changed and again.how == "as found"
    assert extract_case(again.reproducer) == extract_case(accepted.reproducer)


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(BURIED.glob("*.py")), ids=lambda path: path.stem)
def test_buried_bugs_are_dug_out(path, triaged):
    from fuzzcompile.diagnosis.worker.judge import isolate_process
    from fuzzcompile.programs.capture.case_loader import load

    with isolate_process():
        report = triage(load(path, CPU), CPU).to_json()
    if not report["is_bug"]:
        pytest.skip("shows no bug on this torch")
    outcome = minimized(path, report)
    assert outcome.changed and outcome.confirmed, outcome.note
    assert same_bug(report, outcome.report)
    if outcome.how == "graph":
        assert count_model_lines(outcome.source) <= 12


def test_graphs_of_a_case_with_settings_ask_for_the_same(write_case):
    path = write_case(
        "import torch\nBACKWARD = True\nDYNAMIC = True\nOPTIONS = {'shape_padding': True}\n"
        "def make():\n    return torch.nn.Linear(3, 2), (torch.randn(4, 3, requires_grad=True),)\n"
    )
    (program,) = capture_programs(path.read_text())
    assert program.settings == {"BACKWARD": True, "OPTIONS": {"shape_padding": True}, "DYNAMIC": True}
    assert any(one.requires_grad for one in program.inputs)


# -- searches that go wrong, with a made-up compiler ----------------------------------------------------

SOURCE = """import torch


def f(x):
    return torch.tanh(x.sin()).cos()


def make():
    return f, (torch.ones(2),)
"""
REPORT = {
    "verdict": "miscompile",
    "is_bug": True,
    "confidence": "high",
    "signature": "lowering:-:tanh",
    "torch": torch.__version__,
    "device": "cpu",
    "evidence": {"outputs": []},
    "culprit": {"stage": "lowering", "rewrite": "tanh"},
}


class Tools:
    """A compiler that is wrong wherever ``holds`` says so."""

    def __init__(self, holds: Callable[[str], bool], judged: dict | None = None) -> None:
        self.holds, self.judged, self.thorough = holds, judged or REPORT, False

    def probe(self, candidate: CaseText, *, screen: bool) -> ProbeResult:
        shown = self.holds(candidate.source)
        return ProbeResult(shown, shown, "miscompile" if shown else "equal")

    def programs(self, source: str, capture: str) -> Sequence[Program]:
        if capture != "static":
            return []
        chain = [
            Statement(name, "function", f"torch.{name}", (Ref(given),))
            for given, name in itertools.pairwise(["x", "sin", "tanh", "cos"])
        ]
        return [Program((Input.from_tensor("x", torch.ones(2)),), tuple(chain), Ref("cos"))]

    def judge(self, source: str) -> dict:
        return self.judged

    def write(self, source: str, report: dict) -> str | None:
        return source

    def become_thorough(self) -> None:
        self.thorough = True

    def loosen(self) -> None:
        pass


@pytest.fixture
def unconfirmed(monkeypatch):
    monkeypatch.setattr(issue_script, "confirm_reproducer", lambda text, **_: FinishedProcess(1, "", True))


def runs(source: str) -> bool:
    """Whether a case's program runs in eager."""
    namespace: dict[str, object] = {}
    try:
        exec(source, namespace)
        model, inputs = namespace["make"]()
        model(*inputs)
    except Exception:
        return False
    return True


def run(tools: Tools, **more: object) -> MinimizeResult:
    return minimize(MinimizeJob(SOURCE, REPORT), tools, SearchBudget(300), **more)


def test_a_reduction_that_ends_at_another_bug_keeps_the_case_and_the_other_finding(unconfirmed):
    other = {**REPORT, "signature": "joint_graph:elsewhere:x", "culprit": {"stage": "joint_graph"}}
    outcome = run(Tools(lambda source: "tanh" in source, other))
    assert outcome.source == SOURCE and not outcome.changed
    assert "another bug" in outcome.note and outcome.tally.others


def test_a_bug_that_comes_and_goes_is_told_from_one_that_is_lost(unconfirmed):
    answers = itertools.cycle([False, False, False, False, True, False])
    shaky = run(Tools(lambda source: next(answers) and runs(source)))
    assert "comes and goes" in shaky.note
    lost = run(Tools(lambda source: False))
    assert "comes and goes" not in lost.note and lost.note and not lost.changed
    assert lost.source == SOURCE


def test_what_one_look_does_not_tell_from_rounding_is_looked_at_thoroughly(unconfirmed):
    tools = Tools(lambda source: False)
    tools.holds = lambda source: tools.thorough and "tanh" in source
    outcome = run(tools)
    assert outcome.changed and "torch.tanh" in outcome.source and "cos" not in outcome.source


def test_an_interrupt_keeps_the_best_so_far(unconfirmed):
    def interrupt(progress: SearchProgress) -> None:
        if progress.operators == 1 and not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt

    interrupted: list[bool] = []
    outcome = run(Tools(lambda source: "tanh" in source), on_progress=interrupt)
    assert interrupted and not outcome.finished
    assert outcome.changed and count_model_lines(outcome.source) < count_model_lines(SOURCE) + 3
    assert "VALUES" not in outcome.source


@pytest.mark.parametrize("needed", [True, False])
def test_a_package_is_left_for_the_compile_that_shows_the_bug_too(unconfirmed, needed: bool):
    probed: list[str] = []

    def holds(source: str) -> bool:
        probed.append(source)
        return "tanh" in source and ("PATH" in source or not needed)

    job = MinimizeJob(f'{SOURCE}\nPATH = "aoti"\n', REPORT)
    outcome = minimize(job, Tools(holds), SearchBudget(300))
    assert "PATH" not in probed[0] and ("PATH" in outcome.source) is needed
    assert needed or not any("PATH" in source for source in probed)


def test_answers_of_an_earlier_search_are_not_paid_for_again(unconfirmed):
    tally = SearchTally()
    first = run(Tools(lambda source: "tanh" in source), tally=tally)
    used = tally.tests
    second = run(
        Tools(lambda source: pytest.fail("asked again") if "neighbour" in source else "tanh" in source), tally=tally
    )
    assert second.source == first.source and tally.tests - used <= 8  # neighbours are looked for anew


def test_a_state_is_of_one_case_and_one_torch(tmp_path):
    state = tmp_path / "out.py.state"
    subject = MinimizeSubject(SOURCE, REPORT)
    with pytest.raises(UsageError, match="nothing to resume"):
        read_state(state, subject)
    tally = SearchTally(3, 4, True, {"a": True}, {"b": "source"})
    write_state(state, subject, tally)
    assert read_state(state, subject)[0] == tally
    with pytest.raises(UsageError, match="another case"):
        read_state(state, MinimizeSubject(SOURCE + "\n", REPORT))
    state.write_text("{")
    with pytest.raises(UsageError, match="cannot be read"):
        read_state(state, subject)


def test_text_is_reduced_where_no_graph_holds_the_bug(unconfirmed):
    class NoGraph(Tools):
        def programs(self, source: str, capture: str) -> Sequence[Program]:
            return []

    outcome = run(NoGraph(lambda source: "tanh" in source and runs(source)))
    assert outcome.how == "text" and "cos" not in outcome.source and "tanh" in outcome.source


def test_where_the_lock_held_too_little_the_last_step_that_is_the_same_bug_counts(unconfirmed):
    class Loose(Tools):
        def judge(self, source: str) -> dict:
            other = {**REPORT, "signature": "joint_graph:elsewhere:x", "culprit": {"stage": "joint_graph"}}
            return REPORT if "torch.tanh" in source and "torch.sin" in source else other

    outcome = run(Loose(lambda source: "torch.tanh" in source))
    assert outcome.changed and outcome.how == "graph"
    assert "torch.sin" in outcome.source and "torch.cos" not in outcome.source
    assert "another bug" in outcome.note and outcome.tally.others


def test_a_reduction_whose_bug_triage_does_not_see_twice_is_lost(unconfirmed):
    clean = {**REPORT, "verdict": "equal", "is_bug": False, "signature": None, "culprit": None}
    outcome = run(Tools(lambda source: "tanh" in source, clean))
    assert not outcome.changed and "lost the bug" in outcome.note
    shaky = run(Tools(lambda source: "tanh" in source, {**clean, "verdict": "nondeterministic", "is_bug": True}))
    assert not shaky.changed and "comes and goes" in shaky.note


def test_a_signature_of_several_families_may_show_fewer_and_a_verdict_may_be_all_that_is_kept():
    one = {**REPORT, "signature": "scheduler:-:add+exp+mul"}
    assert same_bug(one, {**REPORT, "signature": "scheduler:-:exp"})
    other = {**REPORT, "signature": "joint_graph:-:exp", "culprit": {"stage": "joint_graph"}}
    assert not same_bug(one, other) and same_bug(one, other, "verdict")
    assert not same_bug(one, {**other, "verdict": "metadata"}, "verdict")


def test_functional_graphs_are_reduced_where_no_graph_of_torch_functions_shows_the_bug(unconfirmed):
    class Functional(Tools):
        asked: tuple[str, ...] = ()

        def programs(self, source: str, capture: str) -> Sequence[Program]:
            self.asked += (capture,)
            return super().programs(source, "static") if capture == "aten" else []

    tools = Functional(lambda source: "tanh" in source)
    outcome = run(tools)
    assert outcome.how == "graph" and "cos" not in outcome.source and tools.asked == ("static", "aten")
    resized = Functional(lambda source: "tanh" in source)
    minimize(MinimizeJob(SOURCE, REPORT, resizes=True), resized, SearchBudget(300))
    assert resized.asked == ("static", "dynamic", "aten")


@pytest.mark.slow
@of_2_13
def test_a_transform_becomes_the_operators_that_it_stands_for(triaged, monkeypatch):
    monkeypatch.setattr(issue_script, "confirm_reproducer", lambda text, **_: FinishedProcess(1, text, True))
    path = KNOWN / "issue_188084.py"
    outcome = minimized(path, triaged(path))
    assert outcome.how == "graph" and "vmap" not in outcome.source and "index_put" in outcome.source
    assert count_model_lines(extract_case(outcome.reproducer)) <= 8 and outcome.neighbour is not None


def test_a_reproducer_that_shows_its_bug_in_some_runs_only_comes_and_goes(monkeypatch):
    answers = iter([False, False, True])
    monkeypatch.setattr(issue_script, "confirm_reproducer", lambda text, **_: FinishedProcess(1, "said", next(answers)))
    outcome = run(Tools(lambda source: "tanh" in source))
    assert outcome.confirmed and "1 of 3 runs" in outcome.note
    monkeypatch.setattr(issue_script, "confirm_reproducer", lambda text, **_: FinishedProcess(0, "said", False))
    lost = run(Tools(lambda source: "tanh" in source))
    assert not lost.confirmed and "in 3 runs" in lost.note


def test_an_interrupted_search_is_neither_judged_nor_confirmed(monkeypatch):
    def never(*arguments: object) -> None:
        pytest.fail("asked after the interrupt")

    def interrupt(progress: SearchProgress) -> None:
        if progress.reducer == "values" and progress.operators == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(issue_script, "confirm_reproducer", never)
    tools = Tools(lambda source: "tanh" in source)
    tools.judge = never  # type: ignore[method-assign]
    outcome = run(tools, on_progress=interrupt)
    assert outcome.interrupted and outcome.changed and not outcome.confirmed and not outcome.finished
    assert "torch.cos" not in outcome.reproducer and "VALUES" not in outcome.reproducer


def test_an_interrupted_recipe_keeps_what_it_had(unconfirmed):
    from fuzzcompile.fuzz.generation.cases import draw_case_at

    drawn = draw_case_at(3, 5, Profile())
    lines, earlier = count_model_lines(drawn.source), list[int]()

    def interrupt(progress: SearchProgress) -> None:
        if any(each < lines for each in earlier):  # the case in hand is lost, those before it are kept
            raise KeyboardInterrupt
        earlier.append(progress.lines)

    job = MinimizeJob(drawn.source, REPORT, recipe=GeneratedRecipe(drawn.choices))
    outcome = minimize(job, Tools(lambda source: True), SearchBudget(300), on_progress=interrupt)
    assert outcome.interrupted and outcome.how == "recipe"
    assert count_model_lines(outcome.source) < lines


def test_a_neighbour_that_passes_without_generated_code_must_pass_with_it():
    program = Tools(lambda source: True).programs(SOURCE, "static")[0]
    looks: list[bool] = []

    class Screened(Tools):
        def probe(self, candidate: CaseText, *, screen: bool) -> ProbeResult:
            looks.append(screen)
            return ProbeResult(not screen, not screen, "equal" if screen else "miscompile")

    assert find_neighbour(program, CandidateTests(Screened(runs), SearchBudget(100)), screen=True) is None
    assert looks[:2] == [True, False] and looks.count(True) == looks.count(False)
    assert find_neighbour(program, CandidateTests(Tools(runs), SearchBudget(0)), screen=True) is None
