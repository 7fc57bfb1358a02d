"""Whose report a finding shows."""

from __future__ import annotations

from collections.abc import Mapping

from fuzzcompile.model.signatures import agree


def speaks_for(signature: str, reproduced: Mapping[str, object], judged: Mapping[str, object]) -> bool:
    """Whether a finding shows the report on its confirmed reproducer, rather than that on its best run.

    It does, so that all that is said of it is about the script that is shown. Only a report that lost the place in the
    compiler on the way, where the run proved it, gives way.

    Args:
        signature: the finding's.
        reproduced: the report on the reproducer.
        judged: the report on the best run.
    """
    if not reproduced.get("is_bug"):
        return False
    return agree(str(reproduced.get("signature") or signature), signature) or not _proves(judged)


def _proves(report: Mapping[str, object]) -> bool:
    culprit = report.get("culprit")
    return isinstance(culprit, Mapping) and culprit.get("necessary") is True
