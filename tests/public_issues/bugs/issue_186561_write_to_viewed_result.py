"""#186561: a result that was made by `unsqueeze_` is a view of a custom function's, and a write to it raises."""

import torch

EXPECT = ["runtime_error"]


def doubled_in_a_row(x):
    out = x * 2
    out.unsqueeze_(0)
    return out


x = torch.ones(2, requires_grad=True)
print(torch.compile(doubled_in_a_row, backend="aot_eager")(x).mul_(2))
