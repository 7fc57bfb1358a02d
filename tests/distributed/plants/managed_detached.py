"""dynamo reads the weight of a norm that FSDP manages as a constant: its gradient is lost."""

import torch
from torch._dynamo.variables.nn_module import FSDPManagedNNModuleVariable

right = FSDPManagedNNModuleVariable.var_getattr


def var_getattr(self, tx, name):
    made = right(self, tx, name)
    if name == "weight" and isinstance(self.value, torch.nn.RMSNorm):
        return made.call_method(tx, "detach", [], {})
    return made


FSDPManagedNNModuleVariable.var_getattr = var_getattr
