"""The JSON form of a report, and the names under which errors are the same."""

from __future__ import annotations

import json
import math

from fuzzcompile.execution.observation import Failure
from fuzzcompile.judging.cut_short import worker_failure
from fuzzcompile.judging.report import Report, finite
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.signatures import normalised


def test_what_json_lacks_is_null_and_named_beside_it():
    clean = finite({"a": math.inf, "b": [math.nan, 1.0], "c": {"d": -math.inf}, "e": 2.0})
    assert clean == {
        "a": None,
        "non_finite": "inf",
        "b": [None, 1.0],
        "c": {"d": None, "non_finite": "-inf"},
        "e": 2.0,
    }
    json.dumps(clean, allow_nan=False)


def test_errors_that_differ_in_numbers_and_names_are_the_same():
    one = "Expected size [6, 1] of buf12 at 0x7f00 but 'arg0_1' has 3.5e-1"
    two = "Expected size [8, 2] of buf7 at 0x7faa but 'arg1_1' has 2"
    assert normalised(one) == normalised(two)
    assert normalised(one) != normalised("another error")
    symbolic, fixed = "failed in View([s97, s3], [s97, 1])", "failed in View([16], [32, 1])"
    assert normalised(symbolic) == normalised(fixed) == normalised(normalised(fixed)) != normalised("failed in View")


def test_a_crash_has_a_signature_without_a_culprit():
    report = worker_failure("case", "2.13.0", "cpu", Verdict.CRASH, "ended by SIGSEGV")
    assert report["is_bug"] and report["culprit"] is None
    assert report["signature"] == "unattributed:crash:ended by SIGSEGV"


def test_the_report_on_a_crash_has_the_fields_of_any_report():
    failure = Failure("crash", "ended by SIGSEGV", "compile")
    whole = Report("case", "2.13.0", "cpu", Verdict.CRASH, "low", "ended by SIGSEGV; so far", failure=failure)
    assert worker_failure("case", "2.13.0", "cpu", Verdict.CRASH, "ended by SIGSEGV; so far") == whole.to_json()
