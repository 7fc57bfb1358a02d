"""The operation that a finding is about and the nearest program that passes, in the words of the user's script."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from fuzzcompile.model.contract import CauseJson
from fuzzcompile.model.culprit_contract import read_details
from fuzzcompile.model.privacy import fold_lines
from fuzzcompile.model.stages import DYNAMO
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.report.circumstances import WORDS
from fuzzcompile.report.finding_facts import IssueFacts, case_part, parse_code
from fuzzcompile.report.mechanism import ARRANGING, list_fused

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
    found += [f"`{name}`" for name in [_name_of(written, facts)] if name and not known]
    found = found or [f"`{name}`" for name in _list_of_culprit(facts)]
    made = str(read_details(facts.culprit).get("output of") or "").partition(".")[0]
    called = [made] * bool(made and made not in ARRANGING) or list(dict.fromkeys(_iter_names(_parse_program(facts))))
    if not found and (names := [f"`{name}`" for name in called or _list_in_evidence(facts)][:_MOST]):
        found += [f"a program with {', '.join(names[:-1])}{' and ' * bool(names[:-1])}{names[-1]}"]
        found += [f"a program with {names[0]}"]
    return tuple(dict.fromkeys(found))


def _computes(text: str) -> bool:
    """Return whether a text is more than a name or a container of names."""
    nodes = (ast.Call, ast.BinOp, ast.Compare, ast.UnaryOp, ast.Subscript, ast.AugAssign, ast.Assign)
    return any(isinstance(node, nodes) for statement in parse_code(text) for node in ast.walk(statement))


def is_in_script(facts: IssueFacts, text: str) -> bool:
    """Return whether code between backticks stands so in the script that is shown; True of other words."""
    code, script = (ast.unparse(ast.Module(parse_code(each), [])) for each in (text.strip("`"), facts.plain))
    return not facts.plain or facts.without_compiler or not text.startswith("`") or not code or code in script


def _name_of(text: str, facts: IssueFacts) -> str:
    """The name of the outermost operation of an expression, as ``torch.cat`` or ``softmax``; empty if it has none."""
    statement = next(iter(parse_code(text)), None)
    value = getattr(statement, "value", None)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        imports = [each for each in parse_code(facts.plain) if isinstance(each, ast.ImportFrom)]
        return next((name.name for each in imports for name in each.names if name.name == value.func.id), "")
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
    if match := re.match(r"(?:aten|prims)\.\w+|(?!torch\.|F\.)\w+\.\w+(?=\.\w+$)", name):
        return [match[0]]
    # An instruction is no word of the user's, nor are the effects of a call.
    is_construct = culprit.get("stage") == DYNAMO and not re.fullmatch(r"\w+|[A-Z]+_[A-Z_]+ .*|side effects", name)
    return [name] if name and (name.startswith(("torch.", "F.")) or is_construct) else []


def _list_in_evidence(facts: IssueFacts) -> list[str]:
    """Operators that the evidence names beside a culprit that is none: of the code that failed, a write, a kernel."""
    culprit, details = facts.culprit or {}, read_details(facts.culprit)
    nodes = culprit.get("nodes") or []
    if (name := culprit.get("rewrite")) in nodes:
        return [str(name)]
    if details.get("error") and details.get("operators"):
        return details["operators"]
    if details.get("kind") in ("analysis", "raised", "regenerated"):
        return [re.sub(r"_\d+$", "", node) for node in nodes]
    fused = list_fused(details)
    return fused if len(fused) == 1 else []


def _parse_program(facts: IssueFacts) -> list[ast.AST]:
    """The functions of the program that are compiled."""
    statements = parse_code(facts.plain or case_part(facts.reproducer))
    inner = [node for statement in statements for node in ast.walk(statement) if isinstance(node, ast.FunctionDef)]
    return [node for node in inner if node.name not in ("make", "run", "__init__")]


# The nearest program that passes, in the words of the script that a reader sees.

_LONG_CALL = 40  # characters of a call of which the one argument that matters says more
_ARGUMENT = re.compile(r"(\w+)\((\w+)\)$")  # of an operator, in a cause's fingerprint
# Names of values, not of functions, attributes or keywords.
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?![\w.(]|\s*=)")
_NAMED = re.compile(r"^\w+ of (?!\d)")  # "mask of bool", "x of shape (1, 2)"; not "size of 1"


def tell_neighbour(facts: IssueFacts) -> str:
    """The nearest case that passes, without names of tensors: the script may call them otherwise."""
    before, after = (_NAMED.sub("", side) for side in _list_sides(facts))
    if not before or not after:
        return ""
    fine = "it compiles" if facts.verdict == Verdict.COMPILE_ERROR else "the result is correct"
    if (facts.cause or {}).get("kind") == "layout" and after.startswith("contiguous "):
        return f"With a contiguous input {fine}."
    if keywords := list_changed_keywords(facts):
        same = "; compiled, it is the same with both" if (facts.cause or {}).get("computes") == "neighbour" else ""
        return f"With `{keywords[1]}` instead of `{keywords[0]}` {fine}{same}."
    if in_users_words(facts, before, after):
        return f"With {_quoted(after)} instead of {_quoted(before)} {fine}."
    method, call = after.removeprefix(before), before.partition(".")[2]
    if method in (".clone()", ".contiguous()") and call and (facts.expression or "").endswith(f".{call}"):
        return f"With `{method}` behind it {fine}."
    reordered = _find_reordered(facts)
    return f"With {reordered} in their usual order the result is correct." if reordered else ""


def find_ignored(facts: IssueFacts) -> str | None:
    """Return what is ignored, if the compiled program computes what eager computes on the nearest case that passes."""
    cause: CauseJson = facts.cause or {}
    if cause.get("computes") != "neighbour" or cause.get("kind") not in ("argument", "value"):
        return None
    before, after = _list_sides(facts)
    called = _ARGUMENT.search(str(cause.get("fingerprint") or ""))
    if called and re.search(rf"\b{called[2]}\s*=", before):
        own: object = re.search(rf"\b{called[1]}(\.\w+)?\(", (facts.expression or "").partition(")")[0])
        own = own or any(re.fullmatch(rf"`(?:\w+\.)*{called[1]}`", name) for name in name_operations(facts))
        return f"ignores `{called[2]}`" + ("" if own else f" of `{called[1]}`")
    if " = " in before:  # an input with other values
        return None
    if not before or not after:
        return None
    if not in_users_words(facts, before, after):
        return f"ignores the order of {reordered}" if (reordered := _find_reordered(facts)) else None
    if keywords := list_changed_keywords(facts):
        return f"ignores `{keywords[0].partition('=')[0]}`"
    if facts.expression and before in facts.expression:
        return f"is computed as `{facts.expression.replace(before, after)}`"
    if called:
        return f"ignores `{called[2]}` of `{called[1]}`"
    return f"computes `{after}` instead of `{before}`"


def list_changed_keywords(facts: IssueFacts) -> Sequence[str]:
    """The argument that the nearest case that passes changes, by keyword on either side; none where the call is short.

    It is the only constant in which two long calls differ.
    """
    before, after = _list_sides(facts)
    called = _ARGUMENT.search(str((facts.cause or {}).get("fingerprint") or ""))
    if called is None or len(before) < _LONG_CALL or not re.match(rf"[\w.]*\b{called[1]}\(", before):
        return ()
    changed = _find_changed_constant(before, after)
    name = _name_in_script(facts, called[1], before, after) or called[2]
    return () if changed is None else [f"{name}={side}" for side in changed]


def _name_in_script(facts: IssueFacts, operator: str, before: str, after: str) -> str | None:
    """The keyword by which the script that is shown passes the positional argument that two calls differ in."""
    sides = [
        next((node for node in _parse_arguments(side)[3:] if isinstance(node, ast.Call)), None)
        for side in (before, after)
    ]
    args = [[ast.unparse(arg) for arg in side.args] for side in sides if side is not None]
    at = next((number for number, (left, right) in enumerate(zip(*args, strict=False)) if left != right), None)
    for node in ast.walk(ast.Module(parse_code(facts.plain), [])):
        if at is not None and isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == operator:
            given = node.keywords[max(0, at - len(node.args)) :]
            return given[0].arg if given and at >= len(node.args) else None
    return None


def _find_changed_constant(before: str, after: str) -> tuple[str, str] | None:
    sides = [_parse_arguments(text)[3:] for text in (before, after)]
    pairs = list(zip(*sides, strict=False)) if len(sides[0]) == len(sides[1]) else []
    if not pairs or any(type(left) is not type(right) for left, right in pairs):
        return None
    names = [(ast.unparse(left), ast.unparse(right)) for left, right in pairs if isinstance(left, ast.Name)]
    constants = [(ast.unparse(left), ast.unparse(right)) for left, right in pairs if isinstance(left, ast.Constant)]
    changed = [pair for pair in constants if pair[0] != pair[1]]
    return changed[0] if len(changed) == 1 and all(left == right for left, right in names) else None


def name_trigger(facts: IssueFacts) -> str:
    """What the nearest program that passes has otherwise, if the script that is shown has it; else empty."""
    before = re.sub(r"^\w+ = ", "", _NAMED.sub("", _list_sides(facts)[0]))
    is_shown = before in (facts.plain or "") or is_in_script(facts, f"`{before}`") or not parse_code(before)
    return before if before and is_shown else ""


def _find_reordered(facts: IssueFacts) -> str | None:
    """The argument whose parts the nearest case that passes has in another order; None if it differs otherwise."""
    before, after = (sorted(_NAME.findall(side)) for side in _list_sides(facts))
    argument = _ARGUMENT.search(str((facts.cause or {}).get("fingerprint") or ""))
    return f"its `{argument[2]}`" if argument and before == after and len(before) > 1 else None


def in_users_words(facts: IssueFacts, *texts: str) -> bool:
    """Return whether every name in texts that are code stands in the script or the expression that the reader sees."""
    plain = facts.shown.get("plain") or ""
    seen = f"{plain}\n{facts.expression or ''}"
    names, composed = list[str](), (ast.Call, ast.Subscript, ast.List)
    for text in texts:  # code that calls or indexes something, not a name or words such as "shape (1, 2)"
        nodes = _parse_arguments(text)[3:]
        if not re.search(r"\w \(", text) and any(isinstance(node, composed) for node in nodes):
            names += [node.id for node in nodes[1:] if isinstance(node, ast.Name)]
    return not plain or all(re.search(rf"\b{name}\b", seen) for name in names)


def _list_sides(facts: IssueFacts) -> tuple[str, str]:
    cause: CauseJson = facts.cause or {}
    return str(cause.get("before") or ""), str(cause.get("after") or "")


def _quoted(text: str) -> str:
    flat = fold_lines(text, 80)
    return f"`{flat}`" if not re.search(r"\w \(", flat) and _parse_arguments(flat) else flat


def _parse_arguments(text: str) -> list[ast.AST]:
    try:
        return list(ast.walk(ast.parse(f"call({text})")))
    except (SyntaxError, ValueError):
        return []
