"""Catalogue of the installed torch's passes, patterns, operators and settings, with their counts in the corpus."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar

import torch

from fuzzcompile.compiler.rule_catalogue import Kind, KnownRule, list_known_rules
from fuzzcompile.corpus.records import CorpusError, StoredCoverage, identify_compiler
from fuzzcompile.corpus.store import Store
from fuzzcompile.diagnosis.worker.local_pool import open_pool
from fuzzcompile.diagnosis.worker.worker_loss import make_start_error
from fuzzcompile.model.conditions import Conditions, Limits
from fuzzcompile.model.stages import DECOMPOSITION, LOWERING, SCHEDULER
from fuzzcompile.run.pool.worker import WorkerStartFailed

# Everything that the compiler registers for a device, or for a target, for which a process of its own compiles.

# A process that compiles for a target registers its patterns first; trying all of those for attention takes minutes.
_SECONDS = 900.0

Result = TypeVar("Result")


def list_known(device: torch.device, target: str | None) -> list[KnownRule]:
    """Everything that the installed torch registers for ``device``, or for the target.

    Raises:
        EnvironmentUnfit: no worker can be started for the target.
    """
    return list_known_rules(device) if target is None else ask_target(target, _list_sendable, device)


def _list_sendable(device: torch.device) -> list[KnownRule]:
    """Return what is registered, without torch's own objects, which a process cannot send."""
    return [replace(row, made_of=()) for row in list_known_rules(device)]


def ask_target(target: str, ask: Callable[[torch.device], Result], device: torch.device) -> Result:
    """Return the result of ``ask`` for ``device`` in a process that compiles for the target.

    Raises:
        EnvironmentUnfit: no worker can be started for it.
    """
    with open_pool(Conditions(str(device), limits=Limits(_SECONDS), target=target), 1) as pool:
        try:
            return pool.submit(ask, device).result()
        except WorkerStartFailed as error:
            raise make_start_error(error) from error


UNREGISTERED = "not registered in this torch"
# What the corpus counts there are shapes of kernels, which torch does not register.
_UNLISTED = (SCHEDULER,)
_KINDS: Mapping[str, Kind] = {DECOMPOSITION: "decomposition", LOWERING: "lowering"}
# Outcomes by stage and name, and by the pass that ran the rewrite.
_Counts = Mapping[tuple[str, str], Mapping[str, Counter[str]]]


@dataclass(frozen=True)
class ListedPass:
    """One pass, pattern, operator or setting with its counts in the corpus.

    ``fired``, ``refused`` (by the rule's own check) and ``fallback`` (an operator with a lowering was called all the
    same) are None where there is no corpus, or where nothing of the kind is counted.
    """

    known: KnownRule
    fired: int | None = None
    refused: int | None = None
    fallback: int | None = None

    def to_json(self) -> dict[str, object]:
        """Everything, as plain JSON."""
        counts = {} if self.known.kind == "setting" else {"fired": self.fired, "refused": self.refused}
        own = {key: value for key, value in vars(self.known).items() if key != "made_of"}
        facts = {key: value for key, value in own.items() if value not in (None, "") or key == "on"}
        return {**facts, **counts}


@dataclass(frozen=True)
class PassListing:
    """All of them, and the corpus in which they were counted (None: there is none)."""

    rows: list[ListedPass]
    corpus: str | None


def list_passes(
    device: torch.device, location: str | None, *, target: str | None = None, until: datetime | None = None
) -> PassListing:
    """The catalogue of the installed torch with the counts of a corpus.

    Rewrites that the corpus saw under this torch but torch does not register (a user's own passes) are added.

    Args:
        device: where the passes would run.
        location: path or URL of the corpus; None for the default one, without which the counts are left out.
        target: list what is registered for this target, and what campaigns for it reached.
        until: what a case judged later was the first to reach counts as never reached.

    Raises:
        CorpusError: ``location`` was given, and there is no corpus.
    """
    known = list_known(device, target)
    compiler = identify_compiler({"torch": str(torch.__version__), "target": target})
    try:
        with Store.open(location, create=False) as store:
            seen, corpus = store.coverage(compiler, until=until), store.location
    except CorpusError:
        if location is not None:
            raise
        return PassListing([ListedPass(row) for row in known], None)
    return PassListing(list(_count_rules(known, seen)), corpus)


def _count_rules(known: Iterable[KnownRule], seen: Iterable[StoredCoverage]) -> Iterator[ListedPass]:
    counts = defaultdict[tuple[str, str], dict[str, Counter[str]]](lambda: defaultdict(Counter))
    for row in seen:
        counts[row.stage, row.rewrite][row.pass_name or ""][row.outcome] += row.count
    rows = list(known)
    passes = defaultdict[tuple[str, str], set[str]](set)
    for rule in rows:
        passes[rule.stage, rule.name].add(rule.pass_name or "")
    listed = []
    for rule in rows:
        by_pass = counts.get((rule.stage, rule.name), {})
        # A name that stands once is counted whatever pass ran it: tables without a name get that of their caller.
        alone = len(passes[rule.stage, rule.name]) == 1
        listed.append(
            _make_listed_pass(rule, by_pass.values() if alone else [by_pass.get(rule.pass_name or "", Counter())])
        )
    unregistered = {at: by_pass for at, by_pass in counts.items() if at not in passes and at[0] not in _UNLISTED}
    yield from _add_patterns(listed, unregistered)
    for (stage, name), by_pass in unregistered.items():
        own = KnownRule(stage, _KINDS.get(stage, "pass"), name, next(iter(by_pass)) or None, when=UNREGISTERED)
        yield _make_listed_pass(own, by_pass.values())


def _make_listed_pass(rule: KnownRule, counts: Iterable[Counter[str]]) -> ListedPass:
    if rule.kind == "setting":
        return ListedPass(rule)
    total = sum(counts, Counter[str]())
    return ListedPass(rule, total["fired"], total["refused"], total["fallback"] if rule.kind == "lowering" else None)


def _add_patterns(listed: list[ListedPass], unregistered: _Counts) -> Iterator[ListedPass]:
    """Count a table of patterns as often as its patterns fired, and a pass as often as the rules that it makes."""
    inside = defaultdict[tuple[str, str | None], Counter[str]](Counter)
    for row in listed:
        if row.known.kind == "pattern":
            inside[row.known.stage, row.known.pass_name].update(fired=row.fired or 0, refused=row.refused or 0)
    for (stage, _), by_pass in unregistered.items():
        for pass_name, outcomes in by_pass.items():
            inside[stage, pass_name].update(outcomes)
    for row in listed:
        if row.known.kind == "pass":
            more = inside[row.known.stage, row.known.name]
            row = replace(row, fired=(row.fired or 0) + more["fired"], refused=(row.refused or 0) + more["refused"])
        yield row
