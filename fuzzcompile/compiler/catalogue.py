"""Catalogue of the installed torch: its stages, passes, patterns, decompositions, lowerings, settings."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeGuard

import torch

from fuzzcompile.compiler import labels
from fuzzcompile.compiler.custom import passes_in_force
from fuzzcompile.compiler.hooks import initialise_patterns
from fuzzcompile.compiler.ledger import Label
from fuzzcompile.compiler.pass_calls import PassCall, calls_of
from fuzzcompile.compiler.plain import plain_passes
from fuzzcompile.compiler.target.process import described
from fuzzcompile.compiler.toggles import settings_of
from fuzzcompile.facts import StageSource, facts
from fuzzcompile.stage_names import DECOMPOSITION, FREEZING, LOWERING, PARTITION, STAGES

if TYPE_CHECKING:
    from torch._inductor.pattern_matcher import PatternMatcherPass

Kind = Literal["pass", "pattern", "decomposition", "lowering", "setting"]
_PASSES = "torch._inductor.fx_passes"


@dataclass(frozen=True)
class Known:
    """One thing that can be named as a culprit, switched or vetoed.

    Attributes:
        stage: its stage.
        kind: what it is.
        name: the name that a ledger gives it.
        pass_name: the pass that runs a pattern; a pass's own name.
        source: the file that defines it, relative to the folder that holds torch; None if that is not known.
        line: the line in that file.
        on: whether it runs under the present settings; None if that depends on the program.
        when: the condition under which it runs, as source; of a setting, its present value.
        default: torch's own value of a setting.
        changed: whether a setting has another value than torch's own.
        made_of: what torch holds of it: the entries of a pattern, the function or class of a pass or operator.
    """

    stage: str
    kind: Kind
    name: str
    pass_name: str | None = None
    source: str | None = None
    line: int | None = None
    on: bool | None = None
    when: str = ""
    default: str | None = None
    changed: bool = False
    made_of: tuple[object, ...] = field(default=(), repr=False, compare=False)


def known_to(device: torch.device) -> list[Known]:
    """Everything that the installed torch registers for ``device``, by stage, passes before their patterns.

    What this torch does not have is left out.
    """
    initialise_patterns(device)
    # The patterns of freezing are registered when something is frozen. Whatever keeps a torch from registering them
    # now, the other stages are listed all the same.
    with contextlib.suppress(Exception), described():
        importlib.import_module(f"{_PASSES}.freezing_patterns").lazy_init()
    rows: list[Known] = []
    conditions: dict[str, set[str]] = {}
    for stage, source in facts().stages.items():
        with contextlib.suppress(ImportError, AttributeError):
            of_stage = _Stage(stage, source).rows()
            rows += of_stage
            conditions[stage] = {row.when for row in of_stage}
    rows += [*_custom(), *_partitioners(), *_operators()]
    rows += [
        Known(toggle.stage, "setting", toggle.name, when=toggle.value, default=toggle.default, changed=toggle.changed)
        for toggle in settings_of(conditions)
    ]
    return sorted(rows, key=lambda row: (STAGES.index(row.stage), row.kind == "setting"))


class _Stage:
    """The passes and patterns of one stage."""

    def __init__(self, stage: str, source: StageSource) -> None:
        self.stage, self.switch = stage, source.switch
        self.functions = list(_functions(source.functions))
        self.tables = _tables_of(vars(importlib.import_module(source.tables)))
        self.config = importlib.import_module("torch._inductor.config")
        self.is_on = bool(getattr(self.config, source.switch, True))
        self.option = f"{stage}_fusion_options"
        self.listed = set[str]()

    def rows(self) -> list[Known]:
        """Passes in the order in which they run, each before its patterns; then tables that are run by name."""
        rows, done = list[Known](), set[int]()
        calls = self._calls()
        group_fusions = facts().passes.group_fusions
        # torch 2.13 runs the group fusions of post_grad under the name of a user's own pass.
        names = [call.name for call in calls if getattr(call.target, "__name__", "") == group_fusions]
        fusions = names[-1] if names else group_fusions
        run = {id(call.target) for call in calls}
        for call in calls:
            if call.name != fusions or call.target is not None:
                tables = [call.target] if is_table(call.target) else _tables_inside(call.target, run)
                done |= set(map(id, tables))
                rows += self._with_patterns(self._pass_of(call), tables)
        for name, table in self.tables.items():
            if id(table) not in done:
                done.add(id(table))
                on, when = self._by_name(name)
                rows += self._with_patterns(Known(self.stage, "pass", name, name, on=on, when=when), [table])
        return [*rows, *self._group_batch_fusions(fusions)]

    def _calls(self) -> list[PassCall]:
        """The calls of passes, each once, where it stands last."""

        def is_pass(function: Callable[..., object]) -> bool:
            return function.__name__ in plain_passes()  # asked anew each time: reading a function loads modules

        calls = [call for function in self.functions for call in calls_of(function, is_table, is_pass)]
        return list({(call.name, id(call.target)): call for call in reversed(calls)}.values())[::-1]

    def _pass_of(self, call: PassCall) -> Known:
        source, line = (None, None) if is_table(call.target) else labels.source_of(call.target)
        when = self._condition(*call.when)
        on, made_of = call.on and self.is_on, () if is_table(call.target) else (call.target,)
        return Known(self.stage, "pass", call.name, call.name, source, line, on, when, made_of=made_of)

    def _with_patterns(self, owner: Known, tables: Collection[PatternMatcherPass]) -> Iterator[Known]:
        yield owner
        for table in tables:
            # One function runs all tables of freezing, and a ledger knows their rules by its name alone.
            seen = self.listed if self.stage == FREEZING else set[str]()
            rules = dict[str, tuple[Label, list[object]]]()  # one rule may be registered for many operators
            for entry in {id(entry): entry for entries in table.patterns.values() for entry in entries}.values():
                label = labels.entry_label(entry, self.stage, owner.name)
                rules.setdefault(label.rewrite, (label, []))[1].append(entry)
            for name, (label, entries) in rules.items():
                if name not in seen:
                    seen.add(name)
                    place = (name, owner.name, label.source, label.line)
                    yield Known(self.stage, "pattern", *place, owner.on, owner.when, made_of=tuple(entries))

    def _group_batch_fusions(self, pass_name: str) -> Iterator[Known]:
        """Rules of their own kind, run by name as well; a ledger names them by their class."""
        module = importlib.import_module(f"{_PASSES}.group_batch_fusion")
        rules: Mapping[str, type] = getattr(module, f"{self.stage.upper()}_FUSIONS", {})
        for name, rule in rules.items():
            source, line = labels.source_of(getattr(rule, "fuse", None))
            on, when = self._by_name(name)
            yield Known(self.stage, "pattern", rule.__name__, pass_name, source, line, on, when, made_of=(rule,))

    def _by_name(self, name: str) -> tuple[bool | None, str]:
        """Return whether the stage's fusion options ask for a table, and the condition."""
        if not hasattr(self.config, self.option):
            return None, ""
        asked = name in (getattr(self.config, self.option) or {})
        on = asked and self.is_on and bool(getattr(self.config, "pattern_matcher", True))
        return on, self._condition(f"{name!r} in config.{self.option}")

    def _condition(self, *conditions: str) -> str:
        """The conditions together, with the switch of the whole stage where that is off."""
        return " and ".join((*(() if self.is_on else (f"config.{self.switch}",)), *conditions))


def is_table(value: object) -> TypeGuard[PatternMatcherPass]:
    """Return whether ``value`` is a table of patterns."""
    return isinstance(value, importlib.import_module("torch._inductor.pattern_matcher").PatternMatcherPass)


def _tables_inside(function: object, run: Collection[int]) -> list[PatternMatcherPass]:
    """Tables that a pass applies itself, beside those of the ids ``run`` that have a name of their own."""
    calls = calls_of(function, is_table, lambda _: False) if inspect.isfunction(function) else []
    return [call.target for call in calls if is_table(call.target) and id(call.target) not in run]


def _functions(names: Collection[str]) -> Iterator[Callable[..., object]]:
    """The functions ``module:name``, as far as this torch has them."""
    for place in names:
        module, _, name = place.partition(":")
        function = getattr(importlib.import_module(module), name, None)
        if function is not None:
            yield function


def _tables_of(module: Mapping[str, object]) -> dict[str, PatternMatcherPass]:
    """The pattern tables that a module knows by name, alone or in a list or dictionary."""
    tables: dict[str, PatternMatcherPass] = {}
    for name, value in module.items():
        if is_table(value):
            tables[getattr(value, "pass_name", None) or name] = value
        elif isinstance(value, (list, tuple)) and all(map(is_table, value)):
            tables |= {f"{name.removesuffix('s')}_{index}": table for index, table in enumerate(value)}
        elif isinstance(value, dict) and all(map(is_table, value.values())):
            tables |= {str(key): table for key, table in value.items()}
    return tables


def _custom() -> Iterator[Known]:
    """The user's own passes of this process, with the patterns of their tables."""
    for own in passes_in_force():
        label = own.label(own.place)
        made_of = () if own.is_table else (own.given,)
        yield Known(own.place, "pass", own.name, own.name, label.source, label.line, True, made_of=made_of)
        for rule, entry in own.patterns():
            place = (rule.rewrite, own.name, rule.source, rule.line)
            yield Known(own.place, "pattern", *place, True, made_of=(entry,))


def _partitioners() -> Iterator[Known]:
    with contextlib.suppress(ImportError):
        module = importlib.import_module("torch._functorch.partitioners")
        for name in facts().passes.partitioners:
            function = getattr(module, name, None)
            if function is not None:
                where = labels.source_of(function)
                yield Known(PARTITION, "pass", name, name, *where, when="with gradients", made_of=(function,))


def _operators() -> Iterator[Known]:
    """Operators that have a decomposition or a lowering of Inductor's own."""
    tables: tuple[tuple[str, Kind, str, str], ...] = (
        (DECOMPOSITION, "decomposition", "torch._inductor.decomposition", "decompositions"),
        (LOWERING, "lowering", "torch._inductor.lowering", "lowerings"),
    )
    for stage, kind, module, table in tables:
        with contextlib.suppress(ImportError, AttributeError):
            entries: Mapping[object, object] = getattr(importlib.import_module(module), table)
            overloads = {str(key): function for key, function in entries.items() if _is_overload(key)}
            for name, function in sorted(overloads.items()):
                yield Known(stage, kind, name, None, *labels.source_of(function), made_of=(function,))


def _is_overload(operator: object) -> bool:
    return isinstance(operator, torch._ops.OpOverload)
