"""Wrong gradients under torch.compile, culprit coerce_to_expected_memory_format; torch 2.15.0+cu132."""
import torch

BACKWARD = True

def program(x):
    c = x.repeat(1, 1, 2)
    d = c.diagonal(0, -2, -1)
    return d.unfold(-1, 2, 1)

def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 3, 2, requires_grad=True),)

if __name__ == "__main__":
    # Right with `return d.unfold(-1, 2, 1).clone()` instead of `return d.unfold(-1, 2, 1)`.
    results = []
    for how in ("eager", "compiled", "float64"):
        model, inputs = make()
        if how == "float64":
            inputs = [x.detach().double().requires_grad_(x.requires_grad) for x in inputs]
        target = torch.compile(model) if how == "compiled" else model
        out = target(*inputs)
        out.backward(torch.randn(out.shape, generator=torch.manual_seed(7)).bfloat16().half().to(out))
        results.append(inputs[0].grad)
    eager, compiled, exact = results
    error_eager, error_compiled = ((out.double() - exact).abs().max().item() for out in (eager, compiled))
    print(f"torch {torch.__version__}, error vs fp64: eager {error_eager:.2e}, compiled {error_compiled:.2e}")
    wrong = not error_compiled <= 10 * error_eager + 1.3e-6 * exact.abs().max().item()
    print("BUG: compiled is wrong" if wrong else "OK: compiled is as exact as eager")
    raise SystemExit(wrong)
