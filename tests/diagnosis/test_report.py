"""The JSON form of a report, and the names under which errors are the same."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import fuzzcompile
from fuzzcompile.diagnosis.triage_report import TriageReport, make_finite
from fuzzcompile.diagnosis.worker.worker_loss import EAGER, LossMeaning, weigh_loss
from fuzzcompile.model.contract import ReportJson, name_non_finite
from fuzzcompile.model.lost_worker import report_worker_failure
from fuzzcompile.model.signatures import normalise_message
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.run.observation import Failure
from fuzzcompile.run.pool.worker import WorkerTimeout


def test_what_json_lacks_is_null_and_named_beside_it():
    clean = make_finite({"a": math.inf, "b": [math.nan, 1.0], "c": {"d": -math.inf}, "e": 2.0})
    assert clean == {
        "a": None,
        "non_finite": "inf",
        "b": [None, 1.0],
        "c": {"d": None, "non_finite": "-inf"},
        "e": 2.0,
    }
    json.dumps(clean, allow_nan=False)
    at = make_finite({"eager": -math.inf, "compiled": math.nan, "float64": -math.inf})
    assert [name_non_finite(at, run) for run in ("eager", "compiled", "float64")] == ["-inf", "nan", "-inf"]


def test_errors_that_differ_in_numbers_and_names_are_the_same():
    one = "Expected size [6, 1] of buf12 at 0x7f00 but 'arg0_1' has 3.5e-1"
    two = "Expected size [8, 2] of buf7 at 0x7faa but 'arg1_1' has 2"
    assert normalise_message(one) == normalise_message(two)
    assert normalise_message(one) != normalise_message("another error")
    symbolic, fixed = "failed in View([s97, s3], [s97, 1])", "failed in View([16], [32, 1])"
    assert (
        normalise_message(symbolic)
        == normalise_message(fixed)
        == normalise_message(normalise_message(fixed))
        != normalise_message("failed in View")
    )


def test_a_crash_has_a_signature_without_a_culprit():
    report = report_worker_failure("case", "2.13.0", "cpu", Verdict.CRASH, "ended by SIGSEGV")
    assert report["is_bug"] and report["culprit"] is None
    assert report["signature"] == "unattributed:crash:ended by SIGSEGV"


STACK = """\
noise
Thread 0x0000000000000001 (most recent call first):
  File "/x/torch/_inductor/compile_worker/subproc_pool.py", line 1 in _read

Current thread 0x0000000000000002 (most recent call first):
  File "/x/sympy/core/add.py", line 5 in flatten
{inner}  File "/x/site-packages/torch/_inductor/sizevars.py", line 77 in simplify
  File "/x/site-packages/torch/_inductor/scheduler.py", line 9 in fuse_nodes
  File "/x/site-packages/torch/_dynamo/output_graph.py", line 3 in call

Extension modules: numpy (total: 1)
"""
GENERATED = (
    '  File "/tmp/w/torchinductor/ab/cab0123456789abcdefghij.py", line 6 in call\n    cpp_fused_add_0(buf0, buf1)\n'
)


def loss(inner: str = "") -> ReportJson:
    return report_worker_failure("case", "2.13.0", "cpu", Verdict.TIMEOUT, "still running", STACK.format(inner=inner))


def test_a_lost_worker_is_placed_where_its_stack_stood_in_the_compiler():
    culprit = loss()["culprit"]
    assert (culprit["stage"], culprit["source"], culprit["line"]) == ("lowering", "torch/_inductor/sizevars.py", 77)
    assert [frame["function"] for frame in culprit["details"]["stack"]] == ["simplify", "fuse_nodes", "call"]
    assert loss()["confidence"] == "low"
    assert loss()["signature"] == "unattributed:timeout:still running"


def test_a_worker_lost_in_a_generated_program_names_the_kernel_that_was_called():
    culprit = loss(GENERATED)["culprit"]
    assert (culprit["stage"], culprit["source"], culprit["rewrite"]) == ("codegen", None, "cpp_fused_add_0")


def test_a_worker_lost_in_our_own_code_places_nothing():
    ours = f'  File "{Path(fuzzcompile.__file__).parent}/oracle/metrics.py", line 1 in distance\n'
    assert loss(ours)["culprit"] is None


def test_the_report_on_a_crash_has_the_fields_of_any_report():
    failure = Failure("crash", "ended by SIGSEGV", "compile")
    whole = TriageReport("case", "2.13.0", "cpu", Verdict.CRASH, "low", "ended by SIGSEGV; so far", failure=failure)
    assert report_worker_failure("case", "2.13.0", "cpu", Verdict.CRASH, "ended by SIGSEGV; so far") == whole.to_json()


@pytest.mark.parametrize(("load", "accuses"), [(1.0, True), (5.5, False)], ids=["free", "busy"])
def test_a_program_that_got_little_of_a_processor_accuses_nobody(load, accuses):
    """Eager mode had finished, and it is the second time; but on a busy machine no time says anything."""
    lost = WorkerTimeout(60.0, load=load)
    lost.left = {EAGER: ""}
    assert (weigh_loss(lost, None, again=True)[0] is LossMeaning.TWICE) == accuses
