import torch

OPTIONS = {'pre_grad_fusion_options': {'normalization_pass': {}, 'unbind_stack_to_slices_pass': {}}}


def program(unflatten):
    unbind = torch.unbind(unflatten, dim=-2)
    return torch.stack([unbind[0].clone(), unbind[1]])


def make():
    torch.manual_seed(0)
    return program, (torch.randn(1, 2, 2, 1),)
