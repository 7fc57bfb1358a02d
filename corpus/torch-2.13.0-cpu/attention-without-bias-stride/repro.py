"""Wrong metadata under torch.compile, culprit aten.contiguous (dynamo); torch 2.13.0+cpu."""
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(2, 2, bias=False, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)[0]

def make():
    x = torch.randn(2, 2, 2)
    return Model().eval(), (x,)

if __name__ == "__main__":
    torch.manual_seed(20240229)
    model, inputs = make()
    with torch.no_grad():
        eager, compiled = model(*inputs), torch.compile(model)(*inputs)
    eager, compiled = ([s for n, s in zip(out.shape, out.stride()) if n > 1] for out in (eager, compiled))
    print(f"torch {torch.__version__}: eager {eager}, compiled {compiled}")
    wrong = eager != compiled
    print("BUG: compiled and eager differ in strides" if wrong else "OK: compiled and eager agree")
    raise SystemExit(wrong)
