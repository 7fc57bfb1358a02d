"""``fuzzcompile run``."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from fuzzcompile.front.cli import options
from fuzzcompile.front.cli.case_arguments import open_corpus
from fuzzcompile.front.cli.folded_help import FoldedCommand
from fuzzcompile.front.cli.options import setting_option
from fuzzcompile.model import hints
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.custom import Custom
from fuzzcompile.model.errors import EnvironmentUnfit, UsageError

if TYPE_CHECKING:
    from fuzzcompile.fuzz.campaign.budget import BudgetClock, CampaignBudget
    from fuzzcompile.fuzz.campaign.campaign_events import Finished
    from fuzzcompile.fuzz.campaign.campaign_outputs import CampaignOutputs
    from fuzzcompile.fuzz.campaign.campaign_run import CampaignWorkers
    from fuzzcompile.fuzz.campaign.campaign_settings import CampaignSettings
    from fuzzcompile.fuzz.campaign.case_sources import CaseSource
    from fuzzcompile.model.focus_plan import FocusQuestion


# A campaign that is over sooner draws from the generator alone: seconds and cases.
_LEAST_MIXED, _LEAST_MIXED_CASES = 180.0, 300
# Worker processes of one machine, each with a torch of its own.
_MOST_HERE = 256


_no_near_misses = click.option("--no-near-misses", is_flag=True, help="Draw only plain idioms, no near misses.")
_seed = click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(0, 2**63 - 1), help="Which cases are drawn."
)


@click.command(cls=FoldedCommand)
@click.option("--budget", default="10m", show_default=True, metavar="90s|10m|1h|200c", help="Time or number of cases.")
@options.conditions
@_seed
@setting_option(
    "workers",
    type=click.IntRange(1, 10_000),
    help="Worker processes; default: by processors. With --cluster, how many cases are there at once; default: as many "
    "as its workers take.",
)
@click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Run cases on a Dask cluster instead: tcp://HOST:PORT, tls://HOST:PORT, a scheduler file, or local:N for N "
    "Dask workers on this machine. Needs the extra `cluster`.",
)
@click.option(
    "--torch",
    metavar="VERSION",
    help="With --cluster: only workers with this torch (2.15.0 or 2.15.0+cpu); default: what most of them have.",
)
@options.corpus
@click.option("--max-findings", type=click.IntRange(1), help="Stop after this many new findings.")
@_no_near_misses
@click.option(
    "--from",
    "origin",
    type=options.FILE,
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
    "--checkout", type=options.FOLDER, metavar="DIR", help="The checkout for --changed; default: this folder."
)
@click.option(
    "--source",
    "drawn_from",
    default="mixed",
    show_default=True,
    type=click.Choice(("mixed", "generator", "opinfo")),
    help="Draw cases from the generator; sweep the sample and error inputs of torch's own tables of operators; or mix "
    "both with programs made of the compiler's rules.",
)
@click.option(
    "--eager",
    is_flag=True,
    help="With --source opinfo: compile nothing, and hold eager mode against a second reference.",
)
@click.option(
    "--nproc",
    type=click.IntRange(2, 64),
    metavar="N",
    help="Draw programs that N processes run together: modules under DDP, FSDP2 and tensor parallelism, collectives, "
    "tensors in parts. Of more than 4, up to 64, all but one are imitated.",
)
@click.option("--screen-only", is_flag=True, help="Generate code only for cases whose graphs look wrong.")
@click.option("--full-only", is_flag=True, help="Generate code for every case.")
@click.option("--no-steering", is_flag=True, help="Draw cases uniformly, whatever earlier cases found.")
@click.option("--fail-on-finding", is_flag=True, help="Exit with 1 if there is a finding.")
@options.fail_on
@setting_option("drafts", show_default=True, type=options.FOLDER, help="Folder for issue drafts.")
@options.output_file(
    "--summary", "summary_file", help="Also write the summary as JSON, that of an interrupted campaign too."
)
@options.sarif
@options.log
@options.json_output
def run(**options: Any) -> int:
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

    The mix follows what each kind of case has found a second, the worst bugs first. Making its programs and reading the
    tables takes time, so that campaigns of less than 3 minutes or 300 cases draw from the generator alone.

    --source opinfo sweeps operator by dtype, layout, gradient and samples. A seed permutes the places; when all were
    judged, the campaign ends. With --eager nothing is compiled: each operator's
    kernels are held against float64, formulas, decompositions and contiguous copies, for layouts of operands and
    cotangents and two classes of sizes, and a finding is an operator that is wrong in eager mode.

    With --nproc every case is judged by N processes on gloo, as `fuzzcompile triage --nproc` judges a script; each
    worker keeps the other processes of its cases. A case file says how many it needs (NPROC), so that a finding is
    judged, minimized and replayed with as many. Beyond 4, one process judges a case with torch's fake group, as if all
    the others held what it holds.
    """
    return _CampaignCommand(**options).run()


@dataclass
class _CampaignCommand:
    budget: str
    conditions: Conditions
    seed: int
    workers: int | None
    cluster: str | None
    torch: str | None
    location: str | None
    max_findings: int | None
    no_near_misses: bool
    origin: Path | None  # the case of ``--from``
    focus: tuple[str, ...]
    changed: tuple[str, ...]
    checkout: Path | None
    drawn_from: Literal["mixed", "generator", "opinfo"]  # ``--source``
    eager: bool
    nproc: int | None
    screen_only: bool
    full_only: bool
    no_steering: bool
    fail_on_finding: bool
    fail_on: str | None
    drafts: Path
    summary_file: Path | None
    sarif: Path | None
    log: Path | None
    as_json: bool

    @property
    def sweeps(self) -> bool:
        return self.drawn_from == "opinfo"

    def mixes(self, budget: CampaignBudget, asked: FocusQuestion | None) -> bool:
        """Return whether other sources are mixed with the generator."""
        other = self.drawn_from != "mixed" or self.origin is not None or asked is not None or self.nproc is not None
        own = self.conditions.custom != Custom() or self.conditions.target is not None or self.no_near_misses
        return not other and not own and budget.reaches(_LEAST_MIXED, _LEAST_MIXED_CASES)

    def run(self) -> int:
        from fuzzcompile.diagnosis.worker.veto_check import check_vetoes
        from fuzzcompile.fuzz.campaign.budget import BudgetClock, CampaignBudget
        from fuzzcompile.fuzz.campaign.campaign_outputs import CampaignOutputs
        from fuzzcompile.programs.casefiles.case_file import read_case_file
        from fuzzcompile.report.output_files import check_writable

        # The clock runs from here: starting workers is part of the budget.
        clock = BudgetClock(CampaignBudget.parse(self.budget))
        if self.torch is not None and self.cluster is None:
            raise UsageError("--torch picks among the workers of a --cluster; without one, the installed torch runs.")
        if self.cluster is None and (self.workers or 0) > _MOST_HERE:
            raise UsageError(f"--workers is at most {_MOST_HERE} on one machine; --cluster takes more.")
        if self.screen_only and self.full_only:
            raise UsageError("A campaign is --screen-only or --full-only, not both.")
        self._check_eager()
        self._check_nproc()
        asked = self._find_focus()
        outputs = CampaignOutputs(self.log, self.sarif, self.summary_file, self.location)
        check_writable(self.drafts / "draft.md", "--drafts", parents=True)
        open_corpus(self.location, create=True).close()
        check_vetoes(self.conditions, [] if self.origin is None else [read_case_file(self.origin)])
        return self._conclude(self._run_campaign(asked, outputs, clock))

    def _check_eager(self) -> None:
        if not self.eager:
            return
        if not self.sweeps:
            raise UsageError("--eager judges torch's own operators: add --source opinfo.")
        compiling = self.screen_only or self.full_only or self.focus or self.changed or self.conditions.vetoes
        if compiling or self.conditions.target is not None or self.conditions.custom != Custom():
            raise UsageError(
                "--eager compiles nothing: leave out --focus, --changed, --veto, --pass, --backend, --target, "
                "--screen-only and --full-only."
            )

    def _check_nproc(self) -> None:
        others = self.sweeps or self.origin is not None or self.focus or self.changed
        if self.nproc is not None and (others or self.cluster is not None or self.conditions.target is not None):
            raise UsageError(
                "--nproc draws programs of several processes on this machine: leave out --from, --focus, --changed, "
                "--source, --cluster and --target."
            )

    def _find_focus(self) -> FocusQuestion | None:
        from fuzzcompile.diagnosis.worker.veto_check import find_package_folder
        from fuzzcompile.fuzz.focus.focus_request import parse_focus

        if self.origin is not None and self.no_near_misses:
            raise UsageError("--no-near-misses is for generated cases, which --from does not draw.")
        aims = bool(self.focus or self.changed or self.checkout)
        if aims and self.origin is not None:
            raise UsageError("--from draws variations of one case, and --focus programs of rules: give one of them.")
        if self.sweeps and (self.origin is not None or self.no_near_misses):
            raise UsageError(
                "--source opinfo sweeps torch's tables: --from and --no-near-misses are for other sources."
            )
        torch = find_package_folder("torch") if aims else None
        if aims and torch is None:
            raise EnvironmentUnfit("There is no torch installed to aim at.")
        return None if torch is None else parse_focus(self.focus, self.changed, self.checkout, torch.parent)

    def _start_workers(self, clock: BudgetClock) -> AbstractContextManager[CampaignWorkers]:
        from fuzzcompile.diagnosis.worker.local_pool import choose_worker_count
        from fuzzcompile.fuzz.campaign.campaign_display import format_starting
        from fuzzcompile.fuzz.campaign.campaign_run import join_workers, start_workers
        from fuzzcompile.fuzz.cluster.cluster_state import ClusterAddress
        from fuzzcompile.fuzz.distributed_programs.grammar import MOST_PROCESSES

        if self.cluster is not None:
            address = ClusterAddress.parse(self.cluster)
            importing = "its workers import torch and register the compiler's patterns ..."
            click.echo(f"Joining the cluster at {address}: {importing}", err=True)
            return join_workers(address, self.conditions, self.workers, clock, torch=self.torch)
        together = self.nproc if self.nproc is not None and self.nproc <= MOST_PROCESSES else 1
        workers = self.workers or max(1, choose_worker_count(self.conditions.device) // together)
        click.echo(format_starting(workers), err=True)
        return start_workers(self.conditions, workers, clock)

    def _run_campaign(self, asked: FocusQuestion | None, outputs: CampaignOutputs, clock: BudgetClock) -> Finished:
        from rich.console import Console

        from fuzzcompile.fuzz.campaign.campaign_display import CampaignProgress
        from fuzzcompile.fuzz.campaign.campaign_run import run_campaign, survey_case
        from fuzzcompile.fuzz.campaign.case_sources import open_tables
        from fuzzcompile.fuzz.generation.profile import Profile

        source: CaseSource | None = None
        if self.origin is not None:
            source = survey_case(self.origin, self.conditions, clock)
        workers, mixes = self._start_workers(clock), self.mixes(clock.budget, asked)
        reads_tables = (self.sweeps and asked is None) or (mixes and self.cluster is None)
        with (
            outputs,
            open_tables(eager=self.eager) if reads_tables else nullcontext() as tables,
            workers as started,
            CampaignProgress(Console(stderr=True)) as progress,
            ExitStack() as stack,
        ):
            if self.sweeps or asked is not None:
                started.check_torch_here("--source opinfo" if self.sweeps else "--focus")
            swept = tables(self.seed, clock) if tables is not None else None
            source = started.mix_sources(Profile(), clock, swept) if mixes else source or swept
            summary = run_campaign(
                self._make_settings(started, clock, source, asked, stack),
                started,
                location=self.location,
                command=hints.format_typed_line(),
                handlers=(outputs.log, progress.handle),
                clock=clock,
            )
            try:
                outputs.finish(summary)
            except UsageError as error:
                if summary.why is None:
                    raise
                click.echo(f"fuzzcompile: {error}", err=True)  # a full disk, say: why the campaign ended comes last
        return summary

    def _make_settings(
        self,
        started: CampaignWorkers,
        clock: BudgetClock,
        source: CaseSource | None,
        asked: FocusQuestion | None,
        stack: ExitStack,
    ) -> CampaignSettings:
        """Return the settings of the campaign; a focus is opened within ``stack``."""
        from fuzzcompile.fuzz.campaign.steering import UNIFORM, Strategy
        from fuzzcompile.fuzz.focus.focus_request import focus_on_custom
        from fuzzcompile.fuzz.generation.profile import Profile

        profile = Profile(near_misses=not self.no_near_misses, nproc=self.nproc)
        if asked is None and source is None and self.nproc is None:
            asked = focus_on_custom(started.surroundings.custom)
        if asked is not None:
            focus = started.open_focus(asked, profile, clock, self.seed, sweeps=self.sweeps)
            source = focused = stack.enter_context(focus)
            for note in (*asked.notes, *focused.notes):
                click.echo(f"Focus: {note}", err=True)
        return started.make_settings(
            profile,
            clock,
            seed=self.seed,
            max_findings=self.max_findings,
            drafts=self.drafts,
            mix="screen" if self.screen_only else "full" if self.full_only or self.eager else "mixed",
            strategy=UNIFORM if self.no_steering or self.sweeps else Strategy(),
            source=source,
        )

    def _conclude(self, summary: Finished) -> int:
        from rich.console import Console

        from fuzzcompile.fuzz.campaign.campaign_display import print_summary
        from fuzzcompile.model.severity import FailOn

        if self.as_json:
            click.echo(json.dumps(summary.to_json(), allow_nan=False))
        else:
            print_summary(Console(), summary, self.conditions.options())
        if summary.why is not None:
            raise EnvironmentUnfit(summary.why)
        if summary.tally.cases and set(summary.tally.verdicts) == {"unjudged"}:
            raise EnvironmentUnfit(f"Not one case could be judged; run `{hints.format_command('doctor')}`.")
        idle = [str(certified["sentence"]) for certified in summary.certified if not certified["programs"]]
        if idle:
            raise EnvironmentUnfit(" ".join(idle) + " Give more budget, or programs that it can match: --from CASE.")
        fails = self.fail_on_finding and bool(summary.findings)
        return 1 if fails or (self.fail_on is not None and summary.shows(FailOn.parse(self.fail_on))) else 0


# ``fuzzcompile generate``.


@click.command(cls=FoldedCommand)
@_seed
@click.option("--count", default=10, show_default=True, type=click.IntRange(1), help="How many.")
@click.option("--start", default=0, show_default=True, type=click.IntRange(0), help="Index of the first.")
@click.option("--out", default=Path("cases"), show_default=True, type=options.FOLDER, help="Folder for the case files.")
@_no_near_misses
@options.target
@options.json_output
def generate(
    seed: int, count: int, start: int, out: Path, no_near_misses: bool, target: str | None, as_json: bool
) -> int:
    """Write generated cases as files, without running them.

    The same seed gives the cases that ``run`` draws before it starts to steer. The docstring of each file names the
    idioms, near misses and choices that it is made of. With --target, sizes, dtypes and settings are those that matter
    on a GPU.
    """
    from fuzzcompile.fuzz.campaign.case_sources import fit_installed_torch
    from fuzzcompile.fuzz.generation.cases import write_cases
    from fuzzcompile.fuzz.generation.profile import Profile

    profile = fit_installed_torch(Profile(near_misses=not no_near_misses), target)
    paths = write_cases(out, seed, count, profile, start=start)
    if as_json:
        click.echo(json.dumps([str(path) for path in paths]))
    else:
        judge = hints.format_command("triage", out, target=target)
        click.echo(f"{len(paths)} cases in {out}, the first {paths[0].name}; judge them with `{judge}`.")
    return 0
