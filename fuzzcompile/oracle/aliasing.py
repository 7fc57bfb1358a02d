"""Whether a value shares memory with the same others in both runs.

What was seen of torch 2.13 (inductor, CPU, some 130 forms of views, copies and no-ops, with and without gradients):
compiled keeps the aliases of eager in all but two forms. ``F.dropout`` that drops nothing hands its input on in
eager and is a copy when compiled (pytorch#115249, pytorch#195422), and ``x * ones``, ``x + zeros`` are new tensors in
eager and the operand itself when compiled (pytorch#197893). In both a write into the result shows it, and both are
open issues, so that neither is a mere note.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuzzcompile.execution.observation import Value

_SHOWN = 3


def alias_difference(eager: Value, compiled: Value) -> str | None:
    """How the two runs differ in what a write into the value changes as well; None if they do not."""
    one, other = set(eager.aliases), set(compiled.aliases)
    if one == other:
        return None
    return (
        f"eager: {_told(eager.name, eager.aliases, one - other)}; "
        f"compiled: {_told(None, compiled.aliases, other - one)}"
    )


def _told(name: str | None, aliases: Sequence[str], own: set[str]) -> str:
    subject = f"{name} " if name else ""
    shares = f"{subject}shares memory with "
    if not aliases:
        return f"{subject}is a copy" if name else "a copy"
    if not own:
        return f"{shares}{_listed(aliases)} only"
    return shares + _listed([alias for alias in aliases if alias in own])


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
