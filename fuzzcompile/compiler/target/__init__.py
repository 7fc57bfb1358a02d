"""Compiling for a device that is not there: torch's answers for it, and its graphs and kernels run on the CPU."""
