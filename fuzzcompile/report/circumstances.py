"""What bears on a verdict beside the outputs: stages, graph breaks, randomness, warnings, notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fuzzcompile.model.contract import EvidenceJson, ReportJson
from fuzzcompile.report.told import stages_looked_at

_NAMES = 6  # rewrites, warnings and notes shown
_BREAK = 200  # characters shown of a graph break's reason


def circumstances(report: ReportJson) -> Iterator[str]:
    """Other facts that bear on the verdict, if any."""
    yield from stages_looked_at(report)
    yield from _of_evidence(report.get("evidence") or {})


def _of_evidence(evidence: EvidenceJson) -> Iterator[str]:
    graphs, breaks = evidence.get("graphs") or 0, evidence.get("graph_breaks") or ()
    if graphs > 1 or breaks:
        shown = [text if len(text) <= _BREAK else text[: _BREAK - 4] + " ..." for text in breaks]
        yield f"graphs: {graphs}" + (f"; broken by {several(shown, '; ')}" if breaks else "")
    if not evidence.get("eager_deterministic", True):
        yield "eager is not deterministic: it differs from run to run"
    if evidence.get("randomness"):
        yield f"random numbers: {evidence['randomness']}"
    survives = evidence.get("survives_float64")
    if survives is not None:
        yield "compiled in float64 the difference is " + (
            "still there: precision does not explain it" if survives else "gone"
        )
    if evidence.get("warnings"):
        yield f"warnings of one run alone: {several(evidence['warnings'], '; ')}"
    for note in (evidence.get("notes") or ())[:_NAMES]:
        yield f"note: {note}"


def several(texts: Sequence[str], separator: str) -> str:
    """The first of them on one line, and how many more there are."""
    shown = [" ".join(str(text).split()) for text in texts[:_NAMES]]
    more = f" and {len(texts) - _NAMES} more" if len(texts) > _NAMES else ""
    return separator.join(shown) + more
