import atexit
import os

import torch

atexit.register(lambda: os._exit(0))
atexit.register(lambda: 1 / 0)
print(torch.compile(lambda x: x.sqrt())(torch.ones(3)))
os._exit(0)
