"""Profiles of the 12-layer case as committed reports: pages with plots, and their verdicts in one table.

python bench/profiles/reports.py OUT
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fuzzcompile.report.proof import format_number
from fuzzcompile.run.device import describe_environment

HERE = Path(__file__).parent
CASE, PLANT = HERE / "bert_layout.py", HERE / "scale_of_layer_7.py"


@dataclass(frozen=True)
class Run:
    """One profile: the sides, the dtype of the case, and whether the plant is in."""

    against: str
    reference: str
    dtype: str
    planted: bool = False

    @property
    def name(self) -> str:
        """Of its page."""
        parts = (self.against, self.reference, self.dtype, *(["planted"] if self.planted else []))
        return "-".join(part.replace(":", "_") for part in parts)

    @property
    def command(self) -> list[str]:
        """The arguments of fuzzcompile."""
        plant = ["--plant", str(PLANT)] if self.planted else []
        return ["profile", str(CASE), "--against", self.against, "--reference", self.reference, *plant]


RUNS = (
    Run("inductor", "eager", "float32"),
    Run("inductor", "eager", "bfloat16"),
    Run("sdpa:flash", "sdpa:math", "float32"),
    Run("sdpa:flash", "sdpa:math", "bfloat16"),
    Run("inductor", "eager", "float32", planted=True),
    Run("inductor", "eager", "bfloat16", planted=True),
)


def rows(out: Path) -> Iterator[str]:
    """A row of the table for each run, whose page is written beside it."""
    yield "| against | reference | dtype | planted | verdict | layer | output off by (RMS) | rounding makes | page |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for run in RUNS:
        page = out / f"{run.name}.html"
        command = [sys.executable, "-m", "fuzzcompile", *run.command, "--html", str(page), "--json"]
        print(" ".join(command[2:]), file=sys.stderr, flush=True)
        answer = json.loads(
            subprocess.run(command, env={**os.environ, "BERT_DTYPE": run.dtype}, stdout=subprocess.PIPE).stdout
        )
        whole = next(layer for layer in answer["layers"] if layer["kind"] == "program")
        cells = (
            run.against,
            run.reference,
            run.dtype,
            "layer 7" if run.planted else "",
            answer["verdict"],
            ", ".join(filter(None, (answer["layer"], _culprit(answer)))),
            format_number(whole["rms_error"]),
            format_number(whole["rounding"]),
            f"[{page.name}]({page.name})",
        )
        yield f"| {' | '.join(cells)} |"


def _culprit(answer: dict[str, Any]) -> str | None:
    """The rewrite that the triage of the layer, or of the whole, names."""
    culprits = [report["culprit"] for key in ("triage", "triage_whole") if (report := answer[key])]
    return next((culprit["rewrite"] for culprit in culprits if culprit), None)


def main() -> None:
    """Profile, and write the pages and the table."""
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    facts = describe_environment(torch.device("cpu"))
    lines = [
        "# Profiles of 12 layers in the layout of BERT",
        "",
        f"Made by `python bench/profiles/reports.py {out}`: torch {facts['torch']}, {facts['cpu']}. The plant scales",
        "the attention of layer 7 by 1 % too much, in a rewrite of Inductor. Errors are absolute; outputs have size 1.",
        "",
        *rows(out),
    ]
    (out / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
