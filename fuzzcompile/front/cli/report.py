"""``fuzzcompile report``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import click

from fuzzcompile.front.cli import options
from fuzzcompile.model.errors import UsageError


@click.command()
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE.html",
    help="The file to write. It holds all that it shows and needs no network.",
)
@click.option(
    "--summary",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="What `fuzzcompile run --summary FILE` wrote: the report then says what that campaign hit, and what was new.",
)
@options.corpus
def report(out: Path, summary: Path | None, location: str | None) -> int:
    """Write the findings of the corpus as one HTML file to send.

    It says what matters first, lists the findings to filter and sort, and has a page for each: reproducer, evidence,
    culprit, graph before and after, other versions of torch. Coverage by stage and the pace of campaigns follow.
    """
    from datetime import UTC, datetime

    from fuzzcompile.corpus.store import Store
    from fuzzcompile.report.files import check_writable, write_whole
    from fuzzcompile.report.pages.corpus_page import Contents, page_of_corpus

    check_writable(out, "--out")
    campaign = None if summary is None else _read_summary(summary)
    with Store.open(location, create=False) as store:
        contents = Contents.of(store)
    page = page_of_corpus(contents, datetime.now(UTC), campaign).encode("utf-8")
    write_whole(out, page, "--out")
    number = len(contents.read.findings)
    click.echo(f"{out}: {number} finding{'' if number == 1 else 's'}, {len(page) / 2**20:.1f} MiB.", err=True)
    return 0


def _read_summary(path: Path) -> Mapping[str, object]:
    """The summary of a campaign.

    Raises:
        UsageError: the file cannot be read, or is none.
    """
    ours = "give the file that `fuzzcompile run --summary` wrote"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}; {ours}.") from error
    except ValueError as error:
        raise UsageError(f"{path} is no summary of a campaign: it holds no JSON; {ours}.") from error
    if not isinstance(content, dict) or not isinstance(content.get("findings"), list) or "cases" not in content:
        raise UsageError(f"{path} is no summary of a campaign; {ours}.")
    return content
