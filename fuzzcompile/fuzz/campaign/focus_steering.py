"""Cases for a focus: programs made for its rules, near misses of them, and generated cases under its settings."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, cast

from fuzzcompile.corpus.records import Seed, StreamRun
from fuzzcompile.corpus.transactions import PLACES
from fuzzcompile.fuzz.campaign.case_sources import CaseSource, DrawnCase, GeneratorSource, Item
from fuzzcompile.fuzz.campaign.steering import PlaceOutcome, StreamSteering, Yield, mutate
from fuzzcompile.fuzz.focus.focus_request import FOCUS
from fuzzcompile.model.compiler_toggles import Settings, merge_settings
from fuzzcompile.model.focus_plan import FocusAim, FocusPlan
from fuzzcompile.programs.edits.pattern_program import PatternProgram, draw_near_miss, render_pattern_program


def add_settings(source: str, settings: Mapping[str, object]) -> str:
    """Put a case file under these entries of ``torch._inductor.config``.

    Entries that the case sets itself stay as they are; of a dictionary, both keep their keys. What it sets in another
    form than a literal is left alone.
    """
    given: dict[str, Settings] = {"OPTIONS": {}, "CONFIG": {}}
    for name in given:
        if (node := _find_assignment(ast.parse(source), name)) is not None:
            try:
                given[name] = ast.literal_eval(node.value)
            except ValueError:
                return source
            if not isinstance(given[name], dict):
                return source
    options, config = given["OPTIONS"], given["CONFIG"]
    inductor = cast(Settings, config.get("inductor") or {})
    merged = merge_settings([settings, inductor, options])
    inside = {entry: merged[entry] for entry in settings if entry in options}
    beside = {entry: merged[entry] for entry in settings if entry not in options}
    wanted = {"OPTIONS": {**options, **inside}, "CONFIG": config}
    if beside:
        wanted["CONFIG"] = {**config, "inductor": {**inductor, **beside}}
    for name, value in wanted.items():
        if value != given[name]:
            source = _replace_assignment(source, name, value)
    return source


def _find_assignment(tree: ast.Module, name: str) -> ast.Assign | None:
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    return next((node for node in assigned if name in [ast.unparse(target) for target in node.targets]), None)


def _replace_assignment(source: str, name: str, value: Settings) -> str:
    lines, tree, text = source.splitlines(keepends=True), ast.parse(source), f"{name} = {value!r}\n"
    if (node := _find_assignment(tree, name)) is not None:
        return "".join([*lines[: node.lineno - 1], text, *lines[node.end_lineno or node.lineno :]])
    last = max((node.end_lineno or 0 for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)), default=0)
    return "".join([*lines[:last], "\n", text, *lines[last:]])


Arm = Literal["program", "near_miss", "sweep", "grammar", "mutation"]
# Prior weight of each way of drawing; later, the ways that made the aim match are drawn more often.
_PRIOR: dict[Arm, float] = {"program": 1.0, "near_miss": 3.0, "sweep": 3.0, "grammar": 1.0, "mutation": 1.0}
# An unchanged program finds no more than its near misses do: it is drawn only until its rule fired this often.
_ENOUGH = 3
# Results count once a block of places is full, one block late, so that the order of answers does not matter.
BLOCK = 4
_MOST_PARENTS = 32
_MOST_LISTED = 8
# After so many cases without a match, an aim no longer delays the minimization of findings.
_PATIENCE = 24


@dataclass(frozen=True)
class FocusSource(CaseSource):
    """The source of cases for a focus.

    ``generator`` draws cases that then run under the settings of an aim; ``programs`` were made for the rules, and
    further ones may be added while the campaign runs; ``sweeps`` are cases of torch's own tables for operators, by
    label.
    """

    plan: FocusPlan
    generator: GeneratorSource = field(default_factory=GeneratorSource)
    programs: Sequence[PatternProgram] = ()
    sweeps: Mapping[str, CaseSource] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The names of the plan and of the generator."""
        return " ".join(filter(None, (self.plan.name, self.generator.name)))

    @property
    def notes(self) -> list[str]:
        """The aims, in sentences for the user."""
        aims = self.plan.aims
        listed = ", ".join(aim.label for aim in aims[:_MOST_LISTED])
        more = f" and {len(aims) - _MOST_LISTED} more" if len(aims) > _MOST_LISTED else ""
        given = [f"aiming at {listed}{more}; {len(self.programs)} programs were made for it."]
        given += [f"{aim.label} cannot fire here: {aim.why_not}" for aim in aims if aim.why_not]
        return [*given, *self.plan.notes]

    @property
    def profile(self) -> dict[str, object]:
        """The generator's profile."""
        return dict(self.generator.profile)

    def at(self, seed: int, index: int, candidate: int = 0) -> DrawnCase:
        """Return a case for each aim in turn, regardless of earlier results; `FocusSteering` uses these."""
        aim = self.plan.reachable[index % len(self.plan.reachable)]
        rng = random.Random(f"fuzzcompile focus {seed} {index} {candidate}")
        arm: Arm = "near_miss" if self.list_programs(aim) and rng.random() < 0.75 else "grammar"
        return self.draw(aim, arm, seed, index, rng)

    def of(self, choices: bytes) -> DrawnCase | None:
        """Return the generator's case for a recipe."""
        return self.generator.of(choices)

    def list_programs(self, aim: FocusAim) -> list[PatternProgram]:
        """Return the programs that were made for an aim; those that made it fire come first."""
        own = [program for program in self.programs if (program.stage, program.rule) in aim.sources]
        return sorted(own, key=lambda program: not program.fires)

    def draw(self, aim: FocusAim, arm: Arm, seed: int, index: int, rng: random.Random) -> DrawnCase:
        """Draw a case for an aim in the given way."""
        programs = self.list_programs(aim)
        if arm in ("program", "near_miss") and programs:
            firing = [program for program in programs if program.fires] or programs
            program = rng.choice(firing if rng.random() < 0.8 else programs)
            if arm == "program":
                return self._make_case(aim, arm, render_pattern_program(program), "program", ())
            edited = draw_near_miss(program, rng)
            return self._make_case(aim, arm, render_pattern_program(edited), "near_miss", edited.edited)
        return self.apply_settings(aim, "grammar", self.generator.at(seed, index))

    def draw_sweep(self, aim: FocusAim, number: int, seed: int) -> DrawnCase | None:
        """Return the ``number``-th case of torch's tables for the operator, or the next one; None at the end."""
        sweep = self.sweeps[aim.label]
        cases = (sweep.at(seed, place) for place in range(number, sweep.size or 0))
        case = next(filter(None, cases), None)
        return None if case is None else self._make_case(aim, "sweep", case.source, case.origin, case.features)

    def draw_mutation(self, aim: FocusAim, parents: Sequence[bytes], rng: random.Random) -> DrawnCase | None:
        """Mutate a recipe that made the aim match; return None if the mutation gives no case."""
        case = self.generator.of(mutate(rng.choice(parents), rng.choice(parents), rng))
        return None if case is None else self.apply_settings(aim, "mutation", case)

    def apply_settings(self, aim: FocusAim, arm: Arm, case: DrawnCase) -> DrawnCase:
        """Return the generator's case under the settings that switch the aim on.

        The settings are not part of its recipe, so that it is minimized as a program, and not from the recipe.
        """
        drawn = self._make_case(aim, arm, case.source, case.origin, (*case.features, *case.near_misses))
        spec = {**(drawn.spec or {}), "recipe": case.choices.hex()}
        if drawn.source == case.source:
            return replace(case, features=drawn.features, spec={**(case.spec or {}), **spec})
        return replace(drawn, spec=spec, idioms=case.idioms, near_misses=case.near_misses)

    def _make_case(self, aim: FocusAim, arm: Arm, source: str, origin: str, operators: Sequence[str]) -> DrawnCase:
        features = (f"focus:{aim.label}", f"drawn as:{arm}", *operators)
        spec = {"focus": aim.label, "drawn_as": arm, "operators": list(operators)}
        return DrawnCase(add_settings(source, aim.settings), origin, features, spec=spec, near_misses=tuple(operators))


@dataclass
class _AimProgress:
    """The counts of one aim; for each way of drawing, how often it was tried, and made the aim match."""

    arms: dict[Arm, Yield] = field(default_factory=lambda: {arm: Yield() for arm in _PRIOR})
    tried: int = 0
    fired: int = 0
    matched: int = 0
    recipes: list[bytes] = field(default_factory=list)
    swept: int = 0
    dry: bool = False

    @property
    def need(self) -> float:
        """The weight of the aim for the next case: highest if it never matched, lower after many tries."""
        hits = self.fired + 0.5 * self.matched
        return 1.0 / (1.0 + hits) + 4.0 / (1.0 + self.tried)


@dataclass
class FocusSteering(StreamSteering):
    """Fills the places of a stream with a focus: chooses the next aim, and the way in which its case is drawn.

    It prefers the ways of drawing that made the aim fire or be refused, and the aims that matched least. Coverage of
    other campaigns says little about an aim.
    """

    source: FocusSource
    _progress: dict[str, _AimProgress] = field(default_factory=dict)
    block: ClassVar[int] = BLOCK

    def __post_init__(self) -> None:
        self._progress = {aim.label: _AimProgress() for aim in self.source.plan.reachable}

    def resume(self, seen: Iterable[Item], past: Iterable[StreamRun], seeds: Iterable[Seed]) -> None:
        """Count the earlier cases of this stream as tried; the corpus does not store for each whether it matched."""
        for run in past:
            aim, arm = _read_arm(run.features)
            if aim in self._progress and arm is not None:
                self._progress[aim].tried += 1
                self._progress[aim].fired += bool(run.firsts)
            self._block = run.index // BLOCK

    @property
    def is_seeking(self) -> bool:
        """True if some aim has not matched yet, and has not been tried often enough to give it up."""
        return any(
            not known.fired and not known.matched and known.tried < _PATIENCE for known in self._progress.values()
        )

    def at(self, index: int) -> tuple[DrawnCase, bool]:
        """Draw a case for one of the aims."""
        self._learn_blocks(index)
        rng = random.Random(f"fuzzcompile focused steering {self.seed} {index}")
        full = rng.random()
        aim = self._choose_aim(index, rng)
        case = self._draw_case(aim, index, rng)
        share = aim.full_share if self.mix == "mixed" else float(self.mix == "full")
        return case, full >= share

    def _choose_aim(self, index: int, rng: random.Random) -> FocusAim:
        aims = self.source.plan.reachable
        if index % PLACES < len(aims):
            return aims[index % PLACES]
        return rng.choices(aims, [self._progress[aim.label].need for aim in aims])[0]

    def _draw_case(self, aim: FocusAim, index: int, rng: random.Random) -> DrawnCase:
        progress = self._progress[aim.label]
        # Thompson sampling, so that rarely tried arms get tried.
        promise = {arm: progress.arms[arm].sample(rng, _PRIOR[arm]) for arm in self._list_arms(aim, progress)}
        arm, case = max(promise, key=promise.__getitem__), None
        if arm == "mutation":
            case = self.source.draw_mutation(aim, progress.recipes, rng)
        elif arm == "sweep":
            case = self.source.draw_sweep(aim, progress.swept, self.seed)
            progress.swept += 1
            progress.dry = case is None
        return case or self.source.draw(aim, arm, self.seed, index, rng)

    def _list_arms(self, aim: FocusAim, progress: _AimProgress) -> list[Arm]:
        programs = bool(self.source.list_programs(aim))
        if programs and not progress.arms["program"].tried and progress.tried < BLOCK:
            return ["program"]
        possible: dict[Arm, bool] = {
            "program": programs and progress.arms["program"].found < _ENOUGH,
            "near_miss": programs,
            "sweep": aim.label in self.source.sweeps and not progress.dry,
            "grammar": True,
            "mutation": bool(progress.recipes),
        }
        return [arm for arm, can in possible.items() if can]

    def _apply(self, outcome: PlaceOutcome) -> None:
        label, arm = _read_arm(outcome.drawn.features)
        if label not in self._progress or arm is None:
            return
        for aim in self.source.plan.reachable:
            hit = self._score_hit(aim, outcome)
            self._progress[aim.label].fired += hit == 1.0
            self._progress[aim.label].matched += hit == 0.5
            if aim.label != label:
                continue
            progress = self._progress[label]
            progress.tried += 1
            progress.arms[arm].count(hit)
            recipe = bytes.fromhex(str((outcome.drawn.spec or {}).get("recipe", "")))
            if hit and recipe:
                progress.recipes = [*progress.recipes, recipe][-_MOST_PARENTS:]

    def _score_hit(self, aim: FocusAim, outcome: PlaceOutcome) -> float:
        """Return 1 if the aim fired, 0.5 if it was only refused or called, else 0."""
        outcomes = {how for stage, name, how in outcome.items if (stage, name) in aim.rules}
        ran = any((FOCUS, str(span), "fired") in outcome.items for span in aim.spans)
        return 1.0 if ran or "fired" in outcomes else 0.5 if outcomes else 0.0


def _read_arm(features: Sequence[str]) -> tuple[str, Arm | None]:
    label = next((name.removeprefix("focus:") for name in features if name.startswith("focus:")), "")
    text = next((name.removeprefix("drawn as:") for name in features if name.startswith("drawn as:")), "")
    return label, next((arm for arm in _PRIOR if arm == text), None)
