"""SARIF 2.1.0: its required and allowed properties, and what a scanner's reader is told of each bug."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from triage_reports import CULPRIT, SIGNATURE, output, report

from fuzzcompile.report.ci_formats import Scanned, sarif

# The properties of the schema that the standard demands, and those that it allows beside them, of the objects in use.
REQUIRED = {
    "log": ({"version", "runs"}, {"$schema"}),
    "run": ({"tool"}, {"invocations", "originalUriBaseIds", "artifacts", "results"}),
    "driver": ({"name"}, {"version", "rules"}),
    "rule": ({"id"}, {"shortDescription", "help", "properties"}),
    "result": ({"message"}, {"ruleId", "ruleIndex", "level", "locations", "relatedLocations", "partialFingerprints",
                             "properties", "suppressions"}),
    "location": (set(), {"physicalLocation", "message"}),
    "invocation": ({"executionSuccessful"}, {"toolExecutionNotifications"}),
    "notification": ({"message"}, {"level", "locations"}),
    "suppression": ({"kind"}, {"justification"}),
    "artifact": (set(), {"location", "contents", "sourceLanguage"}),
}  # fmt: skip


def checked(kind: str, value: dict) -> dict:
    required, allowed = REQUIRED[kind]
    assert required <= set(value) <= required | allowed, kind
    return value


def run_of(*scanned: Scanned) -> dict:
    """The one run of the log, after a check of every object's properties."""
    log = checked("log", json.loads(sarif(scanned, "1.2.3")))
    assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-schema-2.1.0.json")
    (run,) = log["runs"]
    driver = checked("driver", checked("run", run)["tool"]["driver"])
    rules = [checked("rule", rule)["id"] for rule in driver["rules"]]
    assert len(set(rules)) == len(rules)
    for result in run["results"]:
        checked("result", result)
        assert rules[result["ruleIndex"]] == result["ruleId"] and result["message"]["text"]
        assert result["level"] in ("none", "note", "warning", "error")
        for location in (*result["locations"], *result["relatedLocations"]):
            assert checked("location", location)["physicalLocation"]["region"]["startLine"] >= 1
        for suppression in result.get("suppressions", ()):
            assert checked("suppression", suppression)["kind"] in ("inSource", "external")
    for invocation in run["invocations"]:
        for notification in checked("invocation", invocation)["toolExecutionNotifications"]:
            checked("notification", notification)
    for artifact in run["artifacts"]:
        checked("artifact", artifact)
    return run


def result_of(*outputs: dict, verdict: str = "miscompile", path: str = "model.py", **fields) -> dict:
    (result,) = run_of(Scanned(Path(path), report(verdict, *outputs, **fields)))["results"]
    return result


def test_a_bug_is_a_result_at_the_users_line_with_the_compilers_beside_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = result_of(output(finding="far"), path=str(tmp_path / "my cases" / "model.py"))
    place = {"artifactLocation": {"uri": "my%20cases/model.py"}, "region": {"startLine": 14}}
    assert [location["physicalLocation"] for location in result["locations"]] == [place]
    related = result["relatedLocations"][0]["physicalLocation"]
    assert related["artifactLocation"]["uri"] == CULPRIT["source"] and related["region"] == {"startLine": 66}
    assert result["ruleId"] == "joint_graph/sfdp"
    assert result["partialFingerprints"] == {"signature/v1": SIGNATURE}
    assert "miscompile" in result["message"]["text"] and CULPRIT["rewrite"] in result["message"]["text"]


def test_a_file_elsewhere_has_its_whole_address_and_a_site_of_another_file_no_line(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    place = result_of(path=str(tmp_path / "case.py"), case="case")["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": (tmp_path / "case.py").as_uri()}, "region": {"startLine": 1}}


@pytest.mark.parametrize(
    ("verdict", "outputs", "level"),
    [
        ("wrong_gradient", (), "error"),
        ("compile_error", (), "error"),
        ("aliasing", (), "error"),
        ("metadata", (output(finding="stride", view_raises=True),), "warning"),
        ("metadata", (output(finding="stride", view_raises=False),), "note"),
        ("accepts_invalid", (), "note"),
    ],
)
def test_the_level_is_that_of_the_severity(verdict, outputs, level):
    assert result_of(*outputs, verdict=verdict)["level"] == level


def test_what_is_no_bug_is_no_result_and_what_was_not_judged_is_a_notification():
    clean, broken = Scanned(Path("a.py"), report("rounding")), Scanned(Path("b.py"), None, "b.py could not be judged.")
    run = run_of(clean, broken)
    assert run["results"] == [] and run["tool"]["driver"]["rules"] == []
    (invocation,) = run["invocations"]
    assert not invocation["executionSuccessful"]
    assert invocation["toolExecutionNotifications"][0]["message"]["text"] == "b.py could not be judged."
    assert run_of(clean)["invocations"][0]["executionSuccessful"]


def test_a_known_bug_is_suppressed():
    (result,) = run_of(Scanned(Path("a.py"), report("miscompile"), known=True))["results"]
    assert [suppression["kind"] for suppression in result["suppressions"]] == ["external"]


def test_bugs_share_the_rule_of_their_place_and_one_without_a_culprit_is_filed_under_its_verdict():
    cases = [Scanned(Path(f"{n}.py"), report("miscompile", culprit=c)) for n, c in enumerate((CULPRIT, None, CULPRIT))]
    run = run_of(*cases)
    assert [result["ruleId"] for result in run["results"]] == [
        "joint_graph/sfdp", "unattributed/miscompile", "joint_graph/sfdp",
    ]  # fmt: skip
    assert len(run["tool"]["driver"]["rules"]) == 2


def test_a_finding_of_a_corpus_brings_its_program():
    case = Scanned(Path("F3.py"), report("miscompile", case="model"), finding="F3", content="import torch\n" * 20)
    run = run_of(case)
    assert run["artifacts"][0]["contents"]["text"] == case.content
    assert run["results"][0]["properties"]["finding"] == "F3"
    assert run["results"][0]["locations"][0]["physicalLocation"]["region"]["startLine"] == 14
