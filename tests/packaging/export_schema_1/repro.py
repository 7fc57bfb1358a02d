"""An invalid program is accepted under torch.compile, culprit aten.addmm.default; torch 2.13.0+cpu."""
import torch

def program(new_zeros, new_ones, new_ones_1):
    return torch.addmm(new_zeros, new_ones, new_ones_1)

def make():
    torch.manual_seed(0)
    return program, (torch.randn(3, 1), torch.randn(1, 2), torch.randn(2, 1))

if __name__ == "__main__":
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
