"""Passes that left undone what the lowering relies on."""

from __future__ import annotations

from fuzzcompile.attribution.culprit import Culprit
from fuzzcompile.compiler.decompositions import family_of_operator
from fuzzcompile.compiler.kernels.codegen_operators import defined_at
from fuzzcompile.compiler.kernels.operators import lowering_source, operator_name
from fuzzcompile.stage_names import POST_GRAD
from fuzzcompile.stages.kernels.culprits import site_of
from fuzzcompile.stages.kernels.wrong import Failure

_PASSES = "torch._inductor.fx_passes.post_grad"
# The pass that replaces an operator which cannot be lowered.
_REPLACED_BY = {
    "auto_functionalized": "decompose_auto_functionalized",
    "auto_functionalized_v2": "decompose_auto_functionalized",
    "triton_kernel_wrapper_functional": "decompose_triton_kernel_wrapper_functional",
    "map_impl": "decompose_map_to_while_loop",
    "scan": "decompose_scan_to_while_loop",
}


def left_undone(failure: Failure) -> Culprit | None:
    """The pass that should have replaced the operator whose lowering raised; None if there is none.

    AOTAutograd and dynamo alone put these operators into a graph, so that the pass met them. Where a lowering is
    registered after all, the lowering is at fault. No compile can do without the pass, so that no ablation proves it.

    Such a fault shows in no step: the graph computes the same before and after the pass. It shows when the lowering
    meets an operator that no lowering is registered for, and that a pass which no compile can do without should have
    replaced.
    """
    lowered, failed = failure.lowered, failure.failed
    node = lowered.node(failed.nodes[-1]) if failed.nodes else None
    if node is None or not callable(node.target):
        return None
    name = operator_name(node.target).removeprefix("higher_order.")
    replacing = _REPLACED_BY.get(name)
    if replacing is None or lowering_source(node.target) != (None, None):
        return None
    source, line = defined_at(f"{_PASSES}:{replacing}")
    if source is None:
        return None
    return Culprit(
        POST_GRAD,
        replacing,
        replacing,
        replacing,
        nodes=failed.nodes,
        source=source,
        line=line,
        site=site_of(lowered, node.name),
        details={"left": name, "error": failed.message, "operator": family_of_operator(name)},
    )
