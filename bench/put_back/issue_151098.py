"""#151098: attention that divides its scores by another number than the root of the head's size is replaced by
scaled_dot_product_attention with the default scale. Mended by #174361.

Undone: the scale in torch/_inductor/fx_passes/fuse_attention.py, _sfdp_replacement_5.
"""

from torch._inductor.fx_passes import fuse_attention

CASE = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inv_scale = 1.0 / 8**0.5
        self.query = torch.nn.Linear(64, 64)
        self.key = torch.nn.Linear(64, 64)
        self.value = torch.nn.Linear(64, 64)

    def forward(self, x1, attn_mask):
        q = self.query(x1).permute([0, 2, 1, 3])
        k = self.key(x1).permute([0, 2, 1, 3])
        v = self.value(x1).permute([0, 2, 1, 3])
        t2 = torch.matmul(q, k.transpose(-2, -1)).div(self.inv_scale)
        return (t2 + attn_mask).softmax(dim=-1).matmul(v)


def make():
    torch.manual_seed(0)
    return Model().eval(), (torch.randn(1, 16, 64, 64), torch.zeros(1, 1, 16, 16))
"""
STAGES = ("joint_graph",)
NAMES = ("_sfdp_pattern_5", "_sfdp_pattern_14", "fuse_attention")


def replacement(query, key, value, attn_mask, inv_scale):
    return fuse_attention._scaled_dot_product_attention(query, key, value, attn_mask=attn_mask.to(dtype=query.dtype))


fuse_attention._sfdp_replacement_5 = replacement
