import torch

OPTIONS = {'post_grad_fusion_options': {'batch_aten_sub': {'min_fuse_set_size': 2}}}


def program(x, y, z, w):
    sub = torch.sub(x, z, alpha=2)
    sub_1 = torch.sub(y, w, alpha=2)
    return sub, sub_1


def make():
    torch.manual_seed(0)
    x = torch.randn(2, 1, 1)
    y = torch.randn(1, 1, 1)
    z = torch.randn(1, 1, 1)
    w = torch.randn(1, 1, 1)
    return program, (x, y, z, w)
