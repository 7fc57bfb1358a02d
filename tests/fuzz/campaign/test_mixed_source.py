"""The mix of sources that a campaign draws from: kinds by themselves, shares, programs that workers make meanwhile."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest

from fuzzcompile.corpus.store import Store
from fuzzcompile.fuzz.campaign.budget import BudgetClock, CampaignBudget
from fuzzcompile.fuzz.campaign.campaign_run import run_campaign, start_workers
from fuzzcompile.fuzz.campaign.case_sources import GeneratorSource, open_tables
from fuzzcompile.fuzz.campaign.focus_steering import FocusSource
from fuzzcompile.fuzz.campaign.mixed_source import MixedSource, RuleSource
from fuzzcompile.fuzz.campaign.steering import PlaceOutcome, Steering, Strategy, collect_items
from fuzzcompile.fuzz.generation.cases import draw_case_at, from_choices, list_kinds
from fuzzcompile.fuzz.generation.profile import Profile
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.focus_plan import AimRule, FocusAim, FocusPlan
from fuzzcompile.model.severity import Severity
from fuzzcompile.programs.edits.pattern_program import Operand, PatternProgram

RULES = ("merge_splits", "split_cat", "_pattern_1", "_pattern_2", "_pattern_3", "_pattern_4")
PLACES = 480


def program(rule: AimRule) -> PatternProgram:
    called = (f"y = torch.split(x, 2)  # {rule[1]}",)
    return PatternProgram(*rule, None, "pattern", (Operand("x", (4, 4)),), called, ("y",), {}, fires=True)


@dataclass
class Workers:
    """Workers that make programs, at once or when they are told to; those of rules in ``lost`` are lost over them."""

    at_once: bool = True
    lost: frozenset[str] = frozenset()
    asked: list[tuple[AimRule, list[PatternProgram]]] = field(default_factory=list)

    def make(self, rule: AimRule, programs: list[PatternProgram]) -> None:
        self.asked.append((rule, programs))
        if self.at_once:
            self.answer()

    def answer(self) -> None:
        for rule, programs in self.asked:
            programs[:] = [program(rule)] if rule[1] not in self.lost else []


def mix(workers: Workers, rules: tuple[str, ...] = RULES) -> MixedSource:
    aims = tuple(FocusAim(name, "pattern", "pre_grad", (("pre_grad", name),)) for name in rules)
    generator = GeneratorSource(Profile())
    return MixedSource(generator, RuleSource(FocusSource(FocusPlan(aims), generator), workers.make))


@pytest.mark.parametrize("kind", list_kinds(Profile()))
def test_a_kind_is_drawn_by_itself_and_its_recipe_gives_the_same_case(kind: str):
    drawn = [GeneratorSource().of_kind(kind, 3, index) for index in range(12)]
    assert all(case is not None and case.kind == kind for case in drawn)
    (again,) = {case.source for case in [GeneratorSource().of_kind(kind, 3, 5)]}
    assert again == drawn[5].source
    assert from_choices(drawn[5].choices, Profile()).source == again


def test_what_a_profile_has_not_is_not_drawn():
    plain = GeneratorSource(Profile(near_misses=False))
    assert plain.of_kind("stateful", 0, 0) is None
    assert plain.of_kind("plain", 0, 0).kind == "plain"
    several = GeneratorSource(Profile(nproc=2))
    assert several.of_kind("block", 0, 0) is None
    assert several.of_kind("distributed", 0, 0).kind == "distributed"


def test_a_place_without_a_kind_is_the_generators_or_a_rules():
    source = mix(Workers())
    drawn = [source.at(0, index) for index in range(PLACES)]
    of_rules = [case for case in drawn if case.kind == "rule"]
    assert 0.05 * PLACES < len(of_rules) < 0.25 * PLACES
    assert len({case.features[1].rstrip("1234") for case in of_rules}) == 3, "each rule has its turn"
    other = next(index for index, case in enumerate(drawn) if case.kind != "rule")
    assert drawn[other].source == draw_case_at(0, other, Profile()).source


def test_until_a_worker_has_made_the_programs_the_generator_fills_the_places():
    workers = Workers(at_once=False)
    source = mix(workers)
    assert not any(source.at(0, index).kind == "rule" for index in range(16))
    assert len(workers.asked) == 2, "those of the next rule are made while this one is drawn from"
    workers.answer()
    assert any(source.at(0, index).kind == "rule" for index in range(20, 48))


def test_while_the_programs_of_a_rule_are_made_those_of_earlier_ones_are_drawn_from():
    workers = Workers()
    source = mix(workers)
    first = {source.of_kind("rule", 0, index).features[1] for index in range(16)}
    workers.at_once = False
    later = [source.of_kind("rule", 0, index) for index in range(16, PLACES)]
    assert all(case is not None for case in later)
    assert {case.features[1] for case in later} == first | {
        f"focus:{rule[1]}" for rule, programs in workers.asked if programs
    }


def test_a_rule_over_which_workers_are_lost_has_no_cases():
    source = mix(Workers(lost=frozenset(RULES)))
    assert not any(source.at(0, index).kind == "rule" for index in range(PLACES))


def test_where_no_rule_can_fire_all_is_the_generators():
    source = MixedSource(GeneratorSource(Profile()))
    assert source.at(0, 3).source == draw_case_at(0, 3, Profile()).source
    assert source.of_kind("rule", 0, 3) is None and source.of_kind("plain", 0, 3).kind == "plain"
    source.share_reached(set())


def test_rules_that_never_fired_come_first():
    source = mix(Workers())
    source.share_reached({("pre_grad", name, "fired") for name in RULES[1:]})
    drawn = Counter(source.of_kind("rule", 0, index).features[1] for index in range(PLACES))
    assert drawn[f"focus:{RULES[0]}"] > 0.5 * PLACES


def test_numbered_variants_of_a_rule_share_its_turn():
    source = mix(Workers(), ("merge_splits", *(f"_pattern_{number}" for number in range(20))))
    drawn = Counter(source.of_kind("rule", 0, index).features[1] for index in range(PLACES))
    assert drawn["focus:merge_splits"] > 0.2 * drawn.total()


@pytest.mark.parametrize(
    ("severity", "seconds"), [((Severity.SILENT, Severity.LAYOUT), (1.0, 1.0)), ((None, None), (0.5, 8.0))]
)
def test_kinds_follow_the_worst_bugs_a_second(severity, seconds):
    """Rules find what is worse, or find as much in less time."""
    steering = Steering(mix(Workers()), 1, strategy=Strategy(candidates=1, mutated=0.0))
    counted = Counter()
    for index in range(PLACES):
        case, screen = steering.at(index)
        better = case.kind == "rule"
        counted[better] += index >= PLACES // 2
        items = collect_items({("joint_graph", f"rule {index}", "fired")}, str(index) if severity[0] else None)
        took = seconds[0] if better else seconds[1]
        steering.learn(index, PlaceOutcome(case, items, screen, None, severity[0] if better else severity[1], took))
    # As drawn they are an eighth, and half of the places are drawn so; six kinds share the others.
    assert counted[True] > 0.25 * counted.total()


@pytest.mark.slow  # it finds bugs of torch's own, and minimizes them
def test_a_campaign_judges_cases_of_each_source(tmp_path):
    budget = CampaignBudget(cases=40)
    clock = BudgetClock(budget)
    with open_tables(("add", "nn.functional.relu")) as tables, start_workers(Conditions("cpu"), 1, clock) as started:
        source = started.mix_sources(Profile(), clock, tables(0, clock))
        settings = started.make_settings(Profile(), clock, seed=0, mix="screen", source=source, drafts=tmp_path)
        run_campaign(settings, started, location=str(tmp_path / "corpus"), command="test", clock=clock)
    with Store.open(tmp_path / "corpus") as store:
        (campaign,) = store.campaigns()
        runs = store.stream_runs(campaign.settings["stream"], str(started.surroundings.environment["torch"]))
    assert {"rule", "opinfo"} <= {name for run in runs for name in run.features}
    assert len(runs) == 40
    assert sum(run.seconds > 0 for run in runs) > 30
