"""Drawing variations: one to three operators on a case, rendered as a case file that needs torch alone."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fuzzcompile.compiler.inductor_toggles import collect_config, collect_options, find_toggle
from fuzzcompile.fuzz.case_survey import Survey, SurveyedInput, survey_case
from fuzzcompile.model.templates import get_template
from fuzzcompile.programs.edits.tensor_values import LAYOUTS, VALUES, fill_expression, find_functions

__all__ = ["Survey", "Variation", "draw_variation", "survey_case"]


# Operators on the text of a program: near misses of it, made by replacing pieces of its source.

# Functions of a case file that are not part of the program.
_NOT_VARIED = ("make", "run")
_AXIS_CALLS = ("softmax", "log_softmax", "sum", "mean", "amax", "amin", "cumsum", "argmax", "norm", "var", "std")
_AXES = (-1, -2, 0, 1, -3)
_CONSTANTS = ("0.0", "1.0", "-1.0")


@dataclass(frozen=True)
class SourceEdit:
    """A piece of source (offsets in characters) and its replacement; ``name`` is that of the operator."""

    name: str
    start: int
    end: int
    text: str


def list_edits(source: str) -> list[SourceEdit]:
    """Every single edit that some operator can make to the functions and methods of the program."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    text = _Text(source)
    edits = (
        edit for node in _iter_program_nodes(tree) for operator in _EDIT_OPERATORS for edit in operator(node, text)
    )
    return list(dict.fromkeys(edits))


def apply_edit(source: str, edit: SourceEdit) -> str:
    """The source with one edit made."""
    return source[: edit.start] + edit.text + source[edit.end :]


class _Text:
    """Source by offset: ``ast`` counts lines, and bytes within them."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Start and end of a node."""
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno or 0, node.end_col_offset or 0)

    def find_text(self, node: ast.expr | ast.stmt) -> str:
        """A node's text."""
        start, end = self.span(node)
        return self.source[start:end]

    def replace(self, name: str, node: ast.expr | ast.stmt, text: str) -> SourceEdit:
        """An edit of a whole node."""
        return SourceEdit(name, *self.span(node), text)

    def _offset(self, line: int, column: int) -> int:
        prefix = self._lines[line - 1].encode()[:column].decode()
        return self._starts[line - 1] + len(prefix)


def _iter_program_nodes(tree: ast.Module) -> Iterator[ast.AST]:
    """Nodes inside functions and methods, except constructors and functions that only drive the case."""
    for statement in tree.body:
        functions = [statement] if isinstance(statement, ast.FunctionDef) else []
        if isinstance(statement, ast.ClassDef):
            functions = [inner for inner in statement.body if isinstance(inner, ast.FunctionDef)]
        for function in functions:
            if function.name not in _NOT_VARIED and not function.name.startswith("__init"):
                yield function
                for inner in function.body:
                    yield from ast.walk(inner)


def _edit_axis(node: ast.AST, text: _Text) -> Iterator[SourceEdit]:
    """Another axis."""
    if not isinstance(node, ast.Call):
        return
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    axes = [keyword.value for keyword in node.keywords if keyword.arg in ("dim", "axis")]
    axes += [argument for argument in node.args if name in _AXIS_CALLS and _read_whole(argument) is not None]
    for axis in axes:
        present = _read_whole(axis)
        if present is not None:
            yield from (text.replace("axis", axis, str(wanted)) for wanted in _AXES if wanted != present)


def _edit_constant(node: ast.AST, text: _Text) -> Iterator[SourceEdit]:
    """A factor, divisor or summand that is 0, 1 or -1."""
    for operand in _list_literal_operands(node):
        yield from (text.replace("constant", operand, constant) for constant in _CONSTANTS)


def _edit_scalar_tensor(node: ast.AST, text: _Text) -> Iterator[SourceEdit]:
    """A number given as a tensor without dimensions, or with one of size one."""
    for operand in _list_literal_operands(node):
        yield text.replace("scalar_as_tensor", operand, f"torch.tensor({text.find_text(operand)})")
        yield text.replace("scalar_as_tensor", operand, f"torch.tensor([{text.find_text(operand)}])")


def _edit_swap(node: ast.AST, text: _Text) -> Iterator[SourceEdit]:
    """Operands swapped."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mult)):
        sign = "+" if isinstance(node.op, ast.Add) else "*"
        yield text.replace("swapped", node, f"({text.find_text(node.right)}) {sign} ({text.find_text(node.left)})")


def _edit_reciprocal(node: ast.AST, text: _Text) -> Iterator[SourceEdit]:
    """A division written as a multiplication, and the reverse."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.Mult)):
        sign = "*" if isinstance(node.op, ast.Div) else "/"
        yield text.replace(
            "reciprocal", node, f"({text.find_text(node.left)}) {sign} (1.0 / ({text.find_text(node.right)}))"
        )


def _edit_layout(node: ast.AST, text: _Text) -> Iterator[SourceEdit]:
    """A copy after a change of layout, or none where there was one."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return
    if node.func.attr in ("transpose", "permute", "view", "reshape", "expand", "unflatten", "flatten"):
        yield text.replace("contiguous", node, f"{text.find_text(node)}.contiguous()")
    if node.func.attr == "contiguous":
        yield text.replace("not_contiguous", node, text.find_text(node.func.value))


def _edit_permutation(node: ast.AST, text: _Text) -> Iterator[SourceEdit]:
    """Two axes of a permutation exchanged."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "permute":
        return
    for left, right in zip(node.args, node.args[1:], strict=False):
        if _read_whole(left) is not None and _read_whole(right) is not None:
            start, end = text.span(left)[0], text.span(right)[1]
            yield SourceEdit("permuted", start, end, f"{text.find_text(right)}, {text.find_text(left)}")


def _edit_in_place(node: ast.AST, text: _Text) -> Iterator[SourceEdit]:
    """``x = x + y`` as ``x += y``, which also changes aliases of ``x``."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
        return
    value, name = node.value, node.targets[0].id
    signs = {ast.Add: "+=", ast.Sub: "-=", ast.Mult: "*=", ast.Div: "/="}
    if isinstance(value, ast.BinOp) and isinstance(value.left, ast.Name) and value.left.id == name:
        sign = signs.get(type(value.op))
        if sign is not None:
            yield text.replace("in_place", node, f"{name} {sign} {text.find_text(value.right)}")


def _edit_returns(node: ast.AST, text: _Text) -> Iterator[SourceEdit]:
    """An intermediate value that is returned as well, and so has another user."""
    if not isinstance(node, ast.FunctionDef):
        return
    last = node.body[-1]
    if not isinstance(last, ast.Return) or last.value is None or isinstance(last.value, ast.Tuple):
        return
    for statement in node.body[:-1]:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            yield text.replace("also_returned", last, f"return {text.find_text(last.value)}, {statement.targets[0].id}")


def _list_literal_operands(node: ast.AST) -> list[ast.expr]:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div)):
        return []
    sides = (node.left, node.right)
    return [side for side in sides if isinstance(side, ast.Constant) and type(side.value) in (int, float)]


def _read_whole(node: ast.expr) -> int | None:
    """The value of a whole number that is written out."""
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return value if type(value) is int else None


_EDIT_OPERATORS: tuple[Callable[[ast.AST, _Text], Iterator[SourceEdit]], ...] = (
    _edit_axis,
    _edit_constant,
    _edit_scalar_tensor,
    _edit_swap,
    _edit_reciprocal,
    _edit_layout,
    _edit_permutation,
    _edit_in_place,
    _edit_returns,
)


_SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 0)
_MOST_OPERATORS = 3


@dataclass(frozen=True)
class Variation:
    """A varied case file, and the names of the operators that made it."""

    source: str
    operators: tuple[str, ...]


@dataclass
class _Draft:
    """An unfinished variation: lines for the parts of the template, and the source that they follow."""

    survey: Survey
    rng: random.Random
    source: str
    names: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    model: list[str] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    toggles: list[str] = field(default_factory=list)
    second: str = ""
    autocast: bool = False

    def render(self) -> str:
        """The whole file."""
        settings = [f"{name} = {value}" for name, value in self.settings.items()]
        if compile_options := collect_options(tuple(self.toggles)):
            settings.append(f"OPTIONS = {{**globals().get('OPTIONS', {{}}), **{compile_options!r}}}")
        if inductor := collect_config(tuple(self.toggles)):
            own = "globals().get('CONFIG', {})"
            settings.append(f"CONFIG = {{**{own}, 'inductor': {{**{own}.get('inductor', {{}}), **{inductor!r}}}}}")
        if self.second:
            settings.append(self.second)
        return (
            get_template("variations/varied.py.j2")
            .render(
                source=self.source.rstrip(),
                names=self.names,
                inputs=self.inputs,
                functions=find_functions(self.inputs),
                model=self.model,
                settings=settings,
                own_calls=self.survey.own_calls,
                second=bool(self.second),
                autocast=self.autocast,
            )
            .rstrip()
            + "\n"
        )


def draw_variation(survey: Survey, rng: random.Random) -> Variation:
    """Draw a variation of a surveyed case, with choices from ``rng``; it may turn out not to run in eager mode."""
    draft = _Draft(survey, rng, survey.source)
    wanted = rng.choice(range(1, _MOST_OPERATORS + 1))
    operators = list(_VARIATIONS)
    rng.shuffle(operators)
    for operator in operators:
        if len(draft.names) < wanted:
            operator(draft)
    return Variation(draft.render(), tuple(draft.names))


# -- operators: each changes the draft and adds its name, or leaves it as it is ----------------------


def _vary_program(draft: _Draft) -> None:
    edits = list_edits(draft.source)
    if edits:
        names = sorted({edit.name for edit in edits})
        name = draft.rng.choice(names)
        edit = draft.rng.choice([edit for edit in edits if edit.name == name])
        draft.source = apply_edit(draft.source, edit)
        draft.names.append(name)


def _vary_dtype(draft: _Draft) -> None:
    present = next((leaf.dtype for leaf in draft.survey.inputs if leaf.floating), "float32")
    rest = [dtype for dtype in draft.survey.dtypes if dtype != present]
    if rest:
        dtype = draft.rng.choice(rest)
        if draft.survey.is_module:
            draft.model.append(f"model = model.to(torch.{dtype})")
        if any(leaf.floating for leaf in draft.survey.inputs):
            draft.inputs.append(
                f"x = [v.to(torch.{dtype}) if torch.is_tensor(v) and v.is_floating_point() else v for v in x]"
            )
        draft.names.append(dtype)


def _vary_size(draft: _Draft) -> None:
    chosen = _draw_size(draft)
    if chosen is not None:
        places, size = chosen
        draft.inputs += _write_resizing(places, size)
        draft.names.append("size_0" if size == 0 else "size_1" if size == 1 else "size")


def _draw_size(draft: _Draft) -> tuple[tuple[tuple[int, int], ...], int] | None:
    if not draft.survey.resizable:
        return None
    group = draft.rng.choice(draft.survey.resizable)
    present = {size for leaf in draft.survey.inputs for size in leaf.shape}  # sizes that coincide are worth a try
    sizes = [size for size in dict.fromkeys((*_SIZES, *sorted(present))) if size != group.size]
    return group.places, draft.rng.choice(sizes)


def _write_resizing(places: tuple[tuple[int, int], ...], size: int) -> list[str]:
    return [f"x[{number}] = _resized(x[{number}], {dimension}, {size})" for number, dimension in places]


def _vary_layout(draft: _Draft) -> None:
    leaf = _draw_input(draft, lambda leaf: bool(leaf.shape) and 0 not in leaf.shape)
    if leaf is not None:
        name = draft.rng.choice([name for name, layout in LAYOUTS.items() if len(leaf.shape) in layout.ranks])
        x, layout = f"x[{leaf.number}]", LAYOUTS[name]
        draft.inputs.append(f"{x} = {layout.packed.format(x=x)}{layout.view.format(shape=f'{x}.shape')}")
        draft.names.append(f"inputs_{name}")


def _vary_aliasing(draft: _Draft) -> None:
    pairs = [
        (first, second)
        for first in draft.survey.inputs
        for second in draft.survey.inputs
        if first.number < second.number and (first.shape, first.dtype) == (second.shape, second.dtype)
    ]
    if pairs:
        first, second = draft.rng.choice(pairs)
        draft.inputs.append(f"x[{second.number}] = x[{first.number}]")
        draft.names.append("aliased_inputs")


def _vary_values(draft: _Draft) -> None:
    leaf = _draw_input(draft, lambda leaf: leaf.floating and 0 not in leaf.shape)
    if leaf is not None:
        name, x = draft.rng.choice(list(VALUES)), f"x[{leaf.number}]"
        option = f", dtype={x}.dtype, device={x}.device"
        fresh = f"{x}.clone(memory_format=torch.contiguous_format)"
        values = fill_expression(name, x, fresh, shape=f"{x}.shape", like=x, option=option, dtype=leaf.dtype)
        draft.inputs.append(f"{x} = {values}")
        draft.names.append(name)


def _vary_training(draft: _Draft) -> None:
    if draft.survey.is_module:
        mode = draft.rng.choice(("train", "eval"))
        draft.model.append(f"model.{mode}()")
        draft.names.append(mode)


def _vary_gradients(draft: _Draft) -> None:
    if not draft.survey.has_gradients:
        return
    if draft.survey.backward:
        draft.settings |= {"BACKWARD": "False", "GRAD": repr(draft.rng.choice(("no_grad", "inference_mode")))}
        draft.names.append("no_backward")
    elif not _needs_inference(draft):
        draft.settings |= {"BACKWARD": "True", "GRAD": repr("enabled")}
        draft.names.append("backward")


def _vary_grad_mode(draft: _Draft) -> None:
    if draft.survey.backward or "GRAD" in draft.settings:
        return
    mode = draft.rng.choice([mode for mode in ("no_grad", "inference_mode", "enabled") if mode != draft.survey.grad])
    if mode != "enabled" or not _needs_inference(draft):
        draft.settings["GRAD"] = repr(mode)
        draft.names.append(f"grad_{mode}")


def _vary_dynamic(draft: _Draft) -> None:
    draft.settings["DYNAMIC"] = draft.rng.choice(("True", "False"))
    draft.names.append(f"dynamic_{draft.settings['DYNAMIC'].lower()}")


def _vary_second_call(draft: _Draft) -> None:
    """A second call at another size: guards, recompiles, and symbols for what changed."""
    chosen = None if draft.survey.own_calls else _draw_size(draft)
    if chosen is None:
        return
    places, size = chosen
    if not draft.inputs:
        draft.inputs.append("pass")
    for number, dimension in places:
        draft.second += f"{'; ' if draft.second else ''}_x[{number}] = _resized(_x[{number}], {dimension}, {size})"
    draft.second = (
        f"_inputs = make()[1]\n_x = _leaves(_inputs)\n{draft.second}\n"
        "CALLS = [_inputs, _with_leaves(_inputs, iter(_x))]"
    )
    draft.names.append("second_call")


def _vary_autocast(draft: _Draft) -> None:
    if not draft.survey.own_calls and "autocast" not in draft.survey.source:
        draft.autocast = True
        draft.names.append("autocast")


def _vary_setting(draft: _Draft) -> None:
    known = [] if draft.survey.has_mode else list(draft.survey.toggles)
    gradients = draft.survey.backward or draft.settings.get("BACKWARD") == "True" or draft.survey.grad == "enabled"
    if gradients or draft.settings.get("GRAD") == repr("enabled"):
        known = [name for name in known if not find_toggle(name).inference]
    if known:
        # As often as the generator draws them.
        name = draft.rng.choices(known, [find_toggle(name).weight for name in known])[0]
        draft.toggles.append(name)
        draft.names.append(name)


def _needs_inference(draft: _Draft) -> bool:
    """Return whether a drawn setting acts on frozen weights."""
    return any(find_toggle(name).inference for name in draft.toggles)


def _draw_input(draft: _Draft, fits: Callable[[SurveyedInput], bool]) -> SurveyedInput | None:
    fitting = [leaf for leaf in draft.survey.inputs if fits(leaf)]
    return draft.rng.choice(fitting) if fitting else None


_VARIATIONS: tuple[Callable[[_Draft], None], ...] = (
    _vary_program,
    _vary_program,  # edits of the program find the most bugs
    _vary_dtype,
    _vary_size,
    _vary_layout,
    _vary_aliasing,
    _vary_values,
    _vary_training,
    _vary_gradients,
    _vary_grad_mode,
    _vary_dynamic,
    _vary_second_call,
    _vary_autocast,
    _vary_setting,
)
