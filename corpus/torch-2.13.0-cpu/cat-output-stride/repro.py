"""Wrong metadata under torch.compile, culprit aten.cat.default (decomposition); torch 2.13.0+cpu."""
import torch
from torch import nn
from torch.nn import functional as F

class Convolution(nn.Module):

    def forward(self, x):
        x = F.pad(x.transpose(1, 2), (1, 0))
        return F.silu(x).transpose(1, 2)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Convolution()

    def forward(self, x):
        x = self.layer(x)
        size = x.shape[0]
        joined = torch.cat([x, x])
        x = joined.narrow(0, size, size)
        return x

def make():
    x = torch.randn(1, 2, 2)
    return Model(), (x,)

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
