"""Wrong values under torch.compile, culprit BatchSubPostGradFusion; torch 2.13.0+cpu."""
import torch

OPTIONS = {'post_grad_fusion_options': {'batch_aten_sub': {'min_fuse_set_size': 2}}}

def program(x, y, z, w):
    sub = torch.sub(x, z, alpha=2)
    sub_1 = torch.sub(y, w, alpha=2)
    return sub, sub_1

def make():
    torch.manual_seed(0)
    x = torch.randn(1, 1, 1)
    y = torch.randn(1, 1, 1)
    z = torch.randn(1, 1, 1)
    w = torch.randn(1, 1, 1)
    return program, (x, y, z, w)

if __name__ == "__main__":
    # Right with `x = torch.randn(2, 1, 1)` instead of `x = torch.randn(1, 1, 1)`.
    results = []
    for how in ("eager", "compiled", "float64"):
        model, inputs = make()
        if how == "float64":
            inputs = [x.double() for x in inputs]
        target = torch.compile(model, options=OPTIONS) if how == "compiled" else model
        with torch.no_grad():
            out = target(*inputs)
        results.append([out[1], out[0]])
    wrong = False
    print(f"torch {torch.__version__}, error vs fp64:")
    for name, eager, compiled, exact in zip(("out1", "out0"), *results):
        error_eager, error_compiled = ((out.double() - exact).abs().max().item() for out in (eager, compiled))
        print(f"{name}: eager {error_eager:.2e}, compiled {error_compiled:.2e}")
        wrong |= not error_compiled <= 10 * error_eager + 1.3e-6 * exact.abs().max().item()
    print("BUG: compiled is wrong" if wrong else "OK: compiled is as exact as eager")
    raise SystemExit(wrong)
