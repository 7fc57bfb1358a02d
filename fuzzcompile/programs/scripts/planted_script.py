"""Run a script in a process with plants: ``python -m fuzzcompile.programs.scripts.planted_script PLANT... SCRIPT``."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import torch

from fuzzcompile.compiler.rule_catalogue import initialise_patterns
from fuzzcompile.run.plants import run_plants


def main(*paths: str) -> None:
    """Execute the plants as a worker does, after the compiler has registered its patterns; then run the script."""
    *plants, script = paths
    initialise_patterns(torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu"))
    run_plants([Path(plant) for plant in plants])
    sys.argv = [script]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
