"""The same code for a CUDA device."""

from __future__ import annotations

import ast
import copy
from collections.abc import Collection, Sequence

from fuzzcompile.contract import ReportJson
from fuzzcompile.reduction.plain.pieces import Pieces
from fuzzcompile.reduction.scripts.sources import MAKES

# Sources of code that runs on a CPU only, by words of their paths.
_CPU_SOURCES = ("cpp", "mkldnn", "onednn", "/cpu")


def on_cuda(pieces: Pieces) -> Pieces:
    """The pieces with tensors made on the GPU, and modules moved there."""
    classes = {node.name for node in pieces.definitions if isinstance(node, ast.ClassDef)}
    move = _Moving(classes)

    def moved(node: ast.stmt) -> ast.stmt:
        changed: ast.stmt = move.visit(copy.deepcopy(node))
        return ast.fix_missing_locations(changed)

    definitions, setup = [moved(node) for node in pieces.definitions], [moved(node) for node in pieces.setup]
    return Pieces(pieces.imports, definitions, setup, pieces.callee, pieces.arguments, pieces.parameters)


def moved_lines(lines: Sequence[str]) -> list[str]:
    """Lines of straight code, with tensors made on the GPU."""
    tree = _Moving(()).visit(ast.parse("\n".join(lines)))
    return ast.unparse(ast.fix_missing_locations(tree)).replace("'cuda'", '"cuda"').splitlines()


def makes_sense_on_cuda(report: ReportJson) -> bool:
    """Return whether the culprit of a report may be at work on a GPU too."""
    culprit = report.get("culprit") or {}
    named = f"{culprit.get('source') or ''} {culprit.get('rewrite') or ''} {culprit.get('family') or ''}".lower()
    return not any(word in named for word in _CPU_SOURCES) and "aten_kernel" not in (culprit.get("details") or {})


class _Moving(ast.NodeTransformer):
    def __init__(self, classes: Collection[str]) -> None:
        self._classes = classes

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else ""
        told = any(keyword.arg == "device" for keyword in node.keywords)
        if (
            name in MAKES
            and isinstance(function, ast.Attribute)
            and ast.unparse(function.value) == "torch"
            and not told
        ):
            node.keywords.append(ast.keyword("device", ast.Constant("cuda")))
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        if self._makes_module(node.value):
            node.value = ast.Call(ast.Attribute(node.value, "cuda", ast.Load()), [], [])
        return node

    def _makes_module(self, value: ast.expr) -> bool:
        """Return whether a variable of the script gets a module; one that another module holds moves with that."""
        while (
            isinstance(value, ast.Call)
            and isinstance(value.func, ast.Attribute)
            and value.func.attr in ("eval", "train")
        ):
            value = value.func.value
        if not isinstance(value, ast.Call):
            return False
        made = ast.unparse(value.func)
        return made in self._classes or (made.startswith("nn.") and made != "nn.Parameter")

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        inner = _WithinClass(self._classes)
        node.body = [inner.visit(part) for part in node.body]
        return node


class _WithinClass(_Moving):
    """Parameters are moved with their module; what ``forward`` makes is not."""

    def _makes_module(self, value: ast.expr) -> bool:
        return False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node if node.name == "__init__" else self.generic_visit(node)
