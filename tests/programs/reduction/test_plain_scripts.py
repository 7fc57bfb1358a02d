"""The script for an issue: what it looks like, that it shows the bug, and that it is silent without one."""

from __future__ import annotations

import contextlib
import copy
import io
import re
import runpy
import traceback
from dataclasses import replace

import pytest
import torch
from torch import nn

from fuzzcompile.programs.scripts import issue_script
from fuzzcompile.programs.scripts.clean_process import FinishedProcess
from fuzzcompile.programs.scripts.issue_script import find_faulty_expression
from fuzzcompile.programs.scripts.plain_script import PlainScript, generate_plain_scripts
from fuzzcompile.programs.scripts.reproducer import choose_script
from fuzzcompile.programs.scripts.straight_code import narrow

HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n"
FUNCTION = (
    HEAD
    + """
def program(flat, matmul):
    matmul_3 = flat @ matmul
    return torch.add(flat, matmul_3, alpha=0.01)

def make():
    torch.manual_seed(0)
    return program, (torch.randn(2, 2), torch.randn(2, 2))
"""
)
MODULE = (
    HEAD
    + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
        return self.norm(x)

def make():
    return Model().eval(), (torch.randn(2, 4),)
"""
)


def report(verdict, **outputs):
    entries = [{"name": name, "max_abs_error_compiled": 1.0, **entry} for name, entry in outputs.items()]
    return {"verdict": verdict, "is_bug": True, "torch": torch.__version__, "evidence": {"outputs": entries}}


def scripts(source, verdict, **outputs) -> list[PlainScript]:
    found = report(verdict, **outputs)
    return list(generate_plain_scripts(choose_script(source, found)))


def what_shows(plain: PlainScript, monkeypatch, tmp_path, compiled=lambda function, **_: function) -> str:
    """What the script shows where ``torch.compile`` is ``compiled``."""
    path, printed, status = tmp_path / "repro.py", io.StringIO(), 0
    path.write_text(plain.text())
    monkeypatch.setattr(torch, "compile", compiled)
    with contextlib.redirect_stdout(printed):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except Exception:
            status = 1
            print(traceback.format_exc())
    return issue_script.classify_output(plain.check.kind, printed.getvalue(), status)


def off_by_one(function, **_):
    return lambda *args, **kwargs: function(*args, **kwargs) + 1


def transposed(function, **_):
    return lambda *args, **kwargs: function(*args, **kwargs).t().contiguous().t()


def doubled(function, **_):
    return lambda *args, **kwargs: function(*args, **kwargs).double()


def copying(function, **_):
    return lambda *args, **kwargs: function(*(x.clone() for x in args), **kwargs)


def returning_its_input(function, **_):
    return lambda x: x


def raising(function, **_):
    def compiled(*_):
        raise NotImplementedError("no lowering")

    return compiled


def accepting(function, **_):
    return lambda x: x


WRITES = (
    HEAD
    + """
def program(x):
    x.mul_(2)
    return x.sum()

def make():
    return program, (torch.ones(3),)
"""
)
SAME = (
    HEAD
    + """
def program(x):
    return x * 1.0

def make():
    return program, (torch.ones(3),)
"""
)
REFUSED = (
    HEAD
    + """
def program(x):
    return torch.celu(x, 0.0)

def make():
    return program, (torch.ones(3),)
"""
)
BACKWARD = (
    HEAD
    + """
BACKWARD = True

def program(x, y):
    return x * y

def make():
    torch.manual_seed(0)
    return program, (torch.randn(2, 3, requires_grad=True), torch.randn(2, 3))
"""
)
RANDOM = (
    HEAD
    + """
def program(x):
    return F.dropout(x, 0.5)

def make():
    return program, (torch.ones(64),)
"""
)
CALLED_TWICE = (
    HEAD
    + """
CALLS = [(torch.ones(3),)]

def program(x):
    return x.cos()

def make():
    return program, (torch.ones(2),)
"""
)
NAMED = (
    HEAD
    + """
def program(x, y):
    return x - y

def make():
    return program, {"x": torch.ones(2), "y": torch.zeros(2)}
"""
)
DRIVEN = (
    HEAD
    + """
def program(x):
    return x.sin()

def run(model, inputs):
    return model(*inputs).neg()

def make():
    return program, (torch.ones(2),)
"""
)
WHOLE = {"out0": {"finding": "far"}}
CASES = {
    "values": (FUNCTION, "miscompile", WHOLE, off_by_one),
    "a module": (MODULE, "miscompile", WHOLE, off_by_one),
    "calls": (CALLED_TWICE, "miscompile", {"call1.out0": {"finding": "far"}}, off_by_one),
    "keywords": (NAMED, "miscompile", WHOLE, off_by_one),
    "a run of its own": (DRIVEN, "miscompile", WHOLE, off_by_one),
    "random numbers": (RANDOM, "miscompile", WHOLE, off_by_one),
    "small values": (FUNCTION, "precision_loss", {"out0": {"finding": "far", "within_default_tolerance": True}},
                     off_by_one),
    "strides": (FUNCTION, "metadata", {"out0": {"finding": "stride"}}, transposed),
    "a view": (FUNCTION, "metadata", {"out0": {"finding": "stride", "view_raises": True}}, transposed),
    "dtype": (FUNCTION, "metadata", {"out0": {"finding": "dtype"}}, doubled),
    "what is written": (WRITES, "miscompile", {"input0 after the call": {"finding": "far"}}, copying),
    "memory": (SAME, "aliasing", {"out0": {"finding": "alias", "detail": "eager: shares memory with nothing only; "
               "compiled: shares memory with input0"}}, returning_its_input),
    "gradients": (BACKWARD, "wrong_gradient", {"gradient of input0": {"finding": "far"}},
                  lambda function, **_: lambda *args: function(*args) * 2),
    "gradients of a parameter": (MODULE.replace("\nclass", "BACKWARD = True\n\nclass", 1), "wrong_gradient",
                                 {"gradient of parameter norm.weight": {"finding": "far"}},
                                 lambda function, **_: lambda *args: function(*args) * 2),
    "a buffer that is written": (MODULE.replace("LayerNorm", "BatchNorm1d").replace(".eval()", ""), "miscompile",
                                 {"buffer norm.running_mean after the call": {"finding": "far"}},
                                 lambda module, **_: copy.deepcopy(module)),
    "an error": (FUNCTION, "compile_error", {}, raising),
    "what eager refuses": (REFUSED, "accepts_invalid", {}, accepting),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_script_shows_the_bug_and_nothing_without_it(name, monkeypatch, tmp_path):
    source, verdict, outputs, broken = CASES[name]
    plain = scripts(source, verdict, **outputs)[0]
    assert issue_script.shows_bug(plain.check.kind, what_shows(plain, monkeypatch, tmp_path, broken)), plain.text()
    assert what_shows(plain, monkeypatch, tmp_path) == "right", plain.text()
    assert sum(1 for line in plain.text().splitlines() if line.strip()) <= 12
    assert "make" not in plain.text() and "SystemExit" not in plain.text()


def test_it_reads_as_a_user_would_write_it():
    assert scripts(FUNCTION, "miscompile", **WHOLE)[0].text() == (
        "import torch\n\n"
        "def f(x, y):\n"
        "    return torch.add(x, x @ y, alpha=0.01)\n\n"
        "torch.manual_seed(0)\n"
        "x, y = torch.randn(2, 2), torch.randn(2, 2)\n"
        "print(f(x, y))\n"
        "print(torch.compile(f)(x, y))\n"
    )


def test_what_a_reader_cannot_see_printed_is_asserted():
    large = FUNCTION.replace("torch.randn(2, 2)", "torch.randn(9, 9)")
    half = FUNCTION.replace("torch.randn(2, 2)", "torch.randn(2, 2, dtype=torch.float16)")
    for source in (large, half):
        assert (
            "torch.testing.assert_close(torch.compile(f)(x, y), f(x, y))\n"
            in scripts(source, "miscompile", **WHOLE)[0].text()
        )


SAMPLES = (
    "import torch\nfrom math import inf, nan\n\n"
    "def strided(size, stride, offset, values):\n    return values.as_strided(size, stride, offset)\n\n"
    "def program(x3, x4):\n    split = torch.dropout(x3, 0.5, False)\n    r = split + x4\n\n"
    "def make():\n    x0 = [[1.0, nan]]\n    x3 = strided((2,), (2,), 0, torch.tensor([nan, 1.0, -inf]))\n"
    "    x4 = torch.ones(2)\n    return program, (x3, x4)\n"
)


def test_what_a_person_would_not_write_is_left_out():
    """Values that nothing reads, helpers of one expression, an import for NaN, a last value that is not returned."""
    assert scripts(SAMPLES, "compile_error")[0].text() == (
        "import torch\n\n"
        "def f(x, y):\n"
        "    return torch.dropout(x, 0.5, train=False) + y\n\n"
        "x = torch.tensor([torch.nan, 1.0, -torch.inf]).as_strided((2,), (2,), 0)\n"
        "y = torch.ones(2)\n"
        "f(x, y)  # runs\n"
        "torch.compile(f)(x, y)\n"
    )


@pytest.mark.parametrize(
    ("call", "written"),
    [
        ("F.dropout(x, 0.5, False)", "F.dropout(x, 0.5, training=False)"),
        ("x.sum(0, True)", "x.sum(0, keepdim=True)"),
        ("torch.var(x, 0, False)", "torch.var(x, 0, unbiased=False)"),
        ("x.where(x > 0, True)", "x.where(x > 0, other=True)"),
        ("x.clone().exponential_(1)", "x.clone().exponential_(1)"),
        ("F.dropout(x, 0.5, training=True)", "F.dropout(x, 0.5)"),
        ("x.sum(0, keepdim=False, dtype=torch.float64)", "x.sum(0, dtype=torch.float64)"),
        ("F.max_pool1d(x, 2, padding=0, return_indices=True)", "F.max_pool1d(x, 2, return_indices=True)"),
        ("F.adaptive_max_pool1d(x, 2, True)", "F.adaptive_max_pool1d(x, 2, return_indices=True)"),
    ],
)
def test_booleans_are_given_by_keyword_and_defaults_are_not(call, written):
    source = f"{HEAD}def program(x):\n    return {call}\n\ndef make():\n    return program, (torch.ones(2, 2),)\n"
    assert f"    return {written}\n" in scripts(source, "compile_error")[0].text()
    eval(written, {"torch": torch, "F": nn.functional, "x": torch.ones(2, 2)})


@pytest.mark.parametrize(
    ("body", "written"),
    [
        ("y = x.clone()\n    y.mul_(2)\n    return y", "return x.clone().mul_(2)"),
        ("x.mul_(2)\n    return x", "return x.mul_(2)"),
        ("torch.sin(x)", "return torch.sin(x)"),
        ("x.mul_(2)", "x.mul_(2)"),
    ],
)
def test_the_last_value_is_returned(body, written):
    source = f"{HEAD}def program(x):\n    {body}\n\ndef make():\n    return program, (torch.ones(2, 2),)\n"
    assert f"def f(x):\n    {written}\n" in scripts(source, "compile_error")[0].text()


def test_a_long_call_stands_in_two_lines():
    call = "torch.gru(x, y, [w, u, w, u], False, 2, 1.0, True, False, False)"
    made = "(torch.ones(1, 1, 4), torch.ones(2, 1, 4), torch.ones(12, 4), torch.ones(12, 4))"
    source = f"{HEAD}def program(x, y, w, u):\n    return {call}\n\ndef make():\n    return program, {made}\n"
    text = scripts(source, "compile_error")[0].text()
    assert max(map(len, text.splitlines())) <= 100 and "train=True,\n" in text


def test_a_module_that_only_holds_others_is_a_function():
    held = MODULE.replace("self.norm(x)", "self.norm(x) + x")
    text = scripts(held, "miscompile", **WHOLE)[0].text()
    assert "def f(x):\n    return norm(x) + x\n" in text
    assert "norm = nn.LayerNorm(4).eval()\n" in text and "class" not in text
    assert "with torch.no_grad():" in text, "its parameters ask for gradients, which the case does not record"


def test_a_module_that_only_calls_another_is_that():
    text = scripts(MODULE, "miscompile", **WHOLE)[0].text()
    assert "def " not in text and "print(norm(x))\n    print(torch.compile(norm)(x))\n" in text


def test_settings_stand_where_users_write_them():
    source = FUNCTION.replace("def program", 'OPTIONS = {"max_autotune": True}\nDYNAMIC = True\n'
                              'CONFIG = {"inductor": {"fallback_random": True}}\n\ndef program', 1)  # fmt: skip
    plain = scripts(source, "miscompile", **WHOLE)[0]
    assert 'torch.compile(f, options={"max_autotune": True}, dynamic=True)' in plain.text()
    assert "\ntorch._inductor.config.fallback_random = True\n" in plain.text()
    assert 'torch.compile(f, backend="aot_eager", dynamic=True)' in plain.text("aot_eager")
    assert "OPTIONS" not in plain.text() and "CONFIG" not in plain.text()


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        ("same = x.view(-1)\n    x.add_(1)\n    return same", "same = x.view(-1)"),
        ("y = x + 1\n    x = x * 2\n    return x - y + x", "y = x + 1"),
        ("parts = x.split(1)\n    return parts[0] + parts[1]", "parts = x.split(1)"),
    ],
)
def test_a_value_is_not_inlined_over_what_changes_it(body, kept):
    source = f"{HEAD}def program(x):\n    {body}\n\ndef make():\n    return program, (torch.ones(2, 2),)\n"
    assert f"    {kept}\n" in scripts(source, "miscompile", **WHOLE)[0].text()


def test_a_make_that_is_no_straight_code_is_called():
    source = FUNCTION.replace(
        "    torch.manual_seed(0)\n", "    if torch.get_num_threads() > 999:\n        return None\n"
    )
    text = scripts(source, "miscompile", **WHOLE)[0].text()
    assert "model, inputs = make()\n" in text and "torch.compile(model)(*inputs)" in text


def test_the_copy_for_cuda_makes_everything_there(tmp_path):
    path = tmp_path / "repro.py"
    for source in (FUNCTION, MODULE, BACKWARD):
        verdict = "wrong_gradient" if source is BACKWARD else "miscompile"
        outputs = {"gradient of input0": {"finding": "far"}} if source is BACKWARD else WHOLE
        text = replace(scripts(source, verdict, **outputs)[0], cuda=True).text()
        on_meta = text.replace('set_default_device("cuda")', 'set_default_device("meta")')
        path.write_text(re.split("torch.testing|print", on_meta)[0] + "pass\n")
        try:
            made = runpy.run_path(str(path))
        finally:
            torch.set_default_device(None)
        held = [x for value in made.values() if isinstance(value, nn.Module) for x in value.parameters()]
        tensors = [value for value in made.values() if isinstance(value, torch.Tensor)]
        assert tensors and all(tensor.device.type == "meta" for tensor in (*held, *tensors))
        assert bool(held) == (source is MODULE)


def test_the_expression_is_the_operation_at_the_site_in_the_scripts_names():
    found = report("miscompile", **WHOLE)
    line = FUNCTION.splitlines().index("    matmul_3 = flat @ matmul") + 1
    chosen = choose_script(FUNCTION, found)
    assert find_faulty_expression(FUNCTION, chosen, found) == "torch.add(x, x @ y, alpha=0.01)"
    long = FUNCTION.replace("alpha=0.01)", "alpha=0.01) + torch.linspace(0.125, 0.875, 2).softmax(-1).cumsum(0)")
    at_site = {**found, "culprit": {"site": f"repro.py:{line} #1"}}
    assert find_faulty_expression(long, choose_script(long, at_site), at_site) == "x @ y"


def test_a_long_expression_holds_as_much_of_what_led_to_it_as_fits():
    source = (
        HEAD
        + """
def program(q, k, v):
    scores = q.permute(0, 2, 1) @ k.permute(0, 1, 2).transpose(-2, -1) / 1.4142
    weights = scores.softmax(-1)
    return weights @ v.permute(0, 2, 1)

def make():
    return program, (torch.ones(1, 2, 2), torch.ones(1, 2, 2), torch.ones(1, 2, 2))
"""
    )
    found = report("miscompile", **WHOLE)
    assert (
        find_faulty_expression(source, choose_script(source, found), found) == "scores.softmax(-1) @ v.permute(0, 2, 1)"
    )


HERE = 'Traceback (most recent call last):\n  File "repro.py", line 9, in <module>\n'
NOISE = (
    "W1123 10:00:00.123000 77 torch/utils/cpp_extension.py:118] No CUDA runtime is found, CUDA_HOME='/usr'\n"
    "[W1130 10:00:00.123456 Context.cpp:80] Warning: of a setting (function f)\n"
    "/a/torch/_inductor/compile_fx.py:322: UserWarning: TensorFloat32 is available.\n  warnings.warn(\n"
)
IN_TORCH = 'Traceback (most recent call last):\n  File "a/torch/_ops.py", line 9, in call\n'


@pytest.mark.parametrize(
    ("check", "output", "status", "result"),
    [
        ("asserts", "", 0, "right"),
        ("asserts", f"{HERE}AssertionError", 1, "wrong"),
        ("asserts", f"{IN_TORCH}AssertionError: expected size 2", 1, "raises"),
        ("asserts", "", -11, "raises"),
        ("raises", f"{HERE}ValueError: no", 1, "raises"),
        ("accepts", f"{HERE}ValueError: no", 1, "right"),
        ("accepts", f"compiled: 1\n{HERE}ValueError", 1, "wrong"),
        ("prints", "tensor([1., 2.])\ntensor([1., 2.5000])\n", 0, "wrong"),
        ("prints", "tensor([[1., 2.],\n        [3., 4.]])\ntensor([[1., 2.0001],\n        [3., 4.]])\n", 0, "right"),
        ("prints", f"{NOISE}tensor([1, 2001])\n{NOISE}tensor([1, 2002])\n", 0, "wrong"),
        ("prints", f"{NOISE}(2, 1)\n{NOISE}(2, 1)\n", 0, "right"),
        ("prints", "torch.float32\ntorch.float64\n", 0, "wrong"),
        ("prints", "tensor([1., 2.])\ntensor([1.])\n", 0, "wrong"),
        ("prints", "tensor([1., 2.])\n", 0, "right"),
        ("prints", "tensor(inf)\ntensor(-inf)\n", 0, "wrong"),
        ("prints", "tensor([nan, 1.])\ntensor([nan, inf])\n", 0, "wrong"),
        ("prints", f"tensor([1.])\n{HERE}ValueError: no", 1, "raises"),
    ],
)
def test_what_a_script_showed_is_read_off_its_output(check, output, status, result):
    assert issue_script.classify_output(check, output, status) == result


def test_the_quoted_output_holds_nothing_of_the_machine():
    output = f"{NOISE}tensor([1.])\n{HERE}AssertionError: apart\n"
    assert issue_script.shorten_output(output) == "tensor([1.])\nAssertionError: apart"


def test_a_case_of_which_no_script_can_be_made_keeps_its_reproducer(monkeypatch):
    def fails(*_):
        raise NotImplementedError("a form of its own")

    monkeypatch.setattr(issue_script, "build_issue_script", fails)
    monkeypatch.setattr(issue_script, "confirm_reproducer", lambda text, **_: FinishedProcess(1, "BUG: x", True))
    shown = issue_script.show(FUNCTION, report("miscompile", **WHOLE), None, for_issue=True)
    assert shown.confirmed and shown.plain is None and "a form of its own" in shown.note


def test_an_errors_text_is_kept_without_the_warnings_of_its_compiler():
    warning = "a.h:12:3: warning: overflow [-Woverflow]\n   12 |   0xff,\n      |   ^~~~\n"
    error = "main.cpp:30:51: error: no matching function\n   30 |   auto tmp1 = f(x);\n      |   ~~~\n"
    output = f"{HERE}torch._inductor.exc.InductorError: CppCompileError: C++ compile error\n\n{warning * 30}{error}"
    log = issue_script.shorten_error(output)
    assert "warning" not in log and "0xff" not in log and log.endswith(error)
    assert issue_script.shorten_output(output).splitlines() == [
        "torch._inductor.exc.InductorError: CppCompileError: C++ compile error",
        "main.cpp:30:51: error: no matching function",
        "...",
    ]
    assert issue_script.choose_line(output) == "torch._inductor.exc.InductorError: CppCompileError: C++ compile error"


def test_each_side_of_a_stale_graph_begins_with_what_make_makes(monkeypatch, tmp_path):
    """Its calls change a global, so that the second side would begin with what the first has left."""
    source = HEAD + (
        "SCALES = {}\n\nmodel = None\n\ndef program(x):\n    return x * SCALES['gain']\n\n"
        "def make():\n    SCALES['gain'] = 2.0\n    return program, (torch.ones(3),)\n\n"
        "def run(model, inputs):\n    first = model(*inputs)\n    SCALES['gain'] = 5.0\n"
        "    return first + model(*inputs)\n"
    )
    tried = [
        plain.text("off") for plain in scripts(source, "stale", out0={"finding": "far"})[: issue_script.MOST_TRIED]
    ]
    (apart,) = (text for text in tried if "expected = run(*make())" in text)
    assert "expected = run(*make())\nprogram, inputs = make()" not in apart, "the name of the program is taken"
    assert apart.count("make()") == 3
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(apart, encoding="utf-8")
    runpy.run_path("script.py")  # right without a compiler


def test_a_program_of_several_values_is_narrowed_to_the_one_that_is_wrong():
    """A case of torch's tables calls an operator on several samples."""
    source = (
        f"{HEAD}def program(x, y, z):\n    doubled = y * 2\n    r = x.cos()\n    r1 = doubled.max(0)\n"
        "    return r, r1, z.sin()\n\n"
        "def make():\n    x = torch.ones(2)\n    y = torch.ones(3, requires_grad=True)\n    z = torch.ones(4)\n"
        "    return program, (x, y, z)\n"
    )
    x, y, z = (torch.ones(2), torch.ones(3, requires_grad=True), torch.ones(4))
    outputs = (x.cos(), (y * 2).max(0), z.sin())
    for name, new in (("out2", "out1"), ("gradient of input1", "gradient of input0")):
        text, renamed = narrow(source, (x, y, z), outputs, name)
        assert renamed == new and "return r1" in text and "return (program, (y,))" in text
        assert "cos" not in text and "sin" not in text and "doubled = y * 2" in text
    assert narrow(source, (x, y, z), outputs, "out3")[1] == "out0"
    assert narrow(source.replace("x.cos()", "y.cos()"), (x, y, z), outputs, "gradient of input1") is None
    assert narrow(source, (x, y, z), outputs, "input0 after the call") is None
