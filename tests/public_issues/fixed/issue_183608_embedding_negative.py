# pytorch#183608: an embedding of index -2.
# No bug any more; right in torch 2.13: eager raises, and compiled too.

import torch
import torch.nn.functional as F

EXPECT = ("invalid",)


def make():
    return (lambda i, w: F.embedding(i, w)), (torch.tensor([2, -2, 4]), torch.arange(10.0).reshape(5, 2))
