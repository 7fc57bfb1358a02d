"""Mathematical references: what fused kernels compute, written out in plain operators."""
