"""Stand-ins: a torch of two lines, as a wheel or behind a fake interpreter, and findings whose scripts need no more."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from pathlib import Path
from typing import Any

from fuzzcompile.corpus.records import CaseRecord, Reproducer
from fuzzcompile.corpus.store import Store

TORCH = "2.13.0+cpu"
# Fails on the versions in its place.
BROKEN_ON = """
import torch
bad = torch.__version__.split("+")[0] in {versions!r}
print("BUG: wrong" if bad else "OK: right")
raise SystemExit(bad)
"""


def interpreter(folder: Path, version: str, more: str = "") -> Path:
    """An environment whose Python imports a torch of that version."""
    package = folder / "stub" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"__version__ = {version!r}\n{more}")
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{folder / "stub"}" exec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    return folder


def wheel(folder: Path, version: str, text: str = "") -> Path:
    """A wheel of torch in a folder that pip takes as an index (``PIP_FIND_LINKS``)."""
    folder.mkdir(parents=True, exist_ok=True)
    path, info = folder / f"torch-{version}-py3-none-any.whl", f"torch-{version}.dist-info"
    files = {
        "torch/__init__.py": f"__version__ = {version!r}\n{text}",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD")))
    return path


def add(store: Store, signature: str, script: str | None, verdict: str = "miscompile", **fields: Any) -> str:
    """Store a finding with that script as its reproducer; return its id."""
    report: dict[str, Any] = {
        "torch": TORCH,
        "device": "cpu",
        "verdict": verdict,
        "is_bug": True,
        "confidence": "high",
        "evidence": {"outputs": []},
        "culprit": {"stage": signature.partition(":")[0], "rewrite": "planted", "necessary": True},
        "signature": signature,
        "detail": "",
        "cost": {"compiles": 1, "replays": 0, "seconds": 1.0},
    } | fields
    case = f"# {signature}\n"
    environment = {"torch": TORCH, "device": "cpu"}
    recorded = store.record(None, CaseRecord(_sha256(case), case, "test"), environment, report)  # type: ignore[arg-type]
    if script is not None:
        made = Reproducer(script, _sha256(script), script.count("\n"), "graph", True, TORCH, report)  # type: ignore[arg-type]
        store.add_reproducer(recorded.finding_id or 0, made)
    return f"F{recorded.finding_id}"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
