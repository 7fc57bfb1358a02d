"""Memory shared that eager does not share under torch.compile, culprit splitwithsizes_cat_replace; torch 2.13.0+cpu."""
import torch

OPTIONS = {'pre_grad_fusion_options': {'normalization_pass': {}, 'batch_linear': {'min_fuse_set_size': 2}}}

def program(x):
    split = x.split(1, dim=-1)
    return torch.cat([split[0], split[1]], dim=-1)

def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 1, 2),)

if __name__ == "__main__":
    # Right with `return program, (torch.randn(1, 1, 3),)` instead of `return program, (torch.randn(1, 1, 2),)`.
    def memory(tensor):
        return tensor.untyped_storage().data_ptr()

    results = []
    for how in ("eager", "compiled"):
        model, inputs = make()
        target = torch.compile(model, options=OPTIONS) if how == "compiled" else model
        with torch.no_grad():
            out = target(*inputs)
        results.append(memory(out) == memory(inputs[0]))
    eager, compiled = results
    print(f"torch {torch.__version__}: out and inputs[0] share memory: eager {eager}, compiled {compiled}")
    wrong = eager != compiled
    print("BUG: compiled shares other memory" if wrong else "OK: compiled shares what eager shares")
    raise SystemExit(wrong)
