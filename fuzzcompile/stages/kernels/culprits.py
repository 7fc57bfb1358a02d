"""Culprits behind the graph passes, with what a reader wants to see of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fuzzcompile.attribution.culprit import Culprit
from fuzzcompile.codegen.base import CodeGenerator
from fuzzcompile.codegen.table import generator_of
from fuzzcompile.compiler.kernels.codegen_operators import defined_at
from fuzzcompile.compiler.kernels.lowered import Kernel, Lowered
from fuzzcompile.oracle.comparison import Comparison
from fuzzcompile.stage_names import SCHEDULER
from fuzzcompile.stages.kernels.wrong import WrongKernel, labels_of

_LINES = 80


def kernel_culprit(
    wrong: WrongKernel,
    stage: str,
    rewrite: str,
    family: str,
    *,
    nodes: tuple[str, ...] | None = None,
    details: Mapping[str, object] | None = None,
    **known: Any,
) -> Culprit:
    """Something about one kernel as a culprit, with the kernel and its wrong values as details.

    Args:
        wrong: the kernel.
        stage: the stage at fault.
        rewrite: what is at fault there, for the reader.
        family: what is at fault, for the signature.
        nodes: the operators that it concerns; those of the wrong buffer by default.
        details: further details.
        known: further fields of the culprit.
    """
    nodes = wrong.nodes if nodes is None else nodes
    site = next((site for name in reversed(nodes) if (site := site_of(wrong.lowered, name))), None)
    shown = {**kernel_details(wrong.lowered, wrong.kernel), **values_shown(wrong.comparison), **(details or {})}
    step = wrong.comparison.relative_error
    return Culprit(stage, None, rewrite, family, nodes, site=site, step=step, details=shown, **known)


def site_of(lowered: Lowered, node: str) -> str | None:
    """``model.py:14 #1`` of an operator."""
    location, _, ordinal = lowered.labels.get(node, "").partition("@")[2].rpartition("#")
    return f"{location} #{ordinal}" if location and location != "?" else None


def fusion_source(stage: str, generator: CodeGenerator) -> tuple[str | None, int | None]:
    """File and line of what fuses loops: the scheduler's decision, or the code that is generated for them together."""
    if stage == SCHEDULER:
        return defined_at("torch._inductor.scheduler:Scheduler.can_fuse")
    code = generator.fused_loops()
    return code.source, code.line


def kernel_of(lowered: Lowered, node: str) -> Kernel | None:
    """The first kernel that computes an operator."""
    return next((kernel for kernel in lowered.kernels if node in kernel.nodes), None)


def kernel_details(lowered: Lowered, kernel: Kernel | None) -> dict[str, object]:
    """Name, operators with their lines, and generated source of a kernel, for the reader."""
    if kernel is None:
        return {}
    source = lowered.sources.get(kernel.name)
    written = {} if kernel.extern else {"code_generator": generator_of(lowered, kernel.name).name}
    return {
        "graph": lowered.direction,
        "kernel": kernel.name,
        **written,
        "fused": [label.partition(":")[2] for label in labels_of(lowered, kernel.nodes)],
        "kernel_source": _cut(source.splitlines()) if source else None,
    }


def _cut(lines: Sequence[str]) -> str:
    rest = [f"… {len(lines) - _LINES} more lines"] if len(lines) > _LINES else []
    return "\n".join([*lines[:_LINES], *rest])


def values_shown(comparison: Comparison | None) -> dict[str, object]:
    """Describe the worst element of a comparison as JSON."""
    if comparison is None:
        return {}
    return {
        "finding": comparison.finding,
        "where": list(comparison.where) if comparison.where is not None else None,
        "values": {name: value if _is_json(value) else str(value) for name, value in comparison.at.items()},
    }


def _is_json(value: object) -> bool:
    return value is None or (isinstance(value, (int, float)) and math.isfinite(value))
