"""What a focus means in the installed torch, and what a judged case showed of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from functools import cached_property
from pathlib import Path

import torch

from fuzzcompile.compiler.catalogue import Known, known_to
from fuzzcompile.compiler.labels import base_name, family_of
from fuzzcompile.compiler.rule_code import code_of, operators_of
from fuzzcompile.compiler.settings import MISSING, setting
from fuzzcompile.errors import UsageError
from fuzzcompile.execution.worker import current_device, say
from fuzzcompile.facts import facts
from fuzzcompile.focusing.definitions import CodeGraph, Place
from fuzzcompile.focusing.naming import meant
from fuzzcompile.focusing.plan import Aim, FocusQuestion, Plan
from fuzzcompile.generation.switches import Settings, entry_on, switching_on
from fuzzcompile.generation.toggles import joined
from fuzzcompile.span import Span
from fuzzcompile.stage_names import DECOMPOSITION, LOWERING

_ROOT = Path(torch.__file__).parent.parent
# Every replacement pattern runs through it.
_SHARED = "torch/_inductor/pattern_matcher.py"
_RULES = ("pass", "pattern")
# A function behind more operators than this is not theirs but the lowering's own: its lines are aimed at.
_MOST_OPERATORS = 24
Label = tuple[str, str]


def plan_of(question: FocusQuestion) -> Plan:
    """What a focus aims at in the installed torch, on this worker's device.

    Raises:
        UsageError: a name means nothing or several things, or nothing that is aimed at can be reached here.
    """
    say("looking up what to focus on")
    return _Planning(question).plan()


class _Planning:
    def __init__(self, question: FocusQuestion) -> None:
        self.question = question
        self.device = torch.device(current_device())
        known = known_to(self.device)
        self.rules = [row for row in known if row.kind in _RULES]
        self.operators = [row for row in known if row.kind not in (*_RULES, "setting")]

    def plan(self) -> Plan:
        """The aims, each once, in the order in which they were asked for.

        Raises:
            UsageError: a name means nothing, or nothing can be reached.
        """
        aims = [aim for name in self.question.names for aim in self._named(name)]
        aims += [aim for span in self.question.spans for aim in self._in(span)]
        plan = Plan(tuple({aim.label: aim for aim in reversed(aims)}.values())[::-1])
        if not plan.reachable:
            reasons = "; ".join(dict.fromkeys(f"{aim.label}: {aim.why_not}" for aim in plan.aims[:3]))
            more = f" (and {len(plan.aims) - 3} more)" if len(plan.aims) > 3 else ""
            raise UsageError(f"Nothing to focus on can fire here: {reasons.rstrip('.')}{more}.")
        return plan

    # -- names ------------------------------------------------------------------------------------

    def _named(self, what: str) -> list[Aim]:
        names = meant(
            what,
            [(row.stage, row.name) for row in self.rules],
            sorted({row.name for row in self.operators}),
            (base_name, family_of),
        )
        stage = what.partition(":")[0] if what.partition(":")[0] in {row.stage for row in self.rules} else None
        rows = [row for row in self.rules if row.name in names and stage in (None, row.stage)]
        inside = [row for row in self.rules if row.kind == "pattern" and self._runs(rows, row)]
        return [*self._of_rules([*rows, *inside]), *self._of_operators(names - {row.name for row in rows})]

    def _runs(self, passes: Collection[Known], row: Known) -> bool:
        return any(run.kind == "pass" and (run.stage, run.name) == (row.stage, row.pass_name) for run in passes)

    # -- lines ------------------------------------------------------------------------------------

    def _in(self, span: Span) -> list[Aim]:
        """The rules and operators behind some lines; the lines themselves where there are none."""
        places, rows = set(self._graph.places_at(span)), list[Known]()
        if span.file in {*self._graph.files, *(file for row in self.rules for file, _ in code_of(row))}:
            rows = [row for row in self.rules if places & self._reach[row.stage, row.name]]
            rows = rows or self._registered_by(places)
        around = [inner for place in places for inner in self._graph.spans_of(place)]
        registered = self.operators if span.file not in self._graph.files else ()  # files of passes define no operator
        behind = [row for row in registered if any(inner.holds(*at) for at in code_of(row) for inner in around)]
        aims, operators = self._of_rules(rows), {row.name for row in behind}
        if len(operators) <= _MOST_OPERATORS:
            aims += self._of_operators(operators)
        some = tuple((row.stage, row.name) for row in behind[:: len(behind) // _MOST_OPERATORS + 1])
        return aims or [Aim(str(span), "lines", "", spans=(span,), beside=some)]

    def _registered_by(self, places: set[Place]) -> list[Known]:
        """Rules made by functions that use these: parts of patterns are called where the patterns are registered."""
        seen, level = set(places), set(places)
        while level := self._graph.users(level) - seen:
            seen |= level
            reached = {place for place in self._graph.reached(level) if place[0] != _SHARED}
            rows = [row for row in self.rules if reached & self._own_places(row)]
            if rows:
                return rows
        return []

    def _own_places(self, row: Known) -> set[Place]:
        return {place for file, line in code_of(row) for place in self._graph.places_at(Span(file, line, line))}

    @cached_property
    def _graph(self) -> CodeGraph:
        folder = _ROOT / "torch" / "_inductor" / "fx_passes"
        files = [path.relative_to(_ROOT).as_posix() for path in sorted(folder.rglob("*.py"))]
        modules = [f"{module.replace('.', '/')}.py" for module in facts().passes.modules]
        return CodeGraph(_ROOT, [*files, *modules, _SHARED], frozenset({_SHARED}))

    @cached_property
    def _reach(self) -> dict[Label, set[Place]]:
        reach = defaultdict[Label, set[Place]](set)
        for row in self.rules:
            reach[row.stage, row.name] |= self._graph.reached(self._own_places(row))
        return reach

    # -- aims -------------------------------------------------------------------------------------

    def _of_rules(self, rows: Iterable[Known]) -> list[Aim]:
        grouped = defaultdict[Label, list[Known]](list)
        for row in rows:
            grouped[row.stage, row.name].append(row)
        return [self._rule(*label, same) for label, same in grouped.items()]

    def _rule(self, stage: str, name: str, rows: list[Known]) -> Aim:
        """The aim of a rule, which several passes of a stage may run."""
        alone = len({row.stage for row in self.rules if row.name == name}) == 1
        first = min(rows, key=lambda row: row.on is False)
        inside = dict.fromkeys((row.stage, row.name) for row in self.rules if self._runs(rows, row))
        return Aim(
            label=name if alone else f"{stage}:{name}",
            kind="pass" if first.kind == "pass" else "pattern",
            stage=stage,
            rules=((stage, name), *inside),
            settings=self._settings(stage, name, first),
            when=first.when if first.on is False else "",
            why_not=self._why_not(stage, name),
            operators=tuple(operators_of(first)),
        )

    def _settings(self, stage: str, name: str, row: Known) -> Settings:
        """What switches a rule on: the condition around its pass, and the setting that the facts name for it."""
        reasons = (reason for reason in facts().unreachable if reason.covers(stage, name, self.device.type))
        named = [entry_on(reason.setting, setting) for reason in reasons if reason.setting is not None]
        wanted = joined([switching_on(row.when, setting) if row.on is False else {}, *named])
        return {entry: value for entry, value in wanted.items() if setting(entry) is not MISSING}

    def _why_not(self, stage: str, name: str) -> str:
        """The reason against a rule that holds whatever is set; of a target, none were checked."""
        if self.question.target is not None:
            return ""
        reason = facts().lasting_reason_for(stage, name, self.device.type)
        return "" if reason is None or reason.models else f"{reason.group}: {reason.why}"

    def _of_operators(self, names: Collection[str]) -> list[Aim]:
        """One aim for each operator, however it is compiled."""
        stages = defaultdict[str, set[str]](set)
        for row in self.operators:
            stages[row.name].add(row.stage)
        both = (DECOMPOSITION, LOWERING)
        return [
            Aim(
                name,
                "operator",
                LOWERING if LOWERING in stages[name] else DECOMPOSITION,
                tuple((stage, name) for stage in both),
                operators=((name,),),
            )
            for name in sorted(names)
        ]
