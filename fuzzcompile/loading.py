"""From what a user names to a case: a case file, a call of a script, or a submodule of either."""

from __future__ import annotations

from pathlib import Path

import torch

from fuzzcompile.case import Case, load_case


def load(path: Path, device: torch.device, *, call: int | None = None, module: str | None = None) -> Case:
    """The case in the file at ``path``.

    Args:
        path: a case file, or a script that calls ``torch.compile``.
        device: where it will run; a script written for another kind of device is retargeted.
        call: which call of a compiled callable of a script is the case (1 is the first and the default).
        module: path of a submodule that is judged on the inputs that it gets, instead of the whole.

    Raises:
        CaseError: the file is no case and no such script, or has no such call or module.
    """
    return load_case(path)
