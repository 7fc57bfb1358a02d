"""Inductor behind its graph passes: loop bodies, kernels, generated code; watched, evaluated, switched off by piece."""
