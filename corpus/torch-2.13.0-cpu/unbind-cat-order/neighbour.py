import torch

OPTIONS = {'pre_grad_fusion_options': {'normalization_pass': {}, 'unbind_cat_to_view_pass': {}}}


def program(unflatten):
    unbind = torch.unbind(unflatten, dim=-2)
    return torch.cat([unbind[1], unbind[0].clone()])


def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 1, 2, 1),)
