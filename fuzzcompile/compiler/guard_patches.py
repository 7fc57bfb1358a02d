"""Guards to try on a rule at fault, as patches of torch: what sets a failing match apart from one that is right.

A pattern is guarded by its check, which refuses further matches; a decomposition steps aside for the operator's kernel.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import math
import re
import sys
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import fx
from torch._inductor.pattern_matcher import Match, PatternMatcherPass
from torch.utils._pytree import tree_leaves

from fuzzcompile.compiler.custom_code import list_entries
from fuzzcompile.compiler.operators.decompositions import find_operator
from fuzzcompile.compiler.rule_catalogue import KnownRule, is_pattern_table, list_known_rules
from fuzzcompile.model.contract import CauseJson
from fuzzcompile.model.culprit_contract import CulpritJson
from fuzzcompile.model.stages import DECOMPOSITION
from fuzzcompile.run.pool.worker import get_current_device

FeatureKind = Literal["argument", "dtype", "layout", "size"]
_PASSES = "torch._inductor.fx_passes."
# Arguments that say where and how a result is stored, of which no text is code.
_STORAGE = ("layout", "device", "pin_memory", "memory_format", "generator")
_DIMENSIONS = ("dim", "dims", "axis")
# Numbers that an operator may well treat apart; to refuse any other one alone mends one program.
_SPECIAL = (0, 1, -1)
# What is compiled with a patch in memory must not be read from torch's caches.
_UNCACHED = "torch._inductor.config.force_disable_caches = True"


class GuardUnknown(Exception):
    """No guard can be tried; the message is the reason, as a sentence."""


@dataclass(frozen=True)
class Feature:
    """A question about a call of ``target``: the value of an argument, or the dtype, layout or sizes of a tensor.

    ``code`` is an expression over ``node`` in a match, over ``args`` and ``kwargs`` of a decomposition; of a dimension,
    ``last`` is that for the last one, which is observed as -1.
    """

    target: str
    argument: str
    kind: FeatureKind
    code: str
    last: str = ""

    @property
    def operator(self) -> str:
        """The operator in a sentence: ``aten.add`` of ``torch.ops.aten.add.Tensor``."""
        name = self.target.strip("'").replace("torch.functional.", "torch.")
        return ".".join(name.split(".")[2:4]) if name.startswith("torch.ops.") else name

    @property
    def subject(self) -> str:
        """The question in words."""
        of = f"`{self.argument}` of `{self.operator}`"
        asked = {"dtype": "the dtype of ", "size": "the list of dimensions of size 1 of "}
        return f"{asked.get(self.kind, '')}{of}"


Observed = Mapping[Feature, Sequence[object]]
"""The values of each feature, over the calls of all matches of a compile."""


@dataclass(frozen=True)
class Guard:
    """A condition to try: in words, and as a patch that can stand before a script."""

    words: str
    patch: str


def _list_features(target: object, args: Sequence[object], form: str, read: str) -> Iterator[Feature]:
    """The features of a call; ``form`` is what stands before ``args``, ``read`` gives the tensor of an argument."""
    if isinstance(target, torch._ops.OpOverload):
        name, schema = f"torch.ops.{target}", target._schema.arguments
        for at, argument in enumerate(schema):
            default = argument.default_value if argument.has_default_value() else None
            given = f"{form}kwargs.get({argument.name!r}{'' if default is None else f', {default!r}'})"
            if not argument.kwarg_only:
                given = f"({form}args[{at}] if len({form}args) > {at} else {given})"
            if "Tensor" in str(argument.type):
                yield from _list_tensor_features(name, argument.name, read.format(given))
            elif argument.name not in _STORAGE:
                last = f"{read.format(f'{form}args[0]')}.dim() - 1" if argument.name in _DIMENSIONS else ""
                yield Feature(name, argument.name, "argument", given, last)
        return
    name = repr(target) if isinstance(target, str) else fx.node._get_qualified_name(cast(Any, target))
    name = name.replace("_operator.", "operator.")  # the module by which Python's own are known
    parameters = _read_parameters(target)
    for at, _ in enumerate(args):
        argument_name = parameters[at] if at < len(parameters) else f"argument {at}"
        given = f"({form}args[{at}] if len({form}args) > {at} else {form}kwargs.get({argument_name!r}))"
        yield from _list_tensor_features(name, argument_name, read.format(given))
        yield Feature(name, argument_name, "argument", given)
    for argument_name in parameters[len(args) :]:
        yield Feature(name, argument_name, "argument", f"{form}kwargs.get({argument_name!r})")


def _read_parameters(target: object) -> list[str]:
    with contextlib.suppress(TypeError, ValueError):
        return list(inspect.signature(cast(Callable[..., object], target)).parameters)
    return ["input", "dim"]  # most of torch's own functions that have no signature


def _list_tensor_features(name: str, argument: str, tensor: str) -> Iterator[Feature]:
    yield Feature(name, argument, "dtype", f"getattr({tensor}, 'dtype', None)")
    yield Feature(name, argument, "layout", f"getattr({tensor}, 'is_contiguous', bool)()")
    ones = f"[at for at, size in enumerate(getattr({tensor}, 'shape', ())) if size == 1]"
    yield Feature(name, argument, "size", ones)


def _is_literal(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_literal, value))
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or type(value) in (bool, int, str, torch.dtype)


def _is_special(value: object) -> bool:
    return not isinstance(value, (int, float)) or isinstance(value, bool) or value in _SPECIAL


# What a guard is put on: patterns, and decompositions.


class GuardedRule(ABC):
    """What is at fault, to be watched and guarded; ``rules`` are those of the catalogue."""

    steps_aside = False  # where it is refused, something that is right anyway does the work

    def __init__(self, rules: Sequence[KnownRule]) -> None:
        self.rules = rules
        self.name = rules[0].name
        self.applied = 0  # how often it was, in :meth:`watch`

    @abstractmethod
    def watch(self) -> contextlib.AbstractContextManager[Observed]:
        """Observe each application in the block, and count them."""

    @abstractmethod
    def kept(self) -> contextlib.AbstractContextManager[None]:
        """Put back at the end of the block what a patch replaces."""

    @abstractmethod
    def write_patch(self, feature: Feature, values: Sequence[object], *, among: bool) -> str:
        """The patch that lets the rule apply where the feature is ``among`` these values, or where it is not."""

    def run_patch(self, patch: str) -> None:
        """Execute the text of a patch as a script would."""
        exec(compile(patch, "<patch>", "exec"), {"__name__": "patch"})

    def list_guards(self, failing: Observed, right: Observed, cause: CauseJson | None) -> list[Guard]:
        """Conditions that refuse the failing compile and hold in the right one, what the ``cause`` blames first."""
        guards = dict[str, Guard]()
        for feature in sorted(filter(right.__contains__, failing), key=lambda each: _rank(each, cause)):
            good = _order(right[feature])
            bad = [value for value in _order(failing[feature]) if value not in good]
            if not bad or not all(map(_is_literal, (*good, *bad))):
                continue
            tried = [(True, good)] if not self.steps_aside else []
            if all(map(_is_special, bad)):
                tried.append((False, bad))
            elif self.steps_aside:
                tried.append((True, good))
            for among, values in tried:
                patch = self.write_patch(feature, values, among=among)
                guards.setdefault(patch, Guard(self._tell(feature, values, among), patch))
        return list(guards.values())

    def _tell(self, feature: Feature, values: Sequence[object], among: bool) -> str:
        shown = " or ".join(f"`{value}`" for value in values)
        is_, subject = ("is not" if among else "is"), feature.subject
        if feature.kind == "layout":
            is_, shown = ("is not" if (values == [True]) == among else "is"), "contiguous"
        if self.steps_aside:
            return f"let the decomposition of `{self.name}` step aside where {subject} {is_} {shown}"
        return f"let the check of `{self.name}` refuse a match in which {subject} {is_} {shown}"


def _order(values: Sequence[object]) -> list[object]:
    """The distinct values, some of which are lists."""
    distinct: list[object] = []
    for value in values:
        if value not in distinct:
            distinct.append(value)
    return distinct


def _rank(feature: Feature, cause: CauseJson | None) -> tuple[bool, bool, bool, bool]:
    """Features in the order in which the cause blames them: the call and argument, the argument, its kind, any."""
    named = re.match(r"(\w+)\((\w+)\)$", str((cause or {}).get("fingerprint")))
    own = named is not None and feature.argument == named[2]
    called = named is not None and named[1] in feature.operator.split(".")
    return (not (own and called), not own, feature.kind != (cause or {}).get("kind"), feature.kind != "argument")


class GuardedPattern(GuardedRule):
    """A rule of tables of Inductor's patterns, whose entries each have a check."""

    def __init__(self, rules: Sequence[KnownRule]) -> None:
        super().__init__(rules)
        self.entries: list[Any] = [entry for rule in rules for entry in rule.made_of]
        self.tables = _spell_tables(self.entries)
        self.selected = _spell_selection(self.entries, [table for _, _, table in self.tables])

    @contextlib.contextmanager
    def watch(self) -> Iterator[Observed]:
        """Observe each match that its check accepts, and count them."""
        observed: dict[Feature, list[object]] = defaultdict(list)
        self.applied = 0

        def watched(check: Callable[[Match], bool]) -> Callable[[Match], bool]:
            def ask(match: Match) -> bool:
                accepted = bool(check(match))
                if accepted:
                    self.applied += 1
                    for node in match.nodes:
                        _observe_node(node, observed)
                return accepted

            return ask

        with self.kept():
            for entry in self.entries:
                entry.extra_check = watched(entry.extra_check)
            yield observed

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Put back the checks."""
        checks = [entry.extra_check for entry in self.entries]
        try:
            yield
        finally:
            for entry, check in zip(self.entries, checks, strict=True):
                entry.extra_check = check

    def write_patch(self, feature: Feature, values: Sequence[object], *, among: bool) -> str:
        """The patch that has the check ask this of each call of the operator in a match, too."""
        modules = list(dict.fromkeys(module for module, _, _ in self.tables))
        places = "".join(f"{_shorten(module)}{place}, " for module, place, _ in self.tables)
        root = feature.target.partition(".")[0]
        imports = "" if root == "torch" or "'" in root else f"import {root}\n\n"
        imports += f"import torch\nfrom torch._inductor.fx_passes import {', '.join(map(_shorten, modules))}"
        registered = "".join(f"{line}\n" for module in modules for line in _register(module))
        return f"""{imports}

{_UNCACHED}
{registered}
def guard(check):
    return lambda match: check(match) and all(
        {_spell_condition(feature, values, among)}
        for node in match.nodes if node.target == {feature.target}
    )

for table in ({places}):
    for entry in {{id(each): each for entries in table.patterns.values() for each in entries}}.values():
        if {self.selected}:
            entry.extra_check = guard(entry.extra_check)
"""


def _shorten(module: str) -> str:
    return module.removeprefix(_PASSES)


def _observe_node(node: fx.Node, observed: dict[Feature, list[object]]) -> None:
    if node.op in ("call_function", "call_method"):
        key = "val" if "val" in node.meta else "example_value"
        read = f"getattr({{}}, 'meta', {{{{}}}}).get({key!r})"
        _observe_call(_list_features(node.target, node.args, "node.", read), {"node": node}, observed)


def _observe_call(
    features: Iterator[Feature], names: Mapping[str, object], observed: dict[Feature, list[object]]
) -> None:
    for feature in dict.fromkeys(features):
        with contextlib.suppress(Exception):  # of odd arguments or symbolic sizes: what cannot be asked is no feature
            value = eval(feature.code, {"torch": torch, **names})
            if feature.last:
                last = eval(feature.last, dict(names))
                value = [-1 if each == last else each for each in value] if isinstance(value, list) else value
                value = -1 if value == last else value
            if not any(isinstance(leaf, (fx.Node, torch.Tensor)) for leaf in tree_leaves(value)):
                observed[feature].append(value)


def _spell_condition(feature: Feature, values: Sequence[object], among: bool) -> str:
    if len(values) == 1 and isinstance(values[0], bool):
        return feature.code if values[0] == among else f"not {feature.code}"
    texts = list(map(repr, values))
    texts += [re.sub(r"-1\b", feature.last, repr(value)) for value in values if feature.last and "-1" in repr(value)]
    if len(texts) > 1:
        return f"{feature.code} {'in' if among else 'not in'} ({', '.join(texts)})"
    is_ = ("is" if among else "is not") if texts == ["None"] else ("==" if among else "!=")
    return f"{feature.code} {is_} {texts[0]}"


def _register(module: str) -> Iterator[str]:
    """The call that registers the patterns of a module, as the compiler makes it, because its arguments are its key."""
    function = getattr(sys.modules[module], "lazy_init", None)
    if function is not None:
        takes = module.endswith(".joint_graph") and inspect.signature(function).parameters
        device = f"torch.device({get_current_device()!r})" if takes else ""
        yield f"{_shorten(module)}.lazy_init({device})"


def _spell_tables(entries: Sequence[object]) -> list[tuple[str, str, PatternMatcherPass]]:
    """Tables that hold the entries, each with its module and its place there, such as ``.pass_patterns[2]``."""
    wanted, found = set(map(id, entries)), dict[int, tuple[str, str, PatternMatcherPass]]()
    for module in sorted(name for name in sys.modules if name.startswith(_PASSES) and "." not in _shorten(name)):
        for place, table in _iter_tables(vars(sys.modules[module])):
            if wanted & set(map(id, list_entries([table]))):
                found.setdefault(id(table), (module, place, table))
    if wanted - set(map(id, list_entries([table for _, _, table in found.values()]))):
        raise GuardUnknown("the table that holds its pattern has no name in a module of torch")
    return list(found.values())


def _iter_tables(names: Mapping[str, object]) -> Iterator[tuple[str, PatternMatcherPass]]:
    for name, value in names.items():
        if is_pattern_table(value):
            yield f".{name}", value
        elif isinstance(value, (list, tuple, dict)):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            yield from ((f".{name}[{key!r}]", table) for key, table in items if is_pattern_table(table))


# How an entry of a table can be told from the others.
_SELECTIONS = (
    "getattr(entry, 'pattern_name', None)",
    "getattr(getattr(entry, 'handler', None), '__name__', None)",
    "getattr(getattr(entry, 'handler', None), '__qualname__', None)",
)


def _spell_selection(entries: Sequence[object], tables: Sequence[PatternMatcherPass]) -> str:
    """The condition that selects these entries, of all that the tables hold, in Python over ``entry``."""
    wanted = set(map(id, entries))
    for code in _SELECTIONS:
        names = list(dict.fromkeys(eval(code, {"entry": entry}) for entry in entries))
        selected = {id(entry) for entry in list_entries(tables) if eval(code, {"entry": entry}) in names}
        if None not in names and selected == wanted:
            return f"{code} == {names[0]!r}" if len(names) == 1 else f"{code} in {names!r}"
    raise GuardUnknown("no name tells its pattern from the others of its table")


class GuardedDecomposition(GuardedRule):
    """A decomposition in Inductor's table."""

    steps_aside = True

    def __init__(self, rules: Sequence[KnownRule]) -> None:
        super().__init__(rules)
        self.operator = find_operator(self.name)
        self.table: dict[object, Any] = importlib.import_module("torch._inductor.decomposition").decompositions

    @contextlib.contextmanager
    def watch(self) -> Iterator[Observed]:
        """Observe each call of the decomposition, and count those that it did not leave to the kernel."""
        observed: dict[Feature, list[object]] = defaultdict(list)
        decompose, self.applied = self.table[self.operator], 0

        def watched(*args: object, **kwargs: object) -> object:
            features = _list_features(self.operator, args, "", "{}")
            _observe_call(features, {"args": args, "kwargs": kwargs}, observed)
            result = decompose(*args, **kwargs)
            self.applied += result is not NotImplemented
            return result

        with self.kept():
            self.table[self.operator] = watched
            _forget_copies()
            yield observed

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Put back the decomposition, and take back the fallback of its operator."""
        lowering = importlib.import_module("torch._inductor.lowering")
        decompose, known = self.table[self.operator], set(lowering.lowerings)
        try:
            yield
        finally:
            self.table[self.operator] = decompose
            for added in set(lowering.lowerings) - known:
                del lowering.lowerings[added]
            _forget_copies()

    def write_patch(self, feature: Feature, values: Sequence[object], *, among: bool) -> str:
        """The patch by which the decomposition returns ``NotImplemented``, unless this holds of its arguments."""
        condition = _spell_condition(feature, values, not among)
        return f"""import torch
from torch._inductor import decomposition, lowering

{_UNCACHED}
operator = torch.ops.{self.name}
decompose = decomposition.decompositions[operator]
decomposition.decompositions[operator] = lambda *args, **kwargs: (
    NotImplemented if {condition} else decompose(*args, **kwargs)
)
if operator not in lowering.lowerings:
    lowering.make_fallback(operator, override_decomp=True)
"""

    def run_patch(self, patch: str) -> None:
        """Execute the text of a patch as a script would, before anything has copied the table."""
        super().run_patch(patch)
        _forget_copies()


def _forget_copies() -> None:
    """Have Inductor copy its table of decompositions anew, to which it adds those of random numbers."""
    copied = getattr(importlib.import_module("torch._inductor.decomposition"), "fast_random_decomps", None)
    if callable(clear := getattr(copied, "cache_clear", None)):
        clear()


def find_guarded_rule(culprit: CulpritJson | None, device: torch.device) -> GuardedRule:
    """What can be guarded of a culprit; GuardUnknown where there is nothing."""
    if culprit is None or not culprit.get("necessary") or not culprit.get("rewrite"):
        raise GuardUnknown("no rule or decomposition is proved to be at fault")
    stage, kind = culprit["stage"], "decomposition" if culprit["stage"] == DECOMPOSITION else "pattern"
    names = (culprit["rewrite"], *(culprit.get("siblings") or ()))
    rules = [row for row in list_known_rules(device) if (row.stage, row.kind) == (stage, kind) and row.name in names]
    rules = [row for row in rules if kind == "decomposition" or all(hasattr(e, "extra_check") for e in row.made_of)]
    rules.sort(key=lambda row: names.index(row.name))
    if not rules or rules[0].name != culprit["rewrite"]:
        raise GuardUnknown(f"`{culprit['rewrite']}` is neither a pattern with a check nor a decomposition of a table")
    return GuardedDecomposition(rules[:1]) if kind == "decomposition" else GuardedPattern(rules)
