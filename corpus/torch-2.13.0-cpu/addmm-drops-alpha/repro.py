"""Wrong values under torch.compile, culprit addmm (post_grad, pass_pattern_2); torch 2.13.0+cpu."""
import torch

def program(flat, matmul):
    matmul_3 = flat @ matmul
    return torch.add(flat, matmul_3, alpha=0.01)

def make():
    torch.manual_seed(0)
    return program, (torch.randn(2, 2), torch.randn(2, 2))

if __name__ == "__main__":
    model, inputs = make()
    with torch.no_grad():
        eager, compiled = model(*inputs), torch.compile(model)(*inputs)
        exact = model(*[x.double() for x in inputs])
    error_eager, error_compiled = ((out.double() - exact).abs().max().item() for out in (eager, compiled))
    print(f"torch {torch.__version__}, error vs fp64: eager {error_eager:.2e}, compiled {error_compiled:.2e}")
    wrong = not error_compiled <= 10 * error_eager + 1.3e-6 * exact.abs().max().item()
    print("BUG: compiled is wrong" if wrong else "OK: compiled is as exact as eager")
    raise SystemExit(wrong)
