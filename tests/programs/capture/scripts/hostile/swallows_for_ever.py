import torch

f = torch.compile(lambda x: x + 1)
while True:
    try:
        f(torch.ones(3))
    except BaseException:
        continue
