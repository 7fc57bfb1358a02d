"""Matrix products of groups of rows or columns, as mixtures of experts compute them, in any dtype.

ATen's ``_grouped_mm`` takes float32, bfloat16 and float16 only. With ``offs`` (int32, increasing) the ends of the
groups along the dimension that both matrices or one of them and the result share, group ``g`` from ``offs[g - 1]`` to
``offs[g]``:

- (M, K) by (G, K, N): rows, ``out[rows of g] = a[rows of g] @ b[g]``, shape (M, N);
- (G, M, K) by (K, N): columns, ``out[:, columns of g] = a[g] @ b[:, columns of g]``, shape (M, N);
- (M, K) by (K, N): the dimension that is summed, ``out[g] = a[:, group] @ b[group]``, shape (G, M, N);
- (G, M, K) by (G, K, N): no offsets, ``out[g] = a[g] @ b[g]``.

Rows and columns after the last group are zero here; the kernel leaves them as they were allocated.
"""

from __future__ import annotations

import torch


def grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """What ``torch.ops.aten._grouped_mm`` computes; shapes as above, in the dtype of ``a`` or ``out_dtype``.

    Raises:
        ValueError: there are no offsets for groups of rows, columns or terms.
    """
    if a.dim() == 3 and b.dim() == 3:
        return _finished(torch.bmm(a, b), bias, out_dtype)
    if offs is None:
        raise ValueError("groups of a matrix need offsets")
    ends = [int(end) for end in offs.tolist()]
    groups = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    if a.dim() == 2 and b.dim() == 2:
        return _finished(torch.stack([a[:, group] @ b[group] for group in groups]), bias, out_dtype)
    out = a.new_zeros(a.size(-2), b.size(-1))
    for number, group in enumerate(groups):
        if a.dim() == 2:
            out[group] = a[group] @ b[number]
        else:
            out[:, group] = a[number] @ b[:, group]
    return _finished(out, bias, out_dtype)


def _finished(out: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype | None) -> torch.Tensor:
    out = out if bias is None else out + bias
    return out if dtype is None else out.to(dtype)
