"""The output of a script, cut to the lines that a reader needs."""

from __future__ import annotations

import re

from fuzzcompile.reduction.plain import rungs

# Lines of an error that say how to get more output, or are empty.
_HINTS = re.compile(
    r"^(Set TORCH|For even more developer|You can suppress|    import torch\._dynamo|    torch\._dynamo\.config)"
)
_COMPILER_ERROR = re.compile(r"\b(fatal )?error: ")
_MOST_LINES = 12
_MOST_CHARACTERS = 160
# Lines of an error's text.
_MOST_LOGGED = 200
# A warning, and the lines of source that g++ and clang quote below it.
_WARNING = re.compile(r":\d+:\d+: warning: ")
_QUOTED = re.compile(r"\s*\d*\s*\|| +[\^~]")


def said(output: str) -> str:
    """Return the output of a script in a few lines, without the frames of a traceback."""
    before, _, error = rungs.split_error(output)
    lines = [line.rstrip() for line in (*before.splitlines(), *error.splitlines())]
    lines = [line for line in lines if line and not _HINTS.match(line)]
    if len(lines) > _MOST_LINES:  # a compiler's message: what it calls errors
        errors = [line for line in lines[1:] if _COMPILER_ERROR.search(line)]
        lines = [lines[0], *(errors or lines[1:])[: _MOST_LINES - 2], "..."]
    return "\n".join(line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]}..." for line in lines)


def line_of(output: str) -> str:
    """Return the most informative line of an output."""
    _, _, error = rungs.split_error(output)
    lines = [line.strip() for line in (error or output).splitlines() if line.strip() and not _HINTS.match(line)]
    if not lines:
        return ""
    if not error:
        return lines[-1][:_MOST_CHARACTERS]
    apart = next((line for line in lines if line.startswith("Greatest absolute")), "")
    first = lines[0].removeprefix("AssertionError: ").removeprefix("AssertionError")
    if not first:
        printed = [line for line in output.splitlines() if line.strip()]
        first = printed[0] if printed and not printed[0].startswith("Traceback") else "the assertion fails"
    text = " ".join(part for part in (first, re.sub(r" \(up to.*", "", apart)) if part)
    return re.sub(r"\d+\.\d{4,}(e[-+]\d+)?", lambda number: f"{float(number[0]):.3g}", text)[:_MOST_CHARACTERS]


def error_log(output: str) -> str:
    """The text of an error without a C++ compiler's warnings, with the middle left out of a very long one."""
    kept: list[str] = []
    warned = False
    for line in output.splitlines():
        warned = _WARNING.search(line) is not None or (warned and _QUOTED.match(line) is not None)
        if not warned:
            kept.append(line)
    if len(kept) > _MOST_LOGGED:
        left_out = len(kept) - _MOST_LOGGED
        kept[_MOST_LOGGED // 2 : -_MOST_LOGGED // 2] = [f"... {left_out} lines left out ..."]
    return "\n".join(kept) + "\n"
