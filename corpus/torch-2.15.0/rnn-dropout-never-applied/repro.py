"""Wrong values under torch.compile, culprit aten.gru.input (decomposition); torch 2.15.0+cu132."""
import torch

def program(x, h, w, u):
    return torch.gru(x, h, [w, u, w, u], False, 2, 1.0, True, False, False)

def make():
    torch.manual_seed(0)
    x = torch.randn(3, 1, 4)
    h = torch.randn(2, 1, 4)
    w = torch.randn(12, 4)
    u = torch.randn(12, 4)
    return program, (x, h, w, u)

if __name__ == "__main__":
    results = []
    for how in ("eager", "compiled", "float64"):
        model, inputs = make()
        if how == "float64":
            inputs = [x.double() for x in inputs]
        target = torch.compile(model) if how == "compiled" else model
        with torch.no_grad():
            out = target(*inputs)
        results.append([out[0], out[1]])
    wrong = False
    print(f"torch {torch.__version__}, error vs fp64:")
    for name, eager, compiled, exact in zip(("out0", "out1"), *results):
        error_eager, error_compiled = ((out.double() - exact).abs().max().item() for out in (eager, compiled))
        print(f"{name}: eager {error_eager:.2e}, compiled {error_compiled:.2e}")
        wrong |= not error_compiled <= 10 * error_eager + 2.1e-6 * exact.abs().max().item()
    print("BUG: compiled is wrong" if wrong else "OK: compiled is as exact as eager")
    raise SystemExit(wrong)
