"""Reordering for overlap moves a wait behind the kernel that reads what it waits for."""

from torch._inductor import comms, ir

right = comms.reorder_compute_and_comm_for_overlap


def reorder_compute_and_comm_for_overlap(nodes):
    order = list(right(nodes))
    for place in range(len(order) - 2, -1, -1):
        if isinstance(order[place].node, ir._WaitKernel):
            order[place], order[place + 1] = order[place + 1], order[place]
    return order


comms.reorder_compute_and_comm_for_overlap = reorder_compute_and_comm_for_overlap
