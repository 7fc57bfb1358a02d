"""Kernels at fault: lowering, scheduler and generated code."""
