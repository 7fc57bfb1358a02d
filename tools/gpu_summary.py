"""Sum up a folder that gpu_check.sh filled: ``summary.md`` for people, ``times.json`` for machines."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from fuzzcompile.corpus.records import CorpusError
from fuzzcompile.corpus.store import Store


def main(folder: Path) -> int:
    """Write the two files; 1 if the campaign left no result."""
    environment = json.loads(_text(folder / "environment.json") or "{}")
    compiled = _json(folder / "compile.json")
    campaign = _json(folder / "campaign.json")
    triaged = _lines(folder / "triage.jsonl")
    costs = [report["cost"] for report in triaged if report.get("cost")]
    times = {
        "steps": [line.split() for line in _text(folder / "steps.txt").splitlines()],
        "compile": compiled or None,
        "triage_seconds_median": statistics.median(c["seconds"] for c in costs) if costs else None,
        "triage_compiles_median": statistics.median(c["compiles"] for c in costs) if costs else None,
        "cases_per_minute": campaign.get("cases_per_minute"),
    }
    (folder / "times.json").write_text(json.dumps(times, indent=1) + "\n")
    (folder / "summary.md").write_text(_summary(environment, campaign, triaged, times, folder))
    return 0 if campaign else 1


def _summary(
    environment: dict[str, Any],
    campaign: dict[str, Any],
    triaged: list[dict[str, Any]],
    times: dict[str, Any],
    folder: Path,
) -> str:
    lines = ["# GPU check", ""]
    lines += [f"- {key}: {value}" for key, value in environment.items() if not isinstance(value, dict)]
    lines.append(f"- TF32: {_tf32(environment.get('numerics', {}))}")
    lines += [f"- numerics: {_numerics(environment.get('numerics', {}))}", "", "## Steps", ""]
    lines += [f"- {name}: exit {code}, {seconds} s" for name, code, seconds in times["steps"]]
    tests = [line for line in _text(folder / "tests.txt").splitlines() if line.strip()]
    lines += ["", "## Tests marked cuda", "", tests[-1] if tests else "no output", "", "## Times", ""]
    compiled = times["compile"]
    lines += (
        [
            f"{compiled['case']} on {compiled['device']}, medians of {compiled['runs']}: "
            f"eager {_ms(compiled['eager_seconds_median'])}, "
            f"compile {_ms(compiled['compile_seconds_median'])} (first {_ms(compiled['compile_seconds_first'])}), "
            f"{compiled['replays']} replays {_ms(compiled['replay_seconds_median'])}."
        ]
        if compiled
        else ["No result; see times.log."]
    )
    lines += ["", "## Campaign", ""]
    if campaign:
        verdicts = ", ".join(f"{name} {count}" for name, count in sorted(campaign["verdicts"].items()))
        lines.append(
            f"{campaign['cases']} cases in {campaign['seconds']} s ({campaign['cases_per_minute']}/min): {verdicts}."
        )
        lines += [
            f"- {f['finding']}: {f['verdict']}, {f['culprit']}, necessary {f['necessary']}, {f['hits']} hits"
            for f in campaign["findings"]
        ]
        try:
            with Store.open(folder / "corpus.db", create=False) as store:
                lines.append(f"Corpus integrity: {store.integrity()}.")
        except CorpusError as error:
            lines.append(str(error))
    else:
        lines.append("No result; see campaign.log.")
    if (table := _text(folder / "confirmed.md")) or (folder / "findings.log").exists():
        lines += ["", "## Findings for targets", ""]
        lines += table.splitlines()[2:] or ["No result; see findings.log."]
    lines += ["", "## Triage", ""]
    lines += [
        f"- {report['case']}: {report['verdict'] or report.get('error')}"
        + (f", {report['signature']}" if report.get("signature") else "")
        for report in triaged
    ] or ["No cases were given."]
    return "\n".join(lines) + "\n"


def _numerics(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items()) or "not recorded"


def _tf32(settings: dict[str, Any]) -> str:
    if not settings:
        return "not recorded"
    in_matmul = settings.get("float32_matmul") != "highest"
    in_cudnn = bool(settings.get("cudnn_tf32"))
    return f"{'on' if in_matmul else 'off'} in matmul, {'on' if in_cudnn else 'off'} in cuDNN"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _json(path: Path) -> dict[str, Any]:
    lines = _lines(path)
    return lines[-1] if lines else {}


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in _text(path).splitlines() if line.startswith("{")]


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
