"""Calls of several functions beside the single ones of the table of operators."""

from __future__ import annotations

from fuzzcompile.generation.operator_table import Operator

# They keep the form of {rows}, (N, C, L), together.
COMPOSED = tuple(
    Operator(call.partition("(")[0], (call,), gradient=smooth, cast=not smooth or ".float()" in call)
    for call, smooth in (
        ("F.lp_pool1d({rows}, 2, 1, 1)", True),
        ("F.max_pool1d({rows}, 3, 1, 1)", True),
        ("F.max_pool1d({rows}, 2, 1, 1, dilation=1)[..., 1:]", True),
        ('F.interpolate({rows}, scale_factor=2.0, mode="nearest")[..., ::2]', True),
        ('F.interpolate({rows}, scale_factor=2.0, mode="linear", align_corners=True)[..., 1::2]', True),
        ('F.interpolate({rows}, scale_factor=2, mode="linear")[..., 1::2]', True),
        ("F.instance_norm({rows}.repeat(1, 1, 2))[..., : {rows}.shape[-1]]", True),
        ("F.batch_norm({rows}.repeat(2, 1, 1), None, None, training=True)[: {rows}.shape[0]]", True),
        ("F.unfold({rows}[:, None], (1, 1)).view({rows}.shape)", True),
        ("torch.diff({rows}, dim=-1, prepend={rows}[..., :1])", True),
        ("torch.cdist({rows}.float(), {rows}.float())[..., :1] + {rows}", True),
        ("torch.bmm({rows}, ({rows}.transpose(1, 2) @ {rows}).tril())", True),
        ("torch.take_along_dim({rows}, {rows}.argsort(-1, descending=True), -1)", True),
        ("torch.searchsorted({rows}.sort(-1).values, {rows})", False),
        ("torch.bucketize({rows}, {rows}.new_tensor([-0.5, 0.0, 0.5]), right=True)", False),
        ("torch.repeat_interleave({rows}, 2, dim=-1)[..., ::2]", True),
        ("torch.tensor_split({rows}, 3, dim=-1)[0].sum(-1, keepdim=True) + {rows}", True),
    )
)
