"""Runs scripts one after the other in one process, and classifies the result of each. Needs nothing but torch.

As a script: ``python repro.py``, with ``scripts.json`` beside it: a list of candidates, each a list of rungs
``{"backend", "script", "check"}``. The rungs of a candidate follow each other as long as the first is "wrong" or
"raises", as its check wants it, and the second, without a compiler, is not; what was seen is appended to
``seen.jsonl``, so that a crash loses only what is under way.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

# The last line of a traceback: the type of an error and its message.
_ERROR = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?::|$)")
_HEAD = "Traceback (most recent call last):"
_FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line \d+', re.MULTILINE)
_COMPARES = "torch/testing/_comparison.py"
ACCEPTED = "compiled:"


def split_error(output: str) -> tuple[str, str, str]:
    """Split an output into the text before the final traceback, the traceback's frames, and the error with its text.

    The last two are empty if no error ended it.
    """
    before, head, rest = output.rpartition(f"\n{_HEAD}\n") if not output.startswith(f"{_HEAD}\n") else ("", "x", output)
    if not head:
        return output, "", ""
    lines = rest.splitlines()
    number = next((n for n, line in enumerate(lines) if line != _HEAD and _ERROR.match(line)), len(lines))
    return before.split(_HEAD)[0], "\n".join(lines[:number]), "\n".join(lines[number:])


def classify_output(check: str, output: str, status: int) -> str:
    """Return the result of a script, from its output and exit status: "right", "wrong" or "raises".

    ``check`` says how it shows the bug: "asserts", "views" (a view that only compiled results refuse), "raises",
    "accepts" (prints what compiled code returns, and raises after that).
    """
    _, frames, error = split_error(output)
    if status != 0 and not error:
        return "raises"
    if check == "accepts":
        return "wrong" if error and any(line.startswith(ACCEPTED) for line in output.splitlines()) else "right"
    if not error:
        return "right"
    files = _FRAME.findall(frames)
    own = bool(files) and (files[-1].endswith(("repro.py", "rung.py")) or files[-1].endswith(_COMPARES))
    if check == "asserts" and own and error.startswith("AssertionError"):
        return "wrong"
    if check == "views" and own and error.startswith("RuntimeError: view "):
        return "wrong"
    return "raises"


def shows_bug(check: str, result: str) -> bool:
    """Return whether a script that showed ``result`` under Inductor shows the bug."""
    return result == ("raises" if check == "raises" else "wrong")


def _run(script: str) -> tuple[str, int]:
    """Run a script in this process; return its output, and the exit status that it would have."""
    import contextlib
    import io
    import runpy
    import traceback

    import torch

    torch._dynamo.reset()
    Path("rung.py").write_text(script, encoding="utf-8")
    printed, status = io.StringIO(), 0
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            runpy.run_path("rung.py", run_name="__main__")
        except BaseException:  # the script is a candidate: whatever it raises is what it shows
            status = 1
            traceback.print_exc()
    return printed.getvalue(), status


def _climb() -> None:
    for number, rungs in enumerate(json.loads(Path("scripts.json").read_text(encoding="utf-8"))):
        for place, rung in enumerate(rungs):
            with Path("seen.jsonl").open("a", encoding="utf-8") as seen:
                print(json.dumps({"candidate": number, "backend": rung["backend"]}), file=seen, flush=True)
                output, status = _run(rung["script"])
                answer = classify_output(rung["check"], output, status)
                print(json.dumps({"candidate": number, "backend": rung["backend"], "result": answer, "output": output,
                                  "status": status}), file=seen, flush=True)  # fmt: skip
            if (place == 0 and not shows_bug(rung["check"], answer)) or (place == 1 and answer != "right"):
                break
        else:
            return


if __name__ == "__main__":
    sys.path.insert(0, "")
    _climb()
