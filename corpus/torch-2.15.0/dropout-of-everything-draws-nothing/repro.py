"""Wrong values under torch.compile, culprit aten.dropout.default (decomposition); torch 2.15.0+cu132."""
import torch
import torch.nn.functional as F

OPTIONS = {'fallback_random': True}

def program(c):
    return F.dropout(c, 1.0)

def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 1),)

if __name__ == "__main__":
    results = []
    for how in ("eager", "compiled"):
        model, inputs = make()
        target = torch.compile(model, options=OPTIONS) if how == "compiled" else model
        with torch.no_grad():
            out = target(*inputs)
        results.append(torch.get_rng_state())
    eager, compiled = results
    print(f"torch {torch.__version__}, elements that differ from eager: {(eager != compiled).sum().item()} of {eager.numel()}")
    wrong = not torch.equal(eager, compiled)
    print("BUG: compiled is not what eager is" if wrong else "OK: compiled and eager agree")
    raise SystemExit(wrong)
