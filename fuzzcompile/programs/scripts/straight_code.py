"""A case as straight code, and shorter code with the same meaning: values inlined, modules unwrapped, usual names."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard, TypeVar

from torch.utils._pytree import tree_leaves

from fuzzcompile.model.evidence import ObservableName
from fuzzcompile.programs.edits.changes import list_parameters
from fuzzcompile.programs.ir.case_text import collect_bound_names, find_only_reader, get_assigned_name, put_value
from fuzzcompile.programs.ir.program import Form, Ref, Statement
from fuzzcompile.run.tensors import list_tensors

# Module-level names that only say how a case is run; a script says that where it compiles.
_SETTINGS = ("GRAD", "BACKWARD", "OPTIONS", "CONFIG", "MODE", "DYNAMIC", "FULLGRAPH", "PATH")
Function = ast.FunctionDef | ast.AsyncFunctionDef
Node = TypeVar("Node", bound=ast.stmt)
Tree = TypeVar("Tree", bound=ast.AST)


@dataclass(frozen=True)
class Pieces:
    """A case as straight code.

    ``imports`` and ``definitions`` are those of the module; ``setup`` are the statements of ``make()``, ``callee`` and
    ``arguments`` what it returns. ``parameters`` are the names of the callee's arguments, as far as they are known.
    """

    imports: Sequence[ast.stmt]
    definitions: Sequence[ast.stmt]
    setup: Sequence[ast.stmt]
    callee: ast.expr
    arguments: ast.expr
    parameters: Sequence[str]

    @property
    def function(self) -> ast.FunctionDef | None:
        """The function that is compiled, if it is a plain one."""
        name = self.callee.id if isinstance(self.callee, ast.Name) else None
        return _find_definition(self.definitions, name, ast.FunctionDef)

    @property
    def module(self) -> ast.ClassDef | None:
        """The class of the module that is compiled, if the callee makes one without arguments."""
        return _find_definition(self.definitions, _get_made_class(self.callee), ast.ClassDef)


def split_case(source: str, *, inline: bool = True) -> Pieces:
    """Take a case file apart; a ``make()`` that is no straight code stays a function, which the script calls.

    So does any other, unless it is to be written ``inline``.
    """
    body = ast.parse(source).body
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    made = _find_definition(body, "make", ast.FunctionDef)
    rest = (node for node in body if node not in imports)
    definitions = [node for node in rest if not (isinstance(node, ast.Assign) and get_variable(node) in _SETTINGS)]
    pair = _find_returned_pair(made) if made is not None else None
    taken = collect_bound_names(definitions)
    if not inline or made is None or pair is None or taken & {*collect_bound_names(made.body), "model"}:
        return _call_make(imports, definitions)
    definitions.remove(made)
    pieces = Pieces(imports, definitions, made.body[:-1], *pair, ())
    function, module = pieces.function, pieces.module
    if function is None and module is not None:
        function = _find_definition(module.body, "forward", ast.FunctionDef)
    if function is None or function.args.vararg is not None:
        return pieces
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    return replace(pieces, parameters=names if pieces.function is not None else names[1:])


def _call_make(imports: Sequence[ast.stmt], definitions: Sequence[ast.stmt]) -> Pieces:
    """A case that calls its own ``make()``, under names that it does not have itself."""
    taken = collect_bound_names(definitions)
    choices = (("model", "program", "case_model"), ("inputs", "given", "case_inputs"))
    model, inputs = (next(name for name in names if name not in taken) for names in choices)
    called = ast.parse(f"{model}, {inputs} = make()").body
    return Pieces(imports, definitions, called, ast.Name(model, ast.Load()), ast.Name(inputs, ast.Load()), ())


def get_variable(statement: ast.stmt) -> str:
    """The text of what a statement assigns first; empty for other statements."""
    return ast.unparse(statement.targets[0]) if isinstance(statement, ast.Assign) else ""


def find_names(nodes: Iterable[ast.AST]) -> set[str]:
    """All names that are read or bound anywhere in some trees."""
    inner = [node for root in nodes for node in ast.walk(root)]
    names = {node.id for node in inner if isinstance(node, ast.Name)}
    names |= {node.arg for node in inner if isinstance(node, ast.arg)}
    return names | {node.name for node in inner if isinstance(node, Function | ast.ClassDef)}


def _get_made_class(callee: ast.expr) -> str | None:
    """The class that an expression such as ``Model().eval()`` makes; None if that takes arguments."""
    while isinstance(callee, ast.Call) and not callee.args and not callee.keywords:
        if isinstance(callee.func, ast.Name):
            return callee.func.id
        callee = callee.func.value if isinstance(callee.func, ast.Attribute) else callee.func
    return None


def _find_returned_pair(made: ast.FunctionDef) -> tuple[ast.expr, ast.expr] | None:
    """The callee and the arguments that ``make()`` returns; None if it is no straight code."""
    pair = made.body[-1].value if isinstance(made.body[-1], ast.Return) else None
    own = [node for statement in made.body[:-1] for node in _walk_own(statement)]
    leaves = any(isinstance(node, ast.Return | ast.Yield | ast.Global | ast.Nonlocal) for node in own)
    if leaves or made.args.args or made.args.kwonlyargs or made.decorator_list:
        return None
    return (pair.elts[0], pair.elts[1]) if isinstance(pair, ast.Tuple) and len(pair.elts) == 2 else None


def _walk_own(statement: ast.AST) -> Iterator[ast.AST]:
    yield statement
    if not isinstance(statement, Function | ast.ClassDef | ast.Lambda):
        for child in ast.iter_child_nodes(statement):
            yield from _walk_own(child)


def _find_definition(nodes: Iterable[ast.stmt], name: str | None, kind: type[Node]) -> Node | None:
    return next((node for node in nodes if isinstance(node, kind) and getattr(node, "name", None) == name), None)


# Longest line that inlining may make, and longest for a value whose name says something.
WIDTH = 92
_NAMED_WIDTH = 48
# Names that users give to values and inputs.
_USUAL = frozenset({
    "a", "attention", "attn", "b", "batch", "beta", "bias", "c", "cache", "cond", "freqs", "gamma", "grad", "h",
    "head", "hidden", "idx", "image", "index", "indices", "input", "k", "key", "keys", "labels", "length", "logits",
    "loss", "mask", "mean", "model", "p", "q", "query", "s", "scale", "score", "scores", "seq",
    "src", "std", "t", "target", "tgt", "tokens", "u", "v", "value", "var", "w", "weight",
    "weights", "x", "y", "z",
})  # fmt: skip
_LETTERS = "xyzwuvabcdefgh"


def fold_values(pieces: Pieces, named_width: int = _NAMED_WIDTH) -> Pieces:
    """The same with the single-use values of its functions inlined."""
    definitions = [copy.deepcopy(node) for node in pieces.definitions]
    for node in definitions:
        if isinstance(node, ast.FunctionDef):
            node.body = inline_values(node.body, named_width)
    return replace(pieces, definitions=definitions)


def inline_values(body: Sequence[ast.stmt], named_width: int = _NAMED_WIDTH) -> list[ast.stmt]:
    """Statements with every value that is used once, by a later plain statement, written where it is used.

    A value is left where a statement that may write to memory stands between, or where the line would grow long: one
    whose name says something beyond ``named_width``.
    """
    statements, place = list(body), 0
    while place < len(statements):
        place = 0 if _merge_into_use(statements, place, named_width=named_width) else place + 1
    return statements


def grow_last(body: Sequence[ast.stmt], width: int) -> ast.stmt:
    """The last statement with the values that it uses written into it, the nearest first, in ``width`` characters."""
    statements = list(body)
    for place in reversed(range(len(statements) - 1)):
        _merge_into_use(statements, place, into_last=width)
    return statements[-1]


def _merge_into_use(
    statements: list[ast.stmt], place: int, *, named_width: int = _NAMED_WIDTH, into_last: int | None = None
) -> bool:
    """Write the value of the statement at ``place`` into the only statement that uses it, if that is safe and short.

    With ``into_last`` only the last statement takes it, up to that width.
    """
    statement = statements[place]
    name, reader = get_assigned_name(statement), find_only_reader(statements, place)
    if name is None or reader is None or not isinstance(statement, ast.Assign):
        return False
    if any(map(_may_write, (statement, *statements[place + 1 : reader + 1]))):
        return False
    read, rebound = find_names([statement.value]), collect_bound_names(statements[place + 1 : reader])
    if read & rebound:
        return False  # it would see another value there
    merged = put_value(copy.deepcopy(statements[reader]), name, statement.value)
    width = into_last or (named_width if name in _USUAL else WIDTH)
    if len(ast.unparse(merged)) > width or (into_last is not None and reader != len(statements) - 1):
        return False
    statements[reader] = merged
    del statements[place]
    return True


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _may_write(statement: ast.stmt) -> bool:
    """Return whether a statement may write to memory, or is more than an assignment to names or a ``return``."""
    if not isinstance(statement, ast.Assign | ast.Return):
        return True
    for node in ast.walk(statement):
        if isinstance(node, ast.Lambda | ast.comprehension | ast.NamedExpr):
            return True
        if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store):
            return True
        if isinstance(node, ast.keyword) and node.arg in ("out", "inplace"):
            return True
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("_"):
            return True
    return False


# What a person would leave out, and how a person writes what stays.


def tidy(pieces: Pieces) -> Pieces:
    """The same without values that nothing reads, with short helpers written out, and booleans given by keyword.

    A program that keeps its last value to itself returns it: what else would it be computed for?
    """
    helpers = {node.name: node for node in pieces.definitions if _is_expression(node) and node is not pieces.function}
    changes = (_WritingOut(helpers), _TorchNumbers(), _PlainArguments())

    def write(node: Tree) -> Tree:
        written = copy.deepcopy(node)
        for change in changes:
            written = change.visit(written)
        return written

    tidied = replace(
        pieces,
        definitions=[write(node) for node in pieces.definitions],
        setup=[write(node) for node in pieces.setup],
        arguments=write(pieces.arguments),
    )
    if (function := tidied.function) is not None:
        function.body = _return_last(function)
    return _drop_unread(tidied)


def _return_last(function: ast.FunctionDef) -> list[ast.stmt]:
    """The body with its last value returned, or what a method in place gives back in place of its name."""
    *body, last = function.body
    if isinstance(last, ast.Return) and body and (written := _find_write(body[-1])) is not None:
        wrote, name = written
        if last.value is None or not _is(last.value, name):
            return function.body
        own = body[-2] if len(body) > 1 and get_assigned_name(body[-2]) == name else None
        if isinstance(own, ast.Assign) and isinstance(own.value, ast.Call) and name not in find_names(wrote.args):
            return [*body[:-2], put_value(ast.Return(wrote), name, own.value)]
        return [*body[:-1], ast.Return(wrote)]
    kept = last.value if isinstance(last, ast.Assign | ast.Expr) and _find_write(last) is None else None
    kept = (
        None if isinstance(last, ast.Assign) and get_assigned_name(last) in (None, *_list_arguments(function)) else kept
    )
    returns = any(isinstance(node, ast.Return) for node in ast.walk(function))
    return function.body if returns or kept is None else [*body, ast.Return(kept)]


def _find_write(statement: ast.stmt) -> tuple[ast.Call, str] | None:
    """The call of a method in place that a statement is, and the name that it writes to."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or not call.func.attr.endswith("_"):
        return None
    return (call, call.func.value.id) if isinstance(call.func.value, ast.Name) else None


def _list_arguments(function: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]


def _is_expression(node: ast.stmt) -> TypeGuard[ast.FunctionDef]:
    """A function of positional arguments that only returns an expression, in which each stands once at most."""
    if not isinstance(node, ast.FunctionDef) or len(node.body) != 1 or node.decorator_list or node.name in _CALLED:
        return False
    plain = ast.unparse(node.args) == ", ".join(_list_arguments(node))
    returned = getattr(node.body[0], "value", None) if isinstance(node.body[0], ast.Return) else None
    names = [inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)]
    return plain and returned is not None and all(names.count(name) <= 1 for name in _list_arguments(node))


class _WritingOut(ast.NodeTransformer):
    def __init__(self, helpers: Mapping[str, ast.FunctionDef]) -> None:
        self._helpers = helpers

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        helper = self._helpers.get(node.func.id) if isinstance(node.func, ast.Name) else None
        if helper is None or node.keywords or len(node.args) != len(_list_arguments(helper)):
            return node
        returned = copy.deepcopy(helper.body[0])
        for name, value in zip(_list_arguments(helper), node.args, strict=True):
            returned = put_value(returned, name, value)
        return returned.value if isinstance(returned, ast.Return) and returned.value is not None else node


class _TorchNumbers(ast.NodeTransformer):
    """``torch.nan`` and ``torch.inf``, which need no import."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Attribute(ast.Name("torch", ast.Load()), node.id, node.ctx) if node.id in ("nan", "inf") else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        text = getattr(node.args[0], "value", None) if _is(node.func, "float") and node.args else None
        written = {"nan": "torch.nan", "inf": "torch.inf", "-inf": "-torch.inf"}.get(str(text))
        return node if written is None else ast.parse(written, mode="eval").body


class _PlainArguments(ast.NodeTransformer):
    """Booleans by keyword, and no keyword that gives an argument the value that it has without it."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        names, defaults = _find_parameters(node)
        if len(names) < len(node.args):
            return node
        flags = [n for n, given in enumerate(node.args) if isinstance(getattr(given, "value", None), bool)]
        first = flags[0] if flags else len(node.args)
        named = [ast.keyword(*pair) for pair in zip(names, node.args, strict=False)][first:]
        kept = [given for given in (*named, *node.keywords) if not _is_default(given, defaults)]
        return ast.Call(node.func, node.args[:first], kept)


def _is_default(given: ast.keyword, defaults: Mapping[str, object]) -> bool:
    default, value = defaults.get(str(given.arg), ...), given.value
    return isinstance(value, ast.Constant) and type(value.value) is type(default) and value.value == default


def _find_parameters(node: ast.Call) -> tuple[list[str], Mapping[str, object]]:
    """Names of what a call of torch takes in its parentheses, and their defaults; none if they are not known."""
    if not isinstance(node.func, ast.Attribute) or any(keyword.arg is None for keyword in node.keywords):
        return [], {}
    space, name = ast.unparse(node.func.value), node.func.attr
    called = {"torch": f"torch.{name}", "F": f"F.{name}", "torch.nn.functional": f"F.{name}"}.get(space)
    given = tuple(_as_value(value) for value in (node.args if called else [node.func.value, *node.args]))
    keywords = {str(keyword.arg): _as_value(keyword.value) for keyword in node.keywords}
    form: Form = "function" if called else "method"
    # A function that returns indices if it is asked for them is two.
    for target in (called or name, f"{called}_with_indices"):
        names, defaults = list_parameters(Statement("", form, target, given, keywords))
        if names and names != ["args", "kwargs"]:
            return names[len(given) - len(node.args) :], defaults
    return [], {}


def _as_value(node: ast.expr) -> object:
    """An argument as a statement of a program has it: a constant, or else a value of the program."""
    if isinstance(node, ast.List | ast.Tuple):
        return [_as_value(part) for part in node.elts]
    return node.value if isinstance(node, ast.Constant) else Ref("")


# Functions that the end of a script may call.
_CALLED = ("make", "run")


def _drop_unread(pieces: Pieces) -> Pieces:
    kept, ends = [*pieces.definitions, *pieces.setup], [pieces.callee, pieces.arguments]
    for node in reversed(kept):
        defines = isinstance(node, Function | ast.ClassDef)
        name = node.name if isinstance(node, Function | ast.ClassDef) else get_assigned_name(node)
        idle = defines or (node in pieces.setup and not _may_write(node))
        if (
            idle
            and name is not None
            and name not in (*_CALLED, *find_names(x for x in (*kept, *ends) if x is not node))
        ):
            kept = [other for other in kept if other is not node]
    definitions, setup = ([node for node in part if node in kept] for part in (pieces.definitions, pieces.setup))
    return replace(pieces, definitions=definitions, setup=setup)


# A program that computes several values, for one of them.


def narrow(source: str, inputs: object, outputs: object, name: str) -> tuple[str, str] | None:
    """The case with what one observable needs alone, and the name of the observable there.

    ``inputs`` and ``outputs`` are those of a call. None if the program is no plain function that returns several values
    in a tuple, or if a gradient is of more than one of them.
    """
    tree, observable = ast.parse(source), ObservableName.parse(name)
    parts, leaf = _find_returned_values(tree), observable.leaf
    if parts is None or leaf is None or not isinstance(inputs, tuple) or not isinstance(outputs, tuple):
        return None
    function, given, values = parts
    parameters, counts = _list_arguments(function), [len(list_tensors(value)) for value in inputs]
    if not len(given.elts) == len(parameters) == len(counts) or not 1 < len(values) == len(outputs):
        return None
    needs = [_find_needed(function.body[:-1], value) for value in values]
    if observable.derivative == "gradient" and leaf.kind == "input":
        asked, index = _find_part(counts, leaf.index)
        places = [n for n, (_, names) in enumerate(needs) if parameters[asked] in names]
    elif str(observable) == observable.what and leaf.kind == "out":
        asked = 0
        place, index = _find_part([len(tree_leaves(value)) for value in outputs], leaf.index)
        places = [place]
    else:
        return None
    if len(places) != 1:
        return None
    body, names = needs[places[0]]
    index += sum(count for count, parameter in zip(counts[:asked], parameters, strict=False) if parameter in names)
    function.body = [*body, ast.Return(values[places[0]])]
    function.args.args = [argument for argument in function.args.args if argument.arg in names]
    given.elts = [value for value, parameter in zip(given.elts, parameters, strict=True) if parameter in names]
    what = f"{leaf.kind}{index}{''.join(f'.{part}' for part in leaf.path)}"
    return ast.unparse(ast.fix_missing_locations(tree)), str(replace(observable, what=what))


def _find_returned_values(tree: ast.Module) -> tuple[ast.FunctionDef, ast.Tuple, list[ast.expr]] | None:
    """The function that ``make()`` returns, the tuple of its inputs, and the values that it returns in a tuple."""
    made = _find_definition(tree.body, "make", ast.FunctionDef)
    callee, given = (_find_returned_pair(made) if made is not None else None) or (None, None)
    function = _find_definition(tree.body, callee.id if isinstance(callee, ast.Name) else None, ast.FunctionDef)
    returned = function.body[-1].value if function is not None and isinstance(function.body[-1], ast.Return) else None
    if function is None or not isinstance(given, ast.Tuple) or not isinstance(returned, ast.Tuple):
        return None
    return function, given, returned.elts


def _find_part(counts: Sequence[int], index: int) -> tuple[int, int]:
    """The number of the part that holds a leaf, and the leaf's index in it."""
    for number, count in enumerate(counts):
        if index < count:
            return number, index
        index -= count
    raise IndexError(index)


def _find_needed(body: Sequence[ast.stmt], value: ast.expr) -> tuple[list[ast.stmt], set[str]]:
    """The statements that a value needs, and those that may write to memory; all names in them."""
    kept, names = list[ast.stmt](), find_names([value])
    for statement in reversed(body):
        if _may_write(statement) or collect_bound_names([statement]) & names:
            kept.insert(0, statement)
            names |= find_names([statement])
    return kept, names


# What a module holds becomes variables of the script, its ``forward`` a function.


def unwrap_module(pieces: Pieces) -> Pieces:
    """The same with a module that only holds others (or nothing) and a ``forward`` written as a function.

    What the module holds becomes variables of the script. Any other module stays.
    """
    model = pieces.module
    if model is None or model.decorator_list or model.keywords:
        return pieces
    function, held = _find_definition(model.body, "forward", ast.FunctionDef), _find_attributes(model)
    if function is None or held is None or not _only_reads(function, held):
        return pieces
    if set(held) & ({argument.arg for argument in function.args.args[1:]} | _find_locals(function)):
        return pieces
    if set(held) & find_names(pieces.setup):
        return pieces
    plain = _Unbinding().visit(copy.deepcopy(function))
    plain.name, plain.args.args = "f", plain.args.args[1:]
    mode = ".eval()" if ".eval()" in ast.unparse(pieces.callee) else ""
    definitions, variables = [plain if node is model else node for node in pieces.definitions], []
    for name, value in held.items():
        is_module = isinstance(value, ast.Call) and not ast.unparse(value.func).startswith(("torch.", "nn.Parameter"))
        variables += ast.parse(f"{name} = {ast.unparse(value)}{mode if is_module else ''}").body
    return replace(pieces, definitions=definitions, setup=[*variables, *pieces.setup], callee=ast.Name("f", ast.Load()))


class _Unbinding(ast.NodeTransformer):
    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return ast.Name(node.attr, node.ctx) if _is(node.value, "self") else self.generic_visit(node)


def _find_attributes(model: ast.ClassDef) -> dict[str, ast.expr] | None:
    """Return the attributes that ``__init__`` assigns, by name; None if it does more or takes arguments."""
    methods = [node for node in model.body if not isinstance(node, ast.Pass)]
    made = _find_definition(methods, "__init__", ast.FunctionDef)
    if any(not isinstance(node, ast.FunctionDef) or node.name not in ("__init__", "forward") for node in methods):
        return None
    if made is None:
        return {}
    if len(made.args.args) != 1 or made.args.kwonlyargs or made.args.vararg or made.args.kwarg:
        return None
    held: dict[str, ast.expr] = {}
    for statement in made.body:
        if re.fullmatch(r"super\((\w+, self)?\)\.__init__\(\)", ast.unparse(statement)):
            continue
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if not isinstance(target, ast.Attribute) or not _is(target.value, "self"):
            return None
        if not isinstance(statement, ast.Assign) or "self" in find_names([statement.value]):
            return None
        held[target.attr] = statement.value
    return held


def _only_reads(function: ast.FunctionDef, held: Collection[str]) -> bool:
    inner = list(ast.walk(function))
    attributes = [node for node in inner if isinstance(node, ast.Attribute) and _is(node.value, "self")]
    reads = [node for node in attributes if isinstance(node.ctx, ast.Load) and node.attr in held]
    return len(reads) == sum(_is(node, "self") for node in inner)


def _find_locals(function: ast.FunctionDef) -> set[str]:
    names = (node for node in ast.walk(function) if isinstance(node, ast.Name))
    return {node.id for node in names if isinstance(node.ctx, ast.Store)}


def call_directly(pieces: Pieces) -> Pieces:
    """The same without a function that only calls one of the script's modules."""
    function = pieces.function
    returned = function.body[-1] if function is not None else None
    call = returned.value if isinstance(returned, ast.Return) else None
    if function is None or len(function.body) != 1 or not isinstance(call, ast.Call) or call.keywords:
        return pieces
    passed = [ast.unparse(argument) for argument in call.args]
    held = isinstance(call.func, ast.Name) and call.func.id in map(get_variable, pieces.setup)
    if not held or passed != list(pieces.parameters):
        return pieces
    return replace(pieces, definitions=[node for node in pieces.definitions if node is not function], callee=call.func)


# Names as users give them.


def rename_for_users(pieces: Pieces, kinds: Sequence[str] = ()) -> Pieces:
    """The same with the function called ``f``, and its arguments by names that users give.

    ``kinds`` are names for arguments that are called nothing usual; "" for any letter.
    """
    function = pieces.function
    if function is None:
        return pieces
    taken = find_names([*pieces.imports, *pieces.definitions, *pieces.setup, pieces.arguments]) | {"torch", "nn", "F"}
    names: dict[str, str] = {}
    for place, name in enumerate(pieces.parameters):
        kind = kinds[place] if place < len(kinds) else ""
        names[name] = _choose_usual_name(name, kind, taken - {name} | set(names.values()))
    outer = _Renaming(dict(names))
    parameters = list(names.values())
    gone = set(names) - set(parameters)
    for name in sorted(_find_locals(function)):
        plain = name.rstrip("0123456789_")
        if plain and plain not in (taken - gone) | set(names.values()) and plain != function.name:
            names[name] = plain
    inner = _Renaming(names).visit(copy.deepcopy(function))
    inner.name = "f" if "f" not in taken or function.name == "f" else function.name
    return replace(
        pieces,
        definitions=[inner if node is function else node for node in pieces.definitions],
        setup=[outer.visit(copy.deepcopy(node)) for node in pieces.setup],
        arguments=outer.visit(copy.deepcopy(pieces.arguments)),
        callee=ast.Name(inner.name, ast.Load()),
        parameters=parameters,
    )


class _Renaming(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self._names.get(node.id, node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(self._names.get(node.arg, node.arg), node.annotation)


def _choose_usual_name(name: str, kind: str, taken: set[str]) -> str:
    """A name as a user writes it: itself, its last usual words, its kind, or a letter."""
    words = name.rstrip("0123456789_").split("_")
    endings = ("_".join(words[start:]) for start in range(len(words)))
    usual = [ending for ending in endings if ending in _USUAL or ending in ("running_mean", "running_var")]
    return next((wanted for wanted in (*usual, kind, *_LETTERS) if wanted and wanted not in taken), name)
