"""What Inductor asks of the C++ toolchain is known before its first kernel, and how kernels are linked."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from torch._inductor import codecache, cpu_vec_isa

from fuzzcompile.compiler.kernel_cache import prepare_toolchain, share_linker


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


def test_kernels_are_linked_to_empty_libraries_and_programs_to_real_ones(tmp_path, monkeypatch):
    monkeypatch.delenv("COMPILER_PATH", raising=False)
    variables = share_linker(tmp_path / "kernels")
    assert share_linker(tmp_path / "kernels") == variables, "made once"
    (folder,) = map(Path, variables.values())
    environment = {**os.environ, **variables}
    source = tmp_path / "kernel.cpp"
    source.write_text('extern "C" int answer();\nint kernel() { return answer(); }\n', encoding="utf-8")
    (tmp_path / "lib").mkdir()
    real = [
        "g++",
        "-shared",
        "-Wl,-soname,libtorch_cpu.so",
        "-x",
        "c++",
        "-",
        "-o",
        tmp_path / "lib" / "libtorch_cpu.so",
    ]
    subprocess.run(real, input=b'extern "C" int answer() { return 42; }', check=True)
    linked = [source, "-Wl,--as-needed", f"-L{tmp_path / 'lib'}", "-ltorch_cpu"]
    subprocess.run(["g++", "-shared", "-fPIC", *linked, "-o", tmp_path / "kernel.so"], check=True, env=environment)
    assert b"libtorch_cpu.so" in (tmp_path / "kernel.so").read_bytes()
    main = tmp_path / "main.cpp"
    main.write_text("int kernel();\nint main() { return kernel(); }\n", encoding="utf-8")
    subprocess.run(["g++", main, *linked, "-o", tmp_path / "main"], check=True, env=environment)
    found = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path / "lib")}
    assert subprocess.run([tmp_path / "main"], env=found).returncode == 42
    shutil.rmtree(folder)
    subprocess.run(["g++", "-shared", "-fPIC", *linked, "-o", tmp_path / "kernel.so"], check=True, env=environment)


def test_a_compiler_path_of_the_user_is_left(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPILER_PATH", "/opt/tools")
    assert share_linker(tmp_path) == {}
