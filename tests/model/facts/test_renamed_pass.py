"""A new torch renames a pass: with the new name in its table of facts, all is as before."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fuzzcompile.model.facts as facts_package
from fuzzcompile.model.facts import facts

OLD, NEW = "decompose_auto_functionalized", "decompose_functionalized_calls"
# Added to the table of the installed torch: no Python file of the product changes.
TABLE = f"""
[passes.replacing]
auto_functionalized = "{NEW}"
auto_functionalized_v2 = "{NEW}"
"""
# The pass really has the other name: in its module, and in the function of the stage that calls it.
PROGRAM = """
import importlib.resources, inspect, json, pathlib, sys, textwrap

folder, case, old, new, broken = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5] == "True"
importlib.resources.files = lambda package, files=importlib.resources.files: (
    folder if package == "fuzzcompile.model.facts" else files(package))

import torch
from torch._inductor import compile_fx
from torch._inductor.fx_passes import post_grad

for function in (getattr(post_grad, old), post_grad.post_grad_passes):
    exec(textwrap.dedent(inspect.getsource(function)).replace(old, new), post_grad.__dict__)
delattr(post_grad, old)
compile_fx.post_grad_passes = post_grad.post_grad_passes
if broken:
    exec(f"def {new}(graph): pass", post_grad.__dict__)

from fuzzcompile.compiler.rule_catalogue import initialise_patterns
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.diagnosis.attribution.culprit import Ablator
from fuzzcompile.diagnosis.kernels.kernel_proofs import search_behind_graphs
from fuzzcompile.diagnosis.stages.stage_table import BACKEND_STAGES
from fuzzcompile.diagnosis.trials.experiments import Experiments

cpu = torch.device("cpu")
initialise_patterns(cpu)
experiments = Experiments(load_case(pathlib.Path(case)), cpu, Compilation())
trial = experiments.trial()
ablator = Ablator(experiments, trial)
found = search_behind_graphs(BACKEND_STAGES, ablator) if broken else None
print(json.dumps({
    "verdict": trial.judgement.verdict,
    "passes": sorted({str(rewrite.label.pass_name) for _, _, rewrite in trial.ledger.list_rewrites()}),
    "unseen": [unseen.what for unseen in trial.ledger.unseen],
    "culprit": found and [found.culprit.stage, found.culprit.rewrite],
}))
"""
CASE = """
import torch

@torch.library.custom_op("renamed::double_", mutates_args=("x",))
def double_(x: torch.Tensor) -> None:
    x.mul_(2)

def make():
    torch.manual_seed(0)

    def program(x):
        y = x.exp()
        double_(y)
        return y + 1

    return program, (torch.randn(8, 33),)
"""


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """The tables of facts, that of the installed torch with the new name."""
    folder = tmp_path / "facts"
    shutil.copytree(Path(facts_package.__file__).parent, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    own = folder / f"{'.'.join(map(str, facts().table))}.toml"
    text = own.read_text(encoding="utf-8")
    head, mark, rest = text.partition("[passes]\nmandatory = [")
    renamed = f'{head}{mark}"{NEW}", {rest}' if mark else f'{text}\n[passes]\nmandatory = ["{NEW}"]\n'
    own.write_text(renamed + TABLE, encoding="utf-8")
    return folder


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the source of this torch's stage is rewritten")
@pytest.mark.parametrize("broken", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_renamed_pass_is_watched_and_named_by_a_change_of_data_alone(tables: Path, tmp_path: Path, broken: bool):
    case = tmp_path / "case.py"
    case.write_text(CASE)
    command = [sys.executable, "-c", PROGRAM, tables, case, OLD, NEW, broken]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["unseen"] == []
    if broken:
        assert (said["verdict"], said["culprit"]) == ("compile_error", ["post_grad", NEW])
    else:
        assert said["verdict"] in ("equal", "rounding") and NEW in said["passes"] and OLD not in said["passes"]
