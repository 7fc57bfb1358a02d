"""Wrong values under torch.compile, culprit pointless_cumsum_replacement; torch 2.13.0+cpu."""
import torch

def program():
    constant = torch.full((1, 1, 2, 2), 100)
    return constant.cumsum(-1, dtype=torch.int8)

def make():
    return program, ()

if __name__ == "__main__":
    torch.manual_seed(20240229)
    model, inputs = make()
    with torch.no_grad():
        eager, compiled = model(*inputs), torch.compile(model)(*inputs)
    print(f"torch {torch.__version__}, elements that differ from eager: {(eager != compiled).sum().item()} of {eager.numel()}")
    wrong = not torch.equal(eager, compiled)
    print("BUG: compiled is not what eager is" if wrong else "OK: compiled and eager agree")
    raise SystemExit(wrong)
