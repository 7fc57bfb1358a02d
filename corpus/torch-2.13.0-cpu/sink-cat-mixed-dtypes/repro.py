"""An error under torch.compile, culprit sink_cat_after_pointwise (pre_grad); torch 2.13.0+cpu."""
import torch

def program(x, gt):
    joined = torch.cat([x, gt])
    return joined.relu()

def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 2, 2), (torch.rand(1, 2, 2) > 0.5))

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
    wrong = eager == "nothing" and compiled != "nothing"
    print("BUG: compiled raises where eager does not" if wrong else "OK: compiled runs where eager does")
    raise SystemExit(wrong)
