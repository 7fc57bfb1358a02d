"""Minimising one case or stored finding: judge it, shrink it in a worker, keep the reproducer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzzcompile.campaign.pool import Limits, open_pool
from fuzzcompile.campaign.triaging import triage_files
from fuzzcompile.case import source_hash
from fuzzcompile.corpus import CaseRecord, Reproducer, Store
from fuzzcompile.errors import EnvironmentUnfit
from fuzzcompile.execution.pool import WorkerFailed
from fuzzcompile.generation import Profile
from fuzzcompile.work import ShrinkTask, Shrunk, shrink


@dataclass(frozen=True)
class Subject:
    """What is to be minimised: a source with its report, and its recipe and finding where known."""

    source: str
    report: dict[str, Any]
    recipe: CaseRecord | None = None
    finding: str | None = None


def subject_of_file(
    path: Path,
    store: Store | None,
    *,
    device: str,
    vetoes: tuple[str, ...] = (),
    plants: Sequence[Path] = (),
    limits: Limits | None = None,
) -> Subject | None:
    """Judge the case file; None if it is no bug.

    Raises:
        CaseError: the file is no case.
        EnvironmentUnfit: it could not be judged.
    """
    (answer,) = triage_files([path], device=device, vetoes=vetoes, plants=plants, limits=limits)
    if answer.report is None:
        error = EnvironmentUnfit(answer.error or f"{path} could not be judged.")
        error.exit_status = answer.status
        raise error
    if not answer.report["is_bug"]:
        return None
    source = path.read_text(encoding="utf-8")
    recipe = store.case(source_hash(source)) if store is not None else None
    return Subject(source, answer.report, recipe, _finding_of(store, answer.report["signature"]))


def subject_of_finding(store: Store, name: str) -> Subject:
    """A stored finding's best case.

    Raises:
        UsageError: the corpus has no such finding.
    """
    found = store.finding(name)
    return Subject(found.source, found.report, store.case(found.source_sha256), found.public_id)


def minimise(
    subject: Subject,
    *,
    device: str,
    seconds: float,
    vetoes: tuple[str, ...] = (),
    plants: Sequence[Path] = (),
    limits: Limits | None = None,
) -> Shrunk:
    """Shrink the subject in a worker process under its locked signature.

    Raises:
        EnvironmentUnfit: the worker was lost.
    """
    recipe = subject.recipe
    task = ShrinkTask(
        subject.source,
        subject.report,
        recipe.choices if recipe is not None else None,
        _profile(recipe),
        seconds,
        tests=200,
        vetoes=vetoes,
    )
    with open_pool(device, 1, plants=plants, limits=limits) as pool:
        try:
            return pool.schedule(shrink, (task,), time_limit=seconds + 300.0).result()
        except WorkerFailed as error:
            raise EnvironmentUnfit(
                f"The worker was lost while it minimised: {error}; try a larger --memory."
            ) from error


def keep(store: Store, finding: str, shrunk: Shrunk) -> None:
    """Store the reproducer with its finding."""
    store.add_reproducer(
        finding,
        Reproducer(
            source=shrunk.reproducer,
            sha256=source_hash(shrunk.reproducer),
            lines=shrunk.lines_after,
            kind="recipe" if shrunk.case is not None else "as found",
            confirmed=shrunk.confirmed,
            torch=shrunk.report["torch"],
            report=shrunk.report,
            neighbour=None,
        ),
    )


def _profile(recipe: CaseRecord | None) -> Profile:
    """The profile that the recipe was drawn under: its choices mean nothing under another."""
    drawn = (recipe.spec or {}).get("profile") if recipe is not None else None
    if drawn is None:
        return Profile()
    return Profile(drawn["near_misses"], tuple(drawn["dtypes"]), drawn["training"])


def _finding_of(store: Store | None, signature: str) -> str | None:
    if store is None:
        return None
    return next((f.public_id for f in store.findings() if f.signature == signature), None)
