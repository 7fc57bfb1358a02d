"""Wrong values under torch.compile, culprit min_cut_rematerialization_partition; torch 2.15.0+cu132."""
import torch

BACKWARD = True
CONFIG = {'inductor': {'fallback_random': True}}

def program(sigmoid):
    return torch.bernoulli(sigmoid)

def make():
    torch.manual_seed(0)
    return program, (torch.rand(1, 1, requires_grad=True),)

if __name__ == "__main__":
    import torch._inductor.config
    import torch._inductor.config
    torch._inductor.config.fallback_random = True
    results = []
    for how in ("eager", "compiled"):
        model, inputs = make()
        torch.manual_seed(20240229)
        target = torch.compile(model) if how == "compiled" else model
        with torch._inductor.config.patch(CONFIG["inductor"]):
            out = target(*inputs)
            out.backward(torch.randn(out.shape, generator=torch.manual_seed(7)).bfloat16().half().to(out))
        results.append(torch.get_rng_state())
    eager, compiled = results
    print(f"torch {torch.__version__}, elements that differ from eager: {(eager != compiled).sum().item()} of {eager.numel()}")
    wrong = not torch.equal(eager, compiled)
    print("BUG: compiled is not what eager is" if wrong else "OK: compiled and eager agree")
    raise SystemExit(wrong)
