"""Reproducers: what is kept, which form is chosen, and that they tell bugs from mended programs."""

from __future__ import annotations

import ast
import functools
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fuzzcompile.model.errors import CaseError, UsageError
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.programs.scripts.reproducer import build_reproducer, confirm_reproducer

SOFTMAX_AXIS = '''"""A note."""
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, q, k, v):
        scores = (q @ k.transpose(-2, -1)) * 0.7071
        weights = scores.softmax(-2)
        return weights @ v


def make():
    torch.manual_seed(0)
    q = torch.randn(2, 1, 3, 2)
    k = torch.randn(2, 1, 3, 2)
    v = torch.randn(2, 1, 3, 2)
    return Model().eval(), (q, k, v)
'''
SDPA = {
    "stage": "joint_graph",
    "pass": "pass_pattern_0",
    "rewrite": "_sfdp_pattern_2_inference",
    "necessary": True,
}


def program(body: str, inputs: str, *, arguments: str = "x", state: str = "", constants: str = "") -> str:
    """A small case: one module, whose forward is ``body``."""
    init = f"def __init__(self):\n        super().__init__()\n        {state}\n\n    " if state else ""
    lines = textwrap.indent(textwrap.dedent(body).strip(), " " * 8)
    return (
        f"import torch\nfrom torch import nn\n\n{constants}\n\nclass Model(nn.Module):\n"
        f"    {init}def forward(self, {arguments}):\n{lines}\n\n\n"
        f"def make():\n    torch.manual_seed(0)\n    return Model().eval(), {inputs}\n"
    )


def report(verdict: str, *outputs: tuple[str, str], **more: object) -> dict[str, object]:
    """A triage report in which the named outputs have the given findings."""
    evidence = [
        {
            "name": name,
            "finding": finding,
            "max_abs_error_eager": 1e-7,
            "max_abs_error_compiled": 0.5,
            "noise_floor": 2e-7,
            "scale": 1.0,
        }
        for name, finding in outputs
    ]
    return {
        "verdict": verdict,
        "torch": "2.13.0",
        "device": "cpu",
        "evidence": {"outputs": evidence},
        "culprit": None,
        **more,
    }


CUMSUM_DTYPE = program(
    "return torch.ones(2, 4, dtype=torch.bool).cumsum(1, dtype=torch.bfloat16), x + 1", "(torch.randn(4),)"
)
CUMSUM_SCALAR = program("return torch.full((), 5.0).cumsum(0) + x", "(torch.randn(4),)")
ADDMM = program(
    "return torch.addmm(x, a, b)",
    "(torch.randn(5, 1), torch.ones(1, 1), torch.ones(1, 1))",
    arguments="x, a, b",
)
EVAL_DROPOUT = program(
    "y = self.drop(x)\ny += 1\nreturn y + x", "(torch.randn(2, 3),)", state="self.drop = nn.Dropout(0.1)"
)
ADD_ZEROS = program("return x + torch.zeros_like(x)", "(torch.randn(2, 3),)")
DROPOUT_AND_INPUT = program("return nn.functional.dropout(x, training=False), x", "(torch.randn(2, 3),)")
GAINED = {"detail": "eager: out0 is a copy; compiled: shares memory with input0"}
LOST = {"detail": "eager: out0 shares memory with input0; compiled: a copy"}
TRAINED = program(
    "return self.line(x).tanh()",
    "(torch.randn(3, 4, requires_grad=True),)",
    state="self.line = nn.Linear(4, 2)",
    constants="BACKWARD = True",
)
LINE = ("gradient of parameter line.weight", "far")


def alias(**details: dict[str, str]) -> dict[str, object]:
    """A report of right values in memory that only one of the runs shares."""
    found = report("aliasing", *((name.replace("_", "."), "alias") for name in details))
    for entry, detail in zip(found["evidence"]["outputs"], details.values(), strict=True):
        entry.update(detail, max_abs_error_eager=0.0, max_abs_error_compiled=0.0)
    return found


FORMS = {
    "metadata": (CUMSUM_DTYPE, report("metadata", ("out0", "dtype"))),
    "compile_error": (CUMSUM_SCALAR, report("compile_error")),
    "accepts_invalid": (ADDMM, report("accepts_invalid")),
    "aliasing": (EVAL_DROPOUT, report("aliasing", ("input0 after the call", "missing"))),
    "alias gained": (ADD_ZEROS, alias(out0=GAINED)),
    "alias lost": (DROPOUT_AND_INPUT, alias(out0=LOST)),
    "mended alias": (program("return x.t()", "(torch.randn(2, 3),)"), alias(out0=LOST)),
    "mended gradient": (TRAINED, report("wrong_gradient", LINE)),
    "mended mark": (TRAINED, report("metadata", ("out0", "requires_grad"))),
}
# Runs scripts one after the other in one process, and prints how each ended and what it said.
RUNS_SCRIPTS = """
import contextlib, io, json, runpy, sys
for path in sys.argv[1:]:
    said, status = io.StringIO(), 0
    with contextlib.redirect_stdout(said):
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as end:
            status = int(end.code or 0)
    print(json.dumps((status, said.getvalue())))
    sys.modules["torch"]._dynamo.reset()
"""


@pytest.fixture(scope="module")
def run_alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """How each of the reproducers ends and what it prints, in one process without fuzzcompile: imports take long."""
    folder = tmp_path_factory.mktemp("alone")
    for name, (source, found) in FORMS.items():
        Path(folder, name).write_text(build_reproducer(source, found), encoding="utf-8")
    command = [sys.executable, "-c", RUNS_SCRIPTS, *FORMS]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return dict(zip(FORMS, map(json.loads, done.stdout.splitlines()), strict=True))


@functools.cache
def built(source: str, verdict: str = "miscompile", *outputs: tuple[str, str]) -> str:
    return build_reproducer(source, report(verdict, *outputs))


def main_part(source: str) -> str:
    return source[source.index('if __name__ == "__main__":') :]


# -- run alone ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("metadata", "eager torch.bfloat16, compiled torch.int64"),
        ("compile_error", "eager raises nothing; compiled raises"),
        ("alias gained", "out and inputs[0] share memory: eager False, compiled True"),
        ("alias lost", "out[0] and inputs[0] share memory: eager True, compiled False"),
        ("accepts_invalid", "eager raises RuntimeError"),
        ("aliasing", "error vs fp64: eager 0.00e+00"),
    ],
)
def test_known_bugs_are_shown_without_fuzzcompile(name, said, run_alone):
    status, output = run_alone[name]
    assert status == 1, output
    assert said in output and "torch 2." in output and "\nBUG: " in output


@pytest.mark.parametrize("name", ["mended gradient", "mended alias", "mended mark"])
def test_a_program_without_the_bug_exits_0(name, run_alone):
    status, output = run_alone[name]
    assert status == 0 and "\nOK: " in output and "BUG: " not in output


def test_a_known_bug_is_confirmed_in_a_clean_process():
    found = report("miscompile", ("out0", "far"), culprit=SDPA)
    done = confirm_reproducer(build_reproducer(SOFTMAX_AXIS, found))
    assert done.confirmed and done.status == 1, done.output
    assert "error vs fp64: eager" in done.output and "\nBUG: " in done.output


def test_a_program_that_shows_no_bug_is_not_confirmed():
    done = confirm_reproducer("print('OK: nothing wrong')\n")
    assert (done.status, done.confirmed) == (0, False)


def test_a_traceback_is_no_confirmation():
    done = confirm_reproducer("raise RuntimeError('BUG: not the verdict line')\n")
    assert (done.status, done.confirmed) == (1, False)
    assert "Traceback" in done.output


def test_a_script_that_does_not_end_is_ended():
    done = confirm_reproducer("print('BUG: x', flush=True)\nimport time\ntime.sleep(60)\n", timeout=1)
    assert not done.confirmed
    assert done.status not in (0, 1)
    assert "still running" in done.output


def test_the_process_is_clean(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "kept")
    names = "os.environ.get('PYTHONPATH'), os.environ['TORCHINDUCTOR_CACHE_DIR']"
    assert confirm_reproducer(f"import os\nprint({names})\n").output == "None kept\n"


# -- the file -----------------------------------------------------------------------------------------


def test_an_attention_miscompile_takes_at_most_30_lines():
    text = build_reproducer(SOFTMAX_AXIS, report("miscompile", ("out0", "far"), culprit=SDPA))
    assert len(text.splitlines()) <= 30
    assert max(map(len, text.splitlines())) <= 110


def test_the_docstring_names_verdict_culprit_and_torch():
    text = build_reproducer(SOFTMAX_AXIS, report("miscompile", ("out0", "far"), culprit=SDPA))
    first = ast.get_docstring(ast.parse(text))
    assert first == (
        "Wrong values under torch.compile, culprit _sfdp_pattern_2_inference (pass_pattern_0); torch 2.13.0."
    )


def test_a_suspect_that_was_not_proved_is_called_one():
    culprit = {**SDPA, "necessary": None}
    text = build_reproducer(SOFTMAX_AXIS, report("miscompile", ("out0", "far"), culprit=culprit))
    assert "suspect _sfdp" in text.splitlines()[0]
    assert "not attributed" in built(SOFTMAX_AXIS).splitlines()[0]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (SOFTMAX_AXIS, report("miscompile", ("out0", "far"))),
        (EVAL_DROPOUT, report("miscompile", ("out0", "far"), ("input0 after the call", "missing"))),
        (TRAINED, report("wrong_gradient", LINE)),
        (CUMSUM_SCALAR, report("compile_error")),
    ],
)
def test_building_from_a_reproducer_gives_the_same_text(source, found):
    once = build_reproducer(source, found)
    assert build_reproducer(once, found) == once


def test_only_torch_is_imported():
    for source in (SOFTMAX_AXIS, EVAL_DROPOUT, TRAINED):
        roots = set()
        for node in ast.walk(ast.parse(built(source))):
            if isinstance(node, ast.Import):
                roots |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                roots.add((node.module or "").split(".")[0])
        assert roots == {"torch"}


def test_it_is_still_a_case(write_case):
    source = program("return x * 2", "(torch.randn(3),)", constants='GRAD = "inference_mode"\nDYNAMIC = True')
    case = load_case(write_case(built(source)))
    assert case.grad == "inference_mode"
    assert case.settings.dynamic is True
    assert case.make()[1][0].shape == (3,)


def test_a_main_part_that_was_there_is_replaced():
    text = built(SOFTMAX_AXIS + "\n\nif __name__ == '__main__':\n    print('mine')\n")
    assert text == built(SOFTMAX_AXIS)
    assert "mine" not in text and text.count("__main__") == 1


def test_text_within_statements_is_left_alone():
    table = 'TABLE = """a\n\n\n\nb"""'
    assert table in built(program("return x * 2", "(torch.randn(3),)", constants=table))


def test_a_neighbour_that_differs_in_one_line_is_quoted():
    passing = SOFTMAX_AXIS.replace("softmax(-2)", "softmax(-1)")
    text = build_reproducer(SOFTMAX_AXIS, report("miscompile"), neighbour=passing)
    assert "# Right with `weights = scores.softmax(-1)` instead of `weights = scores.softmax(-2)`." in text
    other = passing.replace("0.7071", "0.5")
    assert build_reproducer(SOFTMAX_AXIS, report("miscompile"), neighbour=other) == built(SOFTMAX_AXIS)


def test_quotes_and_paths_of_the_report_do_not_break_the_docstring():
    culprit = {"stage": "lowering", "rewrite": '"""/home/someone/torch/x.py\\', "necessary": False}
    text = build_reproducer(SOFTMAX_AXIS, report("miscompile", culprit=culprit))
    ast.parse(text)
    assert "/home" not in text


# -- the form -----------------------------------------------------------------------------------------


def test_one_model_serves_all_runs_only_where_nothing_is_kept_from_run_to_run():
    assert "for how in" not in main_part(built(SOFTMAX_AXIS))
    assert "for how in" in main_part(built(EVAL_DROPOUT))
    stateful = program("self.seen = self.seen + x\nreturn self.seen", "(torch.ones(3),)", state="self.seen = 0")
    assert "for how in" in main_part(built(stateful))


def test_random_programs_are_reseeded_under_eagers_generator():
    main = main_part(built(program("return nn.functional.dropout(x, 0.5)", "(torch.ones(8),)")))
    assert "fallback_random = True" in main
    assert "torch.manual_seed(20240229)\n        target" in main


def test_the_outputs_that_were_wrong_are_compared():
    source = program("return x + 1, {'a': x * 2, 'b': x * 3}", "(torch.randn(3),)")
    assert "tree_leaves(model(*inputs))[2]" in built(source, "miscompile", ("out2", "far"), ("out0", "close"))
    both = built(program("return x + 1, x + 2", "(torch.randn(3),)"), "miscompile", ("out1", "far"), ("out0", "far"))
    assert "results.append([out[1], out[0]])" in both


def test_gradients_are_taken_as_the_judge_takes_them():
    main = main_part(built(TRAINED, "wrong_gradient", LINE, ("gradient of input0", "far")))
    assert "out.backward(torch.randn(out.shape, generator=torch.manual_seed(7)).bfloat16().half().to(out))" in main
    assert "[model.line.weight.grad, inputs[0].grad]" in main
    assert "x.detach().double().requires_grad_(x.requires_grad)" in main


def test_gradients_are_compared_where_only_the_layout_of_an_output_is_another():
    main = main_part(built(TRAINED, "wrong_gradient", ("out0", "stride"), ("gradient of input0", "far")))
    assert "out.backward(" in main
    assert "inputs[0].grad" in main


def test_no_backward_runs_where_an_output_is_wrong_already():
    assert "backward(" not in main_part(built(TRAINED, "miscompile", ("out0", "far"), LINE))


def test_memory_is_compared_where_only_that_is_wrong():
    text = build_reproducer(ADD_ZEROS, alias(out0=GAINED))
    assert text.startswith('"""Memory shared that eager does not share under torch.compile')
    assert "results.append(memory(out) == memory(inputs[0]))" in text and "double()" not in text
    text = build_reproducer(DROPOUT_AND_INPUT, alias(out0=LOST))
    assert text.startswith('"""A copy where eager shares memory, under torch.compile')
    assert max(map(len, text.splitlines())) <= 110


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "phrase"),
    [(ADD_ZEROS, "Memory shared that eager does not share"), (DROPOUT_AND_INPUT, "A copy where eager shares memory")],
)
def test_minimize_confirms_a_reproducer_of_shared_memory(source: str, phrase: str, tmp_path):
    tmp_path.joinpath("case.py").write_text(source)
    command = [sys.executable, "-m", "fuzzcompile", "minimize", "case.py", "--device", "cpu", "--out", "repro.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert tmp_path.joinpath("repro.py").read_text().startswith(f'"""{phrase}')


def test_wrong_values_come_before_wrong_memory():
    found = alias(out0=LOST, out1=LOST)
    found["evidence"]["outputs"][1].update(finding="far", max_abs_error_compiled=0.5)
    main = main_part(build_reproducer(DROPOUT_AND_INPUT, found))
    assert "memory(" not in main and "model(*inputs)[1]" in main


def test_memory_of_another_call_and_of_the_module():
    several = program("return x + 0 * self.kept", "(torch.ones(3),)", constants="CALLS = [(torch.ones(3),)]")
    state = several.replace("    def forward", "    kept = torch.ones(3)\n\n    def forward")
    own = {"detail": "eager: call1.out0 is a copy; compiled: shares memory with input0, call0.out0"}
    main = main_part(build_reproducer(state, alias(call1_out0=own)))
    assert "memory(outs[1]) == memory(calls[1][0])" in main
    other = {
        "detail": "eager: call1.out0 shares memory with tensor kept and 4 more; compiled: shares memory with a only"
    }
    main = main_part(build_reproducer(state, alias(call1_out0=other)))
    assert "memory(outs[1]) == memory(model.kept)" in main


def test_memory_that_cannot_be_named_is_left_to_the_values():
    unknown = {"detail": "eager: out0 is a copy; compiled: shares memory with tensor somewhere"}
    assert "memory(" not in main_part(build_reproducer(ADD_ZEROS, alias(out0=unknown)))
    array = program("return x.numpy()", "(torch.ones(3),)")
    assert "memory(" not in main_part(build_reproducer(array, alias(out0=LOST)))


def test_memory_shared_by_an_entry_of_a_dictionary_is_named_in_single_quotes():
    case = program("return {'a': x.view(-1)}", "(torch.randn(2),)")
    text = build_reproducer(case, alias(out0=LOST))
    assert "out['a'] and inputs[0] share memory: eager {eager}" in text
    ast.parse(text, feature_version=(3, 11))


BATCH = """import torch
from dataclasses import dataclass

@dataclass
class Batch:
    hidden: torch.Tensor
    masks: list

def f(batch, scale):
    return batch.hidden.mul_(scale) + batch.masks[1]

def make():
    torch.manual_seed(0)
    return f, (Batch(torch.randn(3), [torch.ones(3), torch.ones(3)]), 2)
"""


def test_fields_of_inputs_are_named_as_the_program_does():
    missing = report("aliasing", ("argument0.hidden after the call", "missing"))
    main = main_part(build_reproducer(BATCH, missing))
    assert "results.append(inputs[0].hidden)" in main and "float64" not in main
    missing = report("aliasing", ("argument0.masks1 after the call", "missing"))
    assert "results.append(inputs[0].masks[1])" in main_part(build_reproducer(BATCH, missing))
    unknown = report("aliasing", ("argument0.nothing after the call", "missing"))
    assert "nothing" not in main_part(build_reproducer(BATCH, unknown))


def test_tensors_of_closures_attributes_and_the_file_are_named():
    closed = "import torch\n\ndef make():\n    store = torch.ones(2)\n\n    def f(x):\n        store.add_(x)\n"
    closed += "        return x\n\n    return f, (torch.ones(2),)\n"
    found = report("aliasing", ("tensor store after the call", "missing"))
    main = main_part(build_reproducer(closed, found))
    assert 'inspect.getclosurevars(model).nonlocals["store"]' in main and "    import inspect\n" in main
    of_file = "import torch\nstore = torch.ones(2)\n\ndef f(x):\n    store.add_(x)\n    return x\n\n"
    of_file += "def make():\n    return f, (torch.ones(2),)\n"
    assert "results.append(store)" in main_part(build_reproducer(of_file, found))
    module = program("self.store.add_(x)\nreturn x", "(torch.ones(2),)", state="self.store = torch.ones(2)")
    assert "results.append(model.store)" in main_part(build_reproducer(module, found))


def test_inputs_that_overlap_are_not_converted_one_by_one():
    source = program("x.add_(1)\nreturn y * 2", "(X[:4], X[2:6])", arguments="x, y", constants="X = torch.zeros(8)")
    assert "float64" not in main_part(built(source, "miscompile", ("out0", "far")))


def test_integers_are_compared_exactly():
    main = main_part(built(program("return x.argmax()", "(torch.randn(3),)"), "miscompile", ("out0", "integer")))
    assert "torch.equal(eager, compiled)" in main and "double()" not in main


def test_mixed_inputs_stay_integers_in_float64():
    source = program("return x[i]", "(torch.randn(3), torch.tensor([0, 2]))", arguments="x, i")
    assert "[x.double() if x.is_floating_point() else x for x in inputs]" in built(source)


def test_inputs_by_name_and_nested_inputs():
    source = program("return x + y[0]", '{"x": torch.randn(3), "y": [torch.randn(3), 2]}', arguments="x, y")
    main = main_part(built(source))
    assert "model(**inputs)" in main and "tree_map(" in main


def test_where_float64_cannot_run_compiled_is_held_to_eager():
    main = main_part(built(program("return x @ torch.ones(3, 3)", "(torch.randn(2, 3),)")))
    assert "compiled differs from eager by" in main and "exact" not in main


def test_whole_numbers_are_not_converted_and_compiled_is_held_to_eager():
    main = main_part(built(program("return (x / 7).sin()", "(torch.arange(9),)")))
    assert "compiled differs from eager by" in main and "x.double()" not in main


def test_a_change_that_only_float64_shows_is_shown_in_float64():
    main = main_part(built(SOFTMAX_AXIS, "miscompile", ("out0", "close")))
    assert "model, inputs = model.double(), [x.double() for x in inputs]" in main
    assert "in float64 compiled differs from eager by" in main


def test_nan_that_belongs_to_the_result_is_no_error():
    main = main_part(built(program("return x / x.relu()", "(torch.randn(9),)")))
    assert "isnan()" in main
    assert "isnan()" not in main_part(built(SOFTMAX_AXIS))


def test_settings_are_those_of_the_case():
    constants = 'OPTIONS = {"max_fusion_size": 8}\nFULLGRAPH = True\nCONFIG = {"dynamo": {"cache_size_limit": 4}}'
    main = main_part(built(program("return x * 2", "(torch.randn(3),)", constants=constants)))
    assert "torch.compile(model, options=OPTIONS, fullgraph=FULLGRAPH)" in main
    assert 'with torch.no_grad(), torch._dynamo.config.patch(CONFIG["dynamo"]):' in main


def test_several_calls_share_one_model():
    source = program("return x * 2", "(torch.randn(3),)", constants="CALLS = [(torch.ones(5),)]")
    main = main_part(built(source, "miscompile", ("call1.out0", "far")))
    assert "calls = [inputs, *copy.deepcopy(CALLS)]" in main and "results.append(outs[1])" in main


def test_a_case_that_drives_itself_is_driven_so():
    source = (
        program("return x * 2", "(torch.randn(3),)") + "\n\ndef run(model, inputs):\n    return model(*inputs) + 1\n"
    )
    assert "run(model, inputs), run(torch.compile(model), inputs)" in built(source)


def test_names_of_the_case_are_not_overwritten():
    text = built(program("return x * out", "(torch.randn(3),)", constants="out = 2"))
    assert "    def check():\n" in text and text.endswith("    check()\n")


def test_cuda_cases_are_moved():
    text = build_reproducer(SOFTMAX_AXIS, report("miscompile", device="cuda:1"))
    assert "model, inputs = model.cuda(), [x.cuda() for x in inputs]" in text
    assert "get_device_name()" in text and "on cuda." in text.splitlines()[0]


@pytest.mark.parametrize("verdict", ["nondeterministic", "crash", "timeout", "runtime_error", "nonfinite", "rounding"])
def test_every_verdict_has_a_form(verdict):
    text = built(SOFTMAX_AXIS, verdict)
    ast.parse(text)
    assert '"BUG: ' in text and "raise SystemExit(wrong)" in text


@pytest.mark.parametrize("verdict", ["unstable", "precision_casts", "invalid"])
def test_a_difference_that_is_no_bug_has_no_reproducer(verdict):
    with pytest.raises(UsageError, match="no bug"):
        built(SOFTMAX_AXIS, verdict)


@pytest.mark.parametrize("source", ["def make(:", "x = 1\n"])
def test_what_is_no_case_is_refused(source):
    with pytest.raises(CaseError):
        built(source)


@pytest.mark.parametrize(
    ("eager", "compiled", "bound"),
    [
        (1e-7, 0.5, "10 * error_eager + 1.3e-6 *"),
        (1e-7, 1.5e-6, "3 * error_eager\n"),
        (0.0, 1e-3, "10 * error_eager + 1.3e-6 *"),
    ],
)
def test_the_bound_lies_below_the_error_that_was_seen(eager, compiled, bound):
    found = report("miscompile", ("out0", "far"))
    found["evidence"]["outputs"][0].update(max_abs_error_eager=eager, max_abs_error_compiled=compiled)
    assert f"wrong = not error_compiled <= {bound}" in build_reproducer(SOFTMAX_AXIS, found)
