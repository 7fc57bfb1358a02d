"""Wrong metadata under torch.compile, culprit _sfdp_pattern_9_inference; torch 2.15.0+cu132."""
import torch

def program(q, k, v):
    scores = q.permute(0, 2, 1, 3) / 2.0 @ k.permute(0, 2, 1, 3).transpose(-2, -1)
    weights = scores.softmax(-1)
    return weights.to(torch.float16) @ v.permute(0, 2, 1, 3).to(torch.float16)

def make():
    torch.manual_seed(0)
    return program, (torch.randn(2, 2, 2, 2), torch.randn(2, 2, 2, 2), torch.randn(2, 2, 2, 2))

if __name__ == "__main__":
    model, inputs = make()
    with torch.no_grad():
        eager, compiled = model(*inputs), torch.compile(model)(*inputs)
    eager, compiled = (out.dtype for out in (eager, compiled))
    print(f"torch {torch.__version__}: eager {eager}, compiled {compiled}")
    wrong = eager != compiled
    print("BUG: compiled and eager differ in dtype" if wrong else "OK: compiled and eager agree")
    raise SystemExit(wrong)
