"""Warnings that only one of two runs gave: evidence for readers of a report, never a verdict."""

from __future__ import annotations

from fuzzcompile.execution.observation import Observation


def changed_warnings(eager: Observation, compiled: Observation) -> tuple[str, ...]:
    """The warnings of eager alone, then those of compiled alone, each by its category and text."""
    return (
        *(f"only eager: {text}" for text in eager.warnings if text not in compiled.warnings),
        *(f"only compiled: {text}" for text in compiled.warnings if text not in eager.warnings),
    )
