"""Inductor's queries of the C++ toolchain before its first kernel, run while a worker is still importing.

It starts g++ for its version, loads a library for each set of vector instructions in a process of its own, and has the
header of its kernels preprocessed: 1 s, nearly all of it spent waiting (measured). The answers are kept by the
functions that asked.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from fuzzcompile.compiler.headers import share_headers

# Needs the vector instructions and the header; it is never compiled.
_KERNEL = """#include <torch/csrc/inductor/cpp_prefix.h>
extern "C" void kernel(const float* in_ptr0) { at::vec::Vectorized<float>::loadu(in_ptr0); }
"""


@contextlib.contextmanager
def looking_at_toolchain(*, wanted: bool) -> Iterator[None]:
    """Look at it in a thread during the block, if that is wanted; the block ends when both have."""
    # Imported here: two threads that import modules which import each other may see half of one.
    from torch._inductor import codecache, cpp_builder, cpu_vec_isa

    assert cpp_builder and cpu_vec_isa
    load = getattr(getattr(codecache, "CppPythonBindingsCodeCache", None), "load_pybinding_async", None)
    if not wanted or load is None:
        yield
        return
    share_headers()
    thread = threading.Thread(target=_look, args=(load,), name="toolchain", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _look(load: Callable[..., object]) -> None:
    # Whatever goes wrong (there is no compiler, this torch asks in another way) shows when a kernel is compiled.
    with contextlib.suppress(Exception):
        load(["const float*"], _KERNEL, submit_fn=lambda compile_it: None)
