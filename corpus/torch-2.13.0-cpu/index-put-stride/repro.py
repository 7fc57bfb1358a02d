"""Wrong metadata under torch.compile, culprit reinplace_inplaceable_ops (post_grad); torch 2.13.0+cpu."""
import torch

def program(view, slice_2, index):
    constant_pad_nd = torch.constant_pad_nd(view, [1, 0])
    return torch.index_put(constant_pad_nd[:, :, 1:], [slice_2], index)

def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 2, 1), torch.randint(2, (0,)), torch.randn(1, 2, 1))

if __name__ == "__main__":
    model, inputs = make()
    with torch.no_grad():
        eager, compiled = model(*inputs), torch.compile(model)(*inputs)
    eager, compiled = ([s for n, s in zip(out.shape, out.stride()) if n > 1] for out in (eager, compiled))
    print(f"torch {torch.__version__}: eager {eager}, compiled {compiled}")
    wrong = eager != compiled
    print("BUG: compiled and eager differ in strides" if wrong else "OK: compiled and eager agree")
    raise SystemExit(wrong)
