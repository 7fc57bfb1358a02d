import builtins
import os
import sys

import torch

sys.exit = builtins.exit = lambda *_: None
os._exit = sys.exit
sys.exit(3)
print(torch.compile(lambda x: x / 3)(torch.ones(3)))
exit()
