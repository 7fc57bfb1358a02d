"""Wrong values in eager mode, culprit aten.native_batch_norm_backward.default (aten); torch 2.13.0+cpu."""
import torch
import torch.nn.functional as F

BACKWARD = True

def program(norm_running_mean, norm_running_var, out):
    out_1 = F.batch_norm(out, norm_running_mean, norm_running_var)
    return out_1.squeeze(-1).transpose(1, 2)

def make():
    torch.manual_seed(0)
    norm_running_mean = torch.randn(2)
    norm_running_var = torch.randn(2)
    out = torch.randn(1, 2, 2, 1, requires_grad=True)
    return program, (norm_running_mean, norm_running_var, out)

if __name__ == "__main__":
    results = []
    for how in ("eager", "compiled", "float64"):
        model, inputs = make()
        if how == "float64":
            inputs = [x.detach().double().requires_grad_(x.requires_grad) for x in inputs]
        target = torch.compile(model) if how != "eager" else model
        out = target(*inputs)
        out.backward(torch.randn(out.shape, generator=torch.manual_seed(7)).bfloat16().half().to(out))
        results.append(inputs[2].grad)
    eager, compiled, exact = results

    def distance(left, right):  # none between two NaNs or two equal infinities
        same = (left == right) | (left.isnan() & right.isnan())
        return torch.where(same, 0.0, (left - right).abs()).nan_to_num(nan=torch.inf)

    known = distance(eager.double(), exact).isfinite()  # elsewhere eager itself is no number
    errors = (distance(out.double(), exact)[known] for out in (eager, compiled))
    error_eager, error_compiled = (error.max().item() for error in errors)
    print(f"torch {torch.__version__}, error vs fp64: eager {error_eager:.2e}, compiled {error_compiled:.2e}")
    wrong = not error_eager <= 10 * error_compiled + 1.3e-6 * exact.nan_to_num(0, 0, 0).abs().max().item()
    print("BUG: eager is wrong" if wrong else "OK: eager is as exact as compiled")
    raise SystemExit(wrong)
