import torch
from torch import nn


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.line = nn.Linear(16, 8)

    def forward(self, x, *, scale=1.0):
        return self.line(self.norm(x)) * scale


head = Head().to("cuda").half()
x = torch.randn(3, 16, device="cuda", dtype=torch.half)
wanted = head(x, scale=0.5)
head.compile(options={"epilogue_fusion": True})
torch.testing.assert_close(head(x, scale=0.5), wanted)
