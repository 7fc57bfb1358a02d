"""An invalid program is accepted under torch.compile, culprit aten.celu.default; torch 2.13.0+cpu."""
import torch
import torch.nn.functional as F

def program(x):
    return F.celu(x, 0.0)

def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 1, 1, 1),)

if __name__ == "__main__":
    # Right with `return F.celu(x, 1.0)` instead of `return F.celu(x, 0.0)`.
    raised = []
    for how in ("eager", "compiled"):
        model, inputs = make()
        try:
            target = torch.compile(model) if how == "compiled" else model
            with torch.no_grad():
                out = target(*inputs)
            raised.append("nothing")
        except Exception as error:
            raised.append(f"{type(error).__name__}: {error}".partition("\n")[0])
    eager, compiled = raised
    print(f"torch {torch.__version__}: eager raises {eager}; compiled raises {compiled}")
    wrong = eager != "nothing" and compiled == "nothing"
    print("BUG: eager refuses what compiled accepts" if wrong else "OK: eager and compiled agree")
    raise SystemExit(wrong)
