"""One mutant hunted: cases are judged under it until one shows a bug or the budget is spent."""

from __future__ import annotations

import itertools
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fuzzcompile.execution.failures import RemoteError, WorkerFailed, WorkerStartFailed
from fuzzcompile.execution.pool import WorkerPool
from fuzzcompile.worker.lost import report_of
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
        steered: judge cases first that reach the line; else cases of the pool in random order.
        seed: of the random order.
    """

    budget: float = 180.0
    steered: bool = True
    seed: int = 0


def hunt(site: Site, pool: Sequence[Pooled], fresh: Fresh, plan: Plan, stop: Callable[[], bool]) -> Answer:
    """Judge cases under a mutant until one shows a bug or the budget is spent: those of the pool, then fresh ones."""
    answer = Answer(asdict(site.mutation), site.stage)
    with tempfile.TemporaryDirectory(prefix="recall-") as name, pool_with(site.mutation.write(Path(name))) as workers:
        try:
            workers.submit(int).result()
        except (RemoteError, WorkerFailed) as error:
            return replace(answer, outcome="not installable", detail=" ".join(str(error).split())[-300:])
        began, attempts, drawing = time.monotonic(), list[Attempt](), list[float]()

        def spent() -> float:
            return sum(attempt.seconds for attempt in attempts) + sum(drawing)

        def over() -> bool:
            late = spent() > plan.budget or time.monotonic() - began > _PATIENCE * plan.budget
            return stop() or late or _settled(attempts)

        for case in itertools.chain(ordered(site, pool, plan), fresh.reaching(site, over, drawing)):
            if over():
                break
            attempts.append(_attempt(workers, Path(name), site, case))
        workers.kill_workers()
    return outcome_of(replace(answer, seconds=round(spent(), 1)), attempts)


def _settled(attempts: Sequence[Attempt]) -> bool:
    """Whether nothing can change the answer any more: of errors, several are needed to tell a loud mutant."""
    bugs = [attempt for attempt in attempts if attempt.is_bug]
    if not bugs:
        return False
    reached = [attempt for attempt in attempts if attempt.reached]
    return any(attempt.verdict not in ERRORS for attempt in reached) or len(reached) >= _LOUD


def _attempt(workers: WorkerPool, folder: Path, site: Site, case: Pooled) -> Attempt:
    """Judge a case; the loss of a worker is believed when it happens twice, as in a campaign."""
    path = case_file(folder, case.sha256, case.source)
    attempt = Attempt(case.sha256, case.screen, probe=site.probe in case.shown.reached)
    began = time.monotonic()
    for again in (False, True):
        marker = folder / f"{path.stem}.{again}"
        task = judge_task(path, screen=case.screen, marker=str(marker))
        try:
            shown = workers.submit(judge_watched, task, case.shown.values).result()
        except WorkerStartFailed as error:
            attempt = replace(attempt, seconds=time.monotonic() - began)
            return replace(attempt, verdict="crash", is_bug=True, reached=True, detail=str(error)[:200])
        except WorkerFailed as error:
            attempt = replace(attempt, seconds=time.monotonic() - began)
            early = _verdict_of(marker)
            if early is not None and early["is_bug"]:  # the proof was lost, and the finding was not
                return replace(attempt, verdict=early["verdict"], is_bug=True, reached=True, detail=str(error)[:200])
            if again and marker.exists():
                report = report_of(error, path.stem, torch.__version__, "cpu")
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


def _verdict_of(marker: Path) -> dict[str, Any] | None:
    try:
        text = marker.read_text(encoding="utf-8")
        return json.loads(text) if text else None
    except (OSError, ValueError):
        return None


def ordered(site: Site, pool: Sequence[Pooled], plan: Plan) -> Iterator[Pooled]:
    """Cases in the order in which they are judged under a mutant; only those that the compiler as it is gets right."""
    clean = [case for case in pool if case.clean]
    rng = random.Random(f"recall {plan.seed} {site.mutation.id}")
    if not plan.steered:
        rng.shuffle(clean)
        yield from clean
        return
    reaching = [case for case in clean if site.probe in case.shown.reached]
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
