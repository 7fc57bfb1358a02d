"""JUnit XML: what every document of it needs."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

# Characters that XML 1.0 cannot hold at all; an error's message may contain them.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def document(cases: Iterable[TestCase]) -> bytes:
    """One suite of test cases."""
    suite = TestSuite("fuzzcompile")
    suite.add_testcases(list(cases))
    whole, encoded = JUnitXml("fuzzcompile"), io.BytesIO()
    whole.add_testsuite(suite)
    whole.write(encoded, pretty=True)
    return encoded.getvalue()


def result(
    kind: type[Error] | type[Failure] | type[Skipped],
    message: object,
    type_: str | None = None,
    text: str | None = None,
) -> Error | Failure | Skipped:
    """A result that is no success; ``text`` is its body."""
    made = kind(clean(message), type_)
    if text is not None:
        made.text = clean(text)
    return made


def clean(text: object) -> str:
    """The text without characters that XML cannot hold."""
    return _FORBIDDEN.sub("\ufffd", str(text or ""))
