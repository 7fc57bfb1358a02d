"""Place in the compiler at which a worker was lost, read from the Python stack that it left. Needs no torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzzcompile.stage_files import is_compiler, stage_of_file
from fuzzcompile.stage_names import CODEGEN, LOWERING

_MOST_FRAMES = 3
_CURRENT = re.compile(r"^Current thread .*\(most recent call first\):", re.M)
_FRAME = re.compile(r'^  File "([^"]+)", line (\d+) in (.+)(?:\n    (.+))?', re.M)
# Files that Inductor generates are named by the hash of what they hold.
_GENERATED = re.compile(r".*/c[a-z0-9]{20,}\.py$")
_OURS = str(Path(__file__).parents[1])
_CALLED = re.compile(r"([\w.]+)\(")


@dataclass(frozen=True)
class Stood:
    """A frame of the compiler, or of a program that it generated: ``source`` is None then.

    Attributes:
        source: the file, from the folder that holds torch.
        line: its line.
        function: the function.
        statement: the line's text, where the file went with the worker.
    """

    source: str | None
    line: int
    function: str
    statement: str = ""


def stack_of(output: str) -> list[Stood]:
    """The innermost frames of the compiler on the stack of the thread that ran, innermost first; at most three.

    Empty where the thread was in fuzzcompile's own code at last, or left no stack.

    Args:
        output: what the worker printed last, with the stack that Python's faulthandler wrote.
    """
    begins = [match.end() for match in _CURRENT.finditer(output)]
    if not begins:
        return []
    frames: list[Stood] = []
    for match in _FRAME.finditer(output[begins[-1] :].partition("\n\n")[0]):
        file, line, function, statement = match.groups()
        if not frames and file.startswith(_OURS):
            return []
        name = file[file.rfind("/torch/") + 1 :]
        if is_compiler(name) or (not frames and _GENERATED.match(file)):
            source = name if is_compiler(name) else None
            frames.append(Stood(source, int(line), function, (statement or "").strip()))
    return frames[:_MOST_FRAMES]


def culprit_of(output: str, when: str) -> dict[str, Any] | None:
    """The place at which a lost worker stood, as a culprit of the contract, in doubt; None if no stack shows it.

    Args:
        output: what the worker printed last.
        when: when the stack was written.
    """
    frames = stack_of(output)
    if not frames:
        return None
    first = frames[0]
    kernel = _CALLED.search(first.statement) if first.source is None else None
    details: dict[str, Any] = {"stack": list(_shown(frames)), "proof": f"the Python stack {when}"}
    if first.source is None:
        details["program"] = first.statement or "the generated program"
    return {
        "stage": CODEGEN if first.source is None else stage_of_file(first.source) or LOWERING,
        "pass": None,
        "rewrite": kernel[1] if kernel else None,
        "nodes": [],
        "source": first.source,
        "line": first.line if first.source is not None else None,
        "family": "unknown",
        **dict.fromkeys(("site", "step", "necessary", "sufficient")),
        "siblings": [],
        "details": details,
    }


def _shown(frames: list[Stood]) -> Iterator[dict[str, object]]:
    return ({"source": frame.source, "line": frame.line, "function": frame.function} for frame in frames)
