"""``fuzzcompile run``."""

from __future__ import annotations

import json
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuzzcompile import hints
from fuzzcompile.cli import options
from fuzzcompile.cli.configured import configured
from fuzzcompile.errors import EnvironmentUnfit, UsageError
from fuzzcompile.worker.conditions import Conditions

if TYPE_CHECKING:
    from fuzzcompile.focusing.asked import Asked

# Worker processes of one machine, each with a torch of its own.
_MOST_HERE = 256


@click.command()
@click.option("--budget", default="10m", show_default=True, metavar="90s|10m|1h|200c", help="Time or number of cases.")
@options.conditions
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0, 2**63 - 1), help="Which cases are drawn.")
@configured(
    "workers",
    type=click.IntRange(1, 10_000),
    help="Worker processes; default: by processors. With --cluster, how many cases are there at once; default: as many "
    "as its workers take.",
)
@click.option(
    "--cluster",
    default=None,
    metavar="ADDRESS",
    help="Run cases on a Dask cluster instead: tcp://HOST:PORT, tls://HOST:PORT, a scheduler file, or local:N for N "
    "Dask workers on this machine. Needs the extra `cluster`.",
)
@click.option(
    "--torch",
    default=None,
    metavar="VERSION",
    help="With --cluster: only workers with this torch (2.15.0 or 2.15.0+cpu); default: what most of them have.",
)
@options.corpus
@click.option("--max-findings", default=None, type=click.IntRange(1), help="Stop after this many new findings.")
@click.option("--no-near-misses", is_flag=True, help="Draw only plain idioms, no near misses.")
@click.option(
    "--from",
    "origin",
    default=None,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="CASE",
    help="Draw variations of this case file instead: of its sizes, dtypes, layouts, program and compile settings.",
)
@click.option(
    "--focus",
    multiple=True,
    metavar="WHAT",
    help="Aim at a rule, pass, family or operator by its label, or at FILE, FILE:LINE or FILE:FROM-TO of the compiler: "
    "programs of the rule and near misses of them, under the settings that it needs. May be given several times.",
)
@click.option(
    "--changed",
    multiple=True,
    metavar="REV",
    help="Aim at the rules whose code a git diff of a checkout of PyTorch with REV touches.",
)
@click.option(
    "--checkout",
    default=None,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="The checkout for --changed; default: this folder.",
)
@click.option(
    "--source",
    "drawn_from",
    default="generator",
    show_default=True,
    type=click.Choice(("generator", "opinfo")),
    help="Draw cases from the generator, or sweep the sample and error inputs of torch's own tables of operators.",
)
@click.option("--screen-only", is_flag=True, help="Generate code only for cases whose graphs look wrong.")
@click.option("--full-only", is_flag=True, help="Generate code for every case.")
@click.option("--no-steering", is_flag=True, help="Draw cases uniformly, whatever earlier cases found.")
@click.option("--fail-on-finding", is_flag=True, help="Exit with 1 if there is a finding.")
@options.fail_on
@configured(
    "drafts",
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for issue drafts.",
)
@click.option(
    "--summary",
    "summary_file",
    default=None,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write the summary as JSON, that of an interrupted campaign too.",
)
@options.sarif
@options.log
@options.json_output
def run(
    budget: str,
    conditions: Conditions,
    seed: int,
    workers: int | None,
    cluster: str | None,
    torch: str | None,
    location: str | None,
    max_findings: int | None,
    no_near_misses: bool,
    origin: Path | None,
    focus: tuple[str, ...],
    changed: tuple[str, ...],
    checkout: Path | None,
    drawn_from: str,
    screen_only: bool,
    full_only: bool,
    no_steering: bool,
    fail_on_finding: bool,
    fail_on: str | None,
    drafts: Path,
    summary_file: Path | None,
    sarif: Path | None,
    log: Path | None,
    as_json: bool,
) -> int:
    """Run a campaign: generate, judge, attribute, minimize, store and draft.

    The budget counts from the start of the command. What still runs at its end is cut off and kept: a second run on the
    same corpus resumes there, and `fuzzcompile minimize --pending` minimizes the findings that wait for it. Ctrl-C ends
    a campaign with its summary.

    With --pass or --backend, cases are compiled with what is your own, and the summary says in a sentence that may be
    quoted what was tested and what was found. If a pass never fired, nothing was tested, and the exit status is 3.
    Without --focus, --from or --source, a campaign with --pass aims at the pass.

    Most cases are screened: every graph pass runs and is checked, but no code is generated. A case that looks wrong in
    a screen is judged in full. What share is judged in full at once follows what screens and full compiles have each
    found per second.

    With --focus or --changed, the summary says for each rule how often it fired, how often a check refused a match and
    which, and what was missing where it never matched. What is off by default is switched on.

    With --cluster, cases run on the Dask workers that have this fuzzcompile and the right torch and device; others are
    refused with a sentence. Workers may come and go, and what ran on a lost one is judged again.

    --source opinfo sweeps operator by dtype, layout, gradient and samples, and needs the extra `opinfo`. A seed
    permutes the places; when all were judged, the campaign ends.
    """
    from fuzzcompile.campaign.budget import Budget, Clock
    from fuzzcompile.campaign.drawing import Source
    from fuzzcompile.campaign.outputs import CampaignOutputs
    from fuzzcompile.casefiles import read_case_file
    from fuzzcompile.corpus import Store
    from fuzzcompile.focusing.asked import aimed_at_own
    from fuzzcompile.reporting.files import check_writable
    from fuzzcompile.worker.vetoes import check_vetoes

    parsed = Budget.parse(budget)
    clock = Clock(parsed)  # runs from here: starting workers is part of the budget
    if torch is not None and cluster is None:
        raise UsageError("--torch picks among the workers of a --cluster; without one, the installed torch runs.")
    if cluster is None and (workers or 0) > _MOST_HERE:
        raise UsageError(f"--workers is at most {_MOST_HERE} on one machine; --cluster takes more.")
    if screen_only and full_only:
        raise UsageError("A campaign is --screen-only or --full-only, not both.")
    if origin is not None and no_near_misses:
        raise UsageError("--no-near-misses is for generated cases, which --from does not draw.")
    asked = _aimed(focus, changed, checkout, origin)
    sweeps = drawn_from == "opinfo"
    if sweeps and (origin is not None or no_near_misses):
        raise UsageError("--source opinfo sweeps torch's tables: --from and --no-near-misses are for other sources.")
    outputs = CampaignOutputs(log, sarif, summary_file, location)
    check_writable(drafts / "draft.md", "--drafts", parents=True)
    Store.open(location).close()  # what is wrong with the corpus is said before any worker starts
    check_vetoes(conditions, [] if origin is None else [read_case_file(origin)])
    from rich.console import Console

    from fuzzcompile.campaign.crew import gathered, started, survey_case
    from fuzzcompile.campaign.local import run_campaign
    from fuzzcompile.campaign.operators import reading_tables
    from fuzzcompile.campaign.steering import UNIFORM, Strategy
    from fuzzcompile.campaign.terminal import joining, print_summary, progress_handler, starting
    from fuzzcompile.cluster.address import ClusterAddress
    from fuzzcompile.generation import Profile
    from fuzzcompile.severity import Severity
    from fuzzcompile.worker.pool import default_workers

    source: Source | None = survey_case(origin, conditions, clock) if origin is not None else None
    if cluster is not None:
        address = ClusterAddress.parse(cluster)
        click.echo(joining(address), err=True)
        crewed = gathered(address, conditions, workers, clock, torch=torch)
    else:
        workers = workers or default_workers(conditions.device)
        click.echo(starting(workers), err=True)
        crewed = started(conditions, workers, clock)
    with (
        outputs,
        reading_tables() if sweeps and asked is None else nullcontext() as tables,
        crewed as crew,
        progress_handler(Console(stderr=True)) as handler,
        ExitStack() as stack,
    ):
        profile = Profile(near_misses=not no_near_misses)
        if sweeps or asked is not None:
            crew.check_torch_here("--source opinfo" if sweeps else "--focus")
        if tables is not None:
            source = tables(seed, clock)
        if asked is None and source is None:
            asked = aimed_at_own(crew.surroundings.custom)
        if asked is not None:
            source = focused = stack.enter_context(crew.focused(asked.question, profile, clock, seed, sweeps=sweeps))
            for note in (*asked.notes, *focused.notes):
                click.echo(f"Focus: {note}", err=True)
        settings = crew.settings(
            profile,
            clock,
            seed=seed,
            max_findings=max_findings,
            drafts=drafts,
            mix="screen" if screen_only else "full" if full_only else "mixed",
            strategy=UNIFORM if no_steering or sweeps else Strategy(),
            source=source,
        )
        summary = run_campaign(
            settings,
            crew,
            location=location,
            command=hints.typed(),
            on_event=outputs.before(handler.handle),
            clock=clock,
        )
        try:
            outputs.finish(summary)
        except UsageError as error:
            if summary.why is None:
                raise
            click.echo(f"fuzzcompile: {error}", err=True)  # a full disk, say: why the campaign ended comes last
    if as_json:
        click.echo(json.dumps(summary.to_json(), allow_nan=False))
    else:
        print_summary(Console(), summary, conditions.options())
    if summary.why is not None:
        raise EnvironmentUnfit(summary.why)
    if summary.tally.cases and set(summary.tally.verdicts) == {"unjudged"}:
        raise EnvironmentUnfit(f"Not one case could be judged; run `{hints.command('doctor')}`.")
    idle = [certified.sentence for certified in summary.certified if not certified.fired]
    if idle:
        raise EnvironmentUnfit(" ".join(idle) + " Give more budget, or programs that it can match: --from CASE.")
    fails = fail_on_finding and bool(summary.findings)
    return 1 if fails or (fail_on is not None and summary.has_one_of(Severity(fail_on))) else 0


def _aimed(
    focus: tuple[str, ...], changed: tuple[str, ...], checkout: Path | None, origin: Path | None
) -> Asked | None:
    """Return the code that the campaign aims at; None without a focus.

    Raises:
        UsageError: a file, line, checkout or revision that there is not, or --from beside it.
    """
    from fuzzcompile.focusing.asked import asked_for
    from fuzzcompile.worker.torch_sources import folder_of

    if not (focus or changed or checkout):
        return None
    if origin is not None:
        raise UsageError("--from draws variations of one case, and --focus programs of rules: give one of them.")
    torch = folder_of("torch")
    if torch is None:
        raise EnvironmentUnfit("There is no torch installed to aim at.")
    return asked_for(focus, changed, checkout, torch.parent)
