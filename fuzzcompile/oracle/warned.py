"""Warnings that only one of two runs gave: evidence for a reader, never a verdict."""

from __future__ import annotations

from fuzzcompile.execution.observation import Observation


def changed_warnings(eager: Observation, compiled: Observation) -> tuple[str, ...]:
    """What only eager and what only compiled warned of, each told by its category and text."""
    return (
        *(f"only eager: {text}" for text in eager.warnings if text not in compiled.warnings),
        *(f"only compiled: {text}" for text in compiled.warnings if text not in eager.warnings),
    )
