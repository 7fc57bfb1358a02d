"""Compiles for a device that is not here, and an interpreter of its kernels."""
