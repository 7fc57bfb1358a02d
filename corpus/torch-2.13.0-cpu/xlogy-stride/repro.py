"""Wrong metadata under torch.compile, culprit aten.xlogy.Tensor (decomposition); torch 2.13.0+cpu."""
import torch

def program(attn_output, other):
    return torch.xlogy(attn_output, other)

def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 2, 2), torch.randn(1, 2, 2).transpose(1, 2))

if __name__ == "__main__":
    model, inputs = make()
    with torch.no_grad():
        eager, compiled = model(*inputs), torch.compile(model)(*inputs)
    eager, compiled = ([s for n, s in zip(out.shape, out.stride()) if n > 1] for out in (eager, compiled))
    print(f"torch {torch.__version__}: eager {eager}, compiled {compiled}")
    wrong = eager != compiled
    print("BUG: compiled and eager differ in strides" if wrong else "OK: compiled and eager agree")
    raise SystemExit(wrong)
