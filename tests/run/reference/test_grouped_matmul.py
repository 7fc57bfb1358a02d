"""Grouped products against ATen's kernel in float32, in each of its forms."""

from __future__ import annotations

import pytest
import torch

from fuzzcompile.run.arithmetic_modes import Float64Mode
from fuzzcompile.run.reference.device_kernels import grouped_mm

OFFS = torch.tensor([4, 4, 12], dtype=torch.int32)
FORMS = {
    "rows": ((12, 8), (3, 8, 16), OFFS),
    "columns": ((3, 8, 4), (4, 12), OFFS),
    "terms": ((8, 12), (12, 16), OFFS),
    "all": ((3, 8, 4), (3, 4, 12), None),
}


@pytest.mark.skipif(not hasattr(torch.ops.aten, "_grouped_mm"), reason="this torch has no grouped products")
@pytest.mark.parametrize("form", FORMS)
def test_it_is_what_the_kernel_computes(form):
    first, second, offs = FORMS[form]
    torch.manual_seed(0)
    a, b = torch.randn(first), torch.randn(second)
    kernel = torch.ops.aten._grouped_mm.default
    torch.testing.assert_close(grouped_mm(a, b, offs), kernel(a, b, offs))
    with Float64Mode(keep_casts=True):
        exact = kernel(a.double(), b.double(), offs)
    assert exact.dtype == torch.float64
    torch.testing.assert_close(exact, grouped_mm(a.double(), b.double(), offs), rtol=0, atol=0)


def test_groups_without_offsets_are_refused():
    with pytest.raises(ValueError, match="need offsets"):
        grouped_mm(torch.randn(4, 4), torch.randn(2, 4, 4))
