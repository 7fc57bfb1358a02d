# pytorch#190417: layer_norm of constants that are -inf.
# A bug: eager gives NaN; sympy refuses the expression while compiling.

import torch
import torch.nn.functional as F

EXPECT = ("compile_error",)


def f():
    v = torch.log2(torch.zeros((2, 1)))
    return F.layer_norm(v, (1,))


def make():
    return f, ()
