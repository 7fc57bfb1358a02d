"""What was found behind the graph passes, as culprits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuzzcompile.attribution.behind.wrong import WrongKernel, WrongOperator, WrongOutput
from fuzzcompile.attribution.culprit import Culprit
from fuzzcompile.compiler.decompositions import family_of_operator
from fuzzcompile.compiler.kernels.lowered import Kernel, Lowered
from fuzzcompile.compiler.kernels.operators import lowering_source, operator_of
from fuzzcompile.oracle.comparison import Comparison

_LINES = 80


def operator_culprit(wrong: WrongOperator, **proof: Any) -> Culprit:
    """The lowering of one operator."""
    node = wrong.lowered.node(wrong.node)
    name = operator_of(wrong.lowered.labels[wrong.node])
    source, line = lowering_source(node.target) if node is not None else (None, None)
    kernel = wrong.kernel or kernel_of(wrong.lowered, wrong.node)
    return Culprit(
        "lowering",
        None,
        name,
        family_of_operator(name),
        nodes=(wrong.node,),
        source=source,
        line=line,
        site=site_of(wrong.lowered, wrong.node),
        step=wrong.step,
        details={
            **kernel_details(wrong.lowered, kernel),
            **_values(wrong.comparison),
            "shown_in_float64": wrong.exact,
        },
        **proof,
    )


def kernel_culprit(wrong: WrongKernel, stage: str, rewrite: str, family: str, **fields: Any) -> Culprit:
    """Something about one kernel; the fields are those of the culprit."""
    nodes = fields.pop("nodes", wrong.nodes)
    details = {**kernel_details(wrong.lowered, wrong.kernel), **_values(wrong.comparison), **fields.pop("details", {})}
    return Culprit(
        stage,
        None,
        rewrite,
        family,
        nodes=nodes,
        site=next((site for name in reversed(nodes) if (site := site_of(wrong.lowered, name))), None),
        step=wrong.comparison.relative_error,
        details=details,
        **fields,
    )


def output_culprit(wrong: WrongOutput) -> Culprit:
    """The wrapper: all that the kernels wrote is right, and what it returns is not."""
    details = {"output": wrong.name, "finding": wrong.comparison.finding, **_values(wrong.comparison)}
    return Culprit("runtime", None, "wrapper", "wrapper", confidence="low", details=details)


def site_of(lowered: Lowered, node: str) -> str | None:
    """``model.py:14 #1`` of an operator."""
    location, _, ordinal = lowered.labels.get(node, "").partition("@")[2].rpartition("#")
    return f"{location} #{ordinal}" if location and location != "?" else None


def kernel_of(lowered: Lowered, node: str) -> Kernel | None:
    """The first kernel that computes an operator."""
    return next((kernel for kernel in lowered.kernels if node in kernel.nodes), None)


def kernel_details(lowered: Lowered, kernel: Kernel | None) -> dict[str, Any]:
    """Name, operators with their lines, and generated source of a kernel, for the reader."""
    if kernel is None:
        return {}
    source = lowered.sources.get(kernel.name)
    return {
        "graph": lowered.direction,
        "kernel": kernel.name,
        "fused": [lowered.labels[name].partition(":")[2] for name in kernel.nodes if name in lowered.labels],
        "kernel_source": _cut(source.splitlines()) if source else None,
    }


def _cut(lines: Sequence[str]) -> str:
    kept = list(lines[:_LINES])
    if len(lines) > _LINES:
        kept.append(f"… {len(lines) - _LINES} more lines")
    return "\n".join(kept)


def _values(comparison: Comparison | None) -> dict[str, Any]:
    if comparison is None:
        return {}
    return {
        "finding": comparison.finding,
        "where": list(comparison.where) if comparison.where is not None else None,
        "values": {name: value if _is_json(value) else str(value) for name, value in comparison.at.items()},
    }


def _is_json(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and value == value and abs(value) != float("inf"))
