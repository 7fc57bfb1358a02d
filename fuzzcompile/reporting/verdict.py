"""A triage report for people: the verdict, the numbers, the culprit, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

_MEANING = {
    "equal": "compiled equals eager bit for bit",
    "rounding": "compiled and eager differ by rounding only",
    "unstable": "eager itself has no correct digits here (ill-conditioned, discontinuous or random)",
    "precision_casts": "low-precision casts written in the program are elided",
    "invalid": "eager and compiled both raise",
    "miscompile": "compiled computes wrong values",
    "wrong_gradient": "compiled computes wrong gradients",
    "nonfinite": "compiled gives NaN or infinity where eager and float64 do not",
    "metadata": "dtype, shape or stride of an output differs",
    "aliasing": "a mutation or alias that eager shows is lost",
    "precision_loss": "compiled is far less accurate than eager",
    "compile_error": "compiling raises, eager runs",
    "runtime_error": "the compiled program raises, eager runs",
    "accepts_invalid": "eager raises, compiled runs",
    "crash": "the process crashed while compiling or running the compiled program",
    "timeout": "compiling or the compiled program did not end in time",
    "nondeterministic": "compiled gives different results for the same program",
}
_ADVICE = {
    "precision_casts": "set torch._inductor.config.emulate_precision_casts = True if the casts matter",
    "invalid": "mend the program: it raises in eager mode",
    "unstable": "nothing: compare a better conditioned program",
}


def report_console() -> Console:
    """Standard output; where it is no terminal, wide enough for the table."""
    console = Console()
    return console if console.is_terminal else Console(width=160)


def print_report(console: Console, report: Mapping[str, Any], *, proof: bool = False, name: str = "CASE") -> None:
    """Print a report (contract form); with ``proof``, the ablation table too. ``name`` is what to type for it."""

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    kind = "BUG" if report["is_bug"] else "no bug"
    say(f"{report['case']}: {report['verdict']} ({kind}, confidence {report['confidence']}): "
        f"{_MEANING.get(report['verdict'], '')} [torch {report['torch']}, {report['device']}]")  # fmt: skip
    if report.get("detail"):
        say(f"  {report['detail']}")
    outputs = [o for o in report["evidence"]["outputs"] if o.get("finding") != "same"]
    if outputs:
        console.print(_table(outputs))
    culprit = report.get("culprit")
    if culprit:
        say(f"  culprit: {describe_culprit(culprit)}")
        for other in report["contributors"]:
            say(f"  also needed: {describe_culprit(other)}")
    elif report["is_bug"]:
        say("  culprit: not attributed")
    elif report["changed_bits"]:
        names = sorted({other["rewrite"] for other in report["changed_bits"]})
        say(f"  rewrites that changed any bit: {', '.join(names)}")
    if proof:
        for ablation in report["ablations"]:
            effect = "repairs it" if ablation["repairs"] else "no repair"
            error = "" if ablation["error"] is None else f", error {ablation['error']:.1e}"
            say(f"    {ablation['toggle']}: {effect}{error}")
    say(f"  what to do: {_advice(report, name)}")


def name_of(culprit: Mapping[str, Any]) -> str:
    """A culprit in a few words: the rewrite and its file, or the stage where no rewrite is named."""
    if not culprit:
        return "not attributed"
    name = culprit.get("rewrite") or "unknown"
    source = culprit.get("source")
    return f"{name} ({source}:{culprit.get('line')})" if source else f"{name} ({culprit.get('stage')})"


def describe_culprit(culprit: Mapping[str, Any]) -> str:
    """A culprit in one line: rewrite, stage and pass, source, site, and what was proved."""
    parts = [f"{culprit['rewrite'] or 'unknown'} in {culprit['stage']}"]
    if culprit["pass"] and culprit["pass"] != culprit["rewrite"]:
        parts.append(f"pass {culprit['pass']}")
    if culprit["source"]:
        parts.append(f"{culprit['source']}:{culprit['line']}")
    if culprit["site"]:
        parts.append(f"at {culprit['site']}")
    if culprit["necessary"] is not None:
        siblings = culprit.get("siblings")
        together = f" (with {', '.join(siblings)}, which takes its place)" if siblings else ""
        parts.append(f"necessary: {str(culprit['necessary']).lower()}{together}")
    if culprit["sufficient"] is not None:
        parts.append(f"sufficient: {str(culprit['sufficient']).lower()}")
    return ", ".join(parts)


def _advice(report: Mapping[str, Any], name: str) -> str:
    if report["is_bug"]:
        return f"report it: `fuzzcompile minimize {name}` makes the reproducer, `fuzzcompile issue {name}` the draft"
    return _ADVICE.get(report["verdict"], "nothing")


def _table(outputs: list[Mapping[str, Any]]) -> Table:
    table = Table("output", "eager error", "compiled error", "noise floor", "assert_close", "same", "what", box=None)
    for output in outputs[:12]:
        table.add_row(
            output["name"],
            _number(output["max_abs_error_eager"]),
            _number(output["max_abs_error_compiled"]),
            _number(output["noise_floor"]),
            "pass" if output["within_default_tolerance"] else "fail",
            {True: "pass", False: "fail", None: "-"}[output["torch_same"]],
            _what(output),
        )
    return table


def _number(value: float | None) -> str:
    return "inf" if value is None else f"{value:.1e}"


def _what(output: Mapping[str, Any]) -> str:
    if output["detail"]:
        return str(output["detail"])
    if output["where"] is None:
        return str(output["finding"])
    values = ", ".join(f"{run} {_value(value)}" for run, value in output["at"].items() if run != "non_finite")
    return f"at {tuple(output['where'])}: {values}"


def _value(value: float | int | None) -> str:
    return "non-finite" if value is None else f"{value:.6g}"
