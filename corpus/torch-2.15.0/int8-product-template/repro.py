"""An error under torch.compile, culprit aten.bmm.default (lowering); torch 2.15.0+cu132."""
import torch

MODE = "max-autotune"

def program(c):
    return c @ c

def make():
    torch.manual_seed(0)
    return program, (torch.randint(2, (1, 2, 2), dtype=torch.int8),)

if __name__ == "__main__":
    raised = []
    for how in ("eager", "compiled"):
        model, inputs = make()
        try:
            target = torch.compile(model, mode=MODE) if how == "compiled" else model
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
