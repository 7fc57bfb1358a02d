"""What the stages behind the graph passes share: a compile whose kernels are watched, and what is wrong in it."""
