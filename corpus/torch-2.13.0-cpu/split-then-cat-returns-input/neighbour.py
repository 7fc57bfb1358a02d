import torch

OPTIONS = {'pre_grad_fusion_options': {'normalization_pass': {}, 'batch_linear': {'min_fuse_set_size': 2}}}


def program(x):
    split = x.split(1, dim=-1)
    return torch.cat([split[0], split[1]], dim=-1)


def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 1, 3),)
