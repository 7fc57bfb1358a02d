"""Wrong metadata under torch.compile, culprit _sfdp_pattern_11_inference; torch 2.13.0+cpu."""
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, q, k, v):
        q = q.permute(0, 2, 1, 3)
        k = k.permute(0, 2, 1, 3)
        v = v.permute(0, 2, 1, 3)
        scores = (q @ k.transpose(-2, -1)) / 1.4142
        weights = scores.softmax(-1)
        return weights @ v

def make():
    torch.manual_seed(0)
    q = torch.randn(2, 3, 2, 2)
    k = torch.randn(2, 3, 2, 2)
    v = torch.randn(2, 3, 2, 2)
    return Model().eval(), (q, k, v)

if __name__ == "__main__":
    model, inputs = make()
    with torch.no_grad():
        eager, compiled = model(*inputs), torch.compile(model)(*inputs)
    eager, compiled = ([s for n, s in zip(out.shape, out.stride()) if n > 1] for out in (eager, compiled))
    print(f"torch {torch.__version__}: eager {eager}, compiled {compiled}")
    wrong = eager != compiled
    print("BUG: compiled and eager differ in strides" if wrong else "OK: compiled and eager agree")
    raise SystemExit(wrong)
