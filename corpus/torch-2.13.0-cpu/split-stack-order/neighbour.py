import torch

OPTIONS = {'pre_grad_fusion_options': {'normalization_pass': {}, 'split_stack_to_cats_pass': {}}}


def program(x):
    split = torch.split(x, 1, dim=-1)
    return torch.stack([split[0].clone(), split[1]])


def make():
    torch.manual_seed(0)
    return program, (torch.randn(2, 2, 2),)
