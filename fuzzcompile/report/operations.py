"""The operation that a finding is about, in the user's words: as it is written, or by its name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from fuzzcompile.model.stages import DYNAMO
from fuzzcompile.report.circumstances import WORDS
from fuzzcompile.report.finding_facts import IssueFacts, case_part, parse_code

# Of a program that nothing smaller is named of, so many operations are named.
_MOST = 3
_OPERATORS: dict[type[ast.AST], str] = {
    ast.MatMult: "@", ast.Mod: "%", ast.FloorDiv: "//", ast.Pow: "**", ast.LShift: "<<", ast.RShift: ">>",
}  # fmt: skip
# What makes a program's values and what takes them apart, not what it is about.
_AROUND = {
    "randn", "rand", "randint", "ones", "zeros", "full", "tensor", "arange", "manual_seed", "compile", "print", "len",
    "eval", "train", "range", "super", "Size", "no_grad", "inference_mode", "enable_grad", "numpy", "cpu",
}  # fmt: skip


def name_operations(facts: IssueFacts) -> tuple[str, ...]:
    """The ways to name the operation at fault, the most telling first; none where nothing names it.

    These are: the expression as it is written, if it calls or computes something; the name of what it calls; what the
    culprit is called, if that is an operator or a construct of Python; what the program calls.
    """
    written, known = facts.expression or "", WORDS["subjects"].get(str((facts.culprit or {}).get("family")))
    found = [known] if known else []
    found += [f"`{written}`"] if _computes(written) and not written.endswith("(...)") else []
    found += [f"`{name}`" for name in [_name_of(written)] if name and not known]
    found = found or [f"`{name}`" for name in _list_of_culprit(facts)]
    if not found and (names := [f"`{name}`" for name in dict.fromkeys(_iter_names(_parse_program(facts)))][:_MOST]):
        found += [f"a program with {', '.join(names[:-1])}{' and ' * bool(names[:-1])}{names[-1]}"]
        found += [f"a program with {names[0]}"]
    return tuple(dict.fromkeys(found))


def _computes(text: str) -> bool:
    """Return whether a text is more than a name or a container of names."""
    nodes = (ast.Call, ast.BinOp, ast.Compare, ast.UnaryOp, ast.Subscript, ast.AugAssign, ast.Assign)
    return any(isinstance(node, nodes) for statement in parse_code(text) for node in ast.walk(statement))


def _name_of(text: str) -> str:
    """The name of the outermost operation of an expression, as ``torch.cat`` or ``softmax``; empty if it has none."""
    statement = next(iter(parse_code(text)), None)
    value = getattr(statement, "value", None)
    return next(iter(_iter_names([value] if isinstance(value, ast.AST) else [])), "")


def _iter_names(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Names of the operations in trees, the outermost first."""
    for node in nodes:
        if isinstance(node, ast.Call) and (name := _name_call(node.func)):
            yield name
        elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            yield _OPERATORS[type(node.op)]
        yield from _iter_names(list(ast.iter_child_nodes(node)))


def _name_call(function: ast.expr) -> str:
    """The name of a function of torch's, or of a method; empty for what only stands around it."""
    text = ast.unparse(function).replace("torch.nn.functional.", "F.")
    name = text.rpartition(".")[2]
    if name in _AROUND or not isinstance(function, ast.Attribute) or text.startswith("self."):
        return ""
    if operator := re.match(r"torch\.ops\.(aten\.\w+)", text):
        return operator[1]
    return text if re.fullmatch(r"(torch|F|nn)[.\w]+", text) else name


def _list_of_culprit(facts: IssueFacts) -> list[str]:
    culprit = facts.culprit or {}
    name = str(culprit.get("rewrite") or "").replace("torch.nn.functional.", "F.")
    if match := re.match(r"(aten|prims)\.\w+", name):
        return [match[0]]
    is_construct = culprit.get("stage") == DYNAMO and not name.isidentifier()
    return [name] if name and (name.startswith(("torch.", "F.")) or is_construct) else []


def _parse_program(facts: IssueFacts) -> list[ast.AST]:
    """The functions of the program that are compiled."""
    statements = parse_code(facts.plain or case_part(facts.reproducer))
    inner = [node for statement in statements for node in ast.walk(statement) if isinstance(node, ast.FunctionDef)]
    return [node for node in inner if node.name not in ("make", "run", "__init__")]
