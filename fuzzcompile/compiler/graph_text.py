"""Graphs and ledgers as text: one line a node, differences of two graphs, and the files of a dump."""

from __future__ import annotations

import difflib
import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from fuzzcompile.compiler.watch.ledger import Frame, GraphRecord, Label, Ledger, Rewrite, Snapshot
from fuzzcompile.model.culprit_contract import MatchedLineJson

_CONTEXT = 2  # unchanged lines around a change
_LONGEST = 200  # characters of a line
_FRAME = re.compile(r'File "(?P<path>[^"]+)", line (?P<line>\d+), in [^\n]*\n(?P<code>[^\n]*)')
_DTYPES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "b8",
    torch.complex64: "c64",
    torch.complex128: "c128",
}


def format_graph(snapshot: Snapshot) -> list[str]:
    """The graph, one line a node: ``name: f32[2, 3] = aten.mul.Tensor(x, 2.0)``.

    Dtypes and shapes are those that the compiler believes (``b8`` is bool). Bodies of higher-order operators follow,
    indented.
    """
    return [*_format_nodes(snapshot.graph), *_format_bodies(snapshot.attributes, "")]


def diff_graphs(before: Snapshot, after: Snapshot, *, most: int = 60) -> list[str]:
    """A unified diff of the two graphs with little around each change; no more than ``most`` lines.

    Empty where they read the same.
    """
    found = difflib.unified_diff(format_graph(before), format_graph(after), n=_CONTEXT, lineterm="")
    lines = [line for line in found if not line.startswith(("--- ", "+++ "))]
    if len(lines) > most:
        lines = [*lines[:most], f"... and {len(lines) - most} more lines"]
    return lines


def find_changed_nodes(before: Snapshot, after: Snapshot) -> list[str]:
    """Names of the nodes of ``before`` that ``after`` does not have, or has with another target or arguments."""
    there = {node.name: _format_node(node) for node in after.graph.nodes}
    return [
        node.name for node in before.graph.nodes if there.get(node.name) != _format_node(node) and node.op != "output"
    ]


def list_user_lines(snapshot: Snapshot, names: Iterable[str]) -> list[MatchedLineJson]:
    """The lines of the user's program behind the nodes of these names, with the nodes of each, in their order.

    Each has ``source`` (``file.py:12``), ``code`` (what stands there) and ``nodes``; ``source`` and ``code`` are None
    where the compiler kept no track. Names that the graph does not have are left out.
    """
    wanted = set(names)
    found: dict[tuple[str | None, str | None], list[str]] = {}
    for node in snapshot.graph.nodes:
        if node.name in wanted:
            found.setdefault(find_user_line(node), []).append(node.name)
    return [{"source": source, "code": code, "nodes": nodes} for (source, code), nodes in found.items()]


def find_user_line(node: fx.Node) -> tuple[str | None, str | None]:
    """``file.py:12`` of the user's program behind the node, and what stands there; None where it is not known."""
    frames = list(_FRAME.finditer(node.meta.get("stack_trace") or ""))
    if not frames:
        return None, None
    last = frames[-1]
    file = re.split(r"[/\\]", last["path"])[-1]
    return f"{file}:{last['line']}", last["code"].strip() or None


def format_target(node: fx.Node) -> str:
    """Return the target of a node in the words of a program: ``aten.mul.Tensor``, ``torch.add``, ``.view``."""
    target = node.target
    if isinstance(target, str):
        return f".{target}" if node.op == "call_method" else target
    if isinstance(target, functools.partial):  # the lowering that a pattern put in place of what it matched
        return f"lowering {getattr(target.func, '__name__', 'of a pattern')}"
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return str(target)
    module, name = getattr(target, "__module__", None), getattr(target, "__name__", None)
    if not isinstance(name, str):
        return str(target)
    if not isinstance(module, str) or module in ("builtins", "_operator"):
        return name
    return f"{module.replace('torch._C._nn', 'torch').replace('torch._C', 'torch')}.{name}"


# -- private --------------------------------------------------------------------------------------


def _format_nodes(graph: fx.Graph) -> Iterator[str]:
    return (_format_node(node) for node in graph.nodes)


def _format_bodies(attributes: Any, indent: str) -> Iterator[str]:
    for name, value in sorted(attributes.items()):
        if isinstance(value, fx.GraphModule):
            yield f"{indent}{name}:"
            inner = f"{indent}  "
            yield from (f"{inner}{line}" for line in _format_nodes(value.graph))
            yield from _format_bodies(dict(value.named_children()), inner)


def _format_node(node: fx.Node) -> str:
    if node.op == "output":
        text = f"return {_format_argument(node.args[0])}"
    elif node.op == "placeholder":
        text = f"{node.name}{_format_node_type(node)} = input"
    elif node.op == "get_attr":
        text = f"{node.name}{_format_node_type(node)} = constant {node.target}"
    else:
        given = [_format_argument(arg) for arg in node.args] + [
            f"{key}={_format_argument(value)}" for key, value in node.kwargs.items()
        ]
        text = f"{node.name}{_format_node_type(node)} = {format_target(node)}({', '.join(given)})"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."


def _format_argument(value: object) -> str:
    if isinstance(value, fx.Node):
        return value.name
    if isinstance(value, (list, tuple)):
        inside = ", ".join(map(_format_argument, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' if len(value) == 1 else ''})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_format_argument(item)}" for key, item in value.items()) + "}"
    if isinstance(value, slice):
        return f"{_format_argument(value.start)}:{_format_argument(value.stop)}:{_format_argument(value.step)}"
    try:
        return " ".join(repr(value).split())
    except Exception:  # an object of the user's own
        return type(value).__name__


def _format_node_type(node: fx.Node) -> str:
    """``: f32[2, 3]``; of an operator with several results those of all; nothing where it is not known."""
    value = node.meta.get("val", node.meta.get("example_value"))
    found = [_format_tensor_type(leaf) for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    if not found:
        return ""
    return f": {found[0]}" if isinstance(value, torch.Tensor) else f": ({', '.join(found)})"


def _format_tensor_type(value: torch.Tensor) -> str:
    dtype = _DTYPES.get(value.dtype, str(value.dtype).removeprefix("torch."))
    return f"{dtype}[{', '.join(str(size) for size in value.shape)}]"


# The ledger as files: every graph of one compile, and what every rewrite did to it.

_ALL = 100_000  # lines of a diff: files have room


def dump_ledger(ledger: Ledger, folder: Path) -> None:
    """Write ``index.md``, and a folder for each graph and stage: the graph at its start, and each rewrite.

    ``folder`` is made if need be; files of the same names are replaced.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["# What the compiler did", "", *_write_summary(ledger)]
    names = _FolderNames()
    for frame in ledger.frames:
        lines += ["", f"## Graph {frame.index}", ""]
        for record in frame.records:
            if record.snapshots:
                lines += _dump_record(frame, record, folder, names.make_name(frame, record))
        if not frame.records:
            lines.append("No stage ran.")
    lines += _format_coverage(ledger)
    (folder / "index.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


class _FolderNames:
    """Folder names of records; a stage that runs twice over one graph gets a number."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def make_name(self, frame: Frame, record: GraphRecord) -> str:
        name = f"graph{frame.index}-{record.stage}-{record.direction}"
        self._seen[name] += 1
        return name if self._seen[name] == 1 else f"{name}-{self._seen[name]}"


def _write_summary(ledger: Ledger) -> Iterator[str]:
    rewrites = len(ledger.list_rewrites())
    yield f"{len(ledger.frames)} graphs captured, {rewrites} rewrites that changed one."
    yield from (f"Graph break: {why}" for why in ledger.graph_breaks)
    if ledger.failed_in is not None:
        yield f"An exception rose in {_format_label(ledger.failed_in)}."
    yield from (str(unseen) for unseen in ledger.unseen)


def _dump_record(frame: Frame, record: GraphRecord, folder: Path, name: str) -> Iterator[str]:
    inside = folder / name
    inside.mkdir(exist_ok=True)
    yield f"### {record.stage}, {record.direction}"
    yield ""
    start = inside / "00-start.txt"
    _write_lines(start, format_graph(record.snapshots[0]))
    yield f"Starts as [{name}/{start.name}]({name}/{start.name}), {_count_nodes(record, 0)} nodes."
    yield ""
    if not record.rewrites:
        yield "No rewrite changed it."
        yield ""
        return
    yield "| # | rewrite | source | site | nodes after | files |"
    yield "|---|---|---|---|---|---|"
    for number, rewrite in enumerate(record.rewrites, 1):
        stem = f"{number:02}-{re.sub(r'[^A-Za-z0-9_.-]+', '-', rewrite.label.rewrite)[:60]}"
        _write_lines(inside / f"{stem}.diff", _format_difference(record, rewrite))
        _write_lines(inside / f"{stem}.txt", format_graph(record.snapshots[rewrite.after]))
        files = ", ".join(f"[{kind}]({name}/{stem}.{ending})" for kind, ending in (("diff", "diff"), ("graph", "txt")))
        label = rewrite.label
        within = f" in {label.pass_name}" if label.pass_name and label.pass_name != label.rewrite else ""
        source = f"{label.source}:{label.line}" if label.source else "-"
        yield (
            f"| {number} | {_format_cell(label.rewrite)}{_format_cell(within)} | {_format_cell(source)} | "
            f"{_format_cell(rewrite.site or '-')} "
            f"| {_count_nodes(record, rewrite.after)} | {files} |"
        )
    yield ""


def _format_difference(record: GraphRecord, rewrite: Rewrite) -> list[str]:
    before, after = record.snapshots[rewrite.before], record.snapshots[rewrite.after]
    matched = [
        f"# matched {entry['source'] or 'no known line'}: {entry['code'] or ''} ({', '.join(entry['nodes'])})"
        for entry in list_user_lines(before, rewrite.nodes)
    ]
    return [f"# {_format_label(rewrite.label)}", *matched, *diff_graphs(before, after, most=_ALL)]


def _format_coverage(ledger: Ledger) -> Iterator[str]:
    """Matches that came to nothing: what was refused by its own check, or vetoed."""
    others = [(label, outcome, count) for (label, outcome), count in ledger.coverage.items() if outcome != "fired"]
    if not others:
        return
    yield from ("", "## Matched and not applied", "", "| rule | outcome | times |", "|---|---|---|")
    for label, outcome, count in others:
        yield f"| {_format_cell(_format_label(label))} | {outcome} | {count} |"


def _count_nodes(record: GraphRecord, index: int) -> int:
    return len(list(record.snapshots[index].graph.nodes))


def _format_label(label: Label) -> str:
    place = f" ({label.source}:{label.line})" if label.source else ""
    return f"{label.rewrite} in {label.stage}{place}"


def _format_cell(value: object) -> str:
    return str(value).replace("|", "\\|")


def _write_lines(path: Path, lines: list[str]) -> None:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
