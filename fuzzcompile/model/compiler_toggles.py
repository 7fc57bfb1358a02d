"""Compiler settings that a case can be compiled under, and settings that switch on a condition of Inductor's source."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fuzzcompile.model.facts import facts
from fuzzcompile.model.package_files import read_table

NEUTRAL = ("fallback_random",)
"""Settings that make eager and compiled comparable, and change nothing else."""
Option = bool | int | str | Mapping[str, Mapping[str, int]]
# What of a module few passes look for: parts of a tensor that are joined again, several equal operators, several
# linear layers over one input. An idiom says which of them it has.
Stirred = Literal["rejoined_parts", "equal_operators", "shared_input_linears"]


@dataclass(frozen=True)
class CompilerToggle:
    """One setting: the entries of a config, and how often it is drawn among the others.

    The fusion options of several toggles are merged. Those without a ``config`` are options of ``torch.compile``; the
    others have to be in force around everything, because they are read while the program is traced or differentiated.
    Some act ``only`` where gradients are recorded, or where none are. A toggle that ``acts_on`` something is drawn more
    often with a layer that has it.
    """

    name: str
    summary: str
    options: tuple[tuple[str, Option], ...]
    weight: int = 2
    config: Literal["inductor", "functorch"] | None = None
    only: Literal["inference", "gradients"] | None = None
    acts_on: Stirred | None = None

    @property
    def is_cpu_only(self) -> bool:
        """True if it changes nothing but the CPU's code generator."""
        return all(entry.startswith("cpp.") for entry, _ in self.options if entry != "freezing")


def _read_toggles(table: Mapping[str, dict[str, Any]], **common: Any) -> Iterator[CompilerToggle]:
    for name, row in table.items():
        yield CompilerToggle(name, **{**common, **row, "options": tuple(row["options"].items())})


def _list_toggles() -> Iterator[CompilerToggle]:
    known = facts().fusions
    stages = (
        (known.pre_grad_options, known.pre_grad_normalisation, known.pre_grad, known.pre_grad_batches, True),
        (known.post_grad_options, known.post_grad_normalisation, known.post_grad, known.post_grad_batches, False),
    )
    yield from _read_toggles(_TABLE["frozen"], config="inductor", only="inference")
    yield from _read_toggles(_TABLE["backward"], config="functorch", only="gradients")
    yield from _read_toggles(_TABLE["functorch"], config="functorch")
    for entry, first, passes, _, _ in stages:
        for name, summary in passes.items():
            yield CompilerToggle(name, summary, ((entry, {first: {}, name: {}}),), acts_on="rejoined_parts")
    for entry, first, _, operators, is_behind_first in stages:
        stage = entry.removesuffix("_fusion_options").replace("_", "-")
        for operator in operators:
            name = f"batch_{operator}"
            sizes = {name: {"min_fuse_set_size": 2}}  # the compiler's default wants five
            options: Option = {first: {}, **sizes} if is_behind_first else sizes
            summary = f"The {stage} fusion {name}, for two operators or more."
            yield CompilerToggle(name, summary, ((entry, options),), acts_on="equal_operators")
    yield from _read_toggles(_TABLE["general"])


_TABLE = read_table(__package__, "compiler_toggles")
TOGGLES = tuple(_list_toggles())
FOR_GPU = tuple(_read_toggles(_TABLE["gpu"]))
"""Drawn only where the compiler works for a GPU."""
_BY_NAME = {toggle.name: toggle for toggle in (*TOGGLES, *FOR_GPU)}


def find_toggle(name: str) -> CompilerToggle:
    """The toggle of that name."""
    return _BY_NAME[name]


OWN_RANDOM_STREAM, EAGER_NUMBERS = find_toggle("own_random_stream"), find_toggle("eager_numbers")


def list_acting(names: Iterable[str], *, gradients: bool, inference: bool) -> tuple[str, ...]:
    """The toggles of these names that act where gradients are recorded, or where a program is for inference."""
    acting = (None, *(["gradients"] if gradients else []), *(["inference"] if inference else []))
    return tuple(name for name in names if find_toggle(name).only in acting)


def collect_options(names: tuple[str, ...]) -> dict[str, object]:
    """The options of ``torch.compile`` that these toggles make together."""
    return merge_settings(dict(toggle.options) for toggle in map(find_toggle, names) if toggle.config is None)


def collect_configs(names: tuple[str, ...]) -> dict[str, dict[str, object]]:
    """The entries that these toggles need in force around everything, by the config that has them."""
    toggles = [toggle for toggle in map(find_toggle, names) if toggle.config is not None]
    configs = dict.fromkeys(str(toggle.config) for toggle in toggles)
    return {
        config: merge_settings(dict(toggle.options) for toggle in toggles if toggle.config == config)
        for config in configs
    }


def merge_settings(parts: Iterable[Mapping[str, object]]) -> dict[str, object]:
    """Several settings in one; dictionaries are merged, of other values the last counts."""
    result: dict[str, object] = {}
    for part in parts:
        for entry, value in part.items():
            before = result.get(entry)
            merged = isinstance(before, Mapping) and isinstance(value, Mapping) and {**before, **value}
            result[entry] = merged or value
    return result


# The settings under which a condition of the compiler's source holds.

Settings = dict[str, object]
"""Entries of ``torch._inductor.config`` and their values; a dictionary's are merged into what the entry holds."""
Present = Callable[[str], object]
"""The present value of an entry, dotted where it is (``cpp.simdlen``); where there is none, it raises AttributeError or
gives what no entry holds."""


def solve_switches(condition: str, present: Present) -> Settings:
    """Settings under which ``condition``, source of the compiler, does not fail on settings alone."""
    try:
        tree = ast.parse(condition, mode="eval").body if condition else None
    except SyntaxError:
        return {}
    return {} if tree is None else add_prerequisites(_solve(tree, True, present))


def switch_entry_on(name: str, present: Present) -> Settings:
    """Return the settings that switch on an entry: ``cpp.enable_concat_linear``, ``pre_grad_fusion_options:key``."""
    entry, colon, key = name.partition(":")
    if colon:
        return add_prerequisites({entry: {key: {}}})
    return {} if _read_value(entry, present) is True else add_prerequisites({entry: True})


def add_prerequisites(settings: Settings) -> Settings:
    """Add the settings that a pass needs: a normalisation that has to run before it, or the sizes of a fusion.

    The compiler runs the passes of its fusion options in the order of their keys.
    """
    needed = []
    for toggle in (*TOGGLES, *FOR_GPU):
        options = dict[str, object](toggle.options)
        for entry, value in settings.items():
            own = options.get(entry)
            if isinstance(value, dict) and isinstance(own, Mapping) and value and list(own)[-1] in value:
                needed.append(options)
                break
    before, added = merge_settings(needed), settings.copy()
    for entry, value in settings.items():
        present = before.get(entry)
        if isinstance(value, dict) and isinstance(present, dict):
            added[entry] = {key: inner for key, inner in value.items() if key not in present}
    return merge_settings([before, added])


def _solve(test: ast.expr, wanted: bool, present: Present) -> Settings:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _solve(test.operand, not wanted, present)
    if isinstance(test, ast.BoolOp):
        parts = [_solve(part, wanted, present) for part in test.values]
        if isinstance(test.op, ast.And) is wanted:
            return merge_settings(parts)
        return min(parts, key=len)  # one that holds already asks for nothing
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        entry = _read_entry(test)
        value = None if entry is None else _read_value(entry, present)
        settled = entry is None or not isinstance(value, (bool, type(None))) or bool(value) is wanted
        return {} if entry is None or settled else {entry: wanted}
    left, how, right = test.left, test.ops[0], test.comparators[0]
    constant, entry = left if isinstance(left, ast.Constant) else right, _read_entry(right) or _read_entry(left)
    if entry is None or not isinstance(constant, ast.Constant):
        return {}
    value = _read_value(entry, present)
    if isinstance(how, ast.In) and wanted and isinstance(value, Mapping) and constant.value not in value:
        return {entry: {constant.value: {}}}
    if isinstance(how, (ast.Eq, ast.Is)) is wanted and isinstance(how, (ast.Eq, ast.Is, ast.NotEq, ast.IsNot)):
        return {} if value == constant.value else {entry: constant.value}
    return {}


def _read_entry(node: ast.expr) -> str | None:
    """``cpp.simdlen`` of the expression ``config.cpp.simdlen``."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    if isinstance(node, ast.Name) and node.id in ("config", "inductor_config") and parts:
        return ".".join(parts)
    return None


def _read_value(entry: str, present: Present) -> object:
    try:
        return present(entry)
    except AttributeError:
        return Ellipsis  # this torch has no such entry: nothing to set
