"""A plant: a rewrite that scales the eighth attention of a graph, that of layer 7, by 1 % too much."""

import torch
from torch._inductor.fx_passes import post_grad
from torch._inductor.pattern_matcher import CallFunctionVarArgs, register_graph_pattern

EIGHTH, ERROR = 7, 1.01
_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def _is_eighth(match):
    node = match.output_node()
    calls = [other for other in node.graph.nodes if other.target is _FLASH]
    return len(calls) > EIGHTH and calls[EIGHTH] is node and "planted" not in node.meta


@register_graph_pattern(CallFunctionVarArgs(_FLASH), pass_dict=post_grad.pass_patterns[0], extra_check=_is_eighth)
def scale_by_too_much(match, *args, **kwargs):
    node = match.output_node()
    node.kwargs = {**node.kwargs, "scale": ERROR * kwargs.get("scale", args[0].meta["val"].shape[-1] ** -0.5)}
    node.meta["planted"] = True
