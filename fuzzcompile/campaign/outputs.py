"""The files that a campaign writes besides the corpus: its log, its summary, its findings as SARIF."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

from fuzzcompile import __version__
from fuzzcompile.campaign.events import Event, Finished
from fuzzcompile.campaign.log import CampaignLog
from fuzzcompile.corpus import Finding, Store
from fuzzcompile.reporting.event_log import EventLog
from fuzzcompile.reporting.files import check_writable, write_whole
from fuzzcompile.reporting.sarif import Scanned
from fuzzcompile.reporting.sarif import sarif as sarif_log


class CampaignOutputs(contextlib.ExitStack):
    """The requested files of one campaign; all are checked before the campaign starts.

    Args:
        log: the file to which each event is appended when it happens.
        sarif: the file for the findings that the campaign hit.
        summary: the file for `Finished.to_json`, written whole at the end, after an interrupt too.
        location: the location of the corpus.

    Raises:
        UsageError: a file cannot be written.
    """

    def __init__(self, log: Path | None, sarif: Path | None, summary: Path | None, location: str | None) -> None:
        super().__init__()
        self._sarif, self._summary, self._location = sarif, summary, location
        for path, option in ((sarif, "--sarif"), (summary, "--summary")):
            if path is not None:
                check_writable(path, option)
        self._log = CampaignLog(self.enter_context(EventLog(log)))

    def before(self, handle: Callable[[Event], object]) -> Callable[[Event], None]:
        """Return a handler that logs each event and then passes it to ``handle``."""

        def logged(event: Event) -> None:
            self._log.handle(event)
            handle(event)

        return logged

    def finish(self, finished: Finished) -> None:
        """Write the last event, the summary and the findings.

        Raises:
            UsageError: a file cannot be written any more.
        """
        self._log.handle(finished)
        if self._summary is not None:
            text = json.dumps(finished.to_json(), allow_nan=False, indent=1)
            write_whole(self._summary, f"{text}\n".encode(), "--summary")
        if self._sarif is not None:
            write_whole(self._sarif, sarif_log(self._scanned(finished), __version__), "--sarif")

    def _scanned(self, finished: Finished) -> list[Scanned]:
        with Store.open(self._location, create=False) as store:
            return [_scanned(store, store.finding(line.finding)) for line in finished.findings]


def _scanned(store: Store, finding: Finding) -> Scanned:
    """Return a finding with its reproducer, or with its best case as long as there is none."""
    best = store.best_reproducer(finding.id)
    report, source = finding.report, finding.source
    if best is not None and best.report is not None:
        report, source = best.report, best.source
    return Scanned(Path(f"{finding.public_id}.py"), report, finding=finding.public_id, content=source)
