"""JUnit XML: what a continuous integration reads out of it, and that it is written whole or not at all."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from triage_reports import SIGNATURE, output, report

from fuzzcompile.model.errors import UsageError
from fuzzcompile.report.ci_formats import Scanned, format_triage_junit
from fuzzcompile.report.output_files import check_writable, write_whole

ENTRIES = [
    Scanned(Path("a.py"), report("rounding", output()), seconds=1.5),
    Scanned(Path("b.py"), report("miscompile", output(), detail="wrong"), seconds=2.0),
    Scanned(Path("c.py"), report("miscompile", output()), known=True),
    Scanned(Path("d.py"), None, "d.py could not be judged: \x1b[31m<&>\x00 \udcff"),
]


def test_each_file_is_a_test_case_with_its_outcome():
    suite = ElementTree.fromstring(format_triage_junit(ENTRIES)).find("testsuite")
    assert suite is not None
    counts = {key: suite.get(key) for key in ("name", "tests", "failures", "errors", "skipped", "time")}
    assert counts == {
        "name": "fuzzcompile",
        "tests": "4",
        "failures": "1",
        "errors": "1",
        "skipped": "1",
        "time": "3.5",
    }
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == ["a.py", "b.py", "c.py", "d.py"]
    assert [[child.tag for child in case] for case in cases] == [
        ["system-out"],
        ["failure"],
        ["skipped", "system-out"],
        ["error"],
    ]
    failure = cases[1].find("failure")
    assert failure is not None and failure.get("message") == "miscompile: compiled computes wrong values"
    assert all(
        said in (failure.text or "")
        for said in ("wrong", "_sfdp_pattern_28_inference", SIGNATURE, "fuzzcompile minimize b.py")
    )


def test_characters_that_xml_cannot_hold_are_replaced():
    error = ElementTree.fromstring(format_triage_junit(ENTRIES)).find(".//error")
    assert error is not None and error.text == "d.py could not be judged: \ufffd[31m<&>\ufffd \ufffd"


def test_the_file_is_written_whole(tmp_path):
    target = tmp_path / "out.xml"
    target.write_text("before")
    write_whole(target, format_triage_junit(ENTRIES), "--junit")
    assert target.read_bytes() == format_triage_junit(ENTRIES)
    assert [path.name for path in tmp_path.iterdir()] == ["out.xml"]


@pytest.mark.parametrize("place", ["missing/out.xml", "file/out.xml", ""])
def test_an_unwritable_place_is_found_out_before(place, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"Cannot write .*--junit"):
        check_writable(tmp_path / place, "--junit")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
