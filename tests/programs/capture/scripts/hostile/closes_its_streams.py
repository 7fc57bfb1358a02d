import os
import sys

import torch

sys.stdout.close()
sys.stderr = None
os.close(1)
os.chdir("/")
torch.compile(lambda x: x + 2)(torch.ones(3))
