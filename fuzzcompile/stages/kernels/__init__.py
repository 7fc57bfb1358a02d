"""Kernels: compiles with watched kernels, and the faults behind the graph passes."""
