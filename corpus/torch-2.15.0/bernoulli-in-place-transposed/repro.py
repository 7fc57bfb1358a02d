"""Wrong values under torch.compile, culprit aten.bernoulli_.float (functionalization); torch 2.15.0+cu132."""
import torch

def program(t):
    clone = t.clone()
    clone.bernoulli_()
    return clone

def make():
    torch.manual_seed(0)
    return program, (torch.randn(4, 2).transpose(0, 1),)

if __name__ == "__main__":
    import torch._inductor.config
    torch._inductor.config.fallback_random = True
    results = []
    for how in ("eager", "compiled", "float64"):
        model, inputs = make()
        if how == "float64":
            inputs = [x.double() for x in inputs]
        torch.manual_seed(20240229)
        target = torch.compile(model) if how == "compiled" else model
        with torch.no_grad():
            out = target(*inputs)
        results.append(out)
    eager, compiled, exact = results
    error_eager, error_compiled = ((out.double() - exact).abs().max().item() for out in (eager, compiled))
    print(f"torch {torch.__version__}, error vs fp64: eager {error_eager:.2e}, compiled {error_compiled:.2e}")
    wrong = not error_compiled <= 10 * error_eager + 1.3e-6 * exact.abs().max().item()
    print("BUG: compiled is wrong" if wrong else "OK: compiled is as exact as eager")
    raise SystemExit(wrong)
