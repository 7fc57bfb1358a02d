"""Starts a campaign's workers, runs it to its end, and ends it cleanly. Imports no torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuzzcompile.corpus.records import Campaign, CorpusError
from fuzzcompile.corpus.store import Store
from fuzzcompile.diagnosis.worker.local_pool import open_pool
from fuzzcompile.fuzz.campaign.budget import BudgetClock
from fuzzcompile.fuzz.campaign.campaign_engine import CampaignEngine
from fuzzcompile.fuzz.campaign.campaign_events import Event, Finished
from fuzzcompile.fuzz.campaign.campaign_settings import CampaignSettings
from fuzzcompile.fuzz.campaign.case_sources import (
    FOCUS,
    PATTERNS,
    SURVEY,
    GeneratorSource,
    OperatorSweep,
    VariationSource,
    await_answer,
    fit_profile,
    open_tables,
)
from fuzzcompile.fuzz.campaign.focus_steering import FocusSource
from fuzzcompile.fuzz.campaign.mixed_source import MixedSource, RuleSource, TableSource
from fuzzcompile.fuzz.cluster.cluster_state import ClusterAddress
from fuzzcompile.fuzz.generation.profile import Profile
from fuzzcompile.model import hints
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.custom import Custom
from fuzzcompile.model.errors import CaseError, EnvironmentUnfit, UsageError, format_message
from fuzzcompile.model.focus_plan import AimRule, FocusPlan, FocusQuestion
from fuzzcompile.model.judge_task import DESCRIBE, WorkerDescription
from fuzzcompile.model.signatures import hash_source
from fuzzcompile.model.versions import __version__, installed_torch
from fuzzcompile.programs.edits.pattern_program import PatternProgram
from fuzzcompile.run.plants import check_plants
from fuzzcompile.run.pool.worker_pool import TaskPool
from fuzzcompile.run.subprocesses import sigterm_interrupts

if TYPE_CHECKING:
    from fuzzcompile.fuzz.cluster.cluster_pool import ClusterPool


# The most seconds that making programs for a focus may take before the first case.
_PREPARING = 120.0


@dataclass(frozen=True)
class CampaignWorkers:
    """Started workers: their pool, their conditions, and where they run.

    ``cluster`` is the pool again, if it is a cluster; ``surroundings`` are then those of its first worker.
    """

    pool: TaskPool
    conditions: Conditions
    surroundings: WorkerDescription
    cluster: ClusterPool | None = None

    def check_torch_here(self, what: str) -> None:
        """Refuse ``what``, which reads the torch that is installed here, if the workers run another version."""
        here, there = installed_torch(), str(self.surroundings.environment["torch"])
        if here != there:
            raise UsageError(
                f"{what} reads the torch of this machine, which is {here or 'not installed'}, and the cluster runs "
                f"torch {there}: install that here."
            )

    def make_settings(self, profile: Profile, clock: BudgetClock, **asked: Any) -> CampaignSettings:
        """Return the settings of a campaign with these workers; ``asked`` are further fields of the settings."""
        conditions, around = self.conditions, self.surroundings
        return CampaignSettings(
            budget=clock.budget,
            profile=fit_profile(profile, around.lacks, conditions.target),
            device=conditions.device if conditions.device != "auto" else around.device,
            workers=self.pool.capacity,
            torch=str(around.environment["torch"]),
            vetoes=conditions.vetoes,
            plants=tuple(hash_source(path.read_text(encoding="utf-8"))[:12] for path in conditions.plants),
            case_seconds=conditions.limits.seconds,
            target=conditions.target,
            custom=around.custom,
            **asked,
        )

    @contextmanager
    def open_focus(
        self, question: FocusQuestion, profile: Profile, clock: BudgetClock, seed: int, *, sweeps: bool
    ) -> Iterator[FocusSource]:
        """Yield the source of a focus: workers resolve its names in their torch, and make programs from the rules.

        Making programs takes at most a quarter of the budget; rules without a program by then are left out. With
        ``sweeps``, operators get cases from torch's own tables; a separate process writes them until the block ends.
        """
        asked = self.pool.schedule(
            FOCUS, (replace(question, target=self.conditions.target),), label="look up the focus"
        )
        late = "No worker had said what the focus means when the budget was over."
        plan = await_answer(asked, clock, late, "Looking up the focus, the worker {error}.")
        generator = GeneratorSource(fit_profile(profile, self.surroundings.lacks, self.conditions.target))
        operators = [aim.label for aim in plan.reachable if aim.kind == "operator"]
        if sweeps and not operators:
            raise UsageError("--source opinfo sweeps operators: focus on one, by its label or a line of its lowering.")
        with open_tables() if sweeps else nullcontext() as tables:
            programs, notes = self._make_programs(plan, clock)
            plan = replace(plan, notes=(*plan.notes, *notes))
            swept = tables(seed, clock) if tables is not None else None
            narrowed = {label: swept.narrow(label) for label in operators} if swept is not None else {}
            found = {label: sweep for label, sweep in narrowed.items() if sweep.size}
            yield FocusSource(plan, generator, programs, found)

    def mix_sources(self, profile: Profile, clock: BudgetClock, sweep: OperatorSweep | None) -> MixedSource:
        """Return the generator mixed with programs of the rules of the workers' torch, and a sweep if there is one.

        Workers make the programs while the campaign runs, one rule after another.
        """
        asked = self.pool.schedule(FOCUS, (FocusQuestion(every=True),), label="list the rules")
        late = "No worker had listed the compiler's rules when the budget was over."
        plan = await_answer(asked, clock, late, "Listing the compiler's rules, the worker {error}.")
        generator = GeneratorSource(fit_profile(profile, self.surroundings.lacks))
        rules = RuleSource(FocusSource(plan, generator), self._make_rule) if plan.reachable else None
        return MixedSource(generator, rules, TableSource(sweep) if sweep is not None else None)

    def _make_rule(self, rule: AimRule, programs: list[PatternProgram]) -> Future[tuple[PatternProgram, ...]]:
        """Let a worker make the programs of a rule, which are added to these once they are made."""

        def keep(made: Future[tuple[PatternProgram, ...]]) -> None:
            if not made.cancelled() and made.exception() is None:
                programs.extend(made.result())

        making: Future[tuple[PatternProgram, ...]] = self.pool.schedule(
            PATTERNS, (rule,), label=f"make programs for {rule[1]}"
        )
        making.add_done_callback(keep)
        return making

    def _make_programs(self, plan: FocusPlan, clock: BudgetClock) -> tuple[Sequence[PatternProgram], list[str]]:
        """Return programs for the rules of a plan, and sentences on the rules for which none could be made.

        A program that a worker is still making when the time is over is added to the list once it is made.
        """
        sources = list(dict.fromkeys(rule for aim in plan.reachable for rule in aim.sources))
        share = min(_PREPARING, 0.25 * clock.remaining)  # endless for a budget of cases
        programs: list[PatternProgram] = []
        making = {self._make_rule(rule, programs): rule[1] for rule in sources}
        done, late = wait(making, timeout=share)
        failed = {making[future]: error for future in done if (error := future.exception()) is not None}
        notes = [f"{rule}: its programs cannot be made: {format_message(error)}." for rule, error in failed.items()]
        if cancelled := sum(future.cancel() for future in late):
            notes.append(f"no program was made for {cancelled} of {len(sources)} rules in the {share:.0f} s for it.")
        return programs, notes


@contextmanager
def start_workers(conditions: Conditions, workers: int, budget: BudgetClock) -> Iterator[CampaignWorkers]:
    """Start workers and let one of them describe the machine; at the end of the block, kill them."""
    check_plants(conditions.plants)
    pool = open_pool(conditions, workers)
    try:
        told = pool.schedule(DESCRIBE, (conditions.target,), label="describe the machine")
        late = (
            "No worker had started after {elapsed}, when the budget was over: importing torch and registering its "
            "patterns takes longer than that here. Give more."
        )
        lost = f"The first worker {{error}}; run `{hints.format_command('doctor')}`."
        yield CampaignWorkers(pool, conditions, await_answer(told, budget, late, lost))
    finally:
        pool.kill_workers()


@contextmanager
def join_workers(
    address: ClusterAddress, conditions: Conditions, most: int | None, budget: BudgetClock, *, torch: str | None = None
) -> Iterator[CampaignWorkers]:
    """Join a cluster, and wait for a first worker that fits; at the end of the block, leave it.

    ``most`` cases are submitted at once (None: as many as its workers take); its workers must have ``torch`` (None: the
    version that most of them have).
    """
    check_plants(conditions.plants)
    if importlib.util.find_spec("distributed") is None:
        raise EnvironmentUnfit("--cluster needs Dask: pip install 'fuzzcompile[cluster]'.")
    from fuzzcompile.fuzz.cluster.cluster_pool import ClusterPool

    pool = ClusterPool(address, conditions, torch=torch, most=most)
    try:
        around = pool.wait_for_worker(budget.timeout)
        yield CampaignWorkers(pool, conditions, around, pool)
    finally:
        pool.kill_workers()


def survey_case(path: Path, conditions: Conditions, budget: BudgetClock) -> VariationSource:
    """Return variations of the case file at ``path``; a worker process finds out which parts of it can be varied."""
    with open_pool(replace(conditions, plants=(), custom=Custom()), 1) as pool:
        survey = pool.submit(SURVEY, str(path))
        late = f"{path} had not run in eager mode when the budget was over. Give more."
        lost = f"{path} cannot be varied: in eager mode it {{error}}; fix it first."
        return VariationSource(await_answer(survey, budget, late, lost, CaseError))


def run_campaign(
    settings: CampaignSettings,
    started: CampaignWorkers,
    *,
    location: str | None,
    command: str,
    handlers: Sequence[Callable[[Event], object]] = (),
    clock: BudgetClock | None = None,
) -> Finished:
    """Run a campaign to its end or until it is interrupted (Ctrl-C, SIGTERM), and summarise it.

    Its workers have ended when it returns. ``clock`` runs since the start of the command; by default, the budget begins
    now. If the machine can compile no more, the summary says why (``Finished.why``).
    """
    environment = started.surroundings.environment
    with Store.open(location) as store:
        kept = {**settings.to_json(), "numerics": dict(started.surroundings.numerics)}
        campaign = store.start_campaign(Campaign(settings.seed, kept, command, __version__, environment))
        engine = CampaignEngine(
            settings,
            store,
            started.pool,
            environment,
            campaign=campaign,
            clock=clock,
            cluster=started.cluster,
        )
        interrupted, why = False, None
        try:
            with sigterm_interrupts(), closing(engine.run()) as events:
                for event in events:
                    for handle in handlers:
                        handle(event)
        except KeyboardInterrupt:
            interrupted = True
        except CorpusError:  # nothing more can be stored, why the campaign ended included
            raise
        except EnvironmentUnfit as error:
            why = str(error)
        except BaseException:  # whatever ended it, the corpus must say so
            engine.fail()
            raise
        finally:
            started.pool.kill_workers()
        return engine.finish(interrupted=interrupted, why=why)
