"""Inductor's Triton kernels, run by Triton's interpreter on tensors of the CPU, where it computes right."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
from collections.abc import Iterator

from fuzzcompile.compiler.target.kernel_log import KernelLog, ProgramOrder
from fuzzcompile.compiler.target.target_patches import find_missing, replace_attributes
from fuzzcompile.model.facts import Minor, parse_minor
from fuzzcompile.model.targets import Target

#: How the question begins whether a matrix template or a library call is taken.
TEMPLATES = "the kernel of"
# What the metadata of torch's CUDA builds requires (`triton==3.6.0`, `==3.7.0`, `==3.7.1`, `~=3.8.0`, `~=3.9.0`).
_GOES_WITH: dict[Minor, Minor] = {(2, 11): (3, 6), (2, 12): (3, 7), (2, 13): (3, 7), (2, 14): (3, 8), (2, 15): (3, 9)}


@functools.cache
def explain_unfit_interpreter() -> str | None:
    """Return why kernels cannot be interpreted here, a sentence without its full stop; None if they can be."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed: run `pip install 'fuzzcompile[triton]'`"
    torch_version, triton_version = (importlib.metadata.version(name) for name in ("torch", "triton"))
    wanted = _GOES_WITH.get(parse_minor(torch_version))
    if wanted is None:
        return f"Which Triton goes with torch {torch_version} is not known to this version of fuzzcompile"
    if parse_minor(triton_version) != wanted:
        version = ".".join(map(str, wanted))
        return (
            f"Triton {triton_version} does not go with torch {torch_version}: run `pip install 'triton=={version}.*'`"
        )
    from fuzzcompile.compiler.target import interpreter_checks, kernel_launch

    for place, why in find_missing(kernel_launch.INTERPRETER_PLACES).items():
        return f"This torch or Triton has no {place}: {why}"
    failure = interpreter_checks.find_failed_check(kernel_launch.DEVICE_FUNCTIONS)
    return None if failure is None else f"Triton's interpreter fails a check of its values ({failure})"


@contextlib.contextmanager
def interpret_triton(
    target: Target,
    log: KernelLog,
    *,
    order: ProgramOrder = ProgramOrder.FORWARD,
    templates: bool = False,
) -> Iterator[None]:
    """Interpret the Triton kernels that are compiled for ``target`` or launched in the block, which covers both.

    Sources, launches and refusals are written to ``log``. With ``templates``, the first Triton template is taken where
    a GPU would time it against a library call. Launching a kernel that cannot be interpreted raises NotInterpreted.
    """
    from fuzzcompile.compiler.target import kernel_launch  # imports Triton

    session = kernel_launch.InterpreterSession(target, log, order, templates)
    with replace_attributes(session, kernel_launch.INTERPRETER_PLACES):
        yield
