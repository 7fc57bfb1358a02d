"""Removes a machine's own paths from text that is published, and passwords from all text."""

from __future__ import annotations

import re

# A path may follow an option of a C++ compiler without a space.
_PATH = re.compile(
    r"(?:(?<![\w:/.])|(?<=-I)|(?<=-L))(?:/(?!/)|[A-Za-z]:\\|~/)[^\s'\"`,;:()\[\]]*[/\\][^\s'\"`,;:()\[\]]+"
)
_INSTALLED = re.compile(r"(?:site|dist)-packages[/\\](.+)")

# In URLs of databases: of the user, and as a parameter.
_PASSWORD = re.compile(r"(?<=://)([^\s:/@]*):[^\s@]*(?=@)")
_PARAMETER = re.compile(r"([?&])(?:ssl)?password=[^\s&'\"]*(&?)", re.IGNORECASE)


def without_passwords(text: str) -> str:
    """A text in which no URL holds a password; each can still be given, with the password in the environment."""
    return _PARAMETER.sub(lambda match: match[1] if match[2] else "", _PASSWORD.sub(r"\1", text))


def scrub(text: str) -> str:
    """Cut every absolute path in a text to what follows ``site-packages``, or to the file's name."""
    return _PATH.sub(_shortened, text)


def _shortened(match: re.Match[str]) -> str:
    path = match.group()
    installed = _INSTALLED.search(path)
    return installed[1] if installed else re.split(r"[/\\]", path.rstrip("/\\"))[-1]


def one_line(text: str, limit: int = 300) -> str:
    """The text on one line, without absolute paths, cut at ``limit`` characters; it fits between backticks."""
    flat = scrub(" ".join(text.split())).replace("`", "'").rstrip(".")
    return flat if len(flat) <= limit else flat[: limit - 1].rstrip() + "…"
