"""What Inductor asks of the C++ toolchain is known before its first kernel."""

from __future__ import annotations

import pytest
from torch._inductor import codecache, cpu_vec_isa

from fuzzcompile.compiler.kernel_cache import prepare_toolchain


@pytest.mark.slow
def test_after_the_look_a_kernel_asks_nothing_of_the_toolchain():
    cpu_vec_isa.valid_vec_isa_list.cache_clear()
    codecache._precompile_header.cache_clear()
    with prepare_toolchain(wanted=True):
        pass
    assert cpu_vec_isa.valid_vec_isa_list.cache_info().currsize == 1
    before = codecache._precompile_header.cache_info()
    codecache.CppPythonBindingsCodeCache.load_pybinding_async(
        ["const float*"],
        '#include <torch/csrc/inductor/cpp_prefix.h>\nextern "C" void kernel(const float* in_ptr0) '
        "{ at::vec::Vectorized<float> other(in_ptr0[0]); }\n",
        submit_fn=lambda compile_it: None,
    )
    after = codecache._precompile_header.cache_info()
    assert (after.hits, after.misses) == (before.hits + 1, before.misses)
