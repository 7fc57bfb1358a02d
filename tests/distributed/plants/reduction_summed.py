"""dynamo puts a sum into the graph for dist.all_reduce, whatever the reduction."""

import torch.distributed._functional_collectives as funcol

right = funcol.all_reduce_inplace


def all_reduce_inplace(tensor, op="sum", group=None, async_op=False, tag=""):
    return right(tensor, "sum", group, async_op, tag)


funcol.all_reduce_inplace = all_reduce_inplace
