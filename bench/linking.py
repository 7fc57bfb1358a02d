"""Seconds that kernels take to compile, linked to torch's libraries and to empty ones of their names, side by side.

Each kernel is another one, so that no cache has it; both ways take turns. Prints machine and versions, both medians,
and the median of the ratios.

    python bench/linking.py --kernels 20
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch._inductor.codecache import CppPythonBindingsCodeCache

from fuzzcompile.compiler.kernel_cache import share_linker

KERNEL = """#include <torch/csrc/inductor/cpp_prefix.h>
extern "C" void kernel(const float* in_ptr0, float* out_ptr0) {{
    for (int64_t x0 = 0; x0 < 4096; x0 += 16) {{
        auto tmp0 = at::vec::Vectorized<float>::loadu(in_ptr0 + x0, 16);
        (tmp0.exp() * at::vec::Vectorized<float>({number}.0f)).store(out_ptr0 + x0);
    }}
}}
"""


def measure(number: int, linked: dict[str, str]) -> float:
    """Seconds of one kernel's compile under these variables."""
    os.environ.pop("COMPILER_PATH", None)
    os.environ.update(linked)
    start = time.perf_counter()
    CppPythonBindingsCodeCache.load_pybinding(["const float*", "float*"], KERNEL.format(number=number))
    return time.perf_counter() - start


def main() -> None:
    """Measure, and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=20, help="kernels each way")
    count = parser.parse_args().kernels
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        os.environ.pop("COMPILER_PATH", None)
        empty = share_linker(Path(folder))
        measure(0, {})  # headers, and the first questions to the compiler
        pairs = [(measure(2 * number + 1, {}), measure(2 * number + 2, empty)) for number in range(count)]
    own, short = (statistics.median(each) for each in zip(*pairs, strict=True))
    ratio = statistics.median(second / first for first, second in pairs)
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} processors, torch {torch.__version__}")
    print(f"{count} kernels each way: torch's libraries {own:.2f} s, empty ones {short:.2f} s, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
