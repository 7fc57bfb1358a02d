"""What a report says of a contract: the settings in force, and what became of each promise of equal bits."""

from __future__ import annotations

from collections.abc import Iterator

from fuzzcompile.model.contract import PromiseJson, ReportJson

_PLACES = 3  # places without a promise that are shown
_NAMES = {
    "eager": "compiled equals eager",
    "batch": "a row alone equals its row in a batch",
    "run_to_run": "run to run",
}


def broken_promise(report: ReportJson) -> PromiseJson | None:
    """The broken promise that the report's verdict is about; None if the verdict has another reason."""
    contract = report.get("contract")
    if contract is None or not report.get("detail", "").startswith(f"{contract['name']} contract"):
        return None
    return next((promise for promise in contract["promises"] if promise["holds"] is False), None)


def promise_lines(report: ReportJson) -> Iterator[str]:
    """The contract for the reader; nothing where none was asked about."""
    contract = report.get("contract")
    if contract is None:
        return
    settings = ", ".join(f"{entry} = {value}" for entry, value in contract["settings"].items())
    yield f"{contract['name']} contract under {settings}:"
    for promise in contract["promises"]:
        yield f"  {_NAMES.get(promise['promise'], promise['promise'])}: {_state(promise)}: {promise['why']}"
        others = [place for place in promise["unpromised"] if place != promise["first"]]
        for place in others[:_PLACES]:
            kernel = f", kernel {place['kernel']}" if place["kernel"] else ""
            yield f"    bits part here too{kernel}: {place['operator']} at {place['site']}: {place['why']}"
        if len(others) > _PLACES:
            yield f"    and at {len(others) - _PLACES} more places without a promise (--json has them)"


def contract_meaning(promise: PromiseJson) -> str:
    """What a broken promise means, in a few words."""
    if promise["promise"] == "run_to_run":
        return "compiled gives other bits from run to run"
    against = "eager" if promise["promise"] == "eager" else "the same row alone"
    return f"bits differ from {against} where torch's settings promise that they do not"


def contract_advice(report: ReportJson) -> str:
    """What to do about a broken promise: no reducer keeps bits."""
    return (
        "report it with the case, the settings above, and the operator and kernel named "
        f"(torch {report['torch']}); minimizing keeps wrong values, not wrong bits"
    )


def _state(promise: PromiseJson) -> str:
    if promise["holds"] is None:
        return "not promised" if promise["outputs"] else "no answer"
    return "holds" if promise["holds"] else "BROKEN"
