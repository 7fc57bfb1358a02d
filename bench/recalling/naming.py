"""Whether a report names the mutated place: its function, the rule that uses it, or its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch._inductor.decomposition import select_decomp_table
from torch._inductor.lowering import lowerings

from fuzzcompile.compiler.operators.decompositions import find_operator
from fuzzcompile.compiler.operators.operator_application import find_fake_function
from fuzzcompile.model.focus_plan import Span
from fuzzcompile.model.stages import DECOMPOSITION, FAKE_TENSOR, LOWERING
from recalling.calls import around, runs, spans_of
from recalling.mutation import Mutation

Level = Literal["function", "rule", "file", ""]


def named(mutation: Mutation, report: Mapping[str, Any]) -> Level:
    """How precisely culprit and contributors name the mutated place; empty if they do not.

    ``function``: the culprit stands in the mutated function or bears its name, or one of the innermost frames in which
    it raised is of that function. ``rule``: the function that the culprit stands in, or the one that its stage runs for
    its operator, calls the mutated one (`calls.runs`), or is named as it is. ``file``: the culprit, or what raised,
    stands in the mutated file.
    """
    places = [place for place in (report.get("culprit"), *(report.get("contributors") or ())) if place]
    raised = [frame for place in places for frame in _frames_of(place)]
    levels = [_level(mutation, place) for place in (*places, *raised[:1])]
    levels += [_in_function(mutation, frame) for frame in raised[1:]]
    return min(levels, key=("function", "rule", "file", "").index, default="")


def _frames_of(place: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Where its error rose, or where a worker stood that was lost; innermost first."""
    details = place.get("details") or {}
    return details.get("raised") or details.get("stack") or ()


def _in_function(mutation: Mutation, place: Mapping[str, Any]) -> Level:
    same_file, line = place.get("source") == mutation.file, place.get("line") or 0
    return "function" if same_file and mutation.lines[0] <= line <= mutation.lines[1] else ""


def _level(mutation: Mutation, place: Mapping[str, Any]) -> Level:
    own = mutation.function.split(".")
    same_file, line = place.get("source") == mutation.file, place.get("line") or 0
    names = {place.get("pass"), place.get("rewrite"), place.get("family"), *(place.get("siblings") or ())} - {None}
    if _in_function(mutation, place) or names & set(own):
        return "function"
    if runs([*_functions_of(place, line), *_rules_of(place)], Span(mutation.file, *mutation.lines)):
        return "rule"
    if any(_operator(str(name)) in {_operator(part) for part in own} for name in names):
        return "rule"
    return "file" if same_file else ""


def _operator(name: str) -> str:
    """``gelu`` of ``aten.gelu.default``, ``meta_gelu`` and ``_gelu``."""
    parts = name.split(".")
    plain = parts[1] if len(parts) > 1 and parts[0] in ("aten", "prims", "quantized", "inductor") else parts[0]
    return plain.removeprefix("meta_").removesuffix("_meta").strip("_")


def _functions_of(place: Mapping[str, Any], line: int) -> list[Span]:
    """The functions in which a culprit stands, with their decorators."""
    return around(place["source"], line) if str(place.get("source")).startswith("torch/") else []


def _rules_of(place: Mapping[str, Any]) -> list[Span]:
    """What the stage of a culprit runs for its operator: a lowering, a decomposition, the rule of a fake tensor."""
    operator = find_operator(str(place.get("rewrite")))
    if operator is None:
        return []
    rules = {
        LOWERING: lambda: lowerings.get(operator),
        DECOMPOSITION: lambda: select_decomp_table().get(operator),
        FAKE_TENSOR: lambda: find_fake_function(operator),
    }
    rule = rules.get(str(place.get("stage")))
    return [] if rule is None else list(spans_of(rule()))
