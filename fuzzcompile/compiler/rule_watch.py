"""What the judged compile of a case showed of a focus."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator

import torch

from fuzzcompile.compiler.rule_catalogue import get_target_name, list_known_rules
from fuzzcompile.compiler.source_probes import LineWatch, watch_lines
from fuzzcompile.compiler.watch.ledger import Ledger
from fuzzcompile.compiler.watch.pass_patches import list_plain_passes
from fuzzcompile.compiler.watch.rule_labels import explain_refusals, get_base_name
from fuzzcompile.model.focus_plan import FocusObservation, FocusWatch, Span
from fuzzcompile.run.worker import current_device, say

# The probes of this process: they stay for as long as the same lines are watched, because setting them takes a second.
_probes: dict[tuple[Span, ...], LineWatch] = {}
_installed_probes = contextlib.ExitStack()


@contextlib.contextmanager
def watch_focus(watch: FocusWatch) -> Iterator[Callable[[Ledger], FocusObservation]]:
    """Watch what is compiled in the block; what is yielded says what a ledger, and the lines until then, showed."""
    probes = _find_probes(watch.spans)
    if probes is not None:
        probes.clear()
    with explain_refusals(watch.rules):
        yield lambda ledger: _observe(watch, ledger, probes)


def _find_probes(spans: tuple[Span, ...]) -> LineWatch | None:
    if spans not in _probes:
        _probes.clear()
        _installed_probes.close()
        if not spans:
            return None
        _probes[spans] = _installed_probes.enter_context(watch_lines(spans))
    return _probes[spans]


def _observe(watch: FocusWatch, ledger: Ledger, probes: LineWatch | None) -> FocusObservation:
    ran = probes.list_executed() if probes is not None else set()
    met = {place for place in ran if any(place.overlaps(span) for span in watch.spans)}
    checks = Counter({(rule.stage, rule.rewrite, why): count for (rule, why), count in ledger.checks.items()})
    return FocusObservation(
        checks=dict(checks),
        operators=frozenset(_list_called_operators(ledger).intersection(watch.operators))
        if watch.operators
        else frozenset(),
        spans=frozenset(span for span in watch.spans if any(map(span.overlaps, met))),
        lines=frozenset((place.file, place.first) for place in met),
        unwatched=tuple(probes.unwatched) if probes is not None else (),
    )


def _list_called_operators(ledger: Ledger) -> set[str]:
    """The operators that the graphs of a compile called, before and after every rewrite."""
    snapshots = (shot for frame in ledger.frames for record in frame.records for shot in record.snapshots)
    return {get_target_name(target) for snapshot in snapshots for target in snapshot.called_targets}


# The rewrites and passes that can be vetoed, as a worker knows them.

RuleNames = tuple[str, str, str]


def list_rules() -> list[RuleNames]:
    """Stage, name and name without variant of all that the compiler registers for this worker's device.

    The stage of a function that any stage may call is an empty string.
    """
    say("looking up what can be vetoed")
    rows = [row for row in list_known_rules(torch.device(current_device())) if row.kind in ("pass", "pattern")]
    named = {(row.stage, row.name) for row in rows} | {("", name) for name in list_plain_passes()}
    return sorted((stage, name, get_base_name(name)) for stage, name in named)
