"""What a report says of promises of equal bits."""

from __future__ import annotations

from fuzzcompile.model.contract import PartingJson, PromiseJson, ReportJson
from fuzzcompile.report.verdict_text import broken_promise, promise_lines


def place(operator: str, *, promised: bool) -> PartingJson:
    return {
        "graph": 0, "direction": "inference", "operator": operator, "node": "mul", "kernel": "cpp_fused_mul_0",
        "stage": "codegen", "site": "model.py:3 #1", "source": None, "line": None, "promised": promised,
        "why": "seen" if promised else "open", "differing": 1, "elements": 2, "max_ulps": 1,
    }  # fmt: skip


def report(holds: bool | None, *unpromised: PartingJson, detail: str = "") -> ReportJson:
    promise: PromiseJson = {
        "promise": "eager", "holds": holds, "why": "because", "first": place("aten.mul.Tensor", promised=True),
        "unpromised": list(unpromised), "outputs": [],
    }  # fmt: skip
    contract = {"name": "bitwise", "settings": {"deterministic": True}, "promised": {}, "compared": "bits",
                "promises": [promise]}  # fmt: skip
    return {"detail": detail, "contract": contract}  # type: ignore[typeddict-item]


def test_nothing_is_said_where_no_contract_was_asked_about():
    assert list(promise_lines({})) == []
    assert broken_promise({}) is None


def test_settings_and_the_state_of_each_promise_are_told():
    first, second = promise_lines(report(False))
    assert first == "bitwise contract under deterministic = True:"
    assert second == "  compiled equals eager: BROKEN: because"


def test_a_promise_without_an_answer_is_no_promise_that_holds():
    assert "no answer" in list(promise_lines(report(None)))[1]
    assert "holds" in list(promise_lines(report(True)))[1]


def test_places_without_a_promise_are_listed_and_counted():
    lines = list(promise_lines(report(False, *(place(f"aten.sum.{n}", promised=False) for n in range(5)))))
    assert "aten.sum.0 at model.py:3 #1: open" in lines[2]
    assert lines[-1].strip() == "and at 2 more places without a promise (--json has them)"


def test_the_broken_promise_is_that_of_the_verdict():
    assert broken_promise(report(False, detail="bitwise contract, eager: because")) is not None
    assert broken_promise(report(False, detail="compiled computes wrong values")) is None
