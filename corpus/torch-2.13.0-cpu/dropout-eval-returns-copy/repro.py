"""Wrong values under torch.compile, culprit aten.dropout.default (decomposition); torch 2.13.0+cpu."""
import torch
import torch.nn.functional as F

def program(x):
    same = F.dropout(x, training=False)
    same += 0.5
    return x

def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 1, 1, 1),)

if __name__ == "__main__":
    results = []
    for how in ("eager", "compiled", "float64"):
        model, inputs = make()
        if how == "float64":
            inputs = [x.double() for x in inputs]
        target = torch.compile(model) if how == "compiled" else model
        with torch.no_grad():
            out = target(*inputs)
        results.append([out, inputs[0]])
    wrong = False
    print(f"torch {torch.__version__}, error vs fp64:")
    for name, eager, compiled, exact in zip(("out0", "input0 after the call"), *results):
        error_eager, error_compiled = ((out.double() - exact).abs().max().item() for out in (eager, compiled))
        print(f"{name}: eager {error_eager:.2e}, compiled {error_compiled:.2e}")
        wrong |= not error_compiled <= 10 * error_eager + 1.3e-6 * exact.abs().max().item()
    print("BUG: compiled is wrong" if wrong else "OK: compiled is as exact as eager")
    raise SystemExit(wrong)
