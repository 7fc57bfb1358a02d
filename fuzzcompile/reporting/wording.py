"""Sentences about a finding, made only of its facts."""

from __future__ import annotations

from fuzzcompile.contract import OutputJson
from fuzzcompile.oracle.verdicts import Verdict
from fuzzcompile.reporting.facts import IssueFacts
from fuzzcompile.reporting.privacy import scrub
from fuzzcompile.reporting.told import meaning_for

_TITLES = {
    Verdict.MISCOMPILE: "wrong result",
    Verdict.WRONG_GRADIENT: "wrong gradient",
    Verdict.NONFINITE: "NaN or infinity where eager has none",
    Verdict.METADATA: "wrong metadata of the result",
    Verdict.ALIASING: "wrong mutation or aliasing",
    Verdict.PRECISION_LOSS: "loss of precision",
    Verdict.COMPILE_ERROR: "error while compiling",
    Verdict.RUNTIME_ERROR: "error in the compiled program",
    Verdict.ACCEPTS_INVALID: "compiled program accepts what eager rejects",
    Verdict.CRASH: "crash",
    Verdict.TIMEOUT: "does not end in time",
    Verdict.NONDETERMINISTIC: "results that change from run to run",
}
_VALUES = (Verdict.MISCOMPILE, Verdict.WRONG_GRADIENT, Verdict.NONFINITE, Verdict.PRECISION_LOSS)
_METADATA = {"dtype": "wrong dtype", "shape": "wrong shape", "stride": "wrong strides"}
_BENIGN = {
    Verdict.EQUAL: "eager and compiled agree bit for bit",
    Verdict.ROUNDING: "eager and compiled differ within what rounding explains",
    Verdict.UNSTABLE: "ill-conditioned or discontinuous: eager itself has no correct digits there",
    Verdict.PRECISION_CASTS: "the program's own low-precision casts are left out; with "
    "`torch._inductor.config.emulate_precision_casts = True` the results agree",
    Verdict.INVALID: "the program raises in eager and compiled alike",
}


def title(facts: IssueFacts) -> str:
    """Component, culprit and symptom; a suspect that is not proved is not named."""
    culprit = facts.culprit or {}
    component = culprit.get("component", "inductor") if culprit else "torch.compile"
    what = _kind(facts)
    if facts.proved and not facts.low_confidence:
        return f"[{component}] {culprit['rewrite']}: {what}{_on(facts)}"
    if facts.verdict in (Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR) and facts.detail:
        what += f": {one_line(facts.detail, 80)}"
    return f"[{component if facts.proved else 'torch.compile'}] {what}{_on(facts)}"


def summary(facts: IssueFacts) -> str:
    """One or two sentences with the figures."""
    where = f"With torch {facts.torch or '(version not recorded)'} {_where(facts)}"
    if facts.target is not None and facts.verdict in _VALUES:
        return f"{_capital(meaning_for(facts.report, ''))}. {where}, {_observed(facts)}"
    if facts.verdict in (Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR):
        return f"{where} the program runs in eager, and compiled it raises: `{one_line(facts.detail)}`."
    if facts.verdict == Verdict.ACCEPTS_INVALID:
        return f"{where} eager rejects the program and compiled runs it: {one_line(facts.detail)}."
    if facts.verdict in (Verdict.CRASH, Verdict.TIMEOUT, Verdict.NONDETERMINISTIC):
        return f"{where}: {_kind(facts)}. {one_line(facts.detail)}".strip()
    return f"{where}, {_observed(facts)}"


def _where(facts: IssueFacts) -> str:
    """Where the program ran, and what the compiler was told of it."""
    device = facts.device or "a device not recorded"
    if facts.target is None:
        return f"on {device}"
    return f"told of {facts.target}, and what it made replayed or interpreted on {device}"


def why_not(facts: IssueFacts) -> str:
    """Why there is nothing to file."""
    reason = next((text for verdict, text in _BENIGN.items() if verdict == facts.verdict), "it is no bug")
    return f"The verdict is `{facts.verdict}`: {reason}."


def one_line(text: str, limit: int = 300) -> str:
    """The text on one line, without absolute paths, cut at ``limit`` characters."""
    flat = scrub(" ".join(text.split())).replace("`", "'").rstrip(".")
    return flat if len(flat) <= limit else flat[: limit - 1].rstrip() + "…"


def figure(entry: OutputJson, key: str) -> str:
    """A figure of the evidence as text: infinities by name, a dash where there is none."""
    value = entry.get(key)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:.3g}"
    if key.endswith("_error_compiled") and entry.get("non_finite"):
        return str(entry["non_finite"])
    return "–"


def _kind(facts: IssueFacts) -> str:
    if facts.target is not None and facts.verdict in _VALUES:
        return "values that the program does not have"
    if facts.shares_wrongly:
        fresh = all(str(entry.get("detail")).endswith("compiled: a copy") for entry in facts.wrong)
        return (
            "result is a copy where eager shares memory" if fresh else "result shares memory that eager does not share"
        )
    if facts.verdict == Verdict.METADATA and facts.wrong:
        findings = {entry.get("finding") for entry in facts.wrong}
        if len(findings) == 1:
            return _METADATA.get(str(findings.pop()), _TITLES[Verdict.METADATA])
    return next((text for verdict, text in _TITLES.items() if verdict == facts.verdict), facts.verdict)


def _on(facts: IssueFacts) -> str:
    if facts.target is not None:
        return f" (told {facts.target}, no GPU used)"
    return f" ({facts.device.split(':')[0]})" if facts.device else ""


def _observed(facts: IssueFacts) -> str:
    entry = facts.measured
    if entry is not None:
        compiled, eager = figure(entry, "max_abs_error_compiled"), figure(entry, "max_abs_error_eager")
        distance = (
            f"`{entry.get('name')}` is {compiled} away from the float64 result when compiled "
            f"and {eager} in eager (largest absolute errors)"
        )
        return f"{distance}. {_capital(one_line(facts.detail))}." if facts.detail else f"{distance}."
    if facts.wrong:
        differences = "; ".join(f"`{entry.get('name')}`: {_difference(entry)}" for entry in facts.wrong[:4])
        if facts.shares_wrongly:
            return f"eager and compiled return the same values in different memory. {differences}."
        return f"eager and compiled differ: {differences}."
    return f"{one_line(facts.detail)}." if facts.detail else f"the finding is: {_kind(facts)}."


def _difference(entry: OutputJson) -> str:
    if entry.get("detail"):
        return one_line(str(entry["detail"]), 120)
    at = entry.get("at") or {}
    if "eager" in at and "compiled" in at:
        return f"eager {at['eager']}, compiled {at['compiled']} at index {entry.get('where')}"
    return str(entry.get("finding"))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
