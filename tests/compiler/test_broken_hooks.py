"""With any one hook broken, a planted bug is still named, or the answer is low and says what was not watched."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import behind_plants
import pytest
import torch
from pattern_tables import restored
from torch import fx
from torch._inductor import compile_fx, decomposition
from torch._inductor.fx_passes import joint_graph
from torch._inductor.pattern_matcher import CallFunction, KeywordArg, register_graph_pattern

from fuzzcompile.compiler.watch import patch_table, rule_labels
from fuzzcompile.compiler.watch import recorder as recorder_module
from fuzzcompile.compiler.watch.recorder import Recorder
from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.programs.casefiles.case_module import load_case

pytestmark = pytest.mark.usefixtures("no_workarounds")

aten = torch.ops.aten
TABLES = ("GRAPHS", "COVERAGE", "KERNELS", "DECOMPOSITIONS", "METADATA", "SPEED", "PATCHES")
PROGRAM = """
import torch

{settings}


class Program(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.linear = torch.nn.Parameter(torch.rand(16) + 0.5), torch.nn.Linear(16, 16)

    def forward(self, x):
        return self.linear(torch.{operator}(x) * (self.weight * 2 + 1))


def make():
    torch.manual_seed(0)
    return Program(){mode}, (torch.rand(4, 16) + 0.5,)
"""
FREEZING = (
    'OPTIONS = {"freezing": True}\nCONFIG = {"dynamo": {"prepare_freezing": True}, "inductor": {"freezing": True}}'
)


def off(match: Any, x: Any) -> None:
    match.replace_by_example(lambda x: torch.atan(x) * 1.01, [x])


@contextlib.contextmanager
def joint_pattern() -> Iterator[None]:
    with restored(joint_graph.patterns) as table:
        register_graph_pattern(CallFunction(aten.atan.default, KeywordArg("x")), pass_dict=table)(off)
        yield


def atans_off(graph: fx.Graph) -> None:
    """A pass: every arc tangent, of torch or of ATen."""
    for node in [*graph.nodes]:
        if node.target in (torch.atan, aten.atan.default):
            with graph.inserting_after(node):
                new = graph.call_function(torch.mul if node.target is torch.atan else aten.mul.Tensor, (node, 1.01))
            new.meta.update(node.meta)
            node.replace_all_uses_with(new, delete_user_cb=lambda user, new=new: user is not new)


def joint_atans_off(module: fx.GraphModule, inputs: Any) -> fx.GraphModule:
    atans_off(module.graph)
    return module


def inductor(name: str) -> AbstractContextManager[None]:
    return torch._inductor.config.patch({name: atans_off})


@contextlib.contextmanager
def wrong_partition() -> Iterator[None]:
    """The backward graph gives a first gradient that is a hundredth too large."""
    original = compile_fx.min_cut_rematerialization_partition

    def min_cut_rematerialization_partition(*args: Any, **kwargs: Any) -> Any:
        forward, backward = original(*args, **kwargs)
        output = next(iter(backward.graph.find_nodes(op="output")))
        gradients = list(output.args[0])
        place = next(n for n, gradient in enumerate(gradients) if gradient is not None)
        with backward.graph.inserting_before(output):
            new = backward.graph.call_function(aten.mul.Tensor, (gradients[place], 1.01))
        new.meta.update(gradients[place].meta)
        gradients[place] = new
        output.args = (tuple(gradients),)
        backward.recompile()
        return forward, backward

    with mock.patch.object(compile_fx, "min_cut_rematerialization_partition", min_cut_rematerialization_partition):
        yield


@contextlib.contextmanager
def wrong_decomposition() -> Iterator[None]:
    table, operator = decomposition.decompositions, aten.hardswish.default
    original = table[operator]
    with mock.patch.dict(table, {operator: lambda *args: original(*args) * 1.01}):
        yield


@contextlib.contextmanager
def wrong_folding() -> Iterator[None]:
    sys.path.insert(0, str(Path(__file__).parent / "conformance"))
    try:
        import planted
    finally:
        sys.path.pop(0)
    with planted.folding_off():
        yield


@dataclasses.dataclass(frozen=True)
class Bug:
    """A planted bug, the operator of its program, and words one of which a right culprit has in its name."""

    install: Callable[[], AbstractContextManager[Any]]
    named: tuple[str, ...]
    operator: str = "atan"
    settings: str = ""
    mode: str = ".train()"


BUGS = {
    "pattern": Bug(joint_pattern, ("off",)),
    "pre-grad": Bug(lambda: inductor("pre_grad_custom_pass"), ("atans_off",)),
    "post-grad": Bug(lambda: inductor("post_grad_custom_post_pass"), ("atans_off",)),
    "joint": Bug(
        lambda: torch._functorch.config.patch(joint_custom_pass=joint_atans_off),
        ("joint_atans_off",),
        settings="BACKWARD = True",
    ),
    "partition": Bug(wrong_partition, ("partition",), settings="BACKWARD = True"),
    "folding": Bug(wrong_folding, ("constant_fold",), "tanh", FREEZING, ".eval()"),
    "lowering": Bug(lambda: behind_plants.lowering(aten.atan.default, behind_plants.scaled), ("atan",)),
    "vector": Bug(lambda: behind_plants.wrong_vector("log1p"), ("log1p",), "log1p"),
    "decomposition": Bug(wrong_decomposition, ("hardswish",), "nn.functional.hardswish"),
}
# The bug that lives where a patch looks; others of a table take the last one.
BUG_OF = {
    "plain passes": "folding",
    "joint pass": "joint",
    "pre-grad stage": "pre-grad",
    "post-grad stage": "post-grad",
    "graph pass": "post-grad",
    "partition": "partition",
    "freezing stage": "folding",
    "frozen parameters": "folding",
    "layout of frozen weights": "folding",
    "lowered graph": "lowering",
    "lowered node": "lowering",
    "fallback": "lowering",
    "decomposition table": "decomposition",
    "fake tensors": "decomposition",
    **dict.fromkeys((patch.name for patch in patch_table.KERNELS if patch.stages != ("lowering",)), "vector"),
}
NAMES = [patch.name for patch in patch_table.PATCHES]
HOWS = ("raises", "raises afterwards", "is missing")
# Run in every run of the tests; all others are slow.
TELLING = {
    ("plain passes", "is missing"),
    ("pre-grad stage", "raises afterwards"),
    ("pattern pass", "raises"),
    ("reached kernels", "raises"),
}


def raising(watcher: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("the hook is broken")


def raising_afterwards(watcher: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    original(*args, **kwargs)
    raise RuntimeError("the hook is broken")


def break_patch(monkeypatch: pytest.MonkeyPatch, name: str, how: str) -> None:
    """In every table that lists the patch; a family loses all its members, or every one is broken."""

    def broken(patch: Any) -> Any:
        if how == "is missing":
            return dataclasses.replace(patch, attribute=f"{patch.attribute}_of_another_torch", members=None)
        wrap = raising if how == "raises" else raising_afterwards
        if patch.members is None:
            return dataclasses.replace(patch, wrap=wrap)
        members = patch.members
        return dataclasses.replace(
            patch, members=lambda watcher: [dataclasses.replace(m, wrap=wrap) for m in members(watcher)]
        )

    for table in TABLES:
        rows = getattr(patch_table, table)
        monkeypatch.setattr(patch_table, table, tuple(broken(row) if row.name == name else row for row in rows))


def judged(bug: Bug, folder: Path) -> dict[str, Any]:
    path = folder / "case.py"
    path.write_text(PROGRAM.format(operator=bug.operator, settings=bug.settings, mode=bug.mode))
    with bug.install():
        return triage(load_case(path), torch.device("cpu")).to_json()


def is_right(report: dict[str, Any], bug: Bug) -> bool:
    culprit = report["culprit"]
    wrong = report["verdict"] in ("miscompile", "wrong gradient", "wrong-gradient", "wrong_gradient")
    return wrong and culprit is not None and any(word in str(culprit) for word in bug.named)


def honest(report: dict[str, Any], bug: Bug) -> None:
    notes = report["evidence"]["notes"]
    unseen = [note for note in notes if note.startswith("not watched: ")]
    what = (report["verdict"], report["confidence"], report["culprit"], notes)
    assert is_right(report, bug) or (report["confidence"] == "low" and unseen), what


# Others name such bugs too: tests/diagnosis/attribution and tests/compiler/conformance.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("pattern", "post-grad") else pytest.mark.slow) for name in BUGS]
)
def test_planted_bug_is_named_where_nothing_is_broken(name: str, tmp_path: Path):
    report = judged(BUGS[name], tmp_path)
    assert is_right(report, BUGS[name]), (report["verdict"], report["culprit"])
    assert report["evidence"]["notes"] == []


@pytest.mark.parametrize(
    "name, how",
    [
        pytest.param(name, how, marks=() if (name, how) in TELLING else pytest.mark.slow)
        for name in NAMES
        for how in HOWS
    ],
)
def test_broken_hook_makes_no_wrong_answer(name: str, how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    break_patch(monkeypatch, name, how)
    bug = BUGS[BUG_OF.get(name, "pattern")]
    honest(judged(bug, tmp_path), bug)


PARTS = [
    *[(Recorder, name) for name in vars(Recorder) if not name.startswith("_") and callable(vars(Recorder)[name])],
    *[(Recorder, name) for name in ("_begin_record", "_make_site", "_copy_constants")],
    *[(recorder_module, name) for name in ("GraphState", "take_snapshot", "copy_tree", "extract_match")],
    *[
        (rule_labels, name)
        for name in ("find_location", "make_entry_label", "make_pass_label", "make_callable_label", "is_vetoed")
    ],
]
TELLING_PARTS = {"record_stage", "apply_pattern", "GraphState", "make_entry_label", "capture"}


@pytest.mark.parametrize(
    "owner, part",
    [
        pytest.param(owner, name, id=name, marks=() if name in TELLING_PARTS else pytest.mark.slow)
        for owner, name in PARTS
    ],
)
@pytest.mark.parametrize("name", ["pattern", pytest.param("post-grad", marks=pytest.mark.slow)])
def test_broken_recorder_makes_no_wrong_answer(
    owner: Any, part: str, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    def failing(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("the recorder is broken")

    monkeypatch.setattr(owner, part, failing)
    honest(judged(BUGS[name], tmp_path), BUGS[name])
