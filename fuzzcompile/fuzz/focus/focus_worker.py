"""Worker side of a focus: its aims in the installed torch, and the observations in a judged case."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import torch

from fuzzcompile.compiler.rule_catalogue import KnownRule, list_known_rules
from fuzzcompile.compiler.torch_config import MISSING, get_setting
from fuzzcompile.compiler.watch.rule_labels import get_base_name, get_family
from fuzzcompile.fuzz.focus.code_graph import CodeGraph, DefinitionPlace
from fuzzcompile.fuzz.rules.rule_code import list_code_places, list_pattern_operators
from fuzzcompile.fuzz.rules.rule_programs import make_rule_programs
from fuzzcompile.model.compiler_toggles import merge_settings, solve_switches, switch_entry_on
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.facts import facts
from fuzzcompile.model.focus_plan import FocusAim, FocusPlan, FocusQuestion, Span
from fuzzcompile.model.stages import DECOMPOSITION, LOWERING, STAGES
from fuzzcompile.programs.edits.pattern_program import PatternProgram
from fuzzcompile.run.code_files import get_module_file
from fuzzcompile.run.pool.worker import get_current_device, say
from fuzzcompile.run.transforms import leave_transforms

_NEAREST = 4
_WORD = re.compile(r"^(aten|prims|torch)\.")
# From the name of a rule to what several share: the name without its variant, or its family.
_READINGS = (get_base_name, get_family)


def select_names(what: str, rules: Sequence[tuple[str, str]], operators: Sequence[str]) -> set[str]:
    """The names of rules or operators that ``what`` means.

    A name is taken as it stands; else as what several rules share (a name without its variant, a family) or a glob;
    else as an operator, with or without namespace and overload; else as the ending of one name. ``stage:`` before it
    restricts it to one stage. ``rules`` are stages and names, ``operators`` names of overloads (``aten.mm.default``).

    Raises:
        UsageError: it means nothing, or several things.
    """
    stage, colon, rest = what.partition(":")
    staged = bool(colon) and stage in STAGES
    wanted = rest if staged else what
    names = {name for own, name in rules if not staged or own == stage}
    if matching := next(filter(None, _iter_matchings(wanted, names, operators)), None):
        return matching
    ending = re.compile(rf"[_.:]{re.escape(wanted)}$")  # which begins a word
    ends = {name for name in (*names, *operators) if wanted and ending.search(name)}
    ends = {name for name in ends if name.removesuffix(wanted)[-1] in ".:"} or ends
    groups = set(map(get_base_name, ends))
    if len(groups) == 1:
        return ends
    known = {name.lower(): name for name in sorted({*names, *map(get_base_name, names), *operators})}
    close = difflib.get_close_matches(wanted.lower(), sorted(known), _NEAREST, 0.5)
    near = sorted(ends)[:_NEAREST] or [known[name] for name in close]
    kind = "may mean several" if ends else "names no rule, pass or operator of the installed torch"
    nearest = f": {'; '.join(near)}" if ends else f"; the nearest are {', '.join(near)}" if near else ""
    raise UsageError(f"--focus {what} {kind}{nearest}. `fuzzcompile coverage --rules` lists them.")


def _iter_matchings(wanted: str, names: set[str], operators: Sequence[str]) -> Iterator[set[str]]:
    yield {name for name in (*names, *operators) if name == wanted}
    for reading in _READINGS:
        yield {name for name in names if wanted.strip("_") == reading(name).strip("_")}
    if any(letter in wanted for letter in "*?["):
        yield {name for name in (*names, *operators) if fnmatch.fnmatchcase(name, wanted)}
    bare = _WORD.sub("", wanted)
    overloads = {name for name in operators if bare and _WORD.sub("", name).startswith(f"{bare}.")}
    yield {name for name in overloads if not name.endswith("out")} or overloads  # graphs are functional


_ROOT = Path(torch.__file__).parent.parent
# Every replacement pattern runs through it.
_SHARED = "torch/_inductor/pattern_matcher.py"
_RULES = ("pass", "pattern")
# A function behind more operators than this is not theirs but the lowering's own: its lines are aimed at.
_MOST_OPERATORS = 24
# For the programs of one rule.
_SECONDS = 12.0
Label = tuple[str, str]


def find_focus_plan(question: FocusQuestion) -> FocusPlan:
    """Find the aims of a focus in the installed torch, on this worker's device: each once, as they were asked for."""
    say("looking up what to focus on")
    planning = _Planning(question)
    aims = [aim for name in question.names for aim in planning.find_named(name)]
    aims += [aim for span in question.spans for aim in planning.find_in(span)]
    aims += planning.list_all() if question.every else []
    plan = FocusPlan(tuple({aim.label: aim for aim in reversed(aims)}.values())[::-1])
    if not plan.reachable and not question.every:
        reasons = "; ".join(dict.fromkeys(f"{aim.label}: {aim.why_not}" for aim in plan.aims[:3]))
        more = f" (and {len(plan.aims) - 3} more)" if len(plan.aims) > 3 else ""
        raise UsageError(f"Nothing to focus on can fire here: {reasons.rstrip('.')}{more}.")
    return plan


class _Planning:
    def __init__(self, question: FocusQuestion) -> None:
        self.question = question
        self.device = torch.device(get_current_device())
        known = list_known_rules(self.device)
        self.rules = [row for row in known if row.kind in _RULES]
        self.operators = [row for row in known if row.kind not in (*_RULES, "setting")]

    def find_named(self, what: str) -> list[FocusAim]:
        rules = [(row.stage, row.name) for row in self.rules]
        names = select_names(what, rules, sorted({row.name for row in self.operators}))
        stage = what.partition(":")[0] if what.partition(":")[0] in {row.stage for row in self.rules} else None
        rows = [row for row in self.rules if row.name in names and stage in (None, row.stage)]
        inside = [row for row in self._find_run_by(rows) if row.kind == "pattern"]
        return [*self._make_rule_aims([*rows, *inside]), *self._make_operator_aims(names - {row.name for row in rows})]

    def list_all(self) -> list[FocusAim]:
        """Each rule; a pass that runs others is none, for these are."""
        return [aim for aim in self._make_rule_aims(self.rules) if len(aim.rules) == 1]

    def _find_run_by(self, rows: Iterable[KnownRule]) -> list[KnownRule]:
        passes = {(row.stage, row.name) for row in rows if row.kind == "pass"}
        return [row for row in self.rules if (row.stage, row.pass_name) in passes]

    def find_in(self, span: Span) -> list[FocusAim]:
        """The rules and operators behind some lines; the lines themselves where there are none."""
        around, rows = self._graph.find_places(span), list[KnownRule]()
        places = set(around)
        if span.file in {*self._graph.files, *(file for row in self.rules for file, _ in list_code_places(row))}:
            rows = [row for row in self.rules if places & self._reach[row.stage, row.name]]
            rows = rows or self._find_registered(places)
        registered = self.operators if span.file not in self._graph.files else ()  # files of passes define no operator
        behind = [
            row
            for row in registered
            if any(inner.contains(*at) for at in list_code_places(row) for spans in around.values() for inner in spans)
        ]
        aims, operators = self._make_rule_aims(rows), {row.name for row in behind}
        if len(operators) <= _MOST_OPERATORS:
            aims += self._make_operator_aims(operators)
        some = tuple((row.stage, row.name) for row in behind[:: len(behind) // _MOST_OPERATORS + 1])
        return aims or [FocusAim(str(span), "lines", "", spans=(span,), beside=some)]

    def _find_registered(self, places: set[DefinitionPlace]) -> list[KnownRule]:
        """Rules made by functions that use these: parts of patterns are called where the patterns are registered."""
        seen, level = set(places), set(places)
        while level := self._graph.find_users(level) - seen:
            seen |= level
            reached = {place for place in self._graph.find_reached(level) if place[0] != _SHARED}
            rows = [row for row in self.rules if reached & self._find_own_places(row)]
            if rows:
                return rows
        return []

    def _find_own_places(self, row: KnownRule) -> set[DefinitionPlace]:
        return {
            place for file, line in list_code_places(row) for place in self._graph.find_places(Span(file, line, line))
        }

    @cached_property
    def _graph(self) -> CodeGraph:
        folder = _ROOT / "torch" / "_inductor" / "fx_passes"
        files = [path.relative_to(_ROOT).as_posix() for path in sorted(folder.rglob("*.py"))]
        modules = map(get_module_file, facts().passes.modules)
        return CodeGraph(_ROOT, [*files, *modules, _SHARED], frozenset({_SHARED}))

    @cached_property
    def _reach(self) -> dict[Label, set[DefinitionPlace]]:
        reach = defaultdict[Label, set[DefinitionPlace]](set)
        for row in self.rules:
            reach[row.stage, row.name] |= self._graph.find_reached(self._find_own_places(row))
        return reach

    def _make_rule_aims(self, rows: Iterable[KnownRule]) -> list[FocusAim]:
        grouped = defaultdict[Label, list[KnownRule]](list)
        for row in rows:
            grouped[row.stage, row.name].append(row)
        return [self._make_rule_aim(*label, same) for label, same in grouped.items()]

    def _make_rule_aim(self, stage: str, name: str, rows: list[KnownRule]) -> FocusAim:
        alone = len({row.stage for row in self.rules if row.name == name}) == 1
        first = min(rows, key=lambda row: row.on is False)  # several passes of a stage may run it
        inside = dict.fromkeys((row.stage, row.name) for row in self._find_run_by(rows))
        # The switches: the condition around its pass, and the setting that the facts name for it.
        reasons = (reason for reason in facts().unreachable if reason.covers(stage, name, self.device.type))
        named = [switch_entry_on(reason.setting, get_setting) for reason in reasons if reason.setting is not None]
        wanted = merge_settings([solve_switches(first.when, get_setting) if first.on is False else {}, *named])
        # A reason against it that holds whatever is set; of a target, none were checked.
        lasting = None if self.question.target else facts().find_reason(stage, name, self.device.type)
        return FocusAim(
            label=name if alone else f"{stage}:{name}",
            kind="pass" if first.kind == "pass" else "pattern",
            stage=stage,
            rules=((stage, name), *inside),
            settings={entry: value for entry, value in wanted.items() if get_setting(entry) is not MISSING},
            when=first.when if first.on is False else "",
            why_not="" if lasting is None or lasting.models else f"{lasting.group}: {lasting.why}",
            operators=tuple(list_pattern_operators(first)),
        )

    def _make_operator_aims(self, names: Collection[str]) -> list[FocusAim]:
        stages = defaultdict[str, set[str]](set)
        for row in self.operators:
            stages[row.name].add(row.stage)
        aims = []
        for name in sorted(names):
            stage, rules = LOWERING if LOWERING in stages[name] else DECOMPOSITION, (DECOMPOSITION, LOWERING)
            aims.append(FocusAim(name, "operator", stage, tuple((at, name) for at in rules), operators=((name,),)))
        return aims


def make_programs(rule: tuple[str, str]) -> tuple[PatternProgram, ...]:
    """The best programs for a rule, as (stage, name), that are found in some seconds; none if nothing is known to call.

    Those with ``fires=False`` did not make the rule fire by themselves, and near misses of them still may.
    """
    say(f"looking for programs for {rule[0]}:{rule[1]}")
    device = torch.device(get_current_device())
    rows = [row for row in list_known_rules(device) if row.kind != "setting" and (row.stage, row.name) == rule]
    with leave_transforms():
        return tuple(make_rule_programs(rows[-1], device, _SECONDS)) if rows else ()
