"""#186503: outputs with graphs of their own in eager mode share one compiled, and a second backward pass raises."""

import torch

EXPECT = ["runtime_error"]
x = torch.randn(2, 3, requires_grad=True)
first, second = torch.compile(lambda x: x.unbind(0), backend="aot_eager")(x)
first.sum().backward()
second.sum().backward()
print(x.grad)
