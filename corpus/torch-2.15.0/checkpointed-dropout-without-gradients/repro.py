"""An error under torch.compile, culprit remat_using_tags_for_fwd_loss_bwd_graph; torch 2.15.0+cu132."""
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
GRAD = "enabled"
def program(x):
    return checkpoint(lambda a: F.dropout(a.sin(), 0.5), x)
def make():
    return program, (torch.randn(2, 2),)

if __name__ == "__main__":
    import torch._inductor.config
    torch._inductor.config.fallback_random = True
    raised = []
    for how in ("eager", "compiled"):
        torch.manual_seed(20240229)
        model, inputs = make()
        torch.manual_seed(20240229)
        try:
            target = torch.compile(model) if how == "compiled" else model
            out = target(*inputs)
            raised.append("nothing")
        except Exception as error:
            raised.append(f"{type(error).__name__}: {error}".partition("\n")[0])
    eager, compiled = raised
    print(f"torch {torch.__version__}: eager raises {eager}; compiled raises {compiled}")
    wrong = eager == "nothing" and compiled != "nothing"
    print("BUG: compiled raises where eager does not" if wrong else "OK: compiled runs where eager does")
    raise SystemExit(wrong)
