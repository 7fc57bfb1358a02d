"""#140707: a buffer keeps the history of the call before, and the second step's backward pass raises."""

import torch

EXPECT = ["runtime_error"]


class Cached(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("doubled", torch.zeros(3))

    def forward(self, x):
        self.doubled.copy_(self.weight * 2)
        return (x * self.weight).sum()


model = torch.compile(Cached(), backend="aot_eager")
for _ in range(2):
    model(torch.ones(3)).backward()
