"""A candidate that takes its process down is refused, and the search goes on."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_reducers import given, search

from fuzzcompile.diagnosis.probe import SignatureLock
from fuzzcompile.diagnosis.worker.minimization import CandidateTools
from fuzzcompile.diagnosis.worker.minimize_task import LocalAsker, can_resume
from fuzzcompile.front.minimize_case import PoolAsker
from fuzzcompile.programs.ir.case_source import CaseText
from fuzzcompile.programs.ir.evaluation import evaluate, guard_runs
from fuzzcompile.programs.ir.program import Program, Ref, Statement
from fuzzcompile.programs.shrink.outcome import SearchTally
from fuzzcompile.programs.shrink.reducers import shrink_sizes
from fuzzcompile.run.pool.worker import WorkerCrashed
from fuzzcompile.run.pool.worker_pool import WorkerPool

CRASH = SignatureLock("crash", None, None, ())
REPORT: Any = {"verdict": "crash", "is_bug": True, "signature": "unattributed:crash:ended"}


def tools(pool: Any) -> CandidateTools:
    return CandidateTools(PoolAsker(pool), CRASH, REPORT)


def sized(rows: int) -> Program:
    ends = Statement("s0", "function", "(lambda x: x.sin() if len(x) > 3 else __import__('os').abort())", (Ref("x"),))
    return Program(given(("x", torch.randn(rows, 2))), (ends,), Ref("s0"))


@pytest.mark.slow
def test_a_program_on_which_eager_ends_the_process_is_refused_and_others_tried(tmp_path):
    found = search(sized(8), "sin")
    with WorkerPool(1) as pool, guard_runs(tools(pool).asker.guard_eager):
        assert not found.attempt(sized(2))
        assert found.attempt(sized(4))


def test_sizes_shrink_as_far_as_eager_survives():
    found = search(sized(16), "sin")
    with guard_runs(lambda program: contextlib.nullcontext(program.inputs[0].shape[0] > 3)):
        shrink_sizes(found)
    assert found.best.inputs[0].shape == (4, 1)


def lost(**left: str) -> SimpleNamespace:
    """A pool whose worker dies, and what it has left then."""

    def schedule(call: Callable[[], object], **how: object) -> Future[object]:
        loss = WorkerCrashed(-11)
        loss.left = left
        future: Future[object] = Future()
        future.set_exception(loss)
        return future

    return SimpleNamespace(schedule=schedule)


@pytest.mark.parametrize("eager_finished", [True, False])
def test_a_worker_that_is_lost_in_eager_is_no_crash_of_the_compiler(eager_finished):
    asking = tools(lost(**{"eager": ""} if eager_finished else {}))
    probed = asking.probe(CaseText("def make(): ...", {}), screen=False)
    assert (probed.matches, probed.is_bug) == (eager_finished, eager_finished)
    assert asking.judge("def make(): ...")["is_bug"] is eager_finished
    with asking.asker.guard_eager(sized(4)) as survives:
        assert not survives


def test_a_worker_that_is_lost_behind_its_report_costs_the_cause_alone():
    report = {"verdict": "miscompile", "is_bug": True, "signature": "joint_graph:f.py:rule"}
    asking = tools(lost(eager="", report=json.dumps(report)))
    assert asking.judge("def make(): ...") == report


def left(asking: AbstractContextManager[bool]) -> None:
    """Begin to ask, and never come back: what a lost worker does."""
    asking.__enter__()
    never.append(asking)


never: list[object] = []  # a block that is collected is left


def test_what_took_a_worker_down_is_not_asked_again(monkeypatch):
    state: dict[str, str] = {}
    monkeypatch.setattr("fuzzcompile.diagnosis.worker.minimize_task.leave", state.__setitem__)
    first = LocalAsker.resume(state)
    first.tally.answers["a"] = True
    with first.guard("compile b"):
        pass
    left(first.guard("compile c"))
    assert can_resume(state)
    second = LocalAsker.resume(state)
    assert second.tally == SearchTally(answers={"a": True})
    with second.guard("compile c") as asked_again, second.guard("compile b") as another:
        assert (asked_again, another) == (False, True)
    program = Program(given(("x", torch.ones(1))), (), Ref("x"))
    left(second.guard_eager(program))
    third = LocalAsker.resume(state)
    assert len(third.fatal) == 2
    with guard_runs(third.guard_eager):
        assert evaluate(program).failed == 0


def test_too_many_lost_workers_end_it(monkeypatch):
    state: dict[str, str] = {}
    monkeypatch.setattr("fuzzcompile.diagnosis.worker.minimize_task.leave", state.__setitem__)
    over, goes_on = [], []
    for number in range(4):
        asked = LocalAsker.resume(state)
        left(asked.guard(f"compile {number}"))
        over.append(asked.is_over)
        goes_on.append(can_resume(state))
    assert goes_on == [True, True, True, False]
    assert over == [False, False, False, True], "the last worker only concludes"
