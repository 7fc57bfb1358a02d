"""One mutant hunted: cases are judged under it until one shows a bug or the budget is spent."""

from __future__ import annotations

import itertools
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fuzzcompile.diagnosis.worker.worker_loss import make_loss_report, read_left
from fuzzcompile.run.pool.worker import RemoteError, WorkerFailed, WorkerStartFailed
from fuzzcompile.run.pool.worker_pool import WorkerPool
from recalling.answers import ERRORS, Answer, Attempt, outcome_of
from recalling.fresh import Fresh
from recalling.naming import named
from recalling.sampling import Site
from recalling.survey import Pooled, judge_task, pool_with
from recalling.worker import Shown, case_file, judge_watched

# Cases that reach the line and must all fail before a mutant counts as loud, if the pool has as many.
_LOUD = 4
# One full compile for so many screens, where a line is reached by both.
_SCREENS = 3
# Waiting on a busy machine, in units of the budget.
_PATIENCE = 5.0


@dataclass(frozen=True)
class Plan:
    """How mutants are hunted.

    Attributes:
        budget: processor seconds of judging that a mutant gets; it is also given up after five times as long.
        steered: judge cases first that reach the line; else cases of the pool in random order, of which those that do
            not reach it are not compiled again: they cannot show it, and cost what they cost in the survey.
        seed: of the random order.
        attribute: have what is shown attributed; else the hunt ends with the first bug.
        fresh: go on with new cases, drawn like those that reach the line, once those of the pool are used up.
    """

    budget: float = 180.0
    steered: bool = True
    seed: int = 0
    attribute: bool = True
    fresh: bool = True


def hunt(site: Site, pool: Sequence[Pooled], fresh: Fresh, plan: Plan, stop: Callable[[], bool]) -> Answer:
    """Judge cases under a mutant until one shows a bug or the budget is spent: those of the pool, then fresh ones."""
    answer, cases = Answer(asdict(site.mutation), site.stage), ordered(site, pool, plan)
    if not cases and not plan.fresh:
        return outcome_of(answer, [])
    with tempfile.TemporaryDirectory(prefix="recall-") as name, pool_with(site.mutation.write(Path(name))) as workers:
        try:
            workers.submit(int).result()
        except (RemoteError, WorkerFailed) as error:
            return replace(answer, outcome="not installable", detail=" ".join(str(error).split())[-300:])
        began, attempts, passing = time.monotonic(), list[Attempt](), list[float]()

        def spent() -> float:
            return sum(attempt.seconds for attempt in attempts) + sum(passing)

        def over() -> bool:
            late = spent() > plan.budget or time.monotonic() - began > _PATIENCE * plan.budget
            return stop() or late or _settled(attempts, plan)

        drawn = ((case, 0.0) for case in fresh.reaching(site, over, passing)) if plan.fresh else ()
        for case, seconds in itertools.chain(cases, drawn):
            passing.append(seconds)
            if over():
                break
            # One attribution is enough, that of the first bug that is silent, or of the first.
            known = any(attempt.is_bug for attempt in attempts)
            attempt = _attempt(workers, Path(name), site, case, attribute=plan.attribute and not known)
            if plan.attribute and known and attempt.is_bug and attempt.verdict not in ERRORS:
                attempt = _attempt(workers, Path(name), site, case, attribute=True)
            attempts.append(attempt)
        workers.kill_workers()
    return outcome_of(replace(answer, seconds=round(spent(), 1)), attempts)


def _settled(attempts: Sequence[Attempt], plan: Plan) -> bool:
    """Whether nothing can change the answer any more: of errors, several are needed to tell a loud mutant."""
    bugs = [attempt for attempt in attempts if attempt.is_bug]
    if not bugs or not plan.attribute:
        return bool(bugs)
    reached = [attempt for attempt in attempts if attempt.reached]
    return any(attempt.verdict not in ERRORS for attempt in reached) or len(reached) >= _LOUD


def _attempt(workers: WorkerPool, folder: Path, site: Site, case: Pooled, *, attribute: bool) -> Attempt:
    """Judge a case; the loss of a worker is believed when it happens twice, as in a campaign."""
    path = case_file(folder, case.sha256, case.source)
    attempt = Attempt(case.sha256, case.screen, probe=site.probe in case.shown.reached)
    began = time.monotonic()
    for again in (False, True):
        task = judge_task(path, screen=case.screen, attribute=attribute)
        try:
            shown = workers.submit(judge_watched, task, case.shown.values).result()
        except WorkerStartFailed as error:
            attempt = replace(attempt, seconds=time.monotonic() - began)
            return replace(attempt, verdict="crash", is_bug=True, reached=True, detail=str(error)[:200])
        except WorkerFailed as error:
            attempt = replace(attempt, seconds=time.monotonic() - began)
            compiling, early = read_left(error.left)
            if early is not None and early["is_bug"]:  # the proof was lost, and the finding was not
                return replace(attempt, verdict=early["verdict"], is_bug=True, reached=True, detail=str(error)[:200])
            if again and compiling:
                report = make_loss_report(error, path.stem, torch.__version__, "cpu")
                lost = replace(attempt, verdict=report["verdict"], is_bug=True, reached=True, detail=str(error)[:200])
                return replace(lost, named=named(site.mutation, report), culprit=_brief(report))
        except Exception as error:  # whatever a case raises, the hunt goes on without it
            return replace(attempt, detail=f"not judged: {str(error)[-200:]}")
        else:
            return _of(attempt, shown, case, site)
    return replace(attempt, detail="not judged: the worker was lost before eager mode had finished")


def _of(attempt: Attempt, shown: Shown, case: Pooled, site: Site) -> Attempt:
    report, attempt = shown.report, replace(attempt, seconds=round(shown.seconds, 2))
    if report is None:
        return replace(attempt, reached=bool(shown.reached), detail=f"not judged: {shown.refused[:200]}")
    return replace(
        attempt,
        verdict=report["verdict"],
        is_bug=report["is_bug"],
        reached=bool(shown.reached),
        same_values=shown.values == case.shown.values,
        same_code=shown.code == case.shown.code,
        in_float64=shown.in_float64,
        named=named(site.mutation, report) if report["is_bug"] else "",
        culprit=_brief(report),
        detail=(report.get("detail") or "")[:200],
    )


def _brief(report: dict[str, Any]) -> list[str]:
    """Culprit and contributors, each on one line."""
    places = [place for place in (report.get("culprit"), *(report.get("contributors") or ())) if place]
    return [
        f"{place['stage']}: {place.get('rewrite') or place.get('pass') or place.get('family')} "
        f"({place.get('source')}:{place.get('line')})"
        for place in places[:4]
    ]


def ordered(site: Site, pool: Sequence[Pooled], plan: Plan) -> list[tuple[Pooled, float]]:
    """Cases that reach the line, in the order in which they are judged under a mutant.

    Returns:
        cases that the compiler as it is gets right, each with the processor seconds of those passed over before it.
    """
    clean = [case for case in pool if case.clean]
    if not plan.steered:
        random.Random(f"recall {plan.seed} {site.mutation.id}").shuffle(clean)
        return list(_passing(site, clean, plan.budget))
    reaching = [case for case in clean if site.probe in case.shown.reached]
    return [(case, 0.0) for case in _in_turn(reaching)]


def _passing(site: Site, cases: Sequence[Pooled], budget: float) -> Iterator[tuple[Pooled, float]]:
    """Of cases in their order those that reach the line, until the others alone have taken the budget."""
    passed = 0.0
    for case in cases:
        if site.probe in case.shown.reached:
            yield case, passed
            budget -= passed
            passed = 0.0
        else:
            passed += case.shown.seconds
        if passed > budget:
            return


def _in_turn(reaching: Sequence[Pooled]) -> Iterator[Pooled]:
    screens = _diverse([case for case in reaching if case.screen])
    full = _diverse([case for case in reaching if not case.screen])
    while screens or full:
        yield from (screens.pop(0) for _ in range(min(_SCREENS, len(screens))))
        if full:
            yield full.pop(0)


def _diverse(cases: list[Pooled]) -> list[Pooled]:
    """The cheapest first, and among them those whose features have been tried least."""
    left, tried, result = sorted(cases, key=lambda case: case.shown.seconds), Counter[str](), []
    while left:
        ahead = left[:12]
        case = min(ahead, key=lambda case: (1 + case.shown.seconds) * (1 + _tried(case, tried)))
        left.remove(case)
        tried.update(case.features)
        result.append(case)
    return result


def _tried(case: Pooled, tried: Counter[str]) -> float:
    return sum(tried[name] for name in case.features) / max(1, len(case.features))
