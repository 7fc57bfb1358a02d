import torch
from torch._inductor import config

config.fallback_random = True
torch.set_grad_enabled(False)
torch.manual_seed(0)


class Bins(torch.nn.Module):
    def forward(self, x, width):
        return torch.floor_divide(x, width).long()


def outcome(model, inputs, backend):
    if backend != "eager":
        model = torch.compile(model, backend=backend)
    torch.manual_seed(0)
    return model(*inputs)


inputs = [torch.tensor([1.0, 6.0, 7.0, 9.0] * 4), torch.tensor([0.1, 0.2, 0.7, 0.9] * 4)]
for backend in ("eager", "inductor"):
    print(backend, outcome(Bins(), inputs, backend)[:4])
