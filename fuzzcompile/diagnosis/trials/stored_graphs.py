"""Graphs of a case that another process compiles and leaves to this one, in the form that `torch.compiler` stores."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from fuzzcompile.compiler.graph_caches import GRAPH_CACHES, keep_graphs
from fuzzcompile.compiler.watch.unseen import Unseen, UnseenLog
from fuzzcompile.model.stages import RUNTIME
from fuzzcompile.run.case import Case
from fuzzcompile.run.plants import list_plants
from fuzzcompile.run.pool.worker import say
from fuzzcompile.run.subprocesses import capture_output

ARTIFACTS = "artifacts"
"""The file below the folder that the other process is given."""
_FILLER = "fuzzcompile.diagnosis.worker.graph_filler"
_SECONDS = 240.0
_SHOWS = "graphs that another process has stored"
NOTHING_RESTORED = Unseen("torch's caches on disk", "no graph came out of them", (RUNTIME,), _SHOWS)
"""That a compile with such a folder found nothing in it: the program's keys are others, or nothing could be stored."""


class StoredGraphs:
    """A folder with the graphs of a case, each in the cache of torch's on disk that it belongs to.

    Another process, with the same plants, compiles and runs the case; what it says that it has stored
    (``torch.compiler.save_cache_artifacts``) is loaded into the folder, which is removed with this object. Where it
    stores nothing, the folder is empty.
    """

    def __init__(self, case: Case, device: torch.device) -> None:
        self._held = tempfile.TemporaryDirectory(prefix="fuzzcompile-graphs-", ignore_cleanup_errors=True)
        self.folder, self.unseen = Path(self._held.name), UnseenLog()
        source = self.folder / case.path.with_suffix(".py").name
        source.write_text(case.source, encoding="utf-8")
        say("compiling it in another process")
        options = [str(device), str(torch.get_num_threads()), *map(str, list_plants())]
        try:
            filled = capture_output(
                [sys.executable, "-m", _FILLER, source, self.folder, *options],
                environment={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                seconds=_SECONDS,
            )
            failed = filled.returncode and f"exit status {filled.returncode}: {filled.stderr.strip()[-200:]}"
        except subprocess.TimeoutExpired:
            failed = f"more than {_SECONDS:.0f} s"
        if failed:
            self.unseen.note(Unseen("the other process", failed, (RUNTIME,), _SHOWS))
        stored = self.folder / ARTIFACTS
        if stored.exists():
            with keep_graphs(self.folder, GRAPH_CACHES):
                torch.compiler.load_cache_artifacts(stored.read_bytes())
