"""What the user names: labels, families, operators, files and lines, and what a diff of a checkout touches."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fuzzcompile.fuzz.focus.code_graph import CodeGraph, DefinitionSource
from fuzzcompile.fuzz.focus.focus_request import parse_focus
from fuzzcompile.fuzz.focus.focus_worker import select_names
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.focus_plan import END, Span

RULES = [("joint_graph", "_sfdp_pattern_1_inference"), ("joint_graph", "_sfdp_pattern_1_training"),
         ("joint_graph", "_sfdp_pattern_2_inference"), ("post_grad", "addmm"), ("post_grad", "mm_plus_mm"),
         ("pre_grad", "stable_sort"), ("post_grad", "stable_sort")]  # fmt: skip
OPERATORS = ["aten._int_mm.default", "aten.mm.default", "aten.mm.out", "aten.mm.dtype"]
PASSES = "torch/_inductor/fx_passes/passes.py"
CODE = """LIMIT = 4


def helper(match):
    return match.size < LIMIT


def unused():
    return 1


def handler(match):
    if helper(match):
        return None
    return match


class Fusion:
    def match(self, node):
        return self.checked(node)

    def checked(self, node):
        return helper(node)
"""


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("addmm", {"addmm"}),
        ("_sfdp_pattern_1", {"_sfdp_pattern_1_inference", "_sfdp_pattern_1_training"}),
        ("pattern_2_inference", {"_sfdp_pattern_2_inference"}),
        ("sfdp", {name for _, name in RULES if "sfdp" in name}),
        ("*_training", {"_sfdp_pattern_1_training"}),
        ("post_grad:stable_sort", {"stable_sort"}),
        ("plus_mm", {"mm_plus_mm"}),
        ("aten.mm", {"aten.mm.default", "aten.mm.dtype"}),
        ("torch.mm", {"aten.mm.default", "aten.mm.dtype"}),
        ("mm.default", {"aten.mm.default"}),
    ],
)
def test_a_name_means_a_rule_a_family_an_operator_or_what_ends_so(what, names):
    assert select_names(what, RULES, OPERATORS) == names


@pytest.mark.parametrize(("what", "says"), [("admm", "nearest are addmm"), ("inference", "may mean several")])
def test_a_name_that_means_nothing_or_several_things_is_refused_with_the_nearest(what, says):
    with pytest.raises(UsageError, match=says):
        select_names(what, RULES, OPERATORS)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder that looks like site-packages with a torch of one file."""
    root = tmp_path / "site-packages"
    (root / PASSES).parent.mkdir(parents=True)
    (root / PASSES).write_text(CODE)
    return root


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of PyTorch whose lines stand elsewhere than in the installed torch."""
    folder = tmp_path / "pytorch"
    (folder / PASSES).parent.mkdir(parents=True)
    (folder / PASSES).write_text("# a comment\n" * 7 + CODE)
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first")
    return folder


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], check=True)


def change(checkout: Path, before: str, after: str) -> None:
    path = checkout / PASSES
    path.write_text(path.read_text().replace(before, after))


def test_lines_are_those_of_the_installed_torch(installed):
    assert parse_focus([f"{PASSES}:4-5"], [], None, installed).spans == (Span(PASSES, 4, 5),)
    assert parse_focus(["passes.py"], [], None, installed).spans == (Span(PASSES, 1, END),)
    assert parse_focus([f"{installed / PASSES}:8"], [], None, installed).spans == (Span(PASSES, 8, 8),)
    assert parse_focus(["addmm"], [], None, installed).names == ("addmm",)


@pytest.mark.parametrize("what", [f"{PASSES}:900", f"{PASSES}:9-4", "torch/_inductor/missing.py", f"{PASSES}:0-4"])
def test_lines_and_files_that_there_are_not_are_refused(installed, what):
    with pytest.raises(UsageError, match="--focus"):
        parse_focus([what], [], None, installed)


def test_a_diff_aims_at_the_same_definitions_of_the_installed_torch(installed, checkout):
    change(checkout, "match.size < LIMIT", "match.size <= LIMIT")
    asked = parse_focus([], ["HEAD"], checkout, installed)
    assert asked.spans == (Span(PASSES, 4, 5),)  # eleven lines further down in the checkout


def test_what_only_the_checkout_has_is_said_and_comments_count_as_nothing(installed, checkout):
    change(checkout, "def unused", "def added():\n    return 2\n\n\ndef unused")
    with pytest.raises(UsageError, match="does not define added"):
        parse_focus([], ["HEAD"], checkout, installed)
    change(checkout, "LIMIT = 4", "LIMIT = 5")
    assert "does not define added" in parse_focus([], ["HEAD"], checkout, installed).notes[0]
    git(checkout, "checkout", "-q", ".")
    change(checkout, "    return 1\n", "    # why\n    return 1\n")
    with pytest.raises(UsageError, match="nothing to aim at"):
        parse_focus([], ["HEAD"], checkout, installed)


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        ("class A:\n    register(1)\n", "class A:\n    register(2)\n", ["A"]),
        ("if b:\n    def f():\n        return 1\n", "if b:\n    def f():\n        return 2\n", ["f"]),
        ("if b:\n    print(1)\n", "if b:\n    print(2)\n", [""]),
        ("class A:\n    def f(self):\n        return 1\n", "class A:\n    def f(self):\n        return 2\n", ["A.f"]),
    ],
)
def test_a_change_belongs_to_the_innermost_definition(before: str, after: str, names: list[str]):
    was, now = (DefinitionSource.parse("a.py", text).codes for text in (before, after))
    assert [name for name in now if now[name] != was.get(name)] == names


def test_a_revision_and_a_checkout_that_there_are_not_are_refused(installed, checkout, tmp_path):
    with pytest.raises(UsageError, match="knows no such diff"):
        parse_focus([], ["nowhere"], checkout, installed)
    with pytest.raises(UsageError, match="no checkout of PyTorch"):
        parse_focus([], ["HEAD"], tmp_path, installed)
    with pytest.raises(UsageError, match="--changed"):
        parse_focus(["addmm"], [], checkout, installed)


def test_lines_of_a_file_of_a_checkout_are_mapped_by_name(installed, checkout):
    asked = parse_focus([f"{checkout / PASSES}:11-12"], [], None, installed)
    assert asked.spans == (Span(PASSES, 4, 5),)


def test_definitions_know_what_they_use_also_through_methods_and_constants(installed):
    graph = CodeGraph(installed, [PASSES])
    limit = graph.find_places(Span(PASSES, 1, 1))
    reached = graph.find_reached([(PASSES, "handler")])
    assert list(limit) == [(PASSES, "LIMIT")]
    assert set(limit) <= reached
    assert (PASSES, "unused") not in reached
    assert (PASSES, "helper") in graph.find_reached([(PASSES, "Fusion.match")])
    assert graph.find_users([(PASSES, "unused")]) == set()


def test_the_line_of_a_method_is_the_methods_and_not_its_whole_class():
    source = DefinitionSource.parse(PASSES, CODE)
    assert [part.name for part in source.find_at(20, 20)] == ["Fusion.match"]
