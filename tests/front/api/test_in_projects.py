"""The interface where users have it: a script, a project's tests, a notebook. Workers and kernels are started anew."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest
from calling import PLANT

ROOT = Path(__file__).parents[2].parent
pytestmark = pytest.mark.slow
MODEL = '''
import torch
from torch import nn

FACTOR = 2.0


class Attention(nn.Module):
    """Keys permuted straight to (batch, heads, width, time): torch 2.13 takes them for transposed ones."""

    def __init__(self):
        super().__init__()
        self.k = nn.Linear(64, 64)

    def forward(self, x):
        b, t, _ = x.shape
        q = x.view(b, t, 8, 8).permute(0, 2, 1, 3)
        k = self.k(x).view(b, t, 8, 8).permute(0, 2, 3, 1)
        return (torch.matmul(q, k) * 8**-0.5).softmax(-1) @ q


class Clean(nn.Module):
    def forward(self, x, *, scale=1.0):
        return x * scale * FACTOR
'''
SCRIPT = """
import torch
from torch import nn
from fuzzcompile import triage

@torch.library.custom_op("project::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2

twice.register_fake(torch.empty_like)

class Here(nn.Module):
    def forward(self, x):
        return torch.ops.project.twice(x)

def subtract(a, b, *, model, self):
    return a - b

x = torch.randn(4, 4)
planted = triage.options(plants=("plant.py",))(subtract, x, x.t(), model=1, self=2)
print(planted.verdict, planted.culprit["rewrite"], planted.where)
here = triage(Here(), x)
print(here.verdict, here.where, "twice" in here.why_in_place)
"""
PROJECT = """
import torch
from model import Attention, Clean

def test_clean(assert_compiles_alike):
    report = assert_compiles_alike(Clean(), {"x": torch.randn(2, 64), "scale": 3.0})
    assert report.where == "worker"

def test_attention(assert_compiles_alike):
    assert_compiles_alike(Attention().eval(), torch.randn(2, 8, 64), grad=False, options={"max_fusion_size": 32})

def test_local(assert_compiles_alike):
    class Local(Clean):
        pass
    assert assert_compiles_alike(Local(), torch.randn(2, 64), dynamic=True).where == "worker"

def test_unjudged(assert_compiles_alike):
    assert_compiles_alike(lambda x: x @ x, torch.randn(2, 3))
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in {"model.py": MODEL, "plant.py": PLANT, "script.py": SCRIPT, "test_model.py": PROJECT}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def pytest_run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    installed = {point.name for point in importlib.metadata.entry_points(group="pytest11")}
    plugin = [] if "fuzzcompile" in installed else ["-p", "fuzzcompile.front.pytest_plugin"]
    return run(folder, "-m", "pytest", *plugin, "-q", "-rxf", "-p", "no:cacheprovider", *arguments)


def test_a_script_is_judged_in_a_worker_where_it_can_be(project):
    done = run(project, "script.py")
    assert done.stdout.splitlines() == ["miscompile planted_sub worker", "equal in place True"], done.stderr


def test_the_fixture_fails_with_culprit_and_workaround(project):
    done = pytest_run(project, "--junit-xml", "tests.xml")
    assert "2 failed, 2 passed" in done.stdout, done.stdout
    assert "Attention: miscompile (BUG" in done.stdout and "culprit: _sfdp_pattern" in done.stdout
    assert "until it is fixed, use" in done.stdout
    assert "cannot say whether compiled and eager agree" in done.stdout
    assert "fuzzcompile_verdict" in (project / "tests.xml").read_text(encoding="utf-8")


def test_a_bug_of_the_baseline_is_an_expected_failure(project):
    signature = "joint_graph:torch/_inductor/fx_passes/fuse_attention.py:sfdp"
    (project / "known.txt").write_text(signature + "\n", encoding="utf-8")
    done = pytest_run(project, "--fuzzcompile-baseline", "known.txt", "-k", "test_attention")
    assert "1 xfailed" in done.stdout and f"known compiler bug: {signature}" in done.stdout
    assert pytest_run(project, "--fuzzcompile-baseline", "missing.txt").returncode == 4


def test_a_notebook_shows_reports(project, monkeypatch):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    cells = [
        MODEL,
        "import torch\nfrom fuzzcompile import triage\nx = torch.randn(2, 8, 64)\nm = Attention().eval()",
        "with torch.no_grad():\n    r = triage(m, x)\nr",
        "%load_ext fuzzcompile",
        "%%triage grad=False\ncompiled = torch.compile(Clean())\ny = compiled(x)",
        "%triage m(x)",
        "print('y' in globals(), type(compiled).__name__)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    client = nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(project)}})
    client.execute()
    shown = [cell.outputs[-1] if cell.outputs else None for cell in notebook.cells]
    assert "miscompile" in shown[2].data["text/html"] and "_sfdp_pattern" in shown[2].data["text/html"]
    assert "in a worker process" in shown[2].data["text/html"]
    assert "<strong>Clean</strong>: no bug" in shown[4].data["text/html"]
    assert "<strong>Attention</strong>: no bug" in shown[5].data["text/html"]  # autograd is on: no such rewrite
    assert shown[6].text == "False OptimizedModule\n"
