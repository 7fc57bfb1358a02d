import os

import torch

os._exit(0)
torch.compile(lambda x: x)(torch.ones(3))
