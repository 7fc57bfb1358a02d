"""Wrong gradients under torch.compile, culprit aten.native_batch_norm_backward.default; torch 2.13.0+cpu."""
import torch
import torch.nn.functional as F

BACKWARD = True

def program(x, norm_running_mean, norm_running_var, out):
    out_1 = F.batch_norm(out, norm_running_mean, norm_running_var)
    return x + out_1.squeeze(-1).transpose(1, 2)

def make():
    torch.manual_seed(0)
    x = torch.randn(1, 2, 2, requires_grad=True)
    norm_running_mean = torch.randn(2)
    norm_running_var = torch.randn(2)
    out = torch.randn(1, 2, 2, 1, requires_grad=True)
    return program, (x, norm_running_mean, norm_running_var, out)

if __name__ == "__main__":
    results = []
    for how in ("eager", "compiled", "float64"):
        model, inputs = make()
        if how == "float64":
            inputs = [x.detach().double().requires_grad_(x.requires_grad) for x in inputs]
        target = torch.compile(model) if how == "compiled" else model
        out = target(*inputs)
        out.backward(torch.randn(out.shape, generator=torch.manual_seed(7)).bfloat16().half().to(out))
        results.append(inputs[3].grad)
    eager, compiled, exact = results
    error_eager, error_compiled = ((out.double() - exact).abs().max().item() for out in (eager, compiled))
    print(f"torch {torch.__version__}, error vs fp64: eager {error_eager:.2e}, compiled {error_compiled:.2e}")
    wrong = not error_compiled <= 10 * error_eager + 1.3e-6 * exact.abs().max().item()
    print("BUG: compiled is wrong" if wrong else "OK: compiled is as exact as eager")
    raise SystemExit(wrong)
