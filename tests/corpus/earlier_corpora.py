"""Corpora as earlier versions made them: ``schema_REVISION.sql`` are the tables, and each holds one finding."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from corpus_examples import bug, case

from fuzzcompile.corpus.maintenance import HEAD
from fuzzcompile.corpus.store import Store

SIGNATURE = "post_grad:p.py:fold:softmax(dim)"
EARLIER = sorted(path.stem.removeprefix("schema_") for path in Path(__file__).parent.glob("schema_*.sql"))


def make_tables(path: Path, revision: str) -> Path:
    """A corpus of a revision, without a row."""
    if revision == HEAD:
        Store.open(path).close()
        return path
    with closing(sqlite3.connect(path)) as corpus:
        corpus.executescript(Path(__file__).with_name(f"schema_{revision}.sql").read_text())
    return path


def make_corpus(path: Path, revision: str) -> Path:
    """A corpus of a revision with one finding, which one run showed."""
    then, details, judged = "2026-01-01 00:00:00", '{"torch": "2.13.0"}', case("a")
    lists = {"idioms": "[]", "near_misses": "[]"}
    finding = {"status": "open", "verdict": "miscompile", "hits": 1, "first_seen": then, "last_seen": then}
    severity = {} if revision == "0002" else {"severity": "silent", "case_id": 1}
    run = {"case_id": 1, "environment_id": 1, "finding_id": 1, "verdict": "miscompile", "is_bug": 1, "created": then}
    rows = {
        "environments": {"sha256": "e", "torch": "2.13.0", "device": "cpu", "details": details},
        "cases": {"sha256": judged.sha256, "source": "a", "origin": "generated", "created": then, **lists},
        "findings": {"signature": SIGNATURE, "confidence": "high", **finding, **severity},
        "runs": {**run, "report": json.dumps(bug(SIGNATURE))},
    }
    with closing(sqlite3.connect(make_tables(path, revision))) as corpus:
        for table, row in rows.items():
            names, marks = ", ".join(row), ", ".join("?" * len(row))
            corpus.execute(f"insert into {table} ({names}) values ({marks})", list(row.values()))
        corpus.execute("update findings set best_run_id = 1")
        corpus.commit()
    return path
