"""Facts about torch that differ between its versions, as data."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import importlib.resources
import re
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass

from fuzzcompile.model.errors import FuzzcompileError
from fuzzcompile.model.stages import POST_GRAD, PRE_GRAD, STAGES
from fuzzcompile.model.versions import installed_torch

__all__ = [
    "Facts",
    "FactsError",
    "StageSource",
    "UnreachableReason",
    "facts",
    "find_facts",
    "is_in_known_range",
    "list_known_versions",
]


# Types of the tables of facts. The comments in ``base.toml`` explain each entry.


@dataclass(frozen=True)
class PassFacts:
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
    replacing: Mapping[str, str]


@dataclass(frozen=True)
class StageSource:
    """Source of a stage's passes: ``module:function`` names, the module of its pattern tables, its setting."""

    functions: tuple[str, ...]
    tables: str
    switch: str


@dataclass(frozen=True)
class SettingFacts:
    """Settings of Inductor: those listed for each stage, and those that switch off one pass."""

    listed: Mapping[str, tuple[str, ...]]
    switching_off: Mapping[str, Mapping[str, bool]]


@dataclass(frozen=True)
class NameFacts:
    """Names that torch gives to patterns and the functions around them, and the modes of ``torch.compile``."""

    modes: tuple[str, ...]
    variants: tuple[str, ...]
    nameless: tuple[str, ...]
    search_function: str
    partial: str
    sdpa_variants: str
    sdpa_family: str


@dataclass(frozen=True)
class OperatorFacts:
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
class FakeTensorFacts:
    """Operators and errors for which fake tensors give no answer."""

    unknowable_tags: frozenset[str]
    lifts: frozenset[str]
    silent_errors: frozenset[str]


@dataclass(frozen=True)
class LoweringFileFacts:
    """Files of torch whose code builds loops from the IR."""

    always: frozenset[str]
    when_scheduling: frozenset[str]


@dataclass(frozen=True)
class CoveredOperators:
    """Operators by what a promise of equal bits covers: families of ATen, and operators of Inductor's loops."""

    exactly_rounded: frozenset[str]
    exact_in_loops: frozenset[str]
    either_zero: frozenset[str]
    expanded: frozenset[str]


@dataclass(frozen=True)
class BitwiseFacts:
    """Settings of Inductor under which torch promises equal bits, by entry, and what it promises of each."""

    settings: Mapping[str, str]
    promises: Mapping[str, str]
    covered: CoveredOperators


@dataclass(frozen=True)
class UnreachableReason:
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
class FusionFacts:
    """Passes that Inductor's fusion options switch on, with their summaries, and fusions of equal operators."""

    pre_grad: Mapping[str, str]
    post_grad: Mapping[str, str]
    pre_grad_batches: tuple[str, ...]
    post_grad_batches: tuple[str, ...]
    pre_grad_options: str
    post_grad_options: str
    pre_grad_normalisation: str
    post_grad_normalisation: str
    patterns: Mapping[str, str]
    rules: Mapping[str, str]

    def get_option(self, stage: str) -> str | None:
        """Return the entry of Inductor's config that names the passes of a stage to run; None for other stages."""
        return {PRE_GRAD: self.pre_grad_options, POST_GRAD: self.post_grad_options}.get(stage)


@dataclass(frozen=True)
class CompilerDecision:
    """A decision of the compiler about the memory or order of a generated program.

    Attributes:
        stage: the stage that decides.
        name: what is decided.
        place: ``module:function`` that decides.
        without: the settings that switch it off.
    """

    stage: str
    name: str
    place: str
    without: Mapping[str, bool]


@dataclass(frozen=True)
class AotAutogradFacts:
    """Functions of AOTAutograd as ``module:function``, and the entries of configs that decide about them."""

    analysis: str
    tangent_copy: str
    tangent_guess: str
    partitioner: str
    plain_partitioner: str
    partitioner_setting: str


@dataclass(frozen=True)
class CustomPassFacts:
    """Entries of the configs that hold a user's own passes: by stage, over the scheduler's nodes, and functorch's."""

    stages: Mapping[str, str]
    fusion: tuple[str, ...]
    joint: str


@dataclass(frozen=True)
class CodePlaces:
    """Functions that a culprit without a rule is said to be, as ``module:function``."""

    fusion_decision: str
    program_results: str
    graph_recording: str


@dataclass(frozen=True)
class DynamoFacts:
    """Dynamo's own names for what it cannot capture, and for the functions that it treats in a special way."""

    uncaptured: tuple[str, ...]
    jump: str
    special_functions: tuple[str, ...]


@dataclass(frozen=True)
class ErrorFacts:
    """Code that errors of any program pass through, so that it tells nothing; files are relative to torch's parent."""

    forwarding_files: frozenset[str]
    forwarding_functions: frozenset[str]
    every_operator: Mapping[str, tuple[str, ...]]
    converting_file: str
    planning: frozenset[str]


@dataclass(frozen=True)
class FactTables:
    """The facts of one version; ``checked`` says how they were checked on it."""

    checked: str
    passes: PassFacts
    stages: Mapping[str, StageSource]
    settings: SettingFacts
    names: NameFacts
    operators: OperatorFacts
    fake_tensors: FakeTensorFacts
    lowering_files: LoweringFileFacts
    bitwise: BitwiseFacts
    fusions: FusionFacts
    decisions: Mapping[str, CompilerDecision]
    aot_autograd: AotAutogradFacts
    custom_passes: CustomPassFacts
    places: CodePlaces
    dynamo: DynamoFacts
    errors: ErrorFacts
    unreachable: tuple[UnreachableReason, ...] = ()


_BASE = "base.toml"
_VERSION = re.compile(r"(\d+)\.(\d+)(?=\D|$)")
Minor = tuple[int, int]


class FactsError(FuzzcompileError):
    """A table of facts is malformed; the message names the file and the entry."""


def parse_minor(version: str) -> Minor:
    """Major and minor number of a torch version such as ``2.13.0+cpu`` or ``2.15.0a0+git1234``.

    Raises:
        FactsError: ``version`` starts with no such numbers.
    """
    match = _VERSION.match(version)
    if match is None:
        raise FactsError(f"{version!r} is no version of torch: it does not start with numbers such as 2.13.")
    return int(match[1]), int(match[2])


@functools.cache
def list_known_versions() -> tuple[Minor, ...]:
    """The minor versions of torch that have a table, oldest first."""
    files = [entry.name for entry in importlib.resources.files(__package__).iterdir() if entry.name.endswith(".toml")]
    return tuple(sorted(parse_minor(name) for name in files if name != _BASE))


@functools.cache
def load_tables(minor: Minor) -> FactTables:
    """The base with what the version's own file adds to it.

    Raises:
        FactsError: one of the two is malformed.
    """
    name = f"{minor[0]}.{minor[1]}.toml"
    return parse_tables(merge_tables(_read_file(_BASE), _read_file(name)), name)


def parse_tables(table: Mapping[str, object], file: str) -> FactTables:
    """A merged table as :class:`FactTables`.

    Raises:
        FactsError: an entry is missing, unknown or of the wrong type, or a stage does not exist.
    """
    tables = _build_value(FactTables, table, file)
    assert isinstance(tables, FactTables)
    stages = {
        *tables.stages,
        *tables.settings.listed,
        *(reason.stage for reason in tables.unreachable),
        *(decision.stage for decision in tables.decisions.values()),
        *tables.custom_passes.stages,
        *tables.fusions.patterns,
        *tables.fusions.rules,
    }
    unknown = sorted(stages - set(STAGES))
    if unknown:
        raise FactsError(f"fuzzcompile/model/facts/{file}: there is no stage {unknown[0]!r}.")
    return tables


def merge_tables(base: Mapping[str, object], own: Mapping[str, object]) -> dict[str, object]:
    """Both tables together: tables are merged, lists extended, other values replaced by those of ``own``."""
    result = dict(base)
    for key, value in own.items():
        before = result.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            result[key] = merge_tables(before, value)
        elif isinstance(before, list) and isinstance(value, list):
            result[key] = [*before, *value]
        else:
            result[key] = value
    return result


def _read_file(name: str) -> dict[str, object]:
    try:
        return tomllib.loads((importlib.resources.files(__package__) / name).read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise FactsError(f"fuzzcompile/model/facts/{name} cannot be read: {error}.") from error


def _build_value(kind: object, value: object, place: str) -> object:
    """``value`` as the annotation ``kind`` has it; ``place`` is the file and the entry, for the message."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:  # an optional entry, which is there
        return _build_value(inner[0], value, place)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and isinstance(value, dict):
        return kind(**_build_fields(kind, value, place))
    if origin in (tuple, frozenset) and isinstance(value, list):
        items = [_build_value(inner[0], item, f"{place}, item {number}") for number, item in enumerate(value)]
        return tuple(items) if origin is tuple else frozenset(items)
    if origin is Mapping and isinstance(value, dict):
        return types.MappingProxyType(
            {key: _build_value(inner[1], item, f"{place}: {key}") for key, item in value.items()}
        )
    if isinstance(kind, type) and kind in (str, bool) and isinstance(value, kind):
        return " ".join(value.split()) if isinstance(value, str) else value
    scalars = {str: "text", bool: "true or false"}
    wanted = "a list" if origin in (tuple, frozenset) else scalars.get(typing.cast(type, kind), "a table")
    raise FactsError(f"fuzzcompile/model/facts/{place}: {value!r} stands where {wanted} is wanted.")


def _build_fields(kind: type, value: Mapping[str, object], place: str) -> dict[str, object]:
    types_of = typing.get_type_hints(kind)
    fields = dataclasses.fields(kind)
    unknown = sorted(set(value) - set(types_of))
    missing = [
        each.name
        for each in fields
        if each.default is dataclasses.MISSING
        and each.default_factory is dataclasses.MISSING
        and each.name not in value
    ]
    if unknown or missing:
        lacks = f"lacks the entry {missing[0]!r}" if missing else f"has an unknown entry {unknown[0]!r}"
        raise FactsError(f"fuzzcompile/model/facts/{place} {lacks}.")
    return {key: _build_value(types_of[key], item, f"{place}: {key}") for key, item in value.items()}


# Facts about torch that differ between its versions, as data.


@dataclass(frozen=True)
class Facts(FactTables):
    """The facts that apply to one version of torch.

    Attributes:
        version: the version asked for.
        table: the minor version whose table applies.
    """

    version: str = ""
    table: Minor = (0, 0)

    @property
    def exact(self) -> bool:
        """True if the table is the version's own and not that of the nearest one."""
        return parse_minor(self.version) == self.table

    @property
    def note(self) -> str | None:
        """The sentence that says which facts stand in for this version's; None if it has its own."""
        if self.exact:
            return None
        known = ", ".join(map(_format_minor, list_known_versions()))
        return (
            f"fuzzcompile has no table of facts for torch {self.version}, only for {known}: "
            f"that of {_format_minor(self.table)} is used."
        )

    @property
    def has_reasons(self) -> bool:
        """True if the reasons why rules cannot be reached were checked on this version."""
        return self.exact and bool(self.unreachable)

    def find_lasting_reason(self, stage: str, name: str, device: str) -> UnreachableReason | None:
        """Return why a rule cannot be reached on a type of device whatever is switched on; see :meth:`reason_for`."""
        every = frozenset(reason.setting for reason in self.unreachable if reason.setting is not None)
        return self.find_reason(stage, name, device, every)

    def find_reason(self, stage: str, name: str, device: str, switched_on: frozenset[str]) -> UnreachableReason | None:
        """Return why a rule is unreachable on a type of device; None without a reason checked on this version.

        Args:
            stage: the stage of the rule.
            name: the name of the rule or pass.
            device: a type of device, such as ``cpu``.
            switched_on: settings that some case switches on, written as in :attr:`UnreachableReason.setting`.
        """
        for reason in self.unreachable if self.has_reasons else ():
            if reason.covers(stage, name, device) and reason.setting not in switched_on:
                return reason
        return None


@functools.cache
def find_facts(version: str) -> Facts:
    """The facts for a version of torch: its own table, or that of the nearest version (of two, the newer).

    Raises:
        FactsError: ``version`` is no version, or a table is malformed.
    """
    wanted = _get_number(parse_minor(version))
    nearest = min(list_known_versions(), key=lambda known: (abs(_get_number(known) - wanted), -_get_number(known)))
    return Facts(**vars(load_tables(nearest)), version=version, table=nearest)


def facts() -> Facts:
    """The facts for the installed torch."""
    return find_facts(installed_torch())


def is_in_known_range(version: str) -> bool:
    """Return whether ``version`` is one with a table of its own, or lies between two such."""
    return list_known_versions()[0] <= parse_minor(version) <= list_known_versions()[-1]


def _get_number(minor: Minor) -> int:
    return 100 * minor[0] + minor[1]


def _format_minor(minor: Minor) -> str:
    return f"{minor[0]}.{minor[1]}"
