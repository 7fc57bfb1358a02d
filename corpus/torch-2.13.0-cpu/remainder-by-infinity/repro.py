"""NaN or infinity in other elements than in eager, under torch.compile, culprit CppVecOverrides.remainder; torch 2.13.0+cpu."""
import torch

def program(x, other):
    return torch.remainder(x, other)

def make():
    torch.manual_seed(0)
    x = torch.randn(1, 1, 2, 2)
    other = torch.tensor([[[[float("inf"), float("inf")], [float("inf"), float("inf")]]]])
    return program, (x, other)

if __name__ == "__main__":
    # Right with `x = torch.randn(1, 1, 1, 2)` instead of `x = torch.randn(1, 1, 2, 2)`.
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
    wrong = not error_compiled <= 10 * error_eager + 1.3e-6 * exact.nan_to_num(0, 0, 0).abs().max().item()
    print("BUG: compiled is wrong" if wrong else "OK: compiled is as exact as eager")
    raise SystemExit(wrong)
