"""pytorch#176679: a Tensor subclass whose __torch_function__ doubles the result of torch.add.

The reported wrong values (doubled twice) are right in 2.13; what is left is that compiled returns a plain Tensor.
At fault: dynamo, __torch_function__ dispatch (the report); for what is left: unknown
"""

import torch

EXPECT = ("metadata",)


class ScaledTensor(torch.Tensor):
    @staticmethod
    def __new__(cls, data):
        return torch.Tensor._make_subclass(cls, data)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        raw = super().__torch_function__(func, types, args, kwargs)
        if isinstance(raw, torch.Tensor) and func is torch.add:
            return raw * 2.0
        return raw


a = ScaledTensor(torch.tensor([1.0, 2.0]))
b = ScaledTensor(torch.tensor([3.0, 4.0]))

eager = torch.add(a, b)
torch._dynamo.reset()
compiled = torch.compile(torch.add, backend="eager", fullgraph=False)(a, b)

print(f"eager   : {eager}")
print(f"compiled: {compiled}")
