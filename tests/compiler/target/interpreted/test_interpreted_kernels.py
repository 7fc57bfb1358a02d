"""Inductor's Triton kernels for a target, run on tensors of the CPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fuzzcompile.compiler.target import target_process

pytestmark = pytest.mark.skipif(
    target_process.explain_unfit_interpreter() is not None, reason=str(target_process.explain_unfit_interpreter())
)

_SCRIPT = Path(__file__).with_name("interpreted_cases.py")
_DTYPES = ("float32", "float16", "bfloat16")
_EACH_DTYPE = ("pointwise", "layer_norm", "softmax", "gelu", "template", "scatter")
_SINGLE = (
    "group_norm", "split sum", "amax", "variance", "cumsum", "logcumsumexp", "split scan", "sort", "argmax",
    "convolution", "embedding", "backwards",
)  # fmt: skip
_TOLERANCE = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 2e-2}


@pytest.fixture(scope="module")
def outcomes():
    run = subprocess.run([sys.executable, str(_SCRIPT)], capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("name", _EACH_DTYPE)
def test_kernels_compute_what_the_program_means(outcomes, name, dtype):
    result = outcomes[f"{name} {dtype}"]
    assert "raised" not in result, result
    assert result["launches"] and result["dtypes"]
    assert result["error"] < _TOLERANCE[dtype]


@pytest.mark.parametrize("name", _SINGLE)
def test_kernels_of_each_kind_are_interpreted(outcomes, name):
    result = outcomes[name]
    assert "raised" not in result, result
    assert result["launches"] and result["summary"] == "interpreted"
    assert result["error"] < _TOLERANCE["float32"]


def test_nothing_reaches_outside_of_its_buffers(outcomes):
    notes = {name: result["notes"] for name, result in outcomes.items() if result.get("notes")}
    assert not notes


def test_a_wrong_operator_in_generated_code_shows(outcomes):
    result = outcomes["planted"]
    assert result["eager"] < 1e-6 < 1e-4 < result["error"]
    assert "1.001 * libdevice.exp" in result["source"]


def test_a_template_takes_the_place_of_a_library_call(outcomes):
    result = outcomes["template float32"]
    assert any("_tem_" in kernel for kernel, *_ in result["launches"])
    assert any(question.startswith("the kernel of mm among") for question in result["undecided"])


def test_every_launched_kernel_has_its_source(outcomes):
    result = outcomes["layer_norm float32"]
    assert {kernel for kernel, *_ in result["launches"]} <= set(result["sources"])
    assert "tl.program_id(0)" in result["source"]


def test_block_sizes_that_a_device_would_time_are_not_decided(outcomes):
    result = outcomes["pointwise float32"]
    assert result["launches"][0][2] > 1 and "block sizes" in result["undecided"]


def test_a_kernel_over_the_cap_is_refused_in_one_sentence(outcomes):
    result = outcomes["too many programs"]
    assert "programs, more than 2" in result["raised"]
    assert result["summary"].startswith("0 of 1 kernels interpreted")


def test_a_kernel_written_by_hand_runs_eager_and_compiled(outcomes):
    result = outcomes["by hand"]
    assert result["error"] < 1e-6 and result["kernels"].count("add_twice") == 2


def test_programs_that_meet_at_a_barrier_run_in_turns(outcomes):
    result = outcomes["barrier"]
    assert result["summary"] == "interpreted" and "x_grid_barrier" in result["source"]
    assert result["launches"][0][1][0] > 1 and result["error"] < 1e-5


def test_dropout_draws_as_often_as_it_should(outcomes):
    result = outcomes["dropout"]
    assert abs(result["kept"] - 0.75) < 0.03 and abs(result["factor"] - 4 / 3) < 1e-6
