"""NaN or infinity in other elements than in eager, under torch.compile, culprit _sfdp_pattern_2_inference; torch 2.15.0+cu132."""
import torch

def program(k, v, q):
    scores = q @ k.transpose(-2, -1) * 0.5
    weights = scores.softmax(-1)
    return weights @ v

def make():
    torch.manual_seed(0)
    k = torch.randn(1, 1, 2, 2)
    v = torch.randn(1, 1, 2, 2)
    q = torch.tensor([[[[0.4965595602989197, 0.5452359914779663], [float("nan"), float("nan")]]]])
    return program, (k, v, q)

if __name__ == "__main__":
    model, inputs = make()
    with torch.no_grad():
        eager, compiled = model(*inputs), torch.compile(model)(*inputs)
        exact = model(*[x.double() for x in inputs])

    def distance(left, right):  # none between two NaNs or two equal infinities
        same = (left == right) | (left.isnan() & right.isnan())
        return torch.where(same, 0.0, (left - right).abs()).nan_to_num(nan=torch.inf)

    known = distance(eager.double(), exact).isfinite()  # elsewhere eager itself is no number
    errors = (distance(out.double(), exact)[known] for out in (eager, compiled))
    error_eager, error_compiled = (error.max().item() for error in errors)
    print(f"torch {torch.__version__}, error vs fp64: eager {error_eager:.2e}, compiled {error_compiled:.2e}")
    wrong = not error_compiled <= 10 * error_eager + 1.6e-6 * exact.nan_to_num(0, 0, 0).abs().max().item()
    print("BUG: compiled is wrong" if wrong else "OK: compiled is as exact as eager")
    raise SystemExit(wrong)
