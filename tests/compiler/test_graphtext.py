"""Graphs as text, what a rewrite did as a diff, and the ledger as files: screened compiles of planted rewrites."""

from __future__ import annotations

import functools

import programs
import pytest
import torch
from planting import PLANTS
from torch import fx
from watching import Watched, watch, watch_plant

from fuzzcompile.compiler.graph_text import diff_graphs, find_changed_nodes, format_graph, list_user_lines
from fuzzcompile.compiler.watch.ledger import Ledger, Snapshot
from fuzzcompile.diagnosis.attribution.culprit import Culprit
from fuzzcompile.diagnosis.worker.ledger_files import dump_ledger

aten = torch.ops.aten


@pytest.fixture(scope="module")
def sine() -> Watched:
    """A handler that makes every sine wrong."""
    return watch_plant(PLANTS["graph handler, joint stage"], screen=True)


@pytest.fixture(scope="module")
def trained() -> Watched:
    """A handler that makes the cosine of a backward graph wrong."""
    return watch_plant(PLANTS["handler in a backward graph"], screen=True)


def pair(watched: Watched, name: str) -> tuple[Snapshot, Snapshot]:
    """The graphs before and after the only rewrite of that name."""
    (found,) = [(r, w) for _, r, w in watched.ledger.list_rewrites() if w.label.rewrite == name]
    record, rewrite = found
    return record.snapshots[rewrite.before], record.snapshots[rewrite.after]


def test_a_graph_reads_like_a_program(sine):
    (frame,) = sine.ledger.frames
    text = format_graph(frame.find_record("pre_grad").snapshots[0])
    assert text == [
        "l_x_: f32[3, 5] = input",
        "sin: f32[3, 5] = torch.sin(l_x_)",
        "mul: f32[3, 5] = mul(sin, 2)",
        "return (mul,)",
    ]
    assert format_graph(frame.find_record("joint_graph").snapshots[0])[1] == "sin: f32[3, 5] = aten.sin.default(arg0_1)"


def test_a_diff_has_only_the_lines_around_the_change(sine):
    before, after = pair(sine, "sin_off")
    diff = diff_graphs(before, after)
    assert "-mul: f32[3, 5] = aten.mul.Tensor(sin, 2)" in diff
    assert [line for line in diff if line.startswith("+") and "1.01" in line]
    assert " return (mul,)" in diff and diff[0].startswith("@@")
    assert diff_graphs(before, before) == []
    assert diff_graphs(before, after, most=2) == [*diff[:2], f"... and {len(diff) - 2} more lines"]


def test_nodes_are_found_in_the_program(sine, trained):
    before, after = pair(sine, "sin_off")
    (line,) = list_user_lines(before, ["sin", "no such node"])
    assert line == {
        "source": programs.location_of("torch.sin(x) * 2"),
        "code": "return torch.sin(x) * 2",
        "nodes": ["sin"],
    }
    assert find_changed_nodes(before, after) == ["sin", "mul"] and find_changed_nodes(before, before) == []
    (line,) = list_user_lines(pair(trained, "cos_off")[0], ["cos"])
    assert line["source"] == programs.location_of("torch.sin(x) + b")


def test_a_culprit_carries_its_proof(sine, trained):
    details = Culprit.from_step(sine.step("sin_off")).to_json()["details"]
    assert details["direction"] == "inference" and details["changed"] is None
    assert details["float64"] == pytest.approx(0.01, rel=0.5) and details["native_noise"] < 1e-5
    assert details["matched"][0]["code"] == "return torch.sin(x) * 2"
    assert "aten.mul.Tensor" in details["diff"] and details["diff"].count("\n") < 20
    assert Culprit.from_step(trained.step("cos_off")).details["direction"] == "backward"


def lower(match: object, x: object) -> None:
    """Stands for the handler of a lowering pattern."""


def test_unusual_graphs_have_text():
    class Odd:
        def __repr__(self) -> str:
            raise ValueError("no text for this")

    graph = fx.Graph()
    x = graph.placeholder("x")
    partial = graph.call_function(functools.wraps(lower)(functools.partial(lower, None)), (x,))
    method = graph.call_method("view", (partial, [2, -1]), {"at": slice(None, x, 2), "odd": Odd()})
    several = graph.call_function(torch.split, ({"key": method}, (1,)), {"dtype": torch.bfloat16})
    several.meta["val"] = [torch.empty(2, dtype=torch.bool), torch.empty(3, dtype=torch.float8_e4m3fn)]
    graph.output([several, None])
    body = fx.symbolic_trace(lambda y: y.sin())
    text = format_graph(Snapshot(graph, {"true_graph_0": body, "constant": torch.ones(1)}, {}))
    assert text == [
        "x = input",
        f"{partial.name} = lowering lower(x)",
        f"{method.name} = .view({partial.name}, [2, -1], at=None:x:2, odd=Odd)",
        f"{several.name}: (b8[2], float8_e4m3fn[3]) = "
        f"torch.functional.split({{key: {method.name}}}, (1,), dtype=torch.bfloat16)",
        f"return [{several.name}, None]",
        "true_graph_0:",
        "  y = input",
        "  sin = .sin(y)",
        "  return sin",
    ]


def test_long_lines_are_cut():
    graph = fx.Graph()
    many = [graph.placeholder(f"argument_{n}") for n in range(100)]
    graph.output(graph.call_function(aten.cat.default, (many,)))
    assert max(map(len, format_graph(Snapshot(graph, {}, {})))) <= 200


def test_a_ledger_is_written_graph_by_graph(trained, tmp_path):
    folder = tmp_path / "new" / "ledger"
    dump_ledger(trained.ledger, folder)
    index = (folder / "index.md").read_text(encoding="utf-8")
    folders = sorted(path.name for path in folder.iterdir() if path.is_dir())
    assert [name.split("-")[1:] for name in folders] == [
        ["joint_graph", "joint"],
        ["post_grad", "backward"],
        ["post_grad", "forward"],
        ["pre_grad", "inference"],
    ]
    (diff,) = (folder / "graph0-post_grad-backward").glob("*cos_off.diff")
    text = diff.read_text(encoding="utf-8")
    assert text.startswith("# cos_off in post_grad (planting.py:") and "\n-mul" in text
    assert f"matched {programs.location_of('torch.sin(x) + b')}" in text
    after = diff.with_suffix(".txt").read_text(encoding="utf-8")
    assert "1.01" in after and "return (" in after
    for link in ("graph0-joint_graph-joint/00-start.txt", f"graph0-post_grad-backward/{diff.name}"):
        assert f"({link})" in index and (folder / link).exists()
    assert len(list(folder.rglob("*.diff"))) == len(trained.ledger.list_rewrites())


def test_what_was_refused_and_an_empty_ledger_are_said(tmp_path):
    target, inputs = programs.sine()
    plant = PLANTS["graph handler, joint stage"]
    with plant.install():
        vetoed = watch(target, inputs, vetoes=["sin_off"], screen=True)
    dump_ledger(vetoed.ledger, tmp_path)
    assert "| sin_off in joint_graph (planting.py" in (tmp_path / "index.md").read_text(encoding="utf-8")
    dump_ledger(Ledger(), tmp_path / "empty")
    assert "0 graphs captured, 0 rewrites" in (tmp_path / "empty" / "index.md").read_text(encoding="utf-8")
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        dump_ledger(Ledger(), tmp_path / "file" / "folder")
