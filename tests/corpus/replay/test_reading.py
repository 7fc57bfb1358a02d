"""What one run of a reproducer shows, from its exit status and its output."""

from __future__ import annotations

import pytest

from fuzzcompile.corpus.replay.replay_engine import Ended, Expected, read

VALUES, ERROR = Expected("miscompile"), Expected("compile_error", "CppCompileError: C++ compile error")
ACCEPTS, CRASH, HANG = Expected("accepts_invalid", "IndexError: out of range"), Expected("crash"), Expected("timeout")
IN_EAGER = """Traceback (most recent call last):
  File "/tmp/x/repro.py", line 18, in <module>
    eager, compiled = model(*inputs), torch.compile(model)(*inputs)
  File "/tmp/x/repro.py", line 8, in program
    return torch.nope(x)
AttributeError: module 'torch' has no attribute 'nope'
"""
IN_COMPILED = """Traceback (most recent call last):
  File "/tmp/x/repro.py", line 18, in <module>
    eager, compiled = model(*inputs), torch.compile(model)(*inputs)
  File "/home/me/site-packages/torch/_dynamo/eval_frame.py", line 1044, in compile_wrapper
    raise e.remove_dynamo_frames() from None
torch._inductor.exc.InductorError: LoweringException: AssertionError: no
"""
NO_TRITON = IN_COMPILED.replace("InductorError: LoweringException: AssertionError: no", "ImportError: No triton")
SEGFAULT = (
    'Fatal Python error: Segmentation fault\n\n  File "/tmp/fuzzcompile-torchinductor-x/ab/cab.py", line 9 in call\n'
)
HUNG = 'Fatal Python error: Aborted\n  File "/x/torch/_inductor/graph.py", line 3 in run\n'
SAYS = "torch 2.15.0: eager raises {}; compiled raises {}\n"
PROCESS = "torch 2.15.0: eager runs; exit status of compiled: {}\nBUG: compiled does not end as eager does\n"


@pytest.mark.parametrize(
    ("expected", "status", "output", "shows"),
    [
        (VALUES, 1, "torch 2.15.0\nBUG: compiled is wrong\n", "failing"),
        (VALUES, 0, "torch 2.15.0\nOK: compiled is as exact as eager\n", "fixed"),
        (VALUES, 1, IN_EAGER, "errored"),
        (VALUES, 1, IN_COMPILED, "fails differently"),
        (VALUES, 1, NO_TRITON, "errored"),
        (VALUES, 1, "ModuleNotFoundError: No module named 'torch'\n", "errored"),
        (VALUES, 3, "no CUDA device here: nothing was run\n", "not run"),
        (VALUES, -11, SEGFAULT, "fails differently"),
        (VALUES, -9, "", "errored"),
        (VALUES, None, HUNG, "fails differently"),
        (VALUES, None, "Fatal Python error: Aborted\n", "errored"),
        (VALUES, 0, "BUG: and yet it ends well\n", "errored"),
        (VALUES, 2, "usage: repro.py\n", "errored"),
        (ERROR, 1, SAYS.format("nothing", "InductorError: CppCompileError: C++ compile error") + "BUG: x\n", "failing"),
        (ERROR, 1, SAYS.format("nothing", "BackendCompilerFailed: backend='inductor' raised:") + "BUG: x\n", "failing"),
        (ERROR, 1, SAYS.format("nothing", "InductorError: KeyError: 'buf0'") + "BUG: x\n", "fails differently"),
        (ERROR, 1, SAYS.format("nothing", "InductorError: CppCompileError: absent") + "BUG: x\n", "fails differently"),
        (ERROR, 1, SAYS.format("nothing", "InductorError: InvalidCxxCompiler: none") + "BUG: x\n", "errored"),
        (ERROR, 0, SAYS.format("AttributeError: no relu", "AttributeError: no relu") + "OK: x\n", "errored"),
        (ERROR, 0, SAYS.format("nothing", "nothing") + "OK: x\n", "fixed"),
        (ACCEPTS, 1, SAYS.format("IndexError: out of range", "nothing") + "BUG: x\n", "failing"),
        (ACCEPTS, 1, SAYS.format("AttributeError: no such op", "nothing") + "BUG: x\n", "errored"),
        (ACCEPTS, 0, SAYS.format("IndexError: now 3", "RuntimeError: also") + "OK: x\n", "fixed"),
        (ACCEPTS, 0, SAYS.format("AttributeError: no such op", "RuntimeError: no such op") + "OK: x\n", "errored"),
        (ACCEPTS, 0, SAYS.format("nothing", "RuntimeError: negative") + "OK: x\n", "fails differently"),
        (CRASH, 1, PROCESS.format(-11), "failing"),
        (CRASH, 1, PROCESS.format("none after 60 s"), "fails differently"),
        (CRASH, 1, IN_COMPILED + PROCESS.format(1), "fails differently"),
        (CRASH, -6, "", "failing"),
        (HANG, 1, PROCESS.format("none after 60 s"), "failing"),
        (HANG, 1, PROCESS.format(-11), "fails differently"),
        (HANG, None, "", "failing"),
    ],
)  # fmt: skip
def test_a_run_shows(expected, status, output, shows):
    status, why = read(Ended(status, output, 180.0), expected)
    assert status == shows
    assert why


def test_an_error_is_the_same_in_spite_of_names_and_numbers():
    expected = Expected("runtime_error", "RuntimeError: size 3 of 'buf1' at 0x7f31 must match 4")
    said = "TorchRuntimeError: RuntimeError: size 12 of 'arg0_1' at 0x55aa must match 7"
    assert read(Ended(1, SAYS.format("nothing", said) + "BUG: x\n", 1.0), expected)[0] == "failing"


def test_what_was_recorded_is_read_from_the_report():
    report = {"verdict": "accepts_invalid", "detail": "eager raises IndexError: 3 is\nout of range; compiled runs"}
    assert Expected.of(report) == Expected("accepts_invalid", "IndexError: 3 is")
