"""What fuzzcompile knows of the installed torch: its stages, passes, patterns, decompositions, lowerings, settings."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from fuzzcompile.compiler import labels
from fuzzcompile.compiler.hooks import initialise_patterns
from fuzzcompile.compiler.pass_calls import PassCall, calls_of
from fuzzcompile.compiler.plain import plain_passes
from fuzzcompile.compiler.toggles import settings_of
from fuzzcompile.stage_names import STAGES

Kind = Literal["pass", "pattern", "decomposition", "lowering", "setting"]
_PASSES = "torch._inductor.fx_passes"
_COMPILE_FX, _FREEZING = "torch._inductor.compile_fx", "torch._inductor.freezing"
# The stage, the functions that run its passes, the module of its pattern tables, and what switches the whole of it.
_ROOTS: tuple[tuple[str, tuple[tuple[str, str], ...], str, str], ...] = (
    ("pre_grad", ((f"{_PASSES}.pre_grad", "pre_grad_passes"),), f"{_PASSES}.pre_grad", "use_pre_grad_passes"),
    (
        "joint_graph",
        ((f"{_PASSES}.joint_graph", "joint_graph_passes"),),
        f"{_PASSES}.joint_graph",
        "use_joint_graph_passes",
    ),
    (
        "freezing",
        ((_COMPILE_FX, "fw_compiler_freezing"), (_FREEZING, "_freeze"), (_FREEZING, "freeze")),
        f"{_PASSES}.freezing_patterns",
        "freezing",
    ),
    ("post_grad", ((f"{_PASSES}.post_grad", "post_grad_passes"),), f"{_PASSES}.post_grad", "use_post_grad_passes"),
)
_GROUP_FUSIONS = "group_batch_fusion_passes"
_PARTITIONERS = ("min_cut_rematerialization_partition", "default_partition")


@dataclass(frozen=True)
class Known:
    """One thing that can be named as a culprit, switched or vetoed.

    ``on`` says whether it runs under the present settings (None: that hangs on the program), ``when`` what it hangs
    on. Of a setting, ``when`` is its present value, ``default`` that of torch and ``changed`` whether they differ.
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


def known_to(device: torch.device) -> list[Known]:
    """Everything that the installed torch registers for ``device``, by stage, passes before their patterns.

    What this torch does not have is left out.
    """
    initialise_patterns(device)
    with contextlib.suppress(Exception):  # those of freezing are registered when something is frozen
        importlib.import_module(f"{_PASSES}.freezing_patterns").lazy_init()
    found: list[Known] = []
    guards: dict[str, set[str]] = {}
    for stage, roots, tables, switch in _ROOTS:
        with contextlib.suppress(ImportError, AttributeError):
            rows = _Stage(stage, list(_functions(roots)), tables, switch).rows()
            found += rows
            guards[stage] = {row.when for row in rows}
    found += [*_partitioners(), *_operators()]
    found += [
        Known(one.stage, "setting", one.name, when=one.value, default=one.default, changed=one.changed)
        for one in settings_of(guards)
    ]
    return sorted(found, key=lambda row: (STAGES.index(row.stage), row.kind == "setting"))


class _Stage:
    """The passes and patterns of one stage."""

    def __init__(self, stage: str, functions: Sequence[Callable[..., Any]], tables: str, switch: str) -> None:
        self.stage, self.functions, self.switch = stage, functions, switch
        self.tables = _tables_of(importlib.import_module(tables))
        self.config = importlib.import_module("torch._inductor.config")
        self.options: Mapping[str, Any] = getattr(self.config, f"{stage}_fusion_options", None) or {}
        self.fusions = _GROUP_FUSIONS
        self.listed = set[str]()

    def rows(self) -> list[Known]:
        """Passes in the order in which they run, each before its patterns; then tables that are run by name."""
        found, done = list[Known](), set[int]()
        calls = self._calls()
        for call in calls:
            if getattr(call.target, "__name__", "") == _GROUP_FUSIONS:
                self.fusions = call.name  # torch 2.13 runs those of post_grad under the name of a user's own pass
        run = {id(call.target) for call in calls}
        for call in calls:
            if call.name == self.fusions and call.target is None:
                continue
            when = " and ".join(self._guard(*call.when))
            on = call.on and self._is_on
            if _is_table(call.target):
                done.add(id(call.target))
                found.append(Known(self.stage, "pass", call.name, call.name, on=on, when=when))
                found += self._patterns(call.target, call.name, on, when)
            else:
                source, line = labels.source_of(call.target)
                found.append(Known(self.stage, "pass", call.name, call.name, source, line, on, when))
                for table in self._tables_inside(call.target, run):
                    done.add(id(table))
                    found += self._patterns(table, call.name, on, when)
        for name, table in self.tables.items():
            if id(table) in done:
                continue
            done.add(id(table))
            asked, when = self._by_name(name)
            found.append(Known(self.stage, "pass", name, name, on=asked, when=when))
            found += self._patterns(table, name, asked, when)
        return [*found, *self._group_batch_fusions()]

    def _calls(self) -> list[PassCall]:
        # Asked anew each time: reading a function loads the modules that it imports.
        def is_pass(target: Any) -> bool:
            return target.__name__ in plain_passes()

        calls = [call for function in self.functions for call in calls_of(function, _is_table, is_pass)]
        return list({(call.name, id(call.target)): call for call in reversed(calls)}.values())[::-1]

    def _tables_inside(self, function: Any, run: Collection[int]) -> list[Any]:
        """Tables that a pass applies itself, beside those of the ids ``run`` that have a name of their own."""
        inside = calls_of(function, _is_table, lambda _: False) if inspect.isfunction(function) else []
        return [call.target for call in inside if _is_table(call.target) and id(call.target) not in run]

    def _patterns(self, table: Any, pass_name: str, on: bool | None, when: str) -> Iterator[Known]:
        entries = {id(entry): entry for listed in table.patterns.values() for entry in listed}
        # One function runs all tables of freezing, and a ledger knows their rules by its name alone.
        seen = self.listed if self.stage == "freezing" else set[str]()
        for entry in entries.values():
            label = labels.entry_label(entry, self.stage, pass_name)
            if label.rewrite not in seen:  # one rule may be registered for many operators
                seen.add(label.rewrite)
                yield Known(self.stage, "pattern", label.rewrite, pass_name, label.source, label.line, on, when)

    def _group_batch_fusions(self) -> Iterator[Known]:
        """Rules of their own kind, run by name as well."""
        module = importlib.import_module(f"{_PASSES}.group_batch_fusion")
        rules = getattr(module, f"{self.stage.upper()}_FUSIONS", {})
        for name, rule in rules.items():
            on, when = self._by_name(name)
            source, line = labels.source_of(getattr(rule, "fuse", None))
            yield Known(
                self.stage, "pattern", rule.__name__, self.fusions, source, line, on, when
            )  # as a ledger names it

    def _by_name(self, name: str) -> tuple[bool | None, str]:
        option = f"{self.stage}_fusion_options"
        if not hasattr(self.config, option):
            return None, ""
        on = name in self.options and self._is_on and bool(self.config.pattern_matcher)
        return on, " and ".join(self._guard(f"{name!r} in config.{option}"))

    def _guard(self, *conditions: str) -> tuple[str, ...]:
        """The conditions, with the switch of the whole stage where it is set against it."""
        return (*(() if self._is_on else (f"config.{self.switch}",)), *conditions)

    @property
    def _is_on(self) -> bool:
        return bool(getattr(self.config, self.switch, True))


def _functions(roots: Sequence[tuple[str, str]]) -> Iterator[Callable[..., Any]]:
    for module, name in roots:
        function = getattr(importlib.import_module(module), name, None)
        if function is not None:
            yield function


def _is_table(value: Any) -> bool:
    return isinstance(value, importlib.import_module("torch._inductor.pattern_matcher").PatternMatcherPass)


def _tables_of(module: Any) -> dict[str, Any]:
    """The pattern tables that a module knows by name, alone or in a list or dictionary."""
    found: dict[str, Any] = {}
    for name, value in vars(module).items():
        if _is_table(value):
            found[getattr(value, "pass_name", None) or name] = value
        elif isinstance(value, (list, tuple)) and value and all(map(_is_table, value)):
            found |= {f"{name.removesuffix('s')}_{index}": table for index, table in enumerate(value)}
        elif isinstance(value, dict) and value and all(map(_is_table, value.values())):
            found |= {str(key): table for key, table in value.items()}
    return found


def _partitioners() -> Iterator[Known]:
    with contextlib.suppress(ImportError):
        module = importlib.import_module("torch._functorch.partitioners")
        for name in _PARTITIONERS:
            function = getattr(module, name, None)
            if function is not None:
                yield Known("partition", "pass", name, name, *labels.source_of(function), when="with gradients")


def _operators() -> Iterator[Known]:
    """Operators that have a decomposition or a lowering of Inductor's own."""
    kinds: tuple[tuple[Literal["decomposition", "lowering"], str, str], ...] = (
        ("decomposition", "torch._inductor.decomposition", "decompositions"),
        ("lowering", "torch._inductor.lowering", "lowerings"),
    )
    for kind, module, table in kinds:
        with contextlib.suppress(ImportError, AttributeError):
            entries = getattr(importlib.import_module(module), table)
            named = {str(operator): function for operator, function in entries.items() if _is_overload(operator)}
            for name in sorted(named):
                source, line = labels.source_of(named[name])
                yield Known(kind, kind, name, None, source, line)


def _is_overload(operator: Any) -> bool:
    return isinstance(operator, torch._ops.OpOverload)
