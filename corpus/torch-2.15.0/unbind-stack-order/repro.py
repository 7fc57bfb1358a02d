"""Wrong values under torch.compile, culprit unbind_stack_to_slices; torch 2.15.0+cu132."""
import torch

OPTIONS = {'pre_grad_fusion_options': {'normalization_pass': {}, 'unbind_stack_to_slices_pass': {}}}

def program(unflatten):
    unbind = torch.unbind(unflatten, dim=-2)
    return torch.stack([unbind[0], unbind[1]])

def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 2, 2, 1),)

if __name__ == "__main__":
    model, inputs = make()
    with torch.no_grad():
        eager, compiled = model(*inputs), torch.compile(model, options=OPTIONS)(*inputs)
        exact = model(*[x.double() for x in inputs])
    error_eager, error_compiled = ((out.double() - exact).abs().max().item() for out in (eager, compiled))
    print(f"torch {torch.__version__}, error vs fp64: eager {error_eager:.2e}, compiled {error_compiled:.2e}")
    wrong = not error_compiled <= 10 * error_eager + 1.3e-6 * exact.abs().max().item()
    print("BUG: compiled is wrong" if wrong else "OK: compiled is as exact as eager")
    raise SystemExit(wrong)
