"""Build the wheel and the source archive, and use each of them in empty environments, as a stranger would.

    python tools/release_check.py --python python3.11 python3.13 --torch 2.13.0 2.15.0

An environment holds one torch and what pip brings with it. Into it goes one artifact with what pip brings for that, and
pytest. In an empty folder, `fuzzcompile triage --json` judges the README's script, and pytest runs one test with the
fixture. Then all but the torch is uninstalled, and the next artifact follows. One environment is there at a time, as
some builds of torch take 8 GB. Exit status 1 if any of it fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEAD = "| Python | torch | artifact | pip | triage | pytest | result |\n|---|---|---|---:|---|---|---|"
PROJECT = """import torch
from torch import nn


def test_block(assert_compiles_alike):
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    report = assert_compiles_alike(model, torch.randn(4, 8), grad=True)
    assert not report.is_bug
"""
# For pip, a triage or a session of pytest.
SECONDS = 1800


@dataclass(frozen=True)
class Ran:
    """A command that ended: its status, what it printed on either stream, and wall-clock seconds."""

    status: int
    output: str
    errors: str
    seconds: float

    def last_words(self) -> str:
        """Return its last line, for the cell of a table."""
        lines = [line for line in (self.errors + self.output).splitlines() if line.strip()] or ["it printed nothing"]
        return f"exit {self.status}: {lines[-1].strip()[:200]}".replace("|", "/")


class Environment:
    """An empty virtual environment in a folder that also holds the kernels and the files of its user."""

    def __init__(self, python: str, folder: Path) -> None:
        self._folder = folder
        self._bin = folder / "venv" / "bin"
        self.project = folder / "project"
        self.project.mkdir()
        subprocess.run([python, "-m", "venv", str(folder / "venv")], check=True)

    def list_packages(self) -> set[str]:
        """Return the names of what is installed."""
        listed = json.loads(self.run("pip", "list", "--format", "json").output)
        return {package["name"] for package in listed}

    def run(self, *words: str) -> Ran:
        """Run a program of the environment in the project, without settings of whoever runs this."""
        kept = {
            name: os.environ[name] for name in os.environ if not name.startswith(("FUZZCOMPILE_", "PYTHON", "TORCH"))
        }
        own = {"PATH": f"{self._bin}{os.pathsep}{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": ""}
        own |= {"TORCHINDUCTOR_CACHE_DIR": str(self._folder / "kernels"), "HOME": str(self._folder)}
        started = time.monotonic()
        done = subprocess.run(
            [str(self._bin / words[0]), *words[1:]],
            cwd=self.project, env=kept | own, capture_output=True, text=True, check=False, timeout=SECONDS,
        )  # fmt: skip
        return Ran(done.returncode, done.stdout, done.stderr, time.monotonic() - started)


def build(folder: Path) -> dict[str, Path]:
    """Build both artifacts of this checkout, each in an environment that `build` makes."""
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)], check=True, stdout=sys.stderr)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


def check(python: str, torch: str, artifacts: Sequence[tuple[str, Path]]) -> Iterator[tuple[bool, str]]:
    """Use each artifact in an environment that holds that torch alone; success and a row of the table for each."""
    with tempfile.TemporaryDirectory(prefix="release-") as made:
        environment = Environment(python, Path(made))
        version = environment.run("python", "-c", "import platform; print(platform.python_version())").output.strip()
        pip = environment.run("pip", "install", "--quiet", "--no-cache-dir", f"torch=={torch}")
        if pip.status:
            yield False, f"| {version} | {torch} | none | {pip.last_words()} | | | **failed** |"
            return
        torch = environment.run("python", "-c", "import torch; print(torch.__version__)").output.strip()
        (environment.project / "my_model.py").write_text(readme_script(), encoding="utf-8")
        (environment.project / "test_block.py").write_text(PROJECT, encoding="utf-8")
        empty = environment.list_packages()
        for name, path in artifacts:
            works, cells = use(environment, path, torch)
            yield works, f"| {version} | {torch} | {name} | {cells} | {'works' if works else '**failed**'} |"
            brought = environment.list_packages() - empty
            environment.run("pip", "uninstall", "--quiet", "--yes", *sorted(brought))
            shutil.rmtree(Path(made, "kernels"), ignore_errors=True)


def use(environment: Environment, artifact: Path, torch: str) -> tuple[bool, str]:
    """Install an artifact with all that it needs, triage and test; success, and what was seen in cells of the table."""
    pip = environment.run("pip", "install", "--quiet", "--no-cache-dir", "pytest", str(artifact))
    if pip.status:
        return False, f"{pip.last_words()} | | "
    triage = environment.run("fuzzcompile", "triage", "my_model.py", "--json")
    judged, verdict = read_verdict(triage, torch)
    pytest = environment.run("pytest", "-q", "test_block.py")
    tested = pytest.status == 0 and "1 passed" in pytest.output
    said = "1 passed" if tested else pytest.last_words()
    return (
        judged and tested,
        f"{pip.seconds:.0f} s | {verdict}, {triage.seconds:.0f} s | {said}, {pytest.seconds:.0f} s",
    )


def read_verdict(ran: Ran, torch: str) -> tuple[bool, str]:
    """Tell whether a triage ended with a report on that torch, and its verdict and status."""
    try:
        report = json.loads(ran.output)
    except ValueError:
        return False, ran.last_words()
    if report.get("verdict") is None:
        return False, str(report.get("error", "no verdict"))
    agrees = ran.status == int(report["is_bug"]) and report["torch"] == torch
    return agrees, f"`{report['verdict']}`, {report['confidence']}, exit {ran.status}"


def readme_script() -> str:
    """Return the script that the README begins with."""
    found = re.search(r'```python title="my_model.py"\n(.*?)```', (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert found is not None, "README.md shows my_model.py"
    return found[1]


def describe(artifacts: dict[str, Path]) -> str:
    """Say what was built, when, and of which revision."""
    git = ["git", "describe", "--always", "--dirty"]
    revision = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    sizes = ", ".join(f"`{path.name}` ({path.stat().st_size / 2**20:.1f} MiB)" for path in artifacts.values())
    return f"{datetime.now(UTC):%Y-%m-%d}, revision {revision}, {len(os.sched_getaffinity(0))} processors: {sizes}."


def main() -> None:
    """Check every combination that was asked for, and print a row of the table after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="the interpreters, by name or path")
    parser.add_argument("--torch", nargs="+", default=["2.13.0"])
    parser.add_argument("--artifact", nargs="+", default=["wheel", "sdist"], choices=["wheel", "sdist"])
    given = parser.parse_args()
    unknown = [python for python in given.python if shutil.which(python) is None]
    if unknown:
        parser.error(f"no such interpreter: {', '.join(unknown)}")
    failed = False
    with tempfile.TemporaryDirectory(prefix="release-artifacts-") as folder:
        artifacts = build(Path(folder))
        print(describe(artifacts), "", HEAD, sep="\n", flush=True)
        for torch in given.torch:
            for python in given.python:
                for works, row in check(python, torch, [(name, artifacts[name]) for name in given.artifact]):
                    failed |= not works
                    print(row, flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
