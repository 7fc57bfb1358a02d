"""Types of the tables of facts. The comments in ``base.toml`` explain each entry."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Passes:
    """Passes with a role of their own, and how torch writes and runs passes."""

    mandatory: frozenset[str]
    kept: frozenset[str]
    modules: tuple[str, ...]
    stages: tuple[str, ...]
    reading: tuple[str, ...]
    by_rule: tuple[str, ...]
    graph_parameters: tuple[str, ...]
    graph_types: tuple[str, ...]
    observer: str
    observed: tuple[str, ...]
    graph_variables: tuple[str, ...]
    condition_calls: tuple[str, ...]
    group_fusions: str
    partitioners: tuple[str, ...]


@dataclass(frozen=True)
class StageSource:
    """Source of a stage's passes: ``module:function`` names, the module of its pattern tables, its setting."""

    functions: tuple[str, ...]
    tables: str
    switch: str


@dataclass(frozen=True)
class Settings:
    """Settings of Inductor: those listed for each stage, and those that switch off one pass."""

    listed: Mapping[str, tuple[str, ...]]
    switching_off: Mapping[str, Mapping[str, bool]]


@dataclass(frozen=True)
class Names:
    """Names that torch gives to patterns and the functions around them, and the modes of ``torch.compile``."""

    modes: tuple[str, ...]
    variants: tuple[str, ...]
    nameless: tuple[str, ...]
    search_function: str
    partial: str


@dataclass(frozen=True)
class Operators:
    """Operators by what they do to values: names without namespace and overload where no ``::`` stands in them."""

    exact: frozenset[str]
    accumulating: frozenset[str]
    casts: frozenset[str]
    softmax: frozenset[str]
    drawing: frozenset[str]
    drawing_untagged: frozenset[str]
    uninitialised: frozenset[str]
    bound_to_capture: tuple[str, ...]


@dataclass(frozen=True)
class FakeTensors:
    """Operators and errors for which fake tensors give no answer."""

    unknowable_tags: frozenset[str]
    lifts: frozenset[str]
    silent_errors: frozenset[str]


@dataclass(frozen=True)
class LoweringFiles:
    """Files of torch whose code builds loops from the IR."""

    always: frozenset[str]
    when_scheduling: frozenset[str]


@dataclass(frozen=True)
class Covered:
    """Operators by what a promise of equal bits covers: families of ATen, and operators of Inductor's loops."""

    exactly_rounded: frozenset[str]
    exact_in_loops: frozenset[str]
    either_zero: frozenset[str]
    expanded: frozenset[str]


@dataclass(frozen=True)
class Bitwise:
    """Settings of Inductor under which torch promises equal bits, by entry, and what it promises of each."""

    settings: Mapping[str, str]
    promises: Mapping[str, str]
    covered: Covered


@dataclass(frozen=True)
class Reason:
    """Reason why rules of a stage cannot be reached.

    Attributes:
        group: a short title that sums up reasons of a kind.
        stage: the stage of the rules.
        names: names of rules and passes; globs are allowed.
        why: one or two sentences.
        setting: the entry of Inductor's config (of a dictionary with the key behind a colon) that would switch the
            rules on; None if no setting matters.
        device: the type of device on which the reason holds; None for every device.
        models: the reason is that no model has what the rules look for; a program made for a rule may have it.
    """

    group: str
    stage: str
    names: tuple[str, ...]
    why: str
    setting: str | None = None
    device: str | None = None
    models: bool = False

    def covers(self, stage: str, name: str, device: str) -> bool:
        """Return whether this is a reason against reaching the rule ``name`` of ``stage`` on that type of device."""
        matches = any(fnmatch.fnmatchcase(name, pattern) for pattern in self.names)
        return stage == self.stage and matches and self.device in (None, device)


@dataclass(frozen=True)
class Tables:
    """The facts of one version; ``checked`` says how they were checked on it."""

    checked: str
    passes: Passes
    stages: Mapping[str, StageSource]
    settings: Settings
    names: Names
    operators: Operators
    fake_tensors: FakeTensors
    lowering_files: LoweringFiles
    bitwise: Bitwise
    unreachable: tuple[Reason, ...] = ()
