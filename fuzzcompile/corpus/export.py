"""Writes a finding as files that need no corpus."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from fuzzcompile.corpus.reader import Reader
from fuzzcompile.corpus.records import CorpusError, Finding
from fuzzcompile.model.errors import UsageError

SCHEMA = 2  # of ``finding.json``; exports of schema 1 tell less, and are read
REPORT_FILE = "finding.json"
SOURCE_FILES = ("case.py", "repro.py", "neighbour.py")
_OF_REPRODUCER = ("sha256", "lines", "kind", "confirmed", "torch", "report", "program", "shown", "environment")


def export(store: Reader, finding: Finding, folder: Path) -> list[Path]:
    """Write case, reproducer, its passing neighbour and report of a finding into a folder; return the paths.

    Nothing else of its corpus is needed to import it elsewhere. Only files that an earlier export of this finding
    wrote, unchanged since, are replaced.
    """
    reproducer, told = store.best_reproducer(finding.id), store.describe(finding.id)
    scripts = (None, None) if reproducer is None else (reproducer.source, reproducer.neighbour)
    sources = zip(SOURCE_FILES, (finding.source, *scripts), strict=True)
    files = {name: text.encode(errors="surrogatepass") for name, text in sources if text is not None}
    summary = {
        "schema": SCHEMA,
        "id": finding.public_id,
        **told,
        "torch_versions": list(finding.torch_versions),
        "devices": list(finding.devices),
        "case_sha256": finding.source_sha256,
        "drawn_from": finding.drawn_from,
        "features": list(finding.features),
        "environment": store.environment_of(finding.id),
        "reproducer": reproducer and {name: getattr(reproducer, name) for name in _OF_REPRODUCER},
        "report": finding.report,
        "files": {name: _sha256(data) for name, data in files.items()},
    }
    report = json.dumps(summary, indent=2, allow_nan=False) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        earlier = _earlier_export(finding, told["names"], folder)
        for name in files.keys() | earlier.keys():
            path, own = folder / name, (earlier.get(name), _sha256(files.get(name, b"")))
            if path.exists() and _sha256(path.read_bytes()) not in own:
                raise _taken(finding, path)
        for name in earlier.keys() - files.keys():
            (folder / name).unlink(missing_ok=True)
        # The report comes last: it says what the folder holds.
        for name, data in [*files.items(), (REPORT_FILE, report.encode())]:
            _replace(folder / name, data)
    except OSError as error:
        raise CorpusError(
            f"{finding.public_id} cannot be exported to {folder} ({error.strerror}): name a writable folder."
        ) from error
    return [folder / name for name in [*files, REPORT_FILE]]


def _earlier_export(finding: Finding, names: Sequence[str], folder: Path) -> dict[str, str]:
    """Names and hashes of the files that an earlier export of this finding wrote into the folder."""
    path = folder / REPORT_FILE
    try:
        earlier = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError:
        earlier = None
    if not isinstance(earlier, dict) or earlier.get("signature") not in names:
        raise _taken(finding, path)
    files = earlier.get("files")
    # Anyone may have edited the file: only names that an export writes count.
    return {name: files[name] for name in SOURCE_FILES if name in files} if isinstance(files, dict) else {}


def _taken(finding: Finding, path: Path) -> UsageError:
    return UsageError(
        f"{path} does not belong to {finding.public_id}, or was changed since its export: "
        "export to another folder, or move that file away."
    )


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _replace(path: Path, data: bytes) -> None:
    """Replace a file atomically: a reader sees the old or the new one, never a half."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_bytes(data)
    partial.replace(path)
