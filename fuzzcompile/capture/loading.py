"""Load a case: a case file, a call of a script, or a submodule of either."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from fuzzcompile.capture import load_script
from fuzzcompile.capture.retarget import retargeted
from fuzzcompile.capture.submodules import submodule_case
from fuzzcompile.case import Case, load_case
from fuzzcompile.casefiles import CaseFile, read_case_file
from fuzzcompile.compiler.custom import with_backend
from fuzzcompile.compiler.target.process import assumed
from fuzzcompile.errors import CaseError


def load(path: Path | CaseFile, device: torch.device, *, call: int | None = None, module: str | None = None) -> Case:
    """The case in the file at ``path``, under the backend in force (:mod:`fuzzcompile.compiler.custom`), if any.

    Args:
        path: a case file, a script or notebook that calls ``torch.compile``, or one that was read already.
        device: where it will run; a script written for another kind of device is retargeted, and so is a case file in a
            process that compiles for a target.
        call: which call of a compiled callable of a script is the case (1 is the first and the default).
        module: path of a submodule, judged on the inputs it gets, in place of the whole.

    Raises:
        CaseError: the file is no case and no such script, or has no such call or module.
    """
    file = path if isinstance(path, CaseFile) else read_case_file(path)
    if file.kind != "case":
        case = load_script(file, device, call=call)
    elif call is not None:
        raise CaseError(f"{file.path} is a case file, whose calls are all judged; --call is for scripts.")
    else:
        # Compiled for a target it runs on the CPU, whatever device it is written for.
        case = load_case(file) if assumed() is None else load_case(file, lambda tree: retargeted(tree, device)[0])
    case = replace(case, settings=with_backend(case.settings))
    return case if module is None else submodule_case(case, module, device)
