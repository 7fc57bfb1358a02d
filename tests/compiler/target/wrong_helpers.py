"""Helpers of Triton kernels with faults planted in them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def max2(a, dim):
    return tl.max(a, dim) * 1.25
