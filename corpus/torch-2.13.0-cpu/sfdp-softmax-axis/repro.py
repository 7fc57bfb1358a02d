"""Wrong values under torch.compile, culprit _sfdp_pattern_2_inference (pass_pattern_0); torch 2.13.0+cpu."""
import torch

def program(k, q, v):
    scores = q @ k.transpose(-2, -1) * 0.5
    weights = scores.softmax(-2)
    return weights @ v

def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 1, 2, 2), torch.randn(1, 1, 2, 2), torch.randn(1, 1, 2, 2))

if __name__ == "__main__":
    # Right with `weights = scores.softmax(-1)` instead of `weights = scores.softmax(-2)`.
    model, inputs = make()
    with torch.no_grad():
        eager, compiled = model(*inputs), torch.compile(model)(*inputs)
        exact = model(*[x.double() for x in inputs])
    error_eager, error_compiled = ((out.double() - exact).abs().max().item() for out in (eager, compiled))
    print(f"torch {torch.__version__}, error vs fp64: eager {error_eager:.2e}, compiled {error_compiled:.2e}")
    wrong = not error_compiled <= 10 * error_eager + 1.3e-6 * exact.abs().max().item()
    print("BUG: compiled is wrong" if wrong else "OK: compiled is as exact as eager")
    raise SystemExit(wrong)
