"""Comparison of memory sharing: each value against the values that it shares memory with, in both runs."""

from __future__ import annotations

from collections.abc import Sequence

from fuzzcompile.execution.observation import Value

_SHOWN = 3


def alias_difference(eager: Value, compiled: Value) -> str | None:
    """Say which other values a write into this one changes in one run only; None if the runs agree.

    Measured on torch 2.13 (inductor, CPU, some 130 forms of views, copies and no-ops, with and without gradients):
    compiled keeps eager's aliases in all but two forms. ``F.dropout`` with nothing to drop returns its input in eager
    and a copy when compiled (pytorch#115249, pytorch#195422); ``x * ones`` and ``x + zeros`` are new tensors in eager
    and the operand itself when compiled (pytorch#197893). A write into the result shows either, and both are open
    issues, so neither is a mere note.
    """
    in_eager, in_compiled = set(eager.aliases), set(compiled.aliases)
    if in_eager == in_compiled:
        return None
    return (
        f"eager: {_described(eager.name, eager.aliases, in_eager - in_compiled)}; "
        f"compiled: {_described(None, compiled.aliases, in_compiled - in_eager)}"
    )


def _described(name: str | None, aliases: Sequence[str], own: set[str]) -> str:
    """List the values that ``name`` shares memory with, those that only this run shows (``own``) first."""
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
