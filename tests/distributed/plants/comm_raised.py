"""Reordering for overlap starts a collective before the kernel that computes its input."""

from torch._inductor import comms, ir

right = comms.reorder_compute_and_comm_for_overlap


def reorder_compute_and_comm_for_overlap(nodes):
    order = list(right(nodes))
    for place in range(1, len(order)):
        if isinstance(order[place].node, ir._CollectiveKernel) and not isinstance(order[place].node, ir._WaitKernel):
            order[place - 1], order[place] = order[place], order[place - 1]
            break
    return order


comms.reorder_compute_and_comm_for_overlap = reorder_compute_and_comm_for_overlap
