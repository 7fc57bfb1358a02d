"""Drawing variations: one to three operators on a case, rendered as a case file that needs torch alone."""

from __future__ import annotations

import ast
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fuzzcompile.fuzz.case_survey import Survey, SurveyedInput
from fuzzcompile.model.compiler_toggles import collect_configs, collect_options, find_toggle, list_acting
from fuzzcompile.model.package_files import get_template
from fuzzcompile.programs.edits.tensor_values import LAYOUTS, VALUES, fill_expression, find_functions

# Operators on the text of a program: near misses of it, made by replacing pieces of its source.

# Functions of a case file that are not part of the program.
_NOT_VARIED = ("make", "run")
_AXIS_CALLS = ("softmax", "log_softmax", "sum", "mean", "amax", "amin", "cumsum", "argmax", "norm", "var", "std")
_AXES = (-1, -2, 0, 1, -3)
_VIEWS = ("transpose", "permute", "view", "reshape", "expand", "unflatten", "flatten")
_SIGNS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
Replacements = Iterator[tuple[str, ast.expr | ast.stmt, str]]
"""The name of an operator, a piece of the program, and the text in its place."""


def list_edits(source: str) -> list[tuple[str, str]]:
    """Every single edit that some operator can make to the program's functions: its name, and the edited source."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    encoded = source.encode()
    starts = [0, *itertools.accumulate(map(len, encoded.splitlines(keepends=True)))]

    def put(node: ast.expr | ast.stmt, text: str) -> str:
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 1) - 1] + (node.end_col_offset or 0)
        return (encoded[:start] + text.encode() + encoded[end:]).decode()

    return list(dict.fromkeys((name, put(node, text)) for name, node, text in _iter_replacements(source, tree)))


def _iter_replacements(source: str, tree: ast.Module) -> Replacements:
    """What can be replaced within functions and methods, except constructors and functions that only drive the case."""

    def text(node: ast.AST) -> str:
        return ast.get_source_segment(source, node) or ""

    classes = [inner for statement in tree.body if isinstance(statement, ast.ClassDef) for inner in statement.body]
    functions = [each for each in (*tree.body, *classes) if isinstance(each, ast.FunctionDef)]
    varied = [each for each in functions if each.name not in _NOT_VARIED and not each.name.startswith("__init")]
    inside = [node for each in varied for statement in each.body for node in ast.walk(statement)]
    for node in (*varied, *inside):
        if isinstance(node, ast.Call):
            yield from _replace_call(node, text)
        elif isinstance(node, ast.BinOp) and type(node.op) in _SIGNS:
            yield from _replace_operation(node, text)
        elif isinstance(node, ast.Assign):
            match node:
                # ``x += y`` also changes aliases of ``x``.
                case ast.Assign([ast.Name(name)], ast.BinOp(ast.Name(read), operator, right)) if name == read:
                    if type(operator) in _SIGNS:
                        yield "in_place", node, f"{name} {_SIGNS[type(operator)]}= {text(right)}"
        elif isinstance(node, ast.FunctionDef):
            yield from _return_results(node, text)


def _replace_call(call: ast.Call, text: Callable[[ast.AST], str]) -> Replacements:
    """Another axis, two axes of a permutation exchanged, a copy behind a view, or none where there was one."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    axes = [keyword.value for keyword in call.keywords if keyword.arg in ("dim", "axis")]
    axes += call.args if name in _AXIS_CALLS else ()
    for axis in axes:
        if (present := _read_whole(axis)) is not None:
            yield from (("axis", axis, str(wanted)) for wanted in _AXES if wanted != present)
    if not isinstance(call.func, ast.Attribute):
        return
    if name in _VIEWS:
        yield "contiguous", call, f"{text(call)}.contiguous()"
    if name == "contiguous":
        yield "not_contiguous", call, text(call.func.value)
    for at, pair in enumerate(itertools.pairwise(call.args) if name == "permute" else ()):
        if None not in map(_read_whole, pair):
            swapped = [*call.args[:at], pair[1], pair[0], *call.args[at + 2 :]]
            yield "permuted", call, f"{text(call.func)}({', '.join(map(text, swapped))})"


def _replace_operation(node: ast.BinOp, text: Callable[[ast.AST], str]) -> Replacements:
    """A literal that is 0, 1, -1 or a tensor; operands swapped; a division as a multiplication, and the reverse."""
    left, sign, right = text(node.left), _SIGNS[type(node.op)], text(node.right)
    for side in (node.left, node.right):
        if isinstance(side, ast.Constant) and type(side.value) in (int, float):
            yield from (("constant", side, constant) for constant in ("0.0", "1.0", "-1.0"))
            yield "scalar_as_tensor", side, f"torch.tensor({text(side)})"
            yield "scalar_as_tensor", side, f"torch.tensor([{text(side)}])"
    if sign in "+*":
        yield "swapped", node, f"({right}) {sign} ({left})"
    if sign in "*/":
        yield "reciprocal", node, f"({left}) {'*' if sign == '/' else '/'} (1.0 / ({right}))"


def _return_results(function: ast.FunctionDef, text: Callable[[ast.AST], str]) -> Replacements:
    """An intermediate value that is returned as well, and so has another user."""
    *body, last = function.body
    if isinstance(last, ast.Return) and last.value is not None and not isinstance(last.value, ast.Tuple):
        for statement in body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                yield "also_returned", last, f"return {text(last.value)}, {statement.targets[0].id}"


def _read_whole(node: ast.expr) -> int | None:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return value if type(value) is int else None


_SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 0)
_MOST_OPERATORS = 3


@dataclass(frozen=True)
class Variation:
    """A varied case file, and the names of the operators that made it."""

    source: str
    operators: tuple[str, ...]


@dataclass
class _Draft:
    survey: Survey
    rng: random.Random
    source: str
    inputs: list[str] = field(default_factory=list)
    model: list[str] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    toggles: list[str] = field(default_factory=list)
    second: str = ""
    autocast: bool = False

    def render(self, names: list[str]) -> str:
        settings = [f"{name} = {value}" for name, value in self.settings.items()]
        if compile_options := collect_options(tuple(self.toggles)):
            settings.append(f"OPTIONS = {{**globals().get('OPTIONS', {{}}), **{compile_options!r}}}")
        for config, entries in collect_configs(tuple(self.toggles)).items():
            own = "globals().get('CONFIG', {})"
            settings.append(f"CONFIG = {{**{own}, {config!r}: {{**{own}.get({config!r}, {{}}), **{entries!r}}}}}")
        text = get_template("variations/varied.py.j2").render(
            source=self.source.rstrip(),
            names=names,
            inputs=self.inputs,
            functions=find_functions(self.inputs),
            model=self.model,
            settings=[*settings, self.second] if self.second else settings,
            own_calls=self.survey.own_calls,
            second=bool(self.second),
            autocast=self.autocast,
        )
        return text.rstrip() + "\n"

    def draw_input(self, fits: Callable[[SurveyedInput], bool]) -> SurveyedInput | None:
        fitting = [leaf for leaf in self.survey.inputs if fits(leaf) and 0 not in leaf.shape]
        return self.rng.choice(fitting) if fitting else None

    def draw_size(self) -> tuple[list[tuple[int, int]], int]:
        """Dimensions, as (input, dimension), that are resized together, and their size; none if none can be."""
        if not self.survey.resizable:
            return [], 0
        group = self.rng.choice(self.survey.resizable)
        present = {size for leaf in self.survey.inputs for size in leaf.shape}  # sizes that coincide are worth a try
        sizes = [size for size in dict.fromkeys((*_SIZES, *sorted(present))) if size != group.size]
        return list(group.places), self.rng.choice(sizes)

    @property
    def needs_inference(self) -> bool:
        return any(find_toggle(name).only == "inference" for name in self.toggles)


def draw_variation(survey: Survey, rng: random.Random) -> Variation:
    """Draw a variation of a surveyed case, with choices from ``rng``; it may turn out not to run in eager mode."""
    draft, names = _Draft(survey, rng, survey.source), list[str]()
    wanted = rng.choice(range(1, _MOST_OPERATORS + 1))
    operators = list(_VARIATIONS)
    rng.shuffle(operators)
    for operator in operators:
        if len(names) < wanted and (name := operator(draft)) is not None:
            names.append(name)
    return Variation(draft.render(names), tuple(names))


# Operators: each changes the draft and returns its name, or returns None and leaves the draft as it is.


def _vary_program(draft: _Draft) -> str | None:
    edits = list_edits(draft.source)
    if not edits:
        return None
    name = draft.rng.choice(sorted({name for name, _ in edits}))
    draft.source = draft.rng.choice([edited for own, edited in edits if own == name])
    return name


def _vary_dtype(draft: _Draft) -> str | None:
    present = next((leaf.dtype for leaf in draft.survey.inputs if leaf.floating), None)
    rest = [dtype for dtype in draft.survey.dtypes if dtype != (present or "float32")]
    if not rest:
        return None
    dtype = draft.rng.choice(rest)
    if draft.survey.is_module:
        draft.model.append(f"model = model.to(torch.{dtype})")
    if present is not None:
        draft.inputs.append(
            f"x = [v.to(torch.{dtype}) if torch.is_tensor(v) and v.is_floating_point() else v for v in x]"
        )
    return dtype


def _vary_size(draft: _Draft) -> str | None:
    places, size = draft.draw_size()
    draft.inputs += [f"x[{number}] = _resized(x[{number}], {dimension}, {size})" for number, dimension in places]
    return None if not places else f"size_{size}" if size < 2 else "size"


def _vary_layout(draft: _Draft) -> str | None:
    leaf = draft.draw_input(lambda leaf: bool(leaf.shape))
    if leaf is None:
        return None
    name = draft.rng.choice([name for name, layout in LAYOUTS.items() if len(leaf.shape) in layout.ranks])
    x, layout = f"x[{leaf.number}]", LAYOUTS[name]
    draft.inputs.append(f"{x} = {layout.packed.format(x=x)}{layout.view.format(shape=f'{x}.shape')}")
    return f"inputs_{name}"


def _vary_aliasing(draft: _Draft) -> str | None:
    pairs = itertools.combinations(draft.survey.inputs, 2)
    alike = [(one, two) for one, two in pairs if (one.shape, one.dtype) == (two.shape, two.dtype)]
    if not alike:
        return None
    first, second = draft.rng.choice(alike)
    draft.inputs.append(f"x[{second.number}] = x[{first.number}]")
    return "aliased_inputs"


def _vary_values(draft: _Draft) -> str | None:
    leaf = draft.draw_input(lambda leaf: leaf.floating)
    if leaf is None:
        return None
    name, x = draft.rng.choice(list(VALUES)), f"x[{leaf.number}]"
    option = f", dtype={x}.dtype, device={x}.device"
    fresh = f"{x}.clone(memory_format=torch.contiguous_format)"
    values = fill_expression(name, x, fresh, shape=f"{x}.shape", like=x, option=option, dtype=leaf.dtype)
    draft.inputs.append(f"{x} = {values}")
    return name


def _vary_training(draft: _Draft) -> str | None:
    if not draft.survey.is_module:
        return None
    mode = draft.rng.choice(("train", "eval"))
    draft.model.append(f"model.{mode}()")
    return mode


def _vary_gradients(draft: _Draft) -> str | None:
    if draft.survey.has_gradients and draft.survey.backward:
        draft.settings |= {"BACKWARD": "False", "GRAD": repr(draft.rng.choice(("no_grad", "inference_mode")))}
        return "no_backward"
    if not draft.survey.has_gradients or draft.needs_inference:
        return None
    draft.settings |= {"BACKWARD": "True", "GRAD": repr("enabled")}
    return "backward"


def _vary_grad_mode(draft: _Draft) -> str | None:
    if draft.survey.backward or "GRAD" in draft.settings:
        return None
    mode = draft.rng.choice([mode for mode in ("no_grad", "inference_mode", "enabled") if mode != draft.survey.grad])
    if mode == "enabled" and draft.needs_inference:
        return None
    draft.settings["GRAD"] = repr(mode)
    return f"grad_{mode}"


def _vary_dynamic(draft: _Draft) -> str:
    draft.settings["DYNAMIC"] = draft.rng.choice(("True", "False"))
    return f"dynamic_{draft.settings['DYNAMIC'].lower()}"


def _vary_second_call(draft: _Draft) -> str | None:
    places, size = ([], 0) if draft.survey.own_calls else draft.draw_size()
    if not places:
        return None
    draft.inputs = draft.inputs or ["pass"]
    resized = [f"_x[{number}] = _resized(_x[{number}], {dimension}, {size})" for number, dimension in places]
    calls = "CALLS = [_inputs, _with_leaves(_inputs, iter(_x))]"
    draft.second = "\n".join(["_inputs = make()[1]", "_x = _leaves(_inputs)", *resized, calls])
    return "second_call"


def _vary_autocast(draft: _Draft) -> str | None:
    draft.autocast = not draft.survey.own_calls and "autocast" not in draft.survey.source
    return "autocast" if draft.autocast else None


def _vary_setting(draft: _Draft) -> str | None:
    gradients = draft.survey.backward or draft.settings.get("BACKWARD") == "True" or draft.survey.grad == "enabled"
    gradients |= draft.settings.get("GRAD") == repr("enabled")
    toggles = () if draft.survey.has_mode else draft.survey.toggles
    known = list_acting(toggles, gradients=gradients, inference=not gradients)
    if not known:
        return None
    # As often as the generator draws them.
    name = draft.rng.choices(known, [find_toggle(name).weight for name in known])[0]
    draft.toggles.append(name)
    return name


_VARIATIONS: tuple[Callable[[_Draft], str | None], ...] = (
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
