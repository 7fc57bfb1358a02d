"""The table of the compiler's stages: complete, in order, with settings and hooks that the installed torch has."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
from torch._inductor import config

import fuzzcompile
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.compiler.torch_config import MISSING, get_setting
from fuzzcompile.compiler.watch.ledger import Label
from fuzzcompile.compiler.watch.patch_table import PATCHES
from fuzzcompile.diagnosis.stages.graph_passes import RewritingStage
from fuzzcompile.diagnosis.stages.stage_table import STAGES, get_stage
from fuzzcompile.diagnosis.stages.ways import Suspect
from fuzzcompile.model import stages

ROOT = Path(fuzzcompile.__file__).parent
# String literals that are equal to the name of a stage and mean something else.
OTHER_MEANINGS = {
    "model/compiler_toggles.py": {"freezing"},  # an entry of torch._inductor.config
    "compiler/kernels/kernel_patches.py": {"codegen"},  # a method of torch's scheduler nodes
    "compiler/operators/operator_crossref.py": {"decomposition"},  # a way to compute an operator, beside "fake"
    "compiler/operators/second_reference.py": {"decomposition"},  # what speaks against a kernel, beside "formula"
    "compiler/rule_catalogue.py": {"decomposition", "lowering"},  # kinds of rule that `passes` lists, in the contract
    "compiler/guard_patches.py": {"decomposition"},  # a kind of rule
    "compiler/compile_changes.py": {"dynamo"},  # the key of the same config
    "compiler/session.py": {"dynamo"},  # the key of torch._dynamo.config in a case's settings
    "compiler/torch_config.py": {"dynamo"},  # the same key
    "compiler/watch/conformance.py": {"freezing"},  # the entry of torch._inductor.config
    "compiler/watch/patch_table.py": {"freezing", "partition", "scheduler"},  # the entry, and names of patches
    "front/cli/coverage.py": {"decomposition", "lowering"},  # the kinds of rule
    "analyses/coverage.py": {"decomposition", "lowering"},  # the kinds of rule
    "fuzz/generation/rendering.py": {"dynamo"},  # the key of the settings
    "fuzz/rules/rule_code.py": {"freezing"},  # the entry
    "fuzz/rules/rule_programs.py": {"freezing", "decomposition", "lowering"},  # the entry, and the kinds of rule
    "programs/capture/case_loader.py": {"dynamo"},  # the key of the settings
    "programs/casefiles/case_module.py": {"dynamo"},  # the key of the settings
    "programs/casefiles/case_file.py": {"dynamo"},  # a part of the names by which a program reaches the compiler
    "programs/edits/pattern_program.py": {"dynamo", "freezing"},  # the key of the settings, and the entry
    "programs/shrink/search.py": {"freezing"},  # the entry
    # Words that titles of PyTorch's issues have.
    "report/github_search.py": {"dynamo", "functionalization", "decomposition"},
    "run/case.py": {"dynamo"},  # the key of the settings
    "diagnosis/decision.py": {"freezing"},  # the entry
    "diagnosis/stages/stage_table.py": {"freezing"},  # the entry
    "diagnosis/wrong_side.py": {"decomposition"},  # what speaks against a kernel
}
# Where a kernel of eager mode is at fault, no stage of the compiler is: "aten", also the namespace of operators.
COMPILER_STAGES = [name for name in stages.STAGES if name != stages.ATEN]


def test_each_stage_of_the_contract_stands_in_the_table_once_and_in_order():
    assert [stage.name for stage in STAGES] == COMPILER_STAGES
    assert len(set(COMPILER_STAGES)) == len(STAGES) == 14
    assert all(get_stage(stage.name) is stage for stage in STAGES)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_a_stage_has_a_component_settings_and_patches_that_this_torch_has(stage):
    row = stages.BY_NAME[stage.name]
    assert row.component.strip() and row.title.strip() and row.label and all(row.files)
    for settings in stage.settings:
        assert settings and all(get_setting(key) is not MISSING for key in settings), settings
        with config.patch(dict(settings)):
            assert all(get_setting(key) == value for key, value in settings.items())
    assert any(stage.name in patch.stages for patch in PATCHES), "each stage has its hooks"


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_a_compile_without_a_suspect_is_another_compile(stage):
    """A rewrite is suspected by its label; a suspect of another stage may say nothing that a compile can leave out."""
    label = Label(stage.name, "a_pass", "a_rule") if isinstance(stage, RewritingStage) else None
    without = stage.without(Suspect(stage.name, "a_rule", finding=label))
    assert (without is not None) >= (label is not None)
    assert without is None or (without.text and Compilation().under(without) != Compilation())


@cache
def literals() -> dict[str, set[str]]:
    """The string literals of each file that are equal to the name of a stage."""
    spelled: dict[str, set[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        constants = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
        names = {value for value in constants if isinstance(value, str) and value in stages.STAGES}
        if names:
            spelled[path.relative_to(ROOT).as_posix()] = names
    return spelled


@pytest.mark.parametrize("name", COMPILER_STAGES)
def test_no_other_file_spells_the_name_of_a_stage(name):
    spelling = {file for file, names in literals().items() if name in names}
    assert spelling == {"model/stages.py"} | {file for file, names in OTHER_MEANINGS.items() if name in names}
