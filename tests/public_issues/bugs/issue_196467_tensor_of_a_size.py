# pytorch#196467: torch.Tensor(x.size()) is traced as torch.Tensor(tuple).
# A bug: the shape is that of the tuple. Eager's values are memory that nothing wrote to, other ones each time.

import torch

EXPECT = ("metadata",)


def f(x):
    v = torch.nn.functional.linear(x, torch.ones(4, 10), torch.zeros(4))
    return torch.Tensor(v.size())


x = torch.randn(1, 10)
print(f(x).shape)
print(torch.compile(f, fullgraph=True)(x).shape)
