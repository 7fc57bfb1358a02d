"""Compiling for a device that is not there: what torch is told of it, and how its graphs and kernels run on the CPU."""
