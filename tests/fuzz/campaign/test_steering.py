"""Steering: what still brings something is drawn more often, and the same seed draws the same cases."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace

import pytest

from fuzzcompile.corpus.records import Seed, StreamRun
from fuzzcompile.fuzz.campaign.case_sources import CaseSource, DrawnCase, GeneratorSource
from fuzzcompile.fuzz.campaign.steering import BLOCK, UNIFORM, PlaceOutcome, Steering, Strategy, collect_items, mutate
from fuzzcompile.fuzz.generation.profile import Profile

NAMES = tuple("abcdefgh")


@dataclass(frozen=True)
class Letters(CaseSource):
    """Cases of two letters each; recipes are their bytes."""

    name: str = ""
    profile: None = None

    def at(self, seed: int, index: int, candidate: int = 0) -> DrawnCase:
        chosen = random.Random(f"{seed} {index} {candidate}").sample(NAMES, 2)
        return DrawnCase(f"{index} {candidate}", "generated", tuple(chosen), " ".join(chosen).encode())

    def of(self, choices: bytes) -> DrawnCase | None:
        return DrawnCase(choices.hex(), "mutated", ("mutant",), choices)


def outcome(drawn: DrawnCase, screened: bool, *items: str) -> PlaceOutcome:
    return PlaceOutcome(drawn, frozenset(("joint_graph", item, "fired") for item in items), screened)


def play(steering: Steering, places: int, brings, order=None) -> list[tuple[DrawnCase, bool]]:
    """Draw the places, with results arriving in the given order within groups of four."""
    drawn = []
    for begin in range(0, places, 4):
        group = [(index, *steering.at(index)) for index in range(begin, begin + 4)]
        drawn += [(case, screen) for _, case, screen in group]
        for index, case, screen in sorted(group, key=order) if order else group:
            steering.learn(index, outcome(case, screen, *brings(index, case)))
    return drawn


def fresh_from(name: str):
    """Every case with that letter reaches something new."""
    return lambda index, case: [f"rule {index}"] if name in case.features else []


def test_what_brings_something_new_is_drawn_more_often():
    steered = play(Steering(Letters(), 1, strategy=Strategy(mutated=0.0)), 320, fresh_from("c"))
    alike = play(Steering(Letters(), 1, strategy=UNIFORM), 320, fresh_from("c"))
    later, before = (sum("c" in case.features for case, _ in drawn[160:]) for drawn in (steered, alike))
    assert later > 1.6 * before > 0


def test_a_well_that_has_run_dry_is_left():
    dry = lambda index, case: [f"rule {index}"] if "c" in case.features and index < 160 else []  # noqa: E731
    drawn = play(Steering(Letters(), 1, strategy=Strategy(mutated=0.0, pairs=0.0)), 800, dry)
    flowing, after = (sum("c" in case.features for case, _ in drawn[begin : begin + 120]) for begin in (80, 680))
    assert flowing > 1.3 * after


@dataclass(frozen=True)
class LongAndShort(Letters):
    """Every other candidate is as good as the one before it and ten thousand characters longer."""

    def at(self, seed: int, index: int, candidate: int = 0) -> DrawnCase:
        drawn = super().at(seed, index, candidate // 2)
        return replace(drawn, source=drawn.source + "#" * 10_000) if candidate % 2 == 0 else drawn


def test_of_two_that_promise_as_much_the_cheaper_one_is_drawn():
    thrifty, careless = (
        play(Steering(LongAndShort(), 1, strategy=Strategy(mutated=0.0, thrift=thrift)), 64, fresh_from("c"))
        for thrift in (1.0, 0.0)
    )
    long = [sum(len(case.source) > 10_000 for case, _ in drawn) for drawn in (thrifty, careless)]
    assert long[0] == 0 < long[1]


@dataclass(frozen=True)
class TwoKinds(Letters):
    """Every other place offers a plain case first; plain cases have fewer letters."""

    def at(self, seed: int, index: int, candidate: int = 0) -> DrawnCase:
        drawn = super().at(seed, index, candidate)
        if (index + candidate) % 2:
            return drawn
        return replace(drawn, features=(*drawn.features[:1], "plain"))


def test_the_source_decides_how_many_there_are_of_each_kind():
    drawn = play(Steering(TwoKinds(), 1, strategy=Strategy(mutated=0.0, kinds=0.0)), 160, fresh_from("c"))
    assert [case.kind for case, _ in drawn] == ["plain", "block"] * 80
    assert sum("c" in case.features for case, _ in drawn[1::2]) > 30  # and they still compete among themselves


def test_the_kind_that_brings_more_is_drawn_more_often_until_it_is_dry():
    def plain_until_then(index: int, case: DrawnCase) -> list[str]:
        return [f"rule {index}"] if case.kind == "plain" and index < 320 else []

    drawn = play(Steering(TwoKinds(), 1, strategy=Strategy(mutated=0.0)), 960, plain_until_then)
    flowing, dry = (sum(case.kind == "plain" for case, _ in drawn[begin : begin + 160]) for begin in (160, 800))
    assert flowing > 110  # a quarter is half of what the source draws
    assert 60 < dry < 100


def test_what_was_never_judged_as_a_whole_is_drawn_first():
    chosen = Strategy(candidates=8, pairs=0.0, wholes=1.0, mutated=0.0)
    novel, alike = (play(Steering(Letters(), 1, strategy=how), 64, lambda *_: []) for how in (chosen, UNIFORM))
    wholes = [len({frozenset(case.features) for case, _ in drawn}) for drawn in (novel, alike)]
    assert wholes[0] > 1.1 * wholes[1]  # of 28


def test_the_same_seed_draws_the_same_whatever_comes_first():
    one = play(Steering(Letters(), 7), 160, fresh_from("c"))
    other = play(Steering(Letters(), 7), 160, fresh_from("c"), order=lambda group: -group[0])
    third = play(Steering(Letters(), 8), 160, fresh_from("c"))
    assert [(case.source, screen) for case, screen in one] == [(case.source, screen) for case, screen in other]
    assert [case.source for case, _ in one] != [case.source for case, _ in third]


def test_cases_that_reached_something_first_are_varied():
    drawn = play(Steering(Letters(), 1, strategy=Strategy(mutated=0.5)), 160, fresh_from("c"))
    mutants = [case for case, _ in drawn if case.origin == "mutated"]
    assert len(mutants) > 40
    assert not any(case.origin == "mutated" for case, _ in drawn[:BLOCK])  # nothing is known to be worth it
    none = play(Steering(Letters(), 1, strategy=Strategy(mutated=0.5)), 160, lambda index, case: [])
    assert not any(case.origin == "mutated" for case, _ in none)


def test_generated_recipes_can_be_varied():
    generator, rng = GeneratorSource(Profile()), random.Random(3)
    one, other = generator.at(0, 1), generator.at(0, 2)
    drawn = [generator.of(mutate(one.choices, other.choices, rng)) for _ in range(20)]
    programs = {case.source for case in drawn if case is not None}
    assert len(programs) > 10
    assert all(case.features and case.choices for case in drawn if case is not None)


@pytest.mark.parametrize(("mix", "screened"), [("screen", {True}), ("full", {False}), ("mixed", {True, False})])
def test_the_speeds(mix, screened):
    drawn = play(Steering(Letters(), 1, mix=mix), 64, fresh_from("c"))
    assert {screen for _, screen in drawn} == screened


def test_the_faster_speed_is_given_more_where_both_bring_as_much():
    steering = Steering(Letters(), 1)
    play(steering, 320, lambda index, case: [f"rule {index}"])
    assert steering.full_share() < 0.2

    def only_full(index: int, case: DrawnCase) -> list[str]:
        return [f"rule {index} {n}" for n in range(40)] if not shown[index][1] else []

    other, shown = Steering(Letters(), 1), {}
    for begin in range(0, 320, 4):
        for index in range(begin, begin + 4):
            shown[index] = other.at(index)
            other.learn(index, outcome(*shown[index], *only_full(index, shown[index][0])))
    assert other.full_share() > 0.7


def test_an_interrupted_stream_goes_on_with_what_it_had_learned():
    steering = Steering(Letters(), 1, strategy=Strategy(mutated=0.0))
    past = [
        StreamRun(index, case.features, screen, int("c" in case.features))
        for index, (case, screen) in enumerate(play(steering, 160, fresh_from("c")))
    ]
    resumed, new = (Steering(Letters(), 1, strategy=Strategy(mutated=0.0)) for _ in range(2))
    resumed.resume([("joint_graph", "rule 1", "fired")], past, [])
    assert resumed.seen
    counts = [Counter("c" in one.at(index)[0].features for index in range(160, 320))[True] for one in (resumed, new)]
    assert counts[0] > 1.4 * counts[1]
    seeded = Steering(Letters(), 1, strategy=Strategy(mutated=1.0))
    seeded.resume([], [], [Seed("x", b"abc", 3, None)])
    assert seeded.at(0)[0].origin == "mutated"


def test_a_signature_counts_as_something_new():
    assert collect_items({("joint_graph", "rule", "fired")}, "joint_graph:file:rule") == {
        ("joint_graph", "rule", "fired"),
        ("finding", "joint_graph:file:rule", "fired"),
    }
    steering, drawn = Steering(Letters(), 1), Letters().at(1, 0)
    steering.learn(0, replace(outcome(drawn, True), items=collect_items((), "one")))
    steering.at(2 * BLOCK)
    assert ("finding", "one", "fired") in steering.seen


def campaign_of(workers: int, places: int, seed: int = 3) -> list[tuple[DrawnCase, bool, list[str]]]:
    """What a campaign draws, and what each case reached, where results come back late and out of order.

    A case takes between one and ten units of time, a full compile four times as long. Features bring something new with
    different probabilities, and less and less of it.
    """
    steering, clock = Steering(Letters(), seed), random.Random(f"clock {workers}")
    running: list[tuple[float, int, DrawnCase, bool]] = []
    drawn: list[tuple[DrawnCase, bool, list[str]]] = []
    now = 0.0
    for index in range(places):
        if len(running) == workers:
            running.sort(key=lambda task: task[0])
            now, place, case, screen = running.pop(0)
            steering.learn(place, outcome(case, screen, *drawn[place][2]))
        case, screen = steering.at(index)
        luck = random.Random(f"{case.source} {case.choices!r}")
        reached = [f"{name} {luck.randrange(40)}" for name in case.features if luck.random() < 0.3]
        drawn.append((case, screen, reached))
        running.append((now + clock.uniform(1, 10) * (1 if screen else 4), index, case, screen))
    return drawn


def spread(drawn: list[tuple[DrawnCase, bool, list[str]]]) -> Counter[str]:
    """How often each kind, feature and speed was drawn."""
    counted = Counter(name for case, _, _ in drawn for name in {case.kind, *case.features})
    counted["screened"] = sum(screen for _, screen, _ in drawn)
    return counted


def test_one_worker_and_sixty_four_draw_comparable_programs():
    places = 960
    one, many, other_seed = campaign_of(1, places), campaign_of(64, places), campaign_of(1, places, seed=4)
    reached = [len({item for _, _, items in drawn for item in items}) for drawn in (one, many)]
    assert min(reached) > 0.85 * max(reached) > 0
    apart, by_seed = (
        sum(abs(spread(one)[name] - spread(drawn)[name]) for name in spread(one) | spread(drawn))
        for drawn in (many, other_seed)
    )
    assert apart < 1.5 * by_seed, "late results move the choice no more than another seed does"
    early = sum(left[0].source == right[0].source for left, right in zip(one[:16], many[:16], strict=True))
    assert early == 16, "before anything was learned, the seed alone decides"
