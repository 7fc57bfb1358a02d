"""The table of the compiler's stages: complete, in order, with settings and hooks that the installed torch has."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
from torch._inductor import config

import fuzzcompile
from fuzzcompile import stage_names
from fuzzcompile.compiler.ledger import Label
from fuzzcompile.compiler.patches import patches_of
from fuzzcompile.compiler.session import Compilation
from fuzzcompile.compiler.settings import MISSING, setting
from fuzzcompile.stages.base import Suspect
from fuzzcompile.stages.rewriting import RewritingStage
from fuzzcompile.stages.table import STAGES, stage_named

ROOT = Path(fuzzcompile.__file__).parent
# String literals that are equal to the name of a stage and mean something else.
OTHER_MEANINGS = {
    "capture/script.py": {"dynamo"},  # the key of torch._dynamo.config in a case's settings
    "case.py": {"dynamo"},  # the same key
    "casefiles/reaching.py": {"dynamo"},  # a part of the names by which a program reaches the compiler
    "compiler/configs.py": {"dynamo"},  # the same key
    "compiler/session.py": {"dynamo"},  # the same key
    "generation/patterned/rendering.py": {"dynamo", "freezing"},  # the same key, and an entry of the config
    "generation/patterned/kinds.py": {"freezing"},  # an entry of torch._inductor.config
    "compiler/programs/making.py": {"freezing", "decomposition", "lowering"},  # the entry, and kinds of rule
    "compiler/programs/settings.py": {"freezing"},  # the entry
    "cli/coverage.py": {"decomposition", "lowering"},  # kinds of rule that `passes` lists, in the contract
    "cli/passes.py": {"decomposition", "lowering"},  # the same kinds
    "commands/passes.py": {"decomposition", "lowering"},  # the same kinds
    "compiler/catalogue.py": {"decomposition", "lowering"},  # the same kinds
    "compiler/applications.py": {"decomposition"},  # a way to compute an operator: beside "dispatcher" and "fake"
    "compiler/crossref.py": {"decomposition"},  # the same way
    "compiler/conformance.py": {"freezing"},  # the entry of torch._inductor.config
    "generation/settings.py": {"dynamo"},  # the key of torch._dynamo.config in a case's settings
    "generation/toggles.py": {"freezing"},  # the same entry
    "judging/claims.py": {"freezing"},  # the same entry
    "stages/freezing.py": {"freezing"},  # the same entry
    "worker/capturing.py": {"freezing"},  # the same entry
    # Words that titles of PyTorch's issues have, and names of files that say nothing.
    "searching/terms.py": {
        "dynamo",
        "pre_grad",
        "functionalization",
        "decomposition",
        "joint_graph",
        "post_grad",
        "lowering",
        "scheduler",
    },
    "compiler/kernels/kernel_code.py": {"codegen"},  # a method of torch's scheduler nodes
    "compiler/patches.py": {"freezing", "partition", "scheduler"},  # an entry of the config, and names of patches
    "stages/cudagraphs.py": {"cudagraphs"},  # the component that a report names
    "stages/decomposition.py": {"decomposition"},  # its component
    "stages/dynamo.py": {"dynamo"},  # its component
}


def test_each_stage_of_the_contract_stands_in_the_table_once_and_in_order():
    assert [stage.name for stage in STAGES] == list(stage_names.STAGES)
    assert len(set(stage_names.STAGES)) == len(STAGES) == 14
    assert all(stage_named(stage.name) is stage for stage in STAGES)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_a_stage_has_a_component_settings_and_patches_that_this_torch_has(stage):
    assert stage.component and stage.component == stage.component.strip()
    for settings in stage.settings:
        assert settings and all(setting(key) is not MISSING for key in settings), settings
        with config.patch(dict(settings)):
            assert all(setting(key) == value for key, value in settings.items())
    assert stage.patches and set(stage.patches) == set(patches_of(stage.name)), "a stage says what it hooks"


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_a_compile_without_a_suspect_is_another_compile(stage):
    """A rewrite is suspected by its label; a suspect of another stage may say nothing that a compile can leave out."""
    label = Label(stage.name, "a_pass", "a_rule") if isinstance(stage, RewritingStage) else None
    how = Compilation()
    without = stage.without(Suspect(stage.name, "a_rule", finding=label), how)
    assert (without is not None) >= (label is not None)
    assert without is None or (without.toggle and without.how != how)


@cache
def literals() -> dict[str, set[str]]:
    """The string literals of each file that are equal to the name of a stage."""
    spelled: dict[str, set[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        constants = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
        names = {value for value in constants if isinstance(value, str) and value in stage_names.STAGES}
        if names:
            spelled[path.relative_to(ROOT).as_posix()] = names
    return spelled


@pytest.mark.parametrize("name", stage_names.STAGES)
def test_no_other_file_spells_the_name_of_a_stage(name):
    spelling = {file for file, names in literals().items() if name in names}
    assert spelling == {"stage_names.py"} | {file for file, names in OTHER_MEANINGS.items() if name in names}
