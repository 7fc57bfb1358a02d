"""Near misses and detours by name, how they are drawn, and what the rows of ``near_misses.toml`` cannot say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fuzzcompile.fuzz.generation.spec import (
    NEAR_MISSES,
    CaseSpec,
    Change,
    Choices,
    Mask,
    MaskShape,
    MaskUse,
    NearMiss,
    Part,
    Pen,
    Predicate,
)
from fuzzcompile.fuzz.idioms.registry import AttentionTraits, draw_choices, find_attention_traits, list_traits
from fuzzcompile.model.package_files import expand_macro, get_template, read_table
from fuzzcompile.programs.edits.tensor_values import LAYOUTS, VALUES

# Percentage of cases in which an operator of the family is drawn.
FAMILIES = {"memory": 14, "values": 12, "detour": 8}


def apply_near_misses(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """Apply randomly chosen operators to the case."""
    for operator in NEAR_MISSES:
        if operator.family is None:
            spec = _apply_if_hit(pen, operator, spec, pen.chance(operator.percent, operator.name))
    for family, percent in FAMILIES.items():
        members = {operator.name: operator for operator in NEAR_MISSES if operator.family == family}
        if members:
            hit = pen.chance(percent)
            name = pen.draw_named([(name, operator.percent) for name, operator in members.items()])
            spec = _apply_if_hit(pen, members[name], spec, hit)
    return spec


def _apply_if_hit(pen: Pen, operator: NearMiss, spec: CaseSpec, hit: bool) -> CaseSpec:
    return operator.change(pen, spec) if hit and applies(operator, spec) else spec


def applies(operator: NearMiss, spec: CaseSpec) -> bool:
    """Return whether the near miss can be made of the case."""
    traits = list_traits(spec)
    return traits.issuperset(operator.requires) and traits.isdisjoint(operator.excludes)


def _register_near_miss(operator: NearMiss) -> None:
    if any(known.name == operator.name for known in NEAR_MISSES):
        raise ValueError(f"two near misses are called {operator.name}")
    NEAR_MISSES.append(operator)


# Detours by name: a few statements over the activation, before or after the body, to which rewrites apply.

DrawDetour = Callable[[Pen], Choices]


def never(part: Part) -> bool:
    """No gradient flows, whatever was chosen."""
    return False


@dataclass(frozen=True)
class Detour:
    """One detour: its name, what it is, its weight among the detours, and how its choices are drawn.

    ``has_gradient`` says of a part whether a gradient flows through it, and it overwrites nothing that one needs. A
    detour that ``writes`` to the activation needs elements that do not overlap. One that ``reads_values`` has sizes or
    numbers that depend on them.
    """

    name: str
    summary: str
    weight: int
    draw: DrawDetour
    has_gradient: Callable[[Part], bool] = lambda part: True
    writes: bool = False
    reads_values: bool = False
    source: str | None = None

    def render_statements(self, x: str, part: Part, width: int) -> str:
        """Statements that make ``x``, whose last axis has ``width`` elements, anew."""
        return expand_macro(get_template(f"detours/{self.name}.py.j2", self.source).module, "apply", x, part, width)


_DETOURS: dict[str, Detour] = {}


def detour(
    weight: int,
    *,
    has_gradient: Callable[[Part], bool] = lambda part: True,
    writes: bool = False,
    reads_values: bool = False,
    source: str | None = None,
) -> Callable[[DrawDetour], DrawDetour]:
    """Register the decorated function, which draws a detour's choices, as a detour under its own name."""

    def decorate(draw: DrawDetour) -> DrawDetour:
        summary = (draw.__doc__ or "").strip().partition("\n")[0]
        _register_detour(Detour(draw.__name__, summary, weight, draw, has_gradient, writes, reads_values, source))
        return draw

    return decorate


def _register_detour(detour: Detour) -> None:
    """Make a detour known, and draw it as a near miss."""

    def change(pen: Pen, spec: CaseSpec) -> CaseSpec:
        place = pen.one_of(("after", "before"))
        return replace(spec, detours=(*spec.detours, (place, Part(detour.name, tuple(detour.draw(pen).items())))))

    def present(spec: CaseSpec) -> bool:
        return any(part.name == detour.name for _, part in spec.detours)

    row = {"summary": detour.summary, "percent": detour.weight, "family": "detour"}
    _register_near_miss(_read_near_miss(detour.name, {**row, "present": present, "change": change}))
    _DETOURS[detour.name] = detour


def find_detour(part: Part) -> Detour:
    """The detour that a part was drawn from."""
    return _DETOURS[part.name]


# Near misses that set entries of parts of a case: a value, or a list of which any is drawn.

_PARTS = ("case", "attention", "form", "block", "dims", "layer")
Entries = Mapping[str, Mapping[str, Any]]


def _read_near_miss(name: str, row: Mapping[str, Any]) -> NearMiss:
    """The near miss of a row of ``near_misses.toml``, in which ``present`` and ``change`` say what entries cannot."""
    entries: Entries = {part: row[part] for part in _PARTS if part in row}
    whole: dict[str, Any] = {"name": name, "present": partial(_has, entries), "change": partial(_set, entries)}
    whole |= {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    return NearMiss(**{key: value for key, value in whole.items() if key not in entries})


def _has(entries: Entries, spec: CaseSpec) -> bool:
    for part, values in entries.items():
        if part in ("attention", "form"):
            found = {} if not spec.attends else spec.attention.chosen if part == "form" else vars(spec.attention)
        else:
            whole = spec if part == "case" else getattr(spec, part)
            found = dict(whole.choices) if isinstance(whole, Part) else {} if whole is None else vars(whole)
        if any(found.get(key) not in (value if isinstance(value, list) else [value]) for key, value in values.items()):
            return False
    return True


def _set(entries: Entries, pen: Pen, spec: CaseSpec) -> CaseSpec:
    for part, values in entries.items():
        drawn = {name: pen.one_of(value) if isinstance(value, list) else value for name, value in values.items()}
        if part == "case":
            spec = replace(spec, **drawn)
        elif part == "form":
            spec = _with(spec, "attention", form=(*spec.attention.form, *drawn.items()))
        else:
            spec = _with(spec, part, **drawn)
    return spec


def _with(spec: CaseSpec, part: str, **changes: Any) -> CaseSpec:
    whole: Any = getattr(spec, part)
    changed: Any = whole.with_choices(**changes) if isinstance(whole, Part) else replace(whole, **changes)
    return replace(spec, **{part: changed})


# What a row cannot say: how the case changes, and how the change is recognised.


def _with_mask(spec: CaseSpec, **changes: Any) -> CaseSpec:
    return _with(spec, "attention", mask=replace(spec.attention.mask or Mask(), **changes))


def _mask_is(holds: Callable[[AttentionTraits, Mask], bool]) -> Predicate:
    def present(spec: CaseSpec) -> bool:
        mask = spec.attention.mask
        return spec.attends and mask is not None and holds(find_attention_traits(spec.attention), mask)

    return present


def _change_mask_dtype(pen: Pen, spec: CaseSpec) -> CaseSpec:
    mask = spec.attention.mask or Mask()
    rest = [name for name in ("int64", "float32", "float16", "float64", "int8") if name != spec.dtype]
    dtype = pen.draw_weighted([("bool", 3), *((name, 1) for name in rest)])
    if dtype in ("int64", "int8"):
        return _with_mask(spec, kind="bias", dtype="int64", inside=False)
    if dtype != "bool":
        return _with_mask(spec, dtype=dtype)
    fills = spec.attention.softmax_axis == -1
    use: MaskUse = pen.one_of(("fill", "where", "add")) if fills else "add"
    kind = "causal" if mask.kind in ("bias", "alibi") and mask.shape != "key" else mask.kind
    return _with_mask(spec, kind=kind, dtype="bool", use=use)


def _change_mask_rank(pen: Pen, spec: CaseSpec) -> CaseSpec:
    mask, traits = spec.attention.mask or Mask(), list_traits(spec)
    shapes: list[MaskShape] = ["matrix", "full"]
    if "heads" in traits:
        shapes.append("heads")
    if mask.kind in ("bias", "alibi", "padding") and "scores" in traits:
        shapes.append("row")
    return _with_mask(spec, shape=pen.one_of(shapes))


def _block_query(pen: Pen, spec: CaseSpec) -> CaseSpec:
    mask = spec.attention.mask or Mask()
    return _with_mask(spec, kind=mask.kind if mask.dtype == "bool" else "causal", blocked=True)


def _make_heads_one(pen: Pen, spec: CaseSpec) -> CaseSpec:
    one = {"heads": 1} if pen.chance(50) else {"head_dim": 1, "heads": max(2, spec.dims.heads)}
    return _with(spec, "dims", **one)


def _empty(pen: Pen, spec: CaseSpec) -> CaseSpec:
    return _with(spec, "dims", **({"sequence": 0} if pen.chance(30) and spec.layer is None else {"batch": 0}))


_CHANGES: dict[str, tuple[Change, Predicate]] = {
    "softmax_axis": (
        lambda pen, spec: _with(
            spec, "attention", softmax_axis=pen.one_of((-2, 0, 1) if "heads" in list_traits(spec) else (-2, 0))
        ),
        lambda spec: spec.attends and spec.attention.softmax_axis != -1,
    ),
    "mask_dtype": (
        _change_mask_dtype,
        _mask_is(lambda traits, mask: traits.has_scores and mask.dtype not in ("model", *traits.mask_dtypes)),
    ),
    "mask_rank": (
        _change_mask_rank,
        _mask_is(lambda _, mask: mask.shape not in ("square", "key") and (mask.kind, mask.shape) != ("alibi", "heads")),
    ),
    "query_blocked": (_block_query, _mask_is(lambda _, mask: mask.blocked)),
    "sequence_is_heads": (
        lambda pen, spec: _with(_with(spec, "attention", cross=False), "dims", sequence=spec.dims.heads),
        lambda spec: spec.attends and spec.attention.layout != "flat" and spec.dims.sequence == spec.dims.heads,
    ),
    "sequence_is_head_dim": (
        lambda pen, spec: _with(spec, "dims", sequence=spec.dims.head_dim),
        lambda spec: spec.dims.sequence == spec.dims.head_dim,
    ),
    "heads_one": (_make_heads_one, lambda spec: 1 in (spec.dims.heads, spec.dims.head_dim)),
    "empty": (_empty, lambda spec: 0 in (spec.dims.batch, spec.dims.sequence)),
}


def _iter_layouts() -> Iterator[NearMiss]:
    of_heads = {"requires": ("qkv", "heads"), "excludes": ("leading",)}
    for name, layout in LAYOUTS.items():
        row = {"summary": layout.summary, "percent": layout.weight, "family": "memory", "case": {"inputs": name}}
        if layout.weight:
            limits = {"excludes": ("embedding",)} if 3 in layout.ranks else of_heads
            yield _read_near_miss(f"inputs_{name}", {**row, **limits})


def _iter_values() -> Iterator[NearMiss]:
    for name, values in VALUES.items():
        row = {"summary": values.summary, "percent": values.weight, "family": "values", "case": {"values": name}}
        if values.weight:
            yield _read_near_miss(name, {**row, "excludes": ("embedding",)})


def _register_rows() -> None:
    generated = {"layouts": _iter_layouts, "values": _iter_values}
    for name, row in read_table(__package__, "near_misses").items():
        if name in generated:
            for operator in generated[name]():
                _register_near_miss(operator)
        elif "choices" in row:
            draw = partial(draw_choices, choices=row.pop("choices"))
            _register_detour(Detour(name, row.pop("summary"), row.pop("percent"), draw, **row))
        else:
            change = dict(zip(("change", "present"), _CHANGES.get(name, ()), strict=False))
            _register_near_miss(_read_near_miss(name, {**row, **change}))


_register_rows()
