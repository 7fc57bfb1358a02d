"""Extension points: what a package of your own imports to add idioms, productions, reducers and stages.

CONTRIBUTING.md has an executed example of each. Names are loaded from their rooms at first use: idioms and productions
need no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuzzcompile.compiler.compile_changes import CompileChange, InductorSettings
    from fuzzcompile.compiler.graph_replay import replay_graph
    from fuzzcompile.compiler.session import Compilation
    from fuzzcompile.diagnosis.attribution.culprit import Culprit, Divergence
    from fuzzcompile.diagnosis.attribution.steps import find_inputs
    from fuzzcompile.diagnosis.stages.stage_table import get_stage
    from fuzzcompile.diagnosis.stages.ways import (
        Found,
        Pair,
        PartedStep,
        Sides,
        Stage,
        Suspect,
        Way,
        iter_captured,
        measure_values,
        prove_at_call,
        prove_without,
        walk_pairs,
    )
    from fuzzcompile.fuzz.generation.spec import Attention, Choices, Mask, Pen
    from fuzzcompile.fuzz.idioms.registry import AttentionTraits, attention_idiom
    from fuzzcompile.fuzz.near_misses.near_miss_registry import detour, never
    from fuzzcompile.fuzz.operator_programs.production import production
    from fuzzcompile.model.facts import find_facts
    from fuzzcompile.model.verdicts import Verdict
    from fuzzcompile.programs.ir.case_source import CaseText
    from fuzzcompile.programs.ir.program import Input, Program, Ref, Statement
    from fuzzcompile.programs.shrink.outcome import ProbeResult
    from fuzzcompile.programs.shrink.search import CandidateTests, ProgramSearch, SearchBudget

__all__ = [
    "Attention",
    "AttentionTraits",
    "CandidateTests",
    "CaseText",
    "Choices",
    "Compilation",
    "CompileChange",
    "Culprit",
    "Divergence",
    "Found",
    "InductorSettings",
    "Input",
    "Mask",
    "Pair",
    "PartedStep",
    "Pen",
    "ProbeResult",
    "Program",
    "ProgramSearch",
    "Ref",
    "SearchBudget",
    "Sides",
    "Stage",
    "Statement",
    "Suspect",
    "Verdict",
    "Way",
    "attention_idiom",
    "detour",
    "find_facts",
    "find_inputs",
    "get_stage",
    "iter_captured",
    "measure_values",
    "never",
    "production",
    "prove_at_call",
    "prove_without",
    "replay_graph",
    "walk_pairs",
]

_ROOMS = {
    "fuzzcompile.compiler.compile_changes": ("CompileChange", "InductorSettings"),
    "fuzzcompile.compiler.session": ("Compilation",),
    "fuzzcompile.fuzz.generation.spec": ("Attention", "Choices", "Mask", "Pen"),
    "fuzzcompile.fuzz.idioms.registry": ("AttentionTraits", "attention_idiom"),
    "fuzzcompile.fuzz.near_misses.near_miss_registry": ("detour", "never"),
    "fuzzcompile.fuzz.operator_programs.production": ("production",),
    "fuzzcompile.model.facts": ("find_facts",),
    "fuzzcompile.model.verdicts": ("Verdict",),
    "fuzzcompile.programs.ir.case_source": ("CaseText",),
    "fuzzcompile.programs.ir.program": ("Input", "Program", "Ref", "Statement"),
    "fuzzcompile.programs.shrink.outcome": ("ProbeResult",),
    "fuzzcompile.programs.shrink.search": ("CandidateTests", "ProgramSearch", "SearchBudget"),
    "fuzzcompile.diagnosis.attribution.culprit": ("Culprit", "Divergence"),
    "fuzzcompile.diagnosis.attribution.steps": ("find_inputs",),
    "fuzzcompile.diagnosis.stages.stage_table": ("get_stage",),
    "fuzzcompile.diagnosis.stages.ways": (
        *("Found", "Pair", "PartedStep", "Sides", "Stage", "Suspect", "Way"),
        *("iter_captured", "measure_values", "prove_at_call", "prove_without", "walk_pairs"),
    ),
    "fuzzcompile.compiler.graph_replay": ("replay_graph",),
}


def __getattr__(name: str) -> object:
    """Load an extension point from the module that defines it."""
    for module, names in _ROOMS.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
