"""What Inductor makes of a graph: loop bodies, kernels, generated code; watched, evaluated, switched off by piece."""
