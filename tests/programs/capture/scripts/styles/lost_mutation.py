import torch


def doubled(x):
    y = torch.nn.functional.dropout(x, 0.3, False)
    y += y
    return y


for called in (doubled, torch.compile(doubled)):
    x = torch.ones(2, 3)
    called(x)
    print("the input after the call:", x[0, 0].item())
