"""Catalogue of the installed torch: its stages, passes, patterns, decompositions, lowerings, and their code."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import inspect
import pkgutil
import textwrap
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeGuard

import torch
from torch._inductor.pattern_matcher import PatternMatcherPass

from fuzzcompile.compiler.custom_code import list_entries, list_passes
from fuzzcompile.compiler.target.target_process import current_target, describe_target
from fuzzcompile.compiler.torch_config import list_toggles
from fuzzcompile.compiler.watch import rule_labels
from fuzzcompile.compiler.watch.ledger import Label
from fuzzcompile.compiler.watch.pass_patches import list_plain_passes
from fuzzcompile.model.facts import StageSource, facts
from fuzzcompile.model.stages import DECOMPOSITION, FREEZING, LOWERING, PARTITION, STAGES

# Inductor's lazily registered patterns.


def initialise_patterns(device: torch.device) -> None:
    """Register Inductor's lazily registered patterns, whose tracing a ledger, plant or veto would see otherwise.

    Called as the compiler calls it, because the registration is cached by its arguments.
    """
    from torch._inductor.fx_passes import joint_graph, post_grad, pre_grad

    target = current_target()
    if target is not None:
        device = torch.device(target.device_type, 0)
    with describe_target():
        for module in (joint_graph, post_grad, pre_grad):
            lazy_init: Any = getattr(module, "lazy_init", None)
            if lazy_init is not None:
                lazy_init(*((device,) if module is joint_graph and inspect.signature(lazy_init).parameters else ()))


def initialise_freezing_patterns() -> None:
    """Register the patterns of freezing now, which Inductor registers when it first freezes something."""
    with describe_target():
        importlib.import_module(facts().stages[FREEZING].tables).lazy_init()


Kind = Literal["pass", "pattern", "decomposition", "lowering", "setting"]


@dataclass(frozen=True)
class KnownRule:
    """One thing that can be named as a culprit, switched or vetoed."""

    stage: str
    kind: Kind
    name: str  # the name that a ledger gives it
    pass_name: str | None = None  # the pass that runs a pattern; a pass's own name
    # the file that defines it, relative to the folder that holds torch; None if that is not known
    source: str | None = None
    line: int | None = None
    on: bool | None = None  # whether it runs under the present settings; None if that depends on the program
    when: str = ""  # the condition under which it runs, as source; of a setting, its present value
    default: str | None = None  # torch's own value of a setting
    changed: bool = False
    # what torch holds of it: the entries of a pattern, the function or class of a pass or operator
    made_of: tuple[object, ...] = field(default=(), repr=False, compare=False)


def list_known_rules(device: torch.device) -> list[KnownRule]:
    """Everything that the installed torch registers for ``device``, by stage, passes before their patterns."""
    initialise_patterns(device)
    with contextlib.suppress(Exception):  # whatever keeps a torch from registering these, the others are listed
        initialise_freezing_patterns()
    rows: list[KnownRule] = []
    conditions: dict[str, set[str]] = {}
    for stage, source in facts().stages.items():
        with contextlib.suppress(ImportError, AttributeError):
            of_stage = _StageRules(stage, source).list_rules()
            rows += of_stage
            conditions[stage] = {row.when for row in of_stage}
    rows += [*_list_custom_rules(), *_list_partitioners(), *_list_operator_rules()]
    for stage, name, value, default, changed in list_toggles(conditions):
        rows.append(KnownRule(stage, "setting", name, when=value, default=default, changed=changed))
    return sorted(rows, key=lambda row: (STAGES.index(row.stage), row.kind == "setting"))


class _StageRules:
    def __init__(self, stage: str, source: StageSource) -> None:
        self.stage, self.switch = stage, source.switch
        self.functions = source.functions
        self.tables = _find_tables(vars(importlib.import_module(source.tables)))
        self.config = importlib.import_module("torch._inductor.config")
        self.is_on = bool(getattr(self.config, source.switch, True))
        self.option = facts().fusions.get_option(stage)
        self.listed = set[str]()

    def list_rules(self) -> list[KnownRule]:
        """Passes in the order in which they run, each before its patterns; then tables that are run by name."""
        rows, done = list[KnownRule](), set[int]()
        functions = [found for found in map(_load_optional, self.functions) if found is not None]
        # Names are asked for anew each time, as reading a function loads modules.
        read = (list_pass_calls(function, lambda each: each.__name__ in list_plain_passes()) for function in functions)
        found = [call for calls in read for call in calls]
        calls = list({(call.name, id(call.target)): call for call in reversed(found)}.values())[::-1]
        group_fusions = facts().passes.group_fusions
        # torch 2.13 runs the group fusions of post_grad under the name of a user's own pass.
        names = [call.name for call in calls if getattr(call.target, "__name__", "") == group_fusions]
        fusions = names[-1] if names else group_fusions
        run = {id(call.target) for call in calls}
        for call in calls:
            if call.name != fusions or call.target is not None:
                tables = [call.target] if is_pattern_table(call.target) else _find_inner_tables(call.target, run)
                done |= set(map(id, tables))
                rows += self._list_patterns(self._make_pass(call), tables)
        for name, table in self.tables.items():
            if id(table) not in done:
                done.add(id(table))
                asked, when = self._find_option(name)
                rows += self._list_patterns(KnownRule(self.stage, "pass", name, name, on=asked, when=when), [table])
        return [*rows, *self._list_group_batch_fusions(fusions)]

    def _make_pass(self, call: PassCall) -> KnownRule:
        source, line = (None, None) if is_pattern_table(call.target) else rule_labels.find_source(call.target)
        on, made_of = call.on and self.is_on, () if is_pattern_table(call.target) else (call.target,)
        when = self._join_conditions(*call.when)
        return KnownRule(self.stage, "pass", call.name, call.name, source, line, on, when, made_of=made_of)

    def _list_patterns(self, owner: KnownRule, tables: Collection[PatternMatcherPass]) -> Iterator[KnownRule]:
        yield owner
        for table in tables:
            # One function runs all tables of freezing, and a ledger knows their rules by its name alone.
            seen = self.listed if self.stage == FREEZING else set[str]()
            rules = dict[str, tuple[Label, list[object]]]()  # one rule may be registered for many operators
            for entry in list_entries([table]):
                label = rule_labels.make_entry_label(entry, self.stage, owner.name)
                rules.setdefault(label.rewrite, (label, []))[1].append(entry)
            for name, (label, entries) in rules.items():
                if name not in seen:
                    seen.add(name)
                    place = (name, owner.name, label.source, label.line)
                    yield KnownRule(self.stage, "pattern", *place, owner.on, owner.when, made_of=tuple(entries))

    def _list_group_batch_fusions(self, pass_name: str) -> Iterator[KnownRule]:
        """Rules of their own kind, run by name as well; a ledger names them by their class."""
        place = facts().fusions.rules.get(self.stage)
        rules: Mapping[str, type] = _load_optional(place) or {} if place else {}
        for name, rule in rules.items():
            source, line = rule_labels.find_source(getattr(rule, "fuse", None))
            on, when = self._find_option(name)
            yield KnownRule(self.stage, "pattern", rule.__name__, pass_name, source, line, on, when, made_of=(rule,))

    def _find_option(self, name: str) -> tuple[bool | None, str]:
        if self.option is None or not hasattr(self.config, self.option):
            return None, ""
        asked = name in (getattr(self.config, self.option) or {})
        on = asked and self.is_on and bool(getattr(self.config, "pattern_matcher", True))
        return on, self._join_conditions(f"{name!r} in config.{self.option}")

    def _join_conditions(self, *conditions: str) -> str:
        return " and ".join((*(() if self.is_on else (f"config.{self.switch}",)), *conditions))


def _find_inner_tables(function: object, run: Collection[int]) -> list[Any]:
    """Tables that a pass applies itself, beside those of the ids ``run`` that have a name of their own."""
    calls = list_pass_calls(function, lambda _: False) if inspect.isfunction(function) else []
    return [call.target for call in calls if is_pattern_table(call.target) and id(call.target) not in run]


def _load_optional(place: str) -> Any:
    try:
        return pkgutil.resolve_name(place)
    except AttributeError:
        return None


def _find_tables(module: Mapping[str, object]) -> dict[str, PatternMatcherPass]:
    tables: dict[str, PatternMatcherPass] = {}
    for name, value in module.items():
        if is_pattern_table(value):
            tables[getattr(value, "pass_name", None) or name] = value
        elif isinstance(value, (list, tuple)) and all(map(is_pattern_table, value)):
            tables |= {f"{name.removesuffix('s')}_{index}": table for index, table in enumerate(value)}
        elif isinstance(value, dict) and all(map(is_pattern_table, value.values())):
            tables |= {str(key): table for key, table in value.items()}
    return tables


def _list_custom_rules() -> Iterator[KnownRule]:
    for own in list_passes():
        label = own.make_label(own.place)
        made_of = () if own.is_table else (own.given,)
        yield KnownRule(own.place, "pass", own.name, own.name, label.source, label.line, True, made_of=made_of)
        for rule, entry in own.list_patterns():
            place = (rule.rewrite, own.name, rule.source, rule.line)
            yield KnownRule(own.place, "pattern", *place, True, made_of=(entry,))


def _list_partitioners() -> Iterator[KnownRule]:
    for name in facts().passes.partitioners:
        function = _load_optional(f"torch._functorch.partitioners:{name}")
        if function is not None:
            where = rule_labels.find_source(function)
            yield KnownRule(PARTITION, "pass", name, name, *where, when="with gradients", made_of=(function,))


def _list_operator_rules() -> Iterator[KnownRule]:
    kinds: tuple[tuple[str, Kind], ...] = ((DECOMPOSITION, "decomposition"), (LOWERING, "lowering"))
    for stage, kind in kinds:
        with contextlib.suppress(ImportError, AttributeError):
            entries: Mapping[object, object] = pkgutil.resolve_name(f"torch._inductor.{kind}:{kind}s")
            overloads = {
                str(key): function for key, function in entries.items() if isinstance(key, torch._ops.OpOverload)
            }
            for name, function in sorted(overloads.items()):
                yield KnownRule(stage, kind, name, None, *rule_labels.find_source(function), made_of=(function,))


def get_target_name(target: object) -> str:
    """The name of what a node of a graph calls: ``aten.mm.default``, ``torch.cat``, ``.view()`` for a method."""
    if isinstance(target, str):
        return f".{target}()"
    if isinstance(target, functools.partial):
        return get_target_name(target.func)
    if hasattr(target, "_overloadname") or hasattr(target, "_qualified_op_name"):
        return str(target)
    module, name = getattr(target, "__module__", None) or "", getattr(target, "__name__", type(target).__name__)
    return f"{module.removeprefix('_')}.{name}" if module else name


_PASSES = facts().passes
_DEEPEST = 3
IsPass = Callable[[types.FunctionType], bool]


@dataclass(frozen=True)
class PassCall:
    """A place where a stage runs a pass."""

    name: str
    target: object  # the function or pattern table; None if only a compile determines it
    when: tuple[str, ...]  # the conditions around the call, as source
    on: bool  # whether none of them fails under the present settings; those that depend on a graph count as fulfilled


def is_pattern_table(value: object) -> TypeGuard[PatternMatcherPass]:
    """Return whether ``value`` is a table of patterns."""
    return isinstance(value, PatternMatcherPass)


def list_pass_calls(function: Callable[..., object], is_pass: IsPass) -> list[PassCall]:
    """The passes that ``function`` runs, each once, in the order of its source; those inside passes are included."""
    calls: dict[tuple[str, int], PassCall] = {}
    for call in _PassReader(function, is_pass, 0).read():
        key = (call.name, id(call.target))
        if key not in calls or (call.on and not calls[key].on):
            calls[key] = call
    return list(calls.values())


_Conditions = Mapping[str, bool | None]
"""Conditions that all hold where a statement runs, as source, each with its value under the present settings."""


def _make_call(conditions: _Conditions, name: str, target: object) -> PassCall:
    return PassCall(name, target, tuple(conditions), False not in conditions.values())


class _PassReader:
    def __init__(self, function: Callable[..., object], is_pass: IsPass, depth: int) -> None:
        self.function: Callable[..., object] = inspect.unwrap(function)
        self.is_pass, self.depth = is_pass, depth
        self.names: dict[str, object] = dict(getattr(self.function, "__globals__", {}))
        self._titles: dict[int, str] = {}  # of tables that have no name of their own

    def read(self) -> Iterator[PassCall]:
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(self.function)))
        except (OSError, TypeError, SyntaxError):
            return
        defined = tree.body[0]
        if isinstance(defined, ast.FunctionDef):
            yield from self._read_block(defined.body, {})

    def _read_block(self, body: Sequence[ast.stmt], conditions: _Conditions) -> Iterator[PassCall]:
        for statement in body:
            if isinstance(statement, ast.If):
                holds = self._evaluate_condition(statement.test)
                yield from self._read_block(statement.body, {**conditions, ast.unparse(statement.test): holds})
                negated = ast.unparse(ast.UnaryOp(ast.Not(), statement.test))
                otherwise = {**conditions, negated: None if holds is None else not holds}
                yield from self._read_block(statement.orelse, otherwise)
                if isinstance(statement.body[-1], ast.Return):
                    conditions = otherwise
            elif isinstance(statement, ast.For):
                yield from self._read_loop(statement, conditions)
            elif isinstance(statement, ast.With):
                names = (self._read_observed_name(item.context_expr) for item in statement.items)
                name = next(filter(None, names), None)
                if name is None:
                    yield from self._read_block(statement.body, conditions)
                    continue
                inner = [node for part in statement.body for node in ast.walk(part) if isinstance(node, ast.Call)]
                target = next(filter(None, (self._resolve(call.func) for call in inner)), None)
                yield _make_call(conditions, name, target)
            elif isinstance(statement, ast.Try):
                yield from self._read_block(statement.body, conditions)
            elif isinstance(statement, ast.ImportFrom):
                package = self.function.__module__.rpartition(".")[0]
                with contextlib.suppress(Exception):  # the import fails in the compiler too, so nothing from it runs
                    module = importlib.import_module("." * statement.level + (statement.module or ""), package)
                    for alias in statement.names:
                        self.names[alias.asname or alias.name] = getattr(module, alias.name)
            elif not isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
                if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                    listed = self._resolve_list(statement.value)
                    self._assign(statement.targets[0] if listed else None, listed)
                yield from self._read_calls(statement, conditions)

    def _read_loop(self, loop: ast.For, conditions: _Conditions) -> Iterator[PassCall]:
        listed, targets, number = loop.iter, [loop.target], None
        called = _get_called_name(listed) if isinstance(listed, ast.Call) else None
        if isinstance(listed, ast.Call) and called == "enumerate" and isinstance(loop.target, ast.Tuple):
            listed, number, targets = listed.args[0], loop.target.elts[0], list(loop.target.elts[1:])
        passes = self._resolve(listed)
        if isinstance(passes, list) and passes and all(is_pattern_table(value) or callable(value) for value in passes):
            tables = all(map(is_pattern_table, passes))
            for index, value in enumerate(passes):
                self._assign(targets[0], value)
                self._assign(number, index)
                if isinstance(listed, ast.Name):
                    self._titles[id(value)] = f"{listed.id.removesuffix('s')}_{index}"
                yield from self._read_block(loop.body, conditions)
                if not tables:
                    name = getattr(value, "pass_name", None) or getattr(value, "__name__", "?")
                    yield _make_call(conditions, str(name), value)
            return
        if called != "range":
            conditions = {**conditions, ast.unparse(listed): self._evaluate_condition(listed)}
        yield from self._read_block(loop.body, conditions)

    def _read_calls(self, statement: ast.stmt, conditions: _Conditions) -> Iterator[PassCall]:
        for call in (node for node in ast.walk(statement) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Attribute) and call.func.attr in _PASSES.observed:
                name = self._read_observed_name(call.func.value)
                if name is not None and call.args:
                    yield _make_call(conditions, name, self._resolve(call.args[0]))
                return  # what stands inside is what the observer runs
            yield from self._read_plain_call(call, conditions)

    def _read_plain_call(self, call: ast.Call, conditions: _Conditions) -> Iterator[PassCall]:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "apply":
            table = self._resolve(call.func.value)
            if is_pattern_table(table):
                title = self._titles.get(id(table), ast.unparse(call.func.value))
                if title == "patterns" and self.depth:  # its module's only one: its function says more
                    title = self.function.__name__
                yield _make_call(conditions, getattr(table, "pass_name", None) or title, table)
            return
        target = self._resolve(call.func)
        over_graph = call.args and ast.unparse(call.args[0]).partition(".")[0] in _PASSES.graph_variables
        if not over_graph or not inspect.isfunction(target) or not self.is_pass(target):
            return
        reader = _PassReader(target, self.is_pass, self.depth + 1)
        inside = list(reader.read()) if self.depth < _DEEPEST else []
        if all(inner.name != target.__name__ for inner in inside):
            yield _make_call(conditions, target.__name__, target)
        for inner in inside:
            when = dict.fromkeys((*conditions, *inner.when))
            yield PassCall(inner.name, inner.target, tuple(when), inner.on and False not in conditions.values())

    def _read_observed_name(self, node: ast.expr) -> str | None:
        if not isinstance(node, ast.Call) or _get_called_name(node) != _PASSES.observer or len(node.args) < 2:
            return None
        name = self._resolve(node.args[1])
        return name if isinstance(name, str) else None

    # -- values -----------------------------------------------------------------------------------

    def _resolve(self, node: ast.expr) -> object:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self._resolve(node.value)
            if node.attr == "apply" and is_pattern_table(owner):
                return owner
            with contextlib.suppress(Exception):  # a property of torch may raise anything
                return getattr(owner, node.attr, None)
        if isinstance(node, ast.JoinedStr):
            pieces = [part.value if isinstance(part, ast.FormattedValue) else part for part in node.values]
            parts = [self._resolve(piece) for piece in pieces]
            return None if None in parts else "".join(map(str, parts))
        if isinstance(node, ast.Lambda) and isinstance(node.body, ast.Call):
            return self._resolve(node.body.func)
        if isinstance(node, ast.Call) and _get_called_name(node) == "partial" and node.args:
            return self._resolve(node.args[0])
        return None

    def _resolve_list(self, node: ast.expr) -> list[object]:
        if isinstance(node, ast.List):
            return [value for value in map(self._resolve, node.elts) if value is not None]
        if isinstance(node, ast.BinOp):
            return [*self._resolve_list(node.left), *self._resolve_list(node.right)]
        listed = self._resolve(node)
        return listed if isinstance(listed, list) else []

    def _assign(self, target: ast.expr | None, value: object) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = value

    def _evaluate_condition(self, test: ast.expr) -> bool | None:
        if isinstance(test, ast.BoolOp):
            parts = [self._evaluate_condition(part) for part in test.values]
            decided = isinstance(test.op, ast.Or)
            if decided in parts:
                return decided
            return None if None in parts else not decided
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self._evaluate_condition(test.operand)
            return None if inner is None else not inner
        if isinstance(test, ast.NamedExpr):
            return self._evaluate_condition(test.value)
        for node in ast.walk(test):
            if isinstance(node, ast.Call) and _get_called_name(node) not in _PASSES.condition_calls:
                return None
            if isinstance(node, (ast.NamedExpr, ast.Lambda)):
                return None
        with contextlib.suppress(Exception):  # it may use a name that exists at run time alone, in any way
            return bool(eval(compile(ast.Expression(test), "<condition>", "eval"), dict(self.names)))
        return None


def _get_called_name(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
