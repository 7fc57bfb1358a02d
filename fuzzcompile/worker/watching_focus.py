"""What the judged compile of a case showed of a focus."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator

from fuzzcompile.compiler.ledger import Ledger
from fuzzcompile.compiler.lines import Lines, watching_lines
from fuzzcompile.compiler.refusals import explaining
from fuzzcompile.compiler.rule_code import operator_name
from fuzzcompile.focusing.plan import Seen, Watch
from fuzzcompile.span import Span

# The probes of this process: they stay for as long as the same lines are watched, because setting them takes a second.
_probes: dict[tuple[Span, ...], Lines] = {}
_installed = contextlib.ExitStack()


@contextlib.contextmanager
def watching(watch: Watch) -> Iterator[Callable[[Ledger], Seen]]:
    """Watch what is compiled in the block; what is yielded says what a ledger, and the lines until then, showed."""
    probes = _probing(watch.spans)
    if probes is not None:
        probes.clear()
    with explaining(watch.rules):
        yield lambda ledger: _seen(watch, ledger, probes)


def _probing(spans: tuple[Span, ...]) -> Lines | None:
    if spans not in _probes:
        _probes.clear()
        _installed.close()
        if not spans:
            return None
        _probes[spans] = _installed.enter_context(watching_lines(spans))
    return _probes[spans]


def _seen(watch: Watch, ledger: Ledger, probes: Lines | None) -> Seen:
    ran = probes.executed() if probes is not None else set()
    met = {place for place in ran if any(place.meets(span) for span in watch.spans)}
    checks = Counter({(rule.stage, rule.rewrite, why): count for (rule, why), count in ledger.checks.items()})
    return Seen(
        checks=dict(checks),
        operators=frozenset(_called(ledger).intersection(watch.operators)) if watch.operators else frozenset(),
        spans=frozenset(span for span in watch.spans if any(map(span.meets, met))),
        lines=frozenset((place.file, place.first) for place in met),
        unwatched=tuple(probes.unwatched) if probes is not None else (),
    )


def _called(ledger: Ledger) -> set[str]:
    """The operators that the graphs of a compile called, before and after every rewrite."""
    snapshots = (shot for frame in ledger.frames for record in frame.records for shot in record.snapshots)
    return {operator_name(target) for snapshot in snapshots for target in snapshot.called}
