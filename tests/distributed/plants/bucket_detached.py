"""dynamo's split for DDP, where all of a graph fits into one bucket, compiles it with its first parameter detached."""

import torch
from torch._dynamo.backends.distributed import DDPOptimizer

right = DDPOptimizer.compile_fn


def compile_fn(self, module, arguments, **options):
    for node in module.graph.find_nodes(op="placeholder"):
        if isinstance(node.meta["example_value"], torch.nn.Parameter):
            with module.graph.inserting_after(node):
                detached = module.graph.call_method("detach", (node,))
            node.replace_all_uses_with(detached, delete_user_cb=lambda user, own=detached: user is not own)
            detached.meta["example_value"] = node.meta["example_value"].detach()
            module.recompile()
            break
    return right(self, module, arguments, **options)


DDPOptimizer.compile_fn = compile_fn
