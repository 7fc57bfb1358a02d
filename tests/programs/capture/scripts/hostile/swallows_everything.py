import torch

f = torch.compile(lambda x: x + 1)
for _ in range(1000):
    try:
        f(torch.ones(3))
    except BaseException:
        pass
    finally:
        print("on we go")
