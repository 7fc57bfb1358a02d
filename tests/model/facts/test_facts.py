"""The tables of facts: loaded with types, chosen by version, and true of the installed torch."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator
from functools import cache, reduce
from importlib import metadata
from pathlib import Path

import msgspec
import pytest
import torch
from torch._inductor import config

from fuzzcompile.model.facts import (
    FactsError,
    facts,
    find_facts,
    is_tried_release,
    list_known_versions,
    load_tables,
    merge_tables,
    parse_tables,
)
from fuzzcompile.model.stages import DYNAMO

has_own_table = pytest.mark.skipif(not facts().exact, reason="no table for this torch")
only_2_13 = pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="names were checked in torch 2.13")


# -- choosing a table -------------------------------------------------------------------------------


@pytest.mark.parametrize("minor", list_known_versions())
def test_every_table_loads_and_says_how_it_was_checked(minor):
    assert load_tables(minor).checked
    assert find_facts(f"{minor[0]}.{minor[1]}.0+cpu").exact


@pytest.mark.parametrize(
    ("version", "table"),
    [
        ("2.13.1+cpu", (2, 13)),
        ("2.15.0a0+git1234", (2, 15)),
        ("2.9", (2, 11)),
        ("2.12.0", (2, 13)),
        ("2.14.0", (2, 15)),
        ("3.0.0", (2, 15)),
    ],
)
def test_the_nearest_table_stands_in_and_a_note_says_so(version, table):
    chosen = find_facts(version)
    assert chosen.table == table
    if chosen.exact:
        assert chosen.note is None
    else:
        assert chosen.note is not None and version in chosen.note and f"{table[0]}.{table[1]} is used." in chosen.note


def test_releases_with_a_table_were_tried_and_nothing_between_or_before_them():
    versions = ("2.10.1+cpu", "2.11.0", "2.12.1", "2.13.0a0+git1", "2.14.2", "2.15.0", "2.15.1.dev20261101", "2.16.0")
    assert [version for version in versions if is_tried_release(version)] == ["2.11.0", "2.15.0"]


def test_the_package_asks_for_a_torch_in_the_known_range():
    (bounds,) = [name for name in metadata.requires("fuzzcompile") or () if name.startswith("torch")]
    lowest, beyond = (re.search(rf"{sign}(\d+)\.(\d+)", bounds) for sign in (">=", "<(?!=)"))
    assert lowest is not None and beyond is not None
    assert list_known_versions()[0] == (int(lowest[1]), int(lowest[2]))
    assert list_known_versions()[-1] == (int(beyond[1]), int(beyond[2]) - 1)


def test_reasons_hold_only_on_the_version_they_were_checked_on():
    rule = ("post_grad", "move_constructors_to_cuda", "cpu", frozenset[str]())
    assert find_facts("2.13.0").find_reason(*rule) is not None
    for version in ("2.11.0", "2.12.0", "2.15.0"):
        assert not find_facts(version).has_reasons and find_facts(version).find_reason(*rule) is None


def test_a_version_adds_to_the_base():
    added = merge_tables({"a": ["x"], "b": {"c": "1", "d": ["y"]}}, {"a": ["z"], "b": {"c": "2", "d": ["w"]}})
    assert added == {"a": ["x", "z"], "b": {"c": "2", "d": ["y", "w"]}}
    assert find_facts("2.11.0").passes.mandatory < find_facts("2.13.0").passes.mandatory


# -- malformed tables -------------------------------------------------------------------------------


def table() -> dict[str, object]:
    """The merged table of 2.13 as its files have it."""
    import importlib.resources
    import tomllib

    files = importlib.resources.files("fuzzcompile.model.facts")
    return merge_tables(*(tomllib.loads((files / name).read_text()) for name in ("base.toml", "2.13.toml")))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"passes": {"mandatory": "stable_sort"}}, "x.toml: Expected `array`, got `str` - at `$.passes.mandatory`."),
        ({"passes": {"mandatory": [3]}}, "Expected `str`, got `int` - at `$.passes.mandatory["),
        ({"passes": {"mandatry": []}}, "x.toml: Object contains unknown field `mandatry` - at `$.passes`."),
        ({"unreachable": [{"group": "a", "stage": "pre_grad", "names": []}]}, "missing required field `why`"),
        ({"settings": {"listed": {"nowhere": []}}}, "at `key` in `$.settings.listed`."),
        ({"settings": {"switching_off": {"rule": {"entry": 0}}}}, "at `$.settings.switching_off[...][...]`."),
        ({"names": []}, "Expected `object`, got `array` - at `$.names`"),
    ],
)  # fmt: skip
def test_a_malformed_table_is_refused_in_one_sentence(change, message):
    with pytest.raises(FactsError, match=re.escape(message)) as refused:
        parse_tables(merge_tables(table(), change), "x.toml")
    assert "\n" not in str(refused.value)


def test_what_is_no_version_is_refused():
    with pytest.raises(FactsError, match="does not start with numbers"):
        find_facts("nightly")


# -- the installed torch ------------------------------------------------------------------------------


@cache
def sources() -> frozenset[str]:
    """All words of the compiler's own source."""
    files = (path for name in ("_inductor", "_functorch", "fx", "_subclasses", "_higher_order_ops", "_prims_common")
             for path in (Path(torch.__file__).parent / name).rglob("*.py"))  # fmt: skip
    symbolic = Path(torch.__file__).parent / "fx/experimental/symbolic_shapes.py"
    return frozenset(word for path in (*files, symbolic) for word in re.findall(r"\w+", path.read_text()))


@cache
def operators() -> frozenset[str]:
    """``namespace::name`` of every registered operator."""
    importlib.import_module("torch._inductor.inductor_prims")
    return frozenset(name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names())


def absent(names: Iterable[str], known: Iterable[str]) -> list[str]:
    return sorted(set(names) - set(known))


def settings() -> Iterator[str]:
    own = facts().settings
    yield from (name for names in own.listed.values() for name in names)
    yield from (name for entries in own.switching_off.values() for name in entries)
    yield from (stage.switch for stage in facts().stages.values() if stage.switch.startswith("freezing"))


@has_own_table
def test_the_passes_of_the_table_exist():
    passes = facts().passes
    names = {*passes.mandatory, *passes.kept, *passes.stages, *passes.by_rule, *passes.observed, *passes.partitioners}
    assert absent({*names, passes.observer, passes.group_fusions}, sources()) == []
    assert all(importlib.import_module(module) for module in passes.modules)


@has_own_table
def test_the_settings_of_the_table_exist_and_what_they_switch_off_too():
    assert [name for name in settings() if name not in config._config] == []
    from fuzzcompile.compiler.rule_catalogue import list_known_rules
    from fuzzcompile.diagnosis.kernels.code_generators import CPP

    rules = [row.name for row in list_known_rules(torch.device("cpu"))]
    places = (facts().places.index_propagation, facts().places.scalar_check)
    besides = [*(place.partition(":")[2].partition(".")[0] for place in places), *CPP.strict.values()]
    assert absent(facts().settings.switching_off, [*rules, *besides]) == []


@has_own_table
@pytest.mark.parametrize("stage", facts().stages)
def test_the_functions_of_a_stage_exist(stage):
    source = facts().stages[stage]
    assert importlib.import_module(source.tables)
    functions = [name.partition(":") for name in source.functions]
    assert any(hasattr(importlib.import_module(module), function) for module, _, function in functions)


@only_2_13
def test_the_operators_of_the_table_exist():
    named = facts().operators
    plain = {name.partition("::")[2] for name in operators()}
    assert absent(named.exact | named.accumulating | named.uninitialised, plain) == []
    assert [name for name in named.drawing if not {name, f"{name}_"} & plain] == []
    assert absent(named.casts | named.softmax | facts().fake_tensors.lifts, operators()) == []
    functions = set(dir(torch.nn.functional))
    assert absent(named.drawing_untagged, plain | functions) == []


@only_2_13
def test_operators_that_leave_memory_unwritten_are_those_with_empty_in_their_name():
    empty = {name.partition("::")[2] for name in operators() if re.match("(aten|prims)::.*empty", name)}
    assert facts().operators.uninitialised == empty


@only_2_13
def test_operators_that_draw_carry_torchs_tag():
    for name in facts().operators.drawing:
        packet = getattr(torch.ops.aten, name, None) or getattr(torch.ops.aten, f"{name}_")
        assert all(torch.Tag.nondeterministic_seeded in getattr(packet, each).tags for each in packet.overloads()), name


@has_own_table
def test_the_names_of_fake_tensors_and_files_exist():
    fake = facts().fake_tensors
    assert absent(fake.unknowable_tags, dir(torch.Tag)) == []
    assert absent(fake.silent_errors, sources() | {"NotImplementedError"}) == []
    files = facts().lowering_files
    root = Path(torch.__file__).parents[1]
    assert [name for name in files.always | files.when_scheduling if not (root / name).exists()] == []


@has_own_table
def test_the_closures_of_torch_use_these_names():
    assert absent((facts().names.search_function, facts().names.partial), sources()) == []


# -- why rules cannot be reached ----------------------------------------------------------------------


@has_own_table
@pytest.mark.parametrize("reason", facts().unreachable, ids=lambda reason: f"{reason.stage} {reason.names[0]}")
def test_a_reason_is_a_sentence_and_the_setting_that_it_names_is_off(reason):
    assert reason.why.endswith(".") and reason.why[0].isupper()
    if reason.setting is not None:
        name, _, key = reason.setting.partition(":")
        value = reduce(getattr, name.split("."), config)
        assert not (value if not key else key in value)


def resolve(place: str) -> object:
    """What ``module:path`` names."""
    module, _, path = place.partition(":")
    return reduce(getattr, path.split("."), importlib.import_module(module))


@has_own_table
def test_the_functions_of_decisions_and_of_aotautograd_exist():
    own = facts()
    names = own.aot_autograd
    switched = (names.alias_copy, names.tangent_copy, *own.decisions.values())
    places = [names.analysis, *(function.place for function in switched)]
    assert own.decisions and all(callable(resolve(place)) for place in places)
    tables = own.stages["post_grad"].tables
    assert all(callable(resolve(f"{tables}:{name}")) for name in own.passes.replacing.values())
    configs = {DYNAMO: torch._dynamo.config}
    settings = [(decision.stage, entry) for decision in own.decisions.values() for entry in decision.without]
    assert settings and all(hasattr(configs.get(stage, config), entry) for stage, entry in settings)


@has_own_table
def test_the_fusions_of_the_table_are_those_that_torch_registers():
    from torch._inductor.fx_passes import group_batch_fusion, split_cat

    registered = {*split_cat.PRE_GRAD_PATTERNS, *split_cat.POST_GRAD_PATTERNS}
    batches = {*group_batch_fusion.PRE_GRAD_FUSIONS, *group_batch_fusion.POST_GRAD_FUSIONS}
    fusions = facts().fusions
    assert {f"batch_{name}" for name in (*fusions.pre_grad_batches, *fusions.post_grad_batches)} <= batches
    assert {fusions.pre_grad_normalisation, fusions.post_grad_normalisation} <= registered


@only_2_13
def test_the_places_and_tables_that_culprits_and_options_name_exist():
    own = facts()
    functions = [*msgspec.structs.astuple(own.places), own.names.sdpa_variants]
    functions += [own.aot_autograd.partitioner, own.aot_autograd.plain_partitioner]
    assert all(callable(resolve(place)) for place in functions)
    assert all(resolve(place) for place in (*own.fusions.patterns.values(), *own.fusions.rules.values()))
    assert own.fusions.patterns.keys() == own.fusions.rules.keys()
    assert all(own.fusions.get_option(stage) in config._config for stage in own.fusions.patterns)


@only_2_13
def test_the_settings_that_hold_a_users_own_pass_exist():
    own = facts()
    entries = [*own.custom_passes.stages.values(), *own.custom_passes.fusion, own.aot_autograd.partitioner_setting]
    assert absent(entries, config._config) == []
    assert hasattr(torch._functorch.config, own.custom_passes.joint)


@only_2_13
def test_the_names_by_which_errors_and_breaks_are_read_exist():
    from torch._dynamo import exc, trace_rules

    own = facts()
    assert absent(own.dynamo.uncaptured, dir(exc)) == []
    assert absent(own.dynamo.special_functions, dir(trace_rules)) == []
    root = Path(torch.__file__).parents[1]
    files = {*own.errors.forwarding_files, *own.errors.every_operator, own.errors.converting_file}
    assert [name for name in files if not (root / name).exists()] == []
    for name, functions in own.errors.every_operator.items():
        defined = re.findall(r"def (\w+)", (root / name).read_text())
        assert absent((function for function in functions if function.isidentifier()), defined) == []
    planners = (root / "torch/_inductor/codegen/wrapper.py").read_text()
    assert [name for name in own.errors.planning if f"def {name}(" not in planners] == []
