"""The report is one typed model: what is written has its types, and what is read is checked against them."""

from __future__ import annotations

import copy
import json
import runpy
from pathlib import Path

import msgspec
import pytest

from fuzzcompile.model.contract import ReportJson, ReportMalformed, check_report
from fuzzcompile.model.lost_worker import make_unjudged_record, report_worker_failure
from fuzzcompile.model.verdicts import Verdict

ROOT = Path(__file__).parents[2]
KEPT = sorted((ROOT / "corpus").rglob("finding.json"))
STACK = """Fatal Python error: Segmentation fault

Current thread 0x1 (most recent call first):
  File "/site-packages/torch/_inductor/scheduler.py", line 12 in fuse_nodes
  File "/home/me/model.py", line 3 in forward
"""


def read(path: Path) -> ReportJson:
    report: ReportJson = json.loads(path.read_text(encoding="utf-8"))["report"]
    return report


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.parent.name)
def test_the_types_have_every_key_of_the_reports_that_are_kept(path):
    report = read(path)
    assert check_report(report) is report
    assert msgspec.convert(report, ReportJson) == report


@pytest.mark.parametrize("output", [STACK, ""], ids=["stack", "silent"])
def test_reports_on_lost_workers_have_the_types_too(output):
    report = report_worker_failure("case.py", "2.13.0", "cpu", Verdict.CRASH, "signal 11", output)
    assert msgspec.convert(report, ReportJson) == report and bool(report["culprit"]) == bool(output)
    unjudged = make_unjudged_record("case.py", "2.13.0", "cpu", "no such operator")
    assert msgspec.convert(unjudged, ReportJson) == unjudged


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("is_bug", "yes", r"Expected `bool`, got `str` - at `\$.is_bug`"),
        ("evidence", {"outputs": [{"where": "0"}]}, r"at `\$.evidence.outputs\[0\].where`"),
        ("culprit", {"details": {"matched": [{"source": 3, "code": "", "nodes": []}]}}, r"matched\[0\].source"),
        ("culprit", {"details": {"joint graph draws": {"aten.rand": "2"}}}, "joint graph draws"),
    ],
)
def test_a_part_of_another_type_is_named(key, value, said):
    report = {**copy.deepcopy(read(KEPT[0])), key: value}
    with pytest.raises(ReportMalformed, match=said):
        check_report(report)


def test_every_report_has_the_core_and_may_have_keys_of_a_newer_version():
    report = dict(read(KEPT[0]))
    assert check_report(report | {"wrong": "eager"})["wrong"] == "eager"  # type: ignore[typeddict-item]
    with pytest.raises(ReportMalformed, match=r"a newer fuzzcompile wrote it \(schema 2, this one reads 1\)"):
        check_report(report | {"schema": 2})
    del report["torch"]
    with pytest.raises(ReportMalformed, match="lacks `torch`"):
        check_report(report)
    with pytest.raises(ReportMalformed, match="Expected `object`"):
        check_report([report])


def test_the_schema_says_the_same():
    jsonschema = pytest.importorskip("jsonschema")
    schema = runpy.run_path(str(ROOT / "tools" / "report_schema.py"))["make_schema"]()
    assert schema == json.loads((ROOT / "docs" / "report.schema.json").read_text(encoding="utf-8"))
    report = read(KEPT[0])
    jsonschema.validate(report, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**report, "is_bug": "yes"}, schema)
    assert schema["$defs"]["OutputJson"]["properties"]["where"]["description"] == "index of the worst element."
