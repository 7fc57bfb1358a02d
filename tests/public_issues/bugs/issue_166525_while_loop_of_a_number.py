# pytorch#166525: a while_loop that carries a number does not compile.
# A bug: eager mode runs it. Torch compiles the loop by itself there, which is no call of the script's.

import torch


class Model(torch.nn.Module):
    def forward(self, a, b):
        def is_left(i, x, y):
            return i < 3

        def step(i, x, y):
            return i + 1, x + a, y + b

        return torch.while_loop(is_left, step, (0, torch.zeros_like(a), torch.zeros_like(b)))


EXPECT = ("compile_error",)
model = Model()
a, b = torch.randn(2, 2), torch.randn(2, 2)
print(model(a, b))
print(torch.compile(model)(a, b))
