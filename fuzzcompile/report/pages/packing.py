"""Pages of findings, packed: a report on thousands stays small, and a browser unpacks what is opened."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Iterator, Sequence

# Pages that are packed together: enough to share words, few enough to unpack at once.
CHUNK = 40


def packed(pages: Sequence[str]) -> Iterator[str]:
    """Each chunk of pages as JSON, compressed by gzip (the same bytes for the same pages), in base64."""
    for start in range(0, len(pages), CHUNK):
        text = json.dumps(pages[start : start + CHUNK], ensure_ascii=False).encode(errors="replace")
        yield base64.b64encode(gzip.compress(text, 9, mtime=0)).decode()


def script_hash(script: str) -> str:
    """How a content security policy names an inline script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
