"""How right an answer is: fuzzcompile's, and that of CompilerBisector, by the same rule."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from plants import Expected
from torch._inductor.compiler_bisector import BisectionResult

from fuzzcompile.compiler.watch.rule_labels import get_base_name
from fuzzcompile.diagnosis.attribution.culprit import Attribution

Grade = Literal["right", "coarse", "wrong", "none"]
# What CompilerBisector's backends and groups say of a stage, where they find nothing within.
_BACKEND_STAGES = {
    "eager": ("dynamo",),
    "aot_eager": ("functionalization", "fake_tensor"),
    "aot_eager_decomp_partition": ("decomposition", "partition", "functionalization"),
    "aot_eager_decomp_partition_crossref": ("fake_tensor",),
    "inductor": ("lowering", "codegen", "scheduler", "runtime"),
}
_GROUP_STAGES = {
    "decomposition": ("decomposition",),
    "pre_grad_passes": ("pre_grad",),
    "joint_graph_passes": ("joint_graph",),
    "post_grad_passes": ("post_grad",),
    "lowerings": ("lowering", "codegen", "scheduler"),
}


def graded(found: Attribution, expected: Expected) -> Grade:
    """How right an attribution is."""
    culprit = found.culprit
    if culprit is None:
        return "none"
    in_stage = culprit.stage in expected.stages
    if culprit.rewrite is None or culprit.rewrite == "unknown":
        return "coarse" if in_stage else "wrong"
    named = [culprit.rewrite, *(str(other.rewrite) for other in found.contributors)]
    all_named = all(any(names((wanted,), one) for one in named) for wanted in expected.further)
    if in_stage and names(expected.names, culprit.rewrite):
        return "right" if all_named else "coarse"
    return "wrong"


def names(wanted: Sequence[str], text: str) -> bool:
    """Whether ``text`` (a rewrite, an operator, a node) names one of the wanted things."""
    words = {text, get_base_name(text), *re.findall(r"\w+", text), *text.split()}
    words |= {re.sub(r"_\d+$", "", word) for word in words}
    return any(get_base_name(name) in words for name in wanted)


def graded_bisection(result: BisectionResult | None, expected: Expected) -> Grade:
    """How right an answer of CompilerBisector is; a group that holds the culprit is coarse."""
    if result is None:
        return "none"
    if result.subsystem is None:
        return "coarse" if set(_BACKEND_STAGES.get(result.backend, ())) & set(expected.stages) else "wrong"
    in_stage = bool(set(_GROUP_STAGES.get(result.subsystem, ())) & set(expected.stages))
    info = result.debug_info or ""
    if not in_stage:
        return "wrong"
    if names(expected.names, info):
        # It cannot tell a lowering from the code that is generated for it, nor say that two are needed.
        told = result.subsystem != "lowerings" or "lowering" in expected.stages
        return "right" if told and not expected.further else "coarse"
    return "coarse" if not info or info == expected.group or result.subsystem == "lowerings" else "wrong"
