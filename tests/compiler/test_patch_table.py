"""What fuzzcompile replaces of torch is a row of the patch table, with a probe or the reason why it has none."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch

import fuzzcompile
from fuzzcompile.compiler.watch import conformance, patch_table
from fuzzcompile.run.torch_attributes import FAMILY, Attribute, ReplacedAttribute

ROOT = Path(fuzzcompile.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
MECHANISM = ROOT / "run" / "torch_attributes.py"
ROOTS = ("torch", "triton", "sys.modules")
# Public settings: setting one is what torch documents, and replaces nothing.
SETTINGS = ("torch.backends", "torch.compiler.config", "torch._inductor.config")
SETTERS = ("setattr", "delattr", "set_attr")  # the last is of the scopes of Triton's interpreter
CHANGES = ("update", "pop", "setdefault", "__setitem__")
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")


# -- the rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", [*patch_table.PATCHES, *patch_table.REPLACED], ids=lambda row: row.name)
def test_row_has_a_probe_or_a_reason(row):
    assert (row.probe is None) is (row.unprobed.endswith(".") and len(row.unprobed.split()) > 4)


@needs_triton
def test_rows_for_targets_have_reasons():
    rows = patch_table.list_replaced_for_targets()
    assert rows and all(row.probe is None and row.unprobed.endswith(".") for row in rows)


@needs_triton
def test_every_row_outside_the_table_is_in_it():
    """Rows stand beside what uses them; a row of a module that the table does not list would go untried."""
    listed = {row.name for row in (*patch_table.REPLACED, *patch_table.list_replaced_for_targets())}
    using = [path for path in FILES if path != MECHANISM and "ReplacedAttribute" in path.read_text(encoding="utf-8")]
    named = [".".join(path.relative_to(ROOT.parent).with_suffix("").parts) for path in using]
    held = [value for name in named for value in vars(importlib.import_module(name)).values()]
    rows = [row for value in held for row in (value if isinstance(value, tuple) else [value])]
    own = [row for row in rows if isinstance(row, ReplacedAttribute)]
    assert len(own) > 10 and not [row.name for row in own if not {row.name, f"{row.module}.{FAMILY}"} & listed]


@pytest.mark.parametrize("row", patch_table.REPLACED, ids=lambda row: row.name)
def test_replacement_holds(row: ReplacedAttribute):
    assert row.check_place() is None
    assert row.name not in conformance.probe_replaced()


@pytest.mark.parametrize(
    "name", [row.name for row in patch_table.REPLACED if row.probe is not None and row.name != "torch.compile"]
)
def test_replacement_without_effect_is_named(name: str, monkeypatch):
    monkeypatch.setattr(Attribute, "replace", lambda self, value: contextlib.nullcontext())
    monkeypatch.setattr(ReplacedAttribute, "put_entry", lambda self, key, value, of: None)
    assert name in conformance.probe_replaced()


def test_another_form_of_compile_is_named(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda model=None, *, backend="inductor": model)
    assert conformance.probe_replaced() == {"torch.compile": "takes no disable, dynamic, fullgraph, mode, options"}


# -- nothing else is replaced -------------------------------------------------------------------------


def find_path(node: ast.AST, names: dict[str, str]) -> str | None:
    """The dotted path of what an expression stands for: a module, a class, a function, or the namespace of one."""
    match node:
        case ast.Name(id=name):
            return names.get(name)
        case ast.Constant(value=str(text)) if is_torchs(text):
            return text
        case (
            ast.Attribute(value=owner, attr=name)
            | ast.Call(func=ast.Name(id="getattr"), args=[owner, ast.Constant(value=str(name)), *_])
        ):
            pass
        case ast.Call(func=ast.Name(id="vars"), args=[owner]):
            name = "__dict__"
        case ast.Call(func=ast.Attribute(attr="import_module"), args=[module, *_]):
            return find_path(module, names)
        case _:
            return None
    path = find_path(owner, names)
    return None if path is None else f"{path}.{name}"


def bind_names(statements: Iterable[ast.stmt], outside: dict[str, str]) -> dict[str, str]:
    """What names stand for in these statements, beside those that are bound outside of them."""
    names = dict(outside)
    for node in (node for statement in statements for node in ast.walk(statement)):
        match node:
            case ast.Import(names=aliases):
                whole = {alias.name.split(".")[0] for alias in aliases if alias.asname is None}
                names |= {name: name for name in whole} | {a.asname: a.name for a in aliases if a.asname is not None}
            case ast.ImportFrom(module=str(module), names=aliases):
                names |= {alias.asname or alias.name: f"{module}.{alias.name}" for alias in aliases}
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if path := find_path(value, names):
                names[name] = path
            case ast.For(target=ast.Name(id=name), iter=ast.Tuple(elts=[first, *_])) if path := find_path(first, names):
                names[name] = path
            case ast.For(target=ast.Name(id=name), iter=modules) if "sys.modules" in ast.unparse(modules):
                names[name] = "sys.modules"
    return names


def is_torchs(path: str | None) -> bool:
    return path is not None and any(f"{path}.".startswith(f"{root}.") for root in ROOTS)


def find_assignments(text: str) -> Iterator[str]:
    """The places of a file that set or delete an attribute of torch, or the code of a function."""
    definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    body = ast.parse(text).body
    shared = bind_names((statement for statement in body if not isinstance(statement, definitions)), {})
    for statement in body:
        yield from _find_in_statement(statement, bind_names([statement], shared))


def _find_in_statement(statement: ast.stmt, names: dict[str, str]) -> Iterator[str]:
    def is_replaced(owner: ast.AST, attribute: object = None) -> bool:
        path = find_path(owner, names)
        setting = path is not None and any(f"{path}.".startswith(f"{known}.") for known in SETTINGS)
        return attribute == "__code__" or (is_torchs(path) and not setting)

    def is_namespace(node: ast.AST) -> bool:
        kernels = isinstance(node, ast.Attribute) and node.attr == "py_kernels"
        return kernels or (is_replaced(node) and str(find_path(node, names)).endswith("__dict__"))

    for node in ast.walk(statement):
        match node:
            case ast.Attribute(value=owner, attr=name, ctx=ast.Store() | ast.Del()) if is_replaced(owner, name):
                yield ast.unparse(node)
            case ast.Subscript(value=owner, ctx=ast.Store() | ast.Del()) if is_namespace(owner):
                yield ast.unparse(node)
            case ast.Attribute(value=owner, attr=name) if name in CHANGES and is_namespace(owner):
                yield ast.unparse(node)
            case ast.Call(func=function, args=arguments):  # setattr(owner, name, value), partial(setattr, owner, name)
                given = [function, *arguments, ast.Constant(None), ast.Constant(None)]
                for setter, owner, name in zip(given, given[1:], given[2:], strict=False):
                    sets = getattr(setter, "id", getattr(setter, "attr", None)) in SETTERS
                    if sets and is_replaced(owner, getattr(name, "value", None)):
                        yield ast.unparse(node)
            case ast.ImportFrom(module="unittest" | "unittest.mock"):
                yield ast.unparse(node)


def test_only_the_mechanism_sets_attributes_of_torch():
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in FILES if path != MECHANISM}
    found = {name: places for name, text in texts.items() if (places := list(find_assignments(text)))}
    assert texts and found == {}


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ntorch.compile = f",
        "import torch\ndel torch.compile",
        "from torch.nn import functional as F\nF.relu = f",
        "import torch._inductor.ir as ir\nsetattr(ir.Layout, name, f)",
        "import torch\nvars(torch)['compile'] = f",
        "import torch\nnamespace = vars(torch)\nnamespace['compile'] = f",
        "import torch\nvars(torch._dynamo).update(optimize=f)",
        "import torch\nstack.callback(vars(torch).__setitem__, 'compile', f)",
        "import torch\npartial(setattr, torch.cuda, 'is_available')",
        "import triton.language as tl\nscope.set_attr(tl.tensor, 'T', f)",
        "import importlib\nlowering = importlib.import_module('torch._inductor.lowering')\nlowering.lowerings = {}",
        "import importlib\n_FAKE = 'torch.fake_tensor'\nimportlib.import_module(_FAKE).init_gpu_context = f",
        "import sys\nfor module in list(sys.modules.values()):\n    setattr(module, 'has_triton', f)",
        "function.__code__ = code",
        "setattr(function, '__code__', code)",
        "operator.py_kernels[key] = f",
        "operator.py_kernels.pop(key)",
        "from unittest import mock",
    ],
)
def test_a_replacement_is_seen(text: str):
    assert list(find_assignments(text))


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ntorch.backends.cudnn.deterministic = True",
        "import torch\nx = torch.ones(1)\nx.grad = None",
        "import torch\nfor leaf in pytree.tree_leaves(torch):\n    leaf.kind = 1",
        "import torch\nconfig = torch.compiler.config\nconfig.cache_key_tag = 'x'",
        "entry.extra_check = check",
        "vars(made).update(values)",
    ],
)
def test_what_is_no_replacement_is_left_alone(text: str):
    assert not list(find_assignments(text))
