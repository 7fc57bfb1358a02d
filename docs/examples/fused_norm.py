"""A fusion as inference engines register it: a residual added and normalised by one kernel.

`fusion` is the table of patterns. An engine gives it to the compiler with
`torch._inductor.config.post_grad_custom_post_pass = fusion.apply`.
"""

import torch
from torch._inductor.pattern_matcher import PatternMatcherPass, fwd_only, register_replacement

fusion = PatternMatcherPass()


@torch.library.custom_op("fused_norm::add_rms_norm", mutates_args=())
def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel. An engine's own is CUDA or Triton; this one says what it has to compute."""
    total = x + residual
    wide = total.to(torch.promote_types(total.dtype, torch.float32))
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (wide * scale).to(total.dtype) * weight, total


@add_rms_norm.register_fake
def _(x, residual, weight, eps):
    total = x + residual
    return torch.empty_like(total * weight), torch.empty_like(total)


def register(dtype: torch.dtype, eps: float) -> None:
    """Register the pattern for one dtype and one epsilon, which is a constant of the graph."""

    def search(x, residual, weight):
        total = x + residual
        wide = total.float()
        normal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        return weight * normal.to(dtype), total

    def replace(x, residual, weight):
        return torch.ops.fused_norm.add_rms_norm(x, residual, weight, eps)

    def fits(match) -> bool:
        x, residual, weight = (match.kwargs[name].meta["val"] for name in ("x", "residual", "weight"))
        return x.shape == residual.shape and x.dtype == residual.dtype == weight.dtype == dtype

    search.__name__ = f"add_rms_norm_{str(dtype).removeprefix('torch.')}_{eps:g}"
    inputs = [torch.empty(2, 4, 8, dtype=dtype), torch.empty(2, 4, 8, dtype=dtype), torch.empty(8, dtype=dtype)]
    register_replacement(search, replace, inputs, fwd_only, fusion, extra_check=fits)


for dtype in (torch.float32, torch.bfloat16):
    for eps in (1e-5, 1e-6):
        register(dtype, eps)
