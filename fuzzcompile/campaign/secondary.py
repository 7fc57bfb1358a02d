"""Candidates of a reduction that failed in another way: findings of their own, judged and stored."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fuzzcompile.campaign.pool import Limits
from fuzzcompile.case import source_hash
from fuzzcompile.commands.triage import triage_files
from fuzzcompile.corpus import CaseRecord, Store, public_id
from fuzzcompile.execution.device import resolve
from fuzzcompile.execution.environment import describe

# Most of what one reduction catches is one bug in many sizes.
_MOST = 4
ORIGIN = "reduction"


@dataclass(frozen=True)
class Caught:
    """A candidate that is a bug: the finding that it was stored as, and whether nobody knew of it."""

    finding: str
    signature: str
    verdict: str
    is_new: bool


def store_by_catch(
    store: Store,
    sources: Sequence[str],
    *,
    device: str,
    vetoes: tuple[str, ...] = (),
    plants: Sequence[Path] = (),
    limits: Limits | None = None,
) -> list[Caught]:
    """Judge the sources that the corpus does not have, the smallest first and only a few, and store those with a bug.

    Raises:
        EnvironmentUnfit: no worker can be started.
    """
    new = sorted((one for one in sources if not store.has_source(source_hash(one))), key=len)[:_MOST]
    environment = describe(resolve(device)) if new else {}
    found: list[Caught] = []
    with tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder:
        paths = [Path(folder, f"other_{number}.py") for number in range(len(new))]
        for path, source in zip(paths, new, strict=True):
            path.write_text(source, encoding="utf-8")
        answers = triage_files(paths, device=device, vetoes=vetoes, plants=plants, limits=limits) if new else iter(())
        for source, answer in zip(new, answers, strict=True):
            if answer.report is None or not answer.report["is_bug"]:
                continue
            record = CaseRecord(source_hash(source), source, ORIGIN)
            stored = store.record(None, record, environment, answer.report)
            if stored.finding_id is not None:
                name, report = public_id(stored.finding_id), answer.report
                found.append(Caught(name, report["signature"], report["verdict"], stored.is_new_finding))
    return found
