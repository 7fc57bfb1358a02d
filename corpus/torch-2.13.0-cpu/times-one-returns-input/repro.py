"""Memory shared that eager does not share under torch.compile, culprit constant_fold_uniform_value; torch 2.13.0+cpu."""
import torch

def program(x):
    scalar = torch.tensor(1.0)
    return x * scalar

def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 1, 1),)

if __name__ == "__main__":
    # Right with `scalar = torch.tensor(2.0)` instead of `scalar = torch.tensor(1.0)`.
    def memory(tensor):
        return tensor.untyped_storage().data_ptr()

    results = []
    for how in ("eager", "compiled"):
        model, inputs = make()
        target = torch.compile(model) if how == "compiled" else model
        with torch.no_grad():
            out = target(*inputs)
        results.append(memory(out) == memory(inputs[0]))
    eager, compiled = results
    print(f"torch {torch.__version__}: out and inputs[0] share memory: eager {eager}, compiled {compiled}")
    wrong = eager != compiled
    print("BUG: compiled shares other memory" if wrong else "OK: compiled shares what eager shares")
    raise SystemExit(wrong)
