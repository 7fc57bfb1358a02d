"""Facts about torch that differ between its versions, as data; the comments in ``base.toml`` explain each entry."""

from __future__ import annotations

import fnmatch
import functools
import importlib.resources
import re
import tomllib
from collections.abc import Collection, Mapping
from typing import Annotated, Any

import msgspec
from packaging.version import Version

from fuzzcompile.model.errors import FuzzcompileError
from fuzzcompile.model.stages import POST_GRAD, PRE_GRAD, STAGES
from fuzzcompile.model.versions import installed_torch

StageName = Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(STAGES)})$")]


class FactTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of facts, checked when it is read: every entry is there, known, and of its type."""


class PassFacts(FactTable, frozen=True):
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


class StageSource(FactTable, frozen=True):
    """Source of a stage's passes: ``module:function`` names, the module of its pattern tables, its setting."""

    functions: tuple[str, ...]
    tables: str
    switch: str


class SettingFacts(FactTable, frozen=True):
    """Settings of Inductor: those listed for each stage, and those that switch off one pass."""

    listed: Mapping[StageName, tuple[str, ...]]
    switching_off: Mapping[str, Mapping[str, bool | str]]


class NameFacts(FactTable, frozen=True):
    """Names that torch gives to patterns and the functions around them, and the modes of ``torch.compile``."""

    modes: tuple[str, ...]
    variants: tuple[str, ...]
    nameless: tuple[str, ...]
    search_function: str
    partial: str
    sdpa_variants: str
    sdpa_family: str


class OperatorFacts(FactTable, frozen=True):
    """Operators by what they do to values: names without namespace and overload where no ``::`` stands in them."""

    exact: frozenset[str]
    accumulating: frozenset[str]
    casts: frozenset[str]
    softmax: frozenset[str]
    drawing: frozenset[str]
    drawing_untagged: frozenset[str]
    uninitialised: frozenset[str]
    bound_to_capture: tuple[str, ...]
    reads_storage: Mapping[str, str]  # and why a contiguous copy of the argument gives another result by definition
    not_derivatives: Mapping[str, str]  # ``operator`` or ``operator.argument``, and why


class FakeTensorFacts(FactTable, frozen=True):
    """Operators and errors for which fake tensors give no answer."""

    unknowable_tags: frozenset[str]
    lifts: frozenset[str]
    silent_errors: frozenset[str]


class LoweringFileFacts(FactTable, frozen=True):
    """Files of torch whose code builds loops from the IR."""

    always: frozenset[str]
    when_scheduling: frozenset[str]


class CoveredOperators(FactTable, frozen=True):
    """Operators by what a promise of equal bits covers: families of ATen, and operators of Inductor's loops."""

    exactly_rounded: frozenset[str]
    exact_in_loops: frozenset[str]
    either_zero: frozenset[str]
    expanded: frozenset[str]


class BitwiseFacts(FactTable, frozen=True):
    """Settings of Inductor under which torch promises equal bits, by entry, and what it promises of each."""

    settings: Mapping[str, str]
    promises: Mapping[str, str]
    covered: CoveredOperators


class UnreachableReason(FactTable, frozen=True):
    """Reason why rules of a stage cannot be reached."""

    group: str  # a short title that sums up reasons of a kind
    stage: StageName
    names: tuple[str, ...]  # of rules and passes; globs are allowed
    why: str  # one or two sentences
    # The entry of Inductor's config (of a dictionary with the key behind a colon) that would switch the rules on.
    setting: str | None = None
    device: str | None = None  # the type of device on which the reason holds; None for every device
    models: bool = False  # no model has what the rules look for; a program made for a rule may have it

    def covers(self, stage: str, name: str, device: str) -> bool:
        """Return whether this is a reason against reaching the rule ``name`` of ``stage`` on that type of device."""
        matches = any(fnmatch.fnmatchcase(name, pattern) for pattern in self.names)
        return stage == self.stage and matches and self.device in (None, device)


class FusionFacts(FactTable, frozen=True):
    """Passes that Inductor's fusion options switch on, with their summaries, and fusions of equal operators."""

    pre_grad: Mapping[str, str]
    post_grad: Mapping[str, str]
    pre_grad_batches: tuple[str, ...]
    post_grad_batches: tuple[str, ...]
    pre_grad_options: str
    post_grad_options: str
    pre_grad_normalisation: str
    post_grad_normalisation: str
    patterns: Mapping[StageName, str]
    rules: Mapping[StageName, str]

    def get_option(self, stage: str) -> str | None:
        """Return the entry of Inductor's config that names the passes of a stage to run; None for other stages."""
        return {PRE_GRAD: self.pre_grad_options, POST_GRAD: self.post_grad_options}.get(stage)


class SwitchedFunction(FactTable, frozen=True):
    """A function of the compiler, and the settings or environment variables under which it has nothing to do."""

    place: str  # ``module:function``
    without: Mapping[str, bool | int | str]

    @property
    def function(self) -> str:
        """Its name alone."""
        return self.place.rpartition(":")[2]


class NumberFunction(SwitchedFunction, frozen=True):
    """What treats the numbers of a program as symbols, and what keeps it from that.

    ``reader`` is the function that reads an environment variable once, as ``module:function``.
    """

    reader: str = ""


class CompilerDecision(SwitchedFunction, frozen=True):
    """A decision of the compiler about the memory or order of a generated program, and the function that decides."""

    stage: StageName  # that decides
    name: str  # what is decided


class AotAutogradFacts(FactTable, frozen=True):
    """Functions of AOTAutograd as ``module:function``, and the entries of configs that decide about them."""

    differentiation: str
    runtime: str
    autograd_function: str
    analysis: str
    alias_copy: SwitchedFunction  # by entries of functorch's config
    tangent_copy: SwitchedFunction
    partitioner: str
    plain_partitioner: str
    partitioner_setting: str


class CustomPassFacts(FactTable, frozen=True):
    """Entries of the configs that hold a user's own passes: by stage, over the scheduler's nodes, and functorch's."""

    stages: Mapping[StageName, str]
    fusion: tuple[str, ...]
    joint: str


class CodePlaces(FactTable, frozen=True):
    """Functions that a culprit without a rule is said to be, as ``module:function``."""

    fusion_decision: str
    write_in_place: str
    scalar_check: str
    index_propagation: str
    output_strides: str
    program_views: str
    program_results: str
    graph_recording: str
    package: str
    side_effects: str
    returned_objects: str


class DynamoFacts(FactTable, frozen=True):
    """Dynamo's own names for what it cannot capture, and for the functions that it treats in a special way."""

    uncaptured: tuple[str, ...]
    jump: str
    observed: str  # how dynamo says that it has met an exception that the program does not catch
    operator_errors: (
        str  # where errors of operators on fake values end the capture, or become exceptions of the program
    )
    special_functions: tuple[str, ...]


class ErrorFacts(FactTable, frozen=True):
    """Code that errors of any program pass through, so that it tells nothing; files are relative to torch's parent."""

    refusing: tuple[str, ...]
    forwarding_files: frozenset[str]
    forwarding_functions: frozenset[str]
    every_operator: Mapping[str, tuple[str, ...]]
    converting_file: str
    planning: frozenset[str]
    not_reached: str
    written_since: str


class DesignedBranch(FactTable, frozen=True):
    """Functions of torch that compute something in another way where they are compiled, and are meant to.

    Those with ``checks`` compute the same, and leave out a check by which eager mode refuses a program.
    """

    places: frozenset[str]  # patterns of ``file:function``, the file relative to the folder that holds torch
    why: str  # what is computed in another way, and why
    source: str  # where torch says so
    checks: bool = False

    def holds(self, place: str) -> bool:
        """Return whether a ``file:function`` is one of its places."""
        return any(fnmatch.fnmatchcase(place, pattern) for pattern in self.places)


class UnsafeSetting(FactTable, frozen=True):
    """An entry of a config of torch that keeps later calls from noticing a change, as torch itself says."""

    entry: str
    safe: object  # the value that has the guards made
    why: str  # what is not noticed
    source: str  # where torch says so
    stage: str  # of the compiler that then relies on what may change
    config: str  # short name of the config


Minor = tuple[int, int]
"""Major and minor number of a version of torch."""


class Facts(FactTable, frozen=True):
    """The facts that apply to one ``version`` of torch: those of the minor version ``table``."""

    checked: str  # how they were checked on it
    passes: PassFacts
    stages: Mapping[StageName, StageSource]
    settings: SettingFacts
    names: NameFacts
    operators: OperatorFacts
    fake_tensors: FakeTensorFacts
    lowering_files: LoweringFileFacts
    bitwise: BitwiseFacts
    fusions: FusionFacts
    decisions: Mapping[str, CompilerDecision]
    symbols: Mapping[str, NumberFunction]
    aot_autograd: AotAutogradFacts
    custom_passes: CustomPassFacts
    places: CodePlaces
    dynamo: DynamoFacts
    errors: ErrorFacts
    by_design: tuple[DesignedBranch, ...] = ()
    unsafe: tuple[UnsafeSetting, ...] = ()
    unreachable: tuple[UnreachableReason, ...] = ()
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
        known = ", ".join("{}.{}".format(*minor) for minor in list_known_versions())
        used = "{}.{}".format(*self.table)
        return f"fuzzcompile has no table of facts for torch {self.version}, only for {known}: that of {used} is used."

    @property
    def has_reasons(self) -> bool:
        """True if the reasons why rules cannot be reached were checked on this version."""
        return self.exact and bool(self.unreachable)

    def find_designs(self, places: Collection[str], *, of_values: bool) -> tuple[DesignedBranch, ...]:
        """Return the branches by design that hold these places, each a ``file:function``; none if a place has none.

        A check that is left out explains no difference ``of_values``: these branches are not among the result there.
        """
        if not all(any(branch.holds(place) for branch in self.by_design) for place in places):
            return ()
        held = [branch for branch in self.by_design if any(map(branch.holds, places))]
        return tuple(branch for branch in held if not (of_values and branch.checks))

    def find_reason(
        self, stage: str, name: str, device: str, switched_on: frozenset[str] | None = None
    ) -> UnreachableReason | None:
        """Return why a rule is unreachable on a type of device under the settings ``switched_on``; None if unknown.

        Without these, the reason is one that lasts whatever is switched on.
        """
        for reason in self.unreachable if self.has_reasons else ():
            lasts = reason.setting is None or (switched_on is not None and reason.setting not in switched_on)
            if lasts and reason.covers(stage, name, device):
                return reason
        return None


class FactsError(FuzzcompileError):
    """A table of facts is malformed; the message names the file and the entry."""


_BASE = "base.toml"
_VERSION = re.compile(r"(\d+)\.(\d+)(?=\D|$)")


def parse_minor(version: str) -> Minor:
    """Major and minor number of a torch version such as ``2.13.0+cpu`` or ``2.15.0a0+git1234``."""
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
def load_tables(minor: Minor) -> Facts:
    """The base with what the version's own file adds to it."""
    name = "{}.{}.toml".format(*minor)
    return parse_tables(merge_tables(_read_file(_BASE), _read_file(name)), name)


def parse_tables(table: Mapping[str, object], file: str) -> Facts:
    """A merged table as :class:`Facts`, or the error that names what is missing, unknown or of the wrong type."""
    try:
        return msgspec.convert(_join_lines(table), Facts)
    except msgspec.ValidationError as error:
        raise FactsError(f"fuzzcompile/model/facts/{file}: {error}.") from error


def merge_tables(base: Mapping[str, object], own: Mapping[str, object]) -> dict[str, object]:
    """Both tables together: tables are merged, lists extended, other values replaced by those of ``own``."""
    result = dict(base)
    for key, value in own.items():
        before = result.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            result[key] = merge_tables(before, value)
        else:
            result[key] = [*before, *value] if isinstance(before, list) and isinstance(value, list) else value
    return result


def _join_lines(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, Mapping):
        return {key: _join_lines(item) for key, item in value.items()}
    return [_join_lines(item) for item in value] if isinstance(value, list) else value


def _read_file(name: str) -> dict[str, object]:
    try:
        return tomllib.loads((importlib.resources.files(__package__) / name).read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise FactsError(f"fuzzcompile/model/facts/{name} cannot be read: {error}.") from error


@functools.cache
def find_facts(version: str) -> Facts:
    """The facts for a version of torch: its own table, or that of the nearest version (of two, the newer)."""
    major, minor = parse_minor(version)
    nearest = min(
        list_known_versions(), key=lambda known: (abs(100 * (known[0] - major) + known[1] - minor), -known[1])
    )
    return msgspec.structs.replace(load_tables(nearest), version=version, table=nearest)


def facts() -> Facts:
    """The facts for the installed torch."""
    return find_facts(installed_torch())


def is_tried_release(version: str) -> bool:
    """Return whether ``version`` is a release of a minor version with a table of its own, and no pre-release of it."""
    return parse_minor(version) in list_known_versions() and not Version(version).is_prerelease
