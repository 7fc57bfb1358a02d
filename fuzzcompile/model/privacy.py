"""Removal of a machine's own paths from text that is published, and of passwords from all text."""

from __future__ import annotations

import re

# A path may follow an option of a C++ compiler without a space.
_PATH = re.compile(
    r"(?:(?<![\w:/.])|(?<=-I)|(?<=-L))(?:/(?!/)|[A-Za-z]:\\|~/)[^\s'\"`,;:()\[\]]*[/\\][^\s'\"`,;:()\[\]]+"
)
_INSTALLED = re.compile(r"(?:site|dist)-packages[/\\](.+)")

# In URLs of databases: of the user, and as a parameter. A user's name may hold an @ too, as that of some hosts does.
_PASSWORD = re.compile(r"(?<=://)([^\s:/]*):[^\s@]*(?:@[^\s@/?'\"]*)*(?=@)")
_PARAMETER = re.compile(r"([?&])(?:ssl)?password=[^\s&]*?(?:(&)|(?=['\"`)]*[.,:;]?(?:\s|\Z)))", re.IGNORECASE)
# The same where an argument is one URL of a database: a password may hold spaces, quotes and more than one @ there.
_URL = re.compile(r"(?:-[-\w]*=)?(?!http|tcp:|tls:)\w[\w+.-]*://")
_PASSWORD_OF_URL = re.compile(r"(?<=://)([^:/]*):[^@]*(?:@(?:(?!\?\w+=)[^@])*)*(?=@)")
_PARAMETER_OF_URL = re.compile(r"([?&])(?:ssl)?password=[^&]*(&?)", re.IGNORECASE)


def strip_passwords(text: str) -> str:
    """A text in which no URL holds a password; each can still be given, with the password in the environment."""
    return _PARAMETER.sub(_keep_separator, _PASSWORD.sub(r"\1", text))


def strip_password(argument: str) -> str:
    """An argument or setting without its password if it is a database's URL (after ``--option=``); else as other text.

    It cuts more surely than :func:`strip_passwords`, which must guess where a URL ends.
    """
    if _URL.match(argument) is None:
        return strip_passwords(argument)
    return _PARAMETER_OF_URL.sub(_keep_separator, _PASSWORD_OF_URL.sub(r"\1", argument, count=1))


def _keep_separator(parameter: re.Match[str]) -> str:
    """Return what remains of a parameter: the separator before it, where another parameter follows."""
    return parameter[1] if parameter[2] else ""


def scrub(text: str) -> str:
    """Cut every absolute path in a text to what follows ``site-packages``, or to the file's name."""

    def shorten(match: re.Match[str]) -> str:
        installed = _INSTALLED.search(match[0])
        return installed[1] if installed else re.split(r"[/\\]", match[0].rstrip("/\\"))[-1]

    return _PATH.sub(shorten, text)


def fold_lines(text: str, limit: int = 300) -> str:
    """The text on one line, without absolute paths, cut at ``limit`` characters; it fits between backticks."""
    flat = scrub(" ".join(text.split())).replace("`", "'").rstrip(".")
    return flat if len(flat) <= limit else flat[: limit - 1].rstrip() + "…"
