"""Make the generator's table of operators from torch's own tables (OpInfo).

    python tools/operator_table.py [OUT.json]

An operator is listed where its sample calls, on activations of several shapes and dtypes, keep shape and dtype: as
elementwise, as a function of two tensors, or along rows. One whose result has another form is listed where that form
is a formula of the sizes, which is found by calling it. Error inputs are listed where eager refuses them whatever the
activation is. Needs the extra ``opinfo``; the table says from which torch it was made.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import math
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812

from fuzzcompile.fuzz.opinfo_cases import (
    Speller,
    UnusableSample,
    find_entry,
    iter_calls,
    iter_forms,
    list_errors,
    list_operators,
)
from fuzzcompile.fuzz.opinfo_cells import OpInfoCell, OpInfoOperator

OUT = Path(__file__).parent.parent / "fuzzcompile" / "fuzz" / "operator_programs" / "operators.json"
SHAPES = ((2, 3, 4), (), (5,), (1, 1, 2), (2, 2, 3, 4))
ROWS = ((2, 3, 4), (4, 3, 4), (2, 4, 3), (3, 1, 2), (2, 5, 6))
# Values of the parameter {a}.
PARAMETERS = (1.0, 0.5, -1.0, 1e-3)
# The second operand, of the activation's form; and of other dtypes.
SAME_FORM = ("-{x}", "{x}.round()", "torch.zeros_like({x})", 'torch.full_like({x}, float("inf"))', "{x}")
OTHER_FORM = ("{x}.to(torch.int32)", "{x}.to(torch.uint8)", "{x}.double()", "{x}.bfloat16()", "{x}.half()")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MOST_CALLS = 4
MOST_SAMPLES = 24
LONGEST, LONGEST_REFORMING = 200, 70
REFUSALS = (RuntimeError, ValueError, IndexError)
# How infinities and NaN are spelled in case files, which define these names.
_BARE = re.compile(r'(?<!["\w.])(inf|nan)(?!["\w])')
_FLOAT = re.compile(r"(?<![\w.])-?\d+\.\d+(?![\w.])")


def main() -> None:
    """Make the table and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", default=OUT)
    out: Path = parser.parse_args().out
    warnings.simplefilter("ignore")
    kinds: dict[str, dict[str, dict[str, Any]]] = {kind: {} for kind in KINDS}
    listed = list_operators()
    for number, operator in enumerate(listed):
        sys.stderr.write(f"\r{number + 1} of {len(listed)} operators")
        for kind, call, properties in (*accepted(operator), *refused(operator)):
            add(kinds[kind], call, properties)
    rows = {kind: [thinned(row) for row in by_name.values()] for kind, by_name in kinds.items()}
    out.write_text(written({"torch": torch.__version__.partition("+")[0], **rows}), encoding="utf-8")
    sys.stderr.write("\n" + ", ".join(f"{kind} {len(row)}" for kind, row in rows.items()) + "\n")


def add(by_name: dict[str, dict[str, Any]], call: str, properties: dict[str, Any]) -> None:
    """Add a call to its operator; calls of other properties are an operator of their own."""
    call = _BARE.sub(r'float("\1")', call)
    name = name_of(call)
    row = by_name.setdefault(f"{name} {properties}", {"name": name, "calls": [], **properties})
    if call not in row["calls"]:
        row["calls"].append(call)


def thinned(row: dict[str, Any]) -> dict[str, Any]:
    """A few calls of an operator, evenly among all."""
    calls, most = row["calls"], MOST_CALLS
    return {**row, "calls": [calls[at * len(calls) // most] for at in range(most)] if len(calls) > most else calls}


def written(table: dict[str, Any]) -> str:
    """JSON with an operator a line."""
    parts = [f'"torch": {json.dumps(table["torch"])}']
    for kind, rows in table.items():
        if isinstance(rows, list):
            lines = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in rows)
            parts.append(f'"{kind}": [\n  {lines}\n]')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def name_of(call: str) -> str:
    """The function that a call begins with."""
    match = re.match(r"\(*((?:torch|F)\.[\w.]+)\(", call)
    if match is not None:
        return match[1]
    method = re.search(r"\.(\w+)", call)
    return f"Tensor.{method[1]}" if method is not None else call


# -- calls that eager accepts ------------------------------------------------------------------------


def accepted(operator: OpInfoOperator) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Kind, call and properties of what can be listed of the operator's samples."""
    if "float32" not in operator.dtypes or operator.name.startswith("_") or operator.name.endswith("_"):
        return
    tried: set[str] = set()
    cell = OpInfoCell(operator.name, operator.variant, "function", "float32")
    for chunk in range(min(operator.samples // 6 + 1, MOST_SAMPLES // 6)):
        for call in list(iter_calls(replace(cell, chunk=chunk), Counter())):
            form = re.sub(r"\bx\d+\b", "x", call.expression)
            if form not in tried and all("float32" in text and "drawn" not in text for text in call.tensors.values()):
                text = call.expression.replace("torch.nn.functional.", "F.").replace("'", '"')
                tried.add(form)
                yield from classified(text, list(call.tensors))


def classified(text: str, names: list[str]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """What kind of call it is, if it is one."""
    if len(text) > LONGEST or "device=" in text:
        return
    if len(names) == 1:
        x = re.sub(rf"\b{names[0]}\b", "{x}", text)
        for call in (with_parameter(x), x):
            if call is not None and is_elementwise(call):
                yield "elementwise", call, properties(lambda v, c=call: value(c, v), SHAPES)
                return
        rows = x.replace("{x}", "{rows}")
        for call in (rows, f"({rows})[0]", f"{rows} + {{rows}}"):
            if is_along(call) and (not call.endswith("+ {rows}") or narrows(rows)):
                yield "along", call, properties(lambda v, c=call: value(c, rows=v), ROWS)
                return
        for rank in SIZES:
            yield from reformed(x, rank)
    if len(names) in (2, 3):
        call = re.sub(rf"\b(?:{'|'.join(names[1:])})\b", "{y}", re.sub(rf"\b{names[0]}\b", "{x}", text))
        forms = [form for form in (SAME_FORM, SAME_FORM + OTHER_FORM) if is_of_two(call, form)]
        if forms:
            seen = properties(lambda v: value(call, v, -v), SHAPES)
            yield "of_two", call, {**seen, "alike": len(forms) == 1}


def with_parameter(call: str) -> str | None:
    """The call with its only floating constant as a parameter, if any parameter will do."""
    if len(_FLOAT.findall(call)) != 1:
        return None
    return _FLOAT.sub("{a}", call)


def value(call: str, x: Any = None, y: Any = None, *, rows: Any = None, a: float = 0.5, seed: int = 0) -> Any:
    """What a call gives for these operands.

    Raises:
        ValueError: it writes to one of them.
    """
    torch.manual_seed(seed)
    text = call.replace("{a}", str(a))
    operands = {"x": x, "y": y, "rows": rows}
    versions = [getattr(operand, "_version", 0) for operand in operands.values()]
    for name in operands:
        text = text.replace(f"{{{name}}}", name)
    made = eval(text, {"torch": torch, "F": F, "inf": float("inf"), "nan": float("nan"), **operands})
    if versions != [getattr(operand, "_version", 0) for operand in operands.values()]:
        raise ValueError(f"{call} writes to its operands")
    return made


def keeps(made: Any, shape: tuple[int, ...]) -> bool:
    """Whether a result can take the place of an activation of this shape."""
    usual = type(made) is torch.Tensor and made.layout == torch.strided and not made.is_complex()
    return usual and made.shape == shape and made._base is None


def attempts(check: Callable[[torch.Tensor], bool], shapes: tuple[tuple[int, ...], ...], scale: float = 2.0) -> bool:
    """Whether a check holds for activations of all shapes and dtypes, and nothing raises."""
    torch.manual_seed(1)
    try:
        drawn = [torch.randn(shape).mul(scale).to(dtype) for shape in shapes for dtype in DTYPES]
        drawn.append(torch.zeros(shapes[0]))  # values that are all equal change no shape
        return all(check(x) for x in drawn)
    except Exception:  # whatever an operator raises, it is not listed
        return False


def is_elementwise(call: str) -> bool:
    """Whether each element of the result depends on its own element alone, and is not that element."""
    names = PARAMETERS if "{a}" in call else (0.5,)

    def check(x: torch.Tensor) -> bool:
        for a in names:
            order = torch.randperm(x.numel())
            made, mixed = value(call, x.clone(), a=a), value(call, x.flatten()[order].view(x.shape), a=a)
            if not keeps(made, x.shape) or not same(made.flatten()[order], mixed.flatten()):
                return False
            if x.dim() == 3 and not same(value(call, x[:, :1].clone(), a=a), made[:, :1]):
                return False
        return True

    return "{x}" in call and attempts(check, SHAPES) and changes(lambda x: value(call, x))


def is_along(call: str) -> bool:
    """Whether rows keep their form, and the call is no random one."""

    def check(rows: torch.Tensor) -> bool:
        made = value(call, rows=rows.clone())
        again = value(call, rows=rows.clone(), seed=7)
        return keeps(made, rows.shape) and same(made, again)

    return "{rows}" in call and attempts(check, ROWS) and changes(lambda x: value(call, rows=x))


def narrows(call: str) -> bool:
    """Whether a call of rows gives a tensor of another shape: added to the rows, it is not the rows again."""
    rows = torch.randn(ROWS[0])
    return bool(value(call, rows=rows).shape != rows.shape)


def is_of_two(call: str, forms: tuple[str, ...]) -> bool:
    """Whether the result has the form of the activation, whichever form the second operand has, and on which side."""

    def check(x: torch.Tensor) -> bool:
        for form in forms:
            y = eval(form.replace("{x}", "x"), {"torch": torch, "x": x.clone()})
            if not (keeps(value(call, x.clone(), y), x.shape) and keeps(value(call, y, x.clone()), x.shape)):
                return False
        return True

    return "{x}" in call and "{y}" in call and attempts(check, SHAPES)


def changes(function: Callable[[torch.Tensor], Any]) -> bool:
    """Whether a function is not the identity."""
    x = torch.linspace(-2.0, 2.0, 24).view(2, 3, 4)
    return not same(function(x.clone()), x)


def properties(function: Callable[[torch.Tensor], Any], shapes: tuple[tuple[int, ...], ...]) -> dict[str, bool]:
    """Whether a gradient flows, and whether the dtype may change."""
    cast = not attempts(lambda x: function(x).dtype == x.dtype, shapes)
    return {"gradient": has_gradient(function, shapes), "cast": cast}


def has_gradient(function: Callable[[torch.Tensor], Any], shapes: tuple[tuple[int, ...], ...]) -> bool:
    """Whether a gradient flows from the result to the activation, for all shapes and dtypes."""

    def check(x: torch.Tensor) -> bool:
        leaf = x.requires_grad_()
        made = function(leaf * 1).to(x.dtype)
        if not made.requires_grad:
            return False
        made.float().sum().backward()
        return leaf.grad is not None

    return attempts(check, shapes)


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors are equal up to rounding."""
    if left.shape != right.shape:
        return False
    tolerance = 1e-5 if left.dtype == torch.float32 else 2e-2
    return torch.allclose(left.float(), right.float(), rtol=tolerance, atol=tolerance, equal_nan=True)


# -- calls whose result has another form -------------------------------------------------------------

KINDS = ("elementwise", "of_two", "along", "reforming", "refused")
# Sizes of an activation with so many axes, from which the formulas of the result's sizes are found: of any two axes
# either is longer by some in one of them.
SIZES = {
    1: ((6,), (7,), (9,), (12,), (15,), (20,)),
    2: ((6, 7), (7, 6), (9, 12), (12, 8), (8, 15), (20, 9)),
    3: ((6, 7, 8), (7, 6, 9), (9, 12, 6), (8, 9, 15), (12, 8, 7), (6, 20, 9)),
    4: ((6, 7, 8, 9), (7, 6, 9, 8), (9, 14, 12, 6), (14, 9, 6, 12), (6, 12, 9, 14), (12, 6, 14, 9)),
}
LEAST = range(1, 7)
# Memory that nobody wrote, memory that is shared though nothing says so or beside the operand, and places as numbers.
NOT_REFORMING = ("empty", "unsafe", "as_strided", "masked.arg")
# How a size of the result may follow from the sizes of some axes: (their product · factor + more) // parts.
FACTORS, ADDED, PARTS = (0, 1, 2, 3, 4), sorted(range(-8, 21), key=abs), (1, 2, 3, 4, 5)
OF_FORM = {torch.float32: "float32", torch.float64: "float64", torch.int64: "int64", torch.int32: "int32",
           torch.bool: "bool"}  # fmt: skip


def reformed(call: str, rank: int) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The call, or the first of its results, of an activation with ``rank`` axes, if its result's form is a formula."""
    if "{x}" not in call or any(word in name_of(call) for word in NOT_REFORMING):
        return
    call = shortened(call, rank)
    if len(call) > LONGEST_REFORMING:
        return
    try:
        several = isinstance(value(call, torch.randn(SIZES[rank][0])), (tuple, list))
    except Exception:  # whatever an operator raises, it is not listed
        return
    call = f"{call}[0]" if several else call
    found = find_form(call, rank)
    if found is not None:
        seen = {"gradient": has_gradient(lambda v: value(call, v), SIZES[rank])}
        yield "reforming", call, {"rank": rank, **found, **seen}


def find_form(call: str, rank: int) -> dict[str, Any] | None:
    """The formula of each size, the dtype (None: the activation's), if it is a view, the least size of each axis."""
    torch.manual_seed(1)
    least = find_least(call, rank)
    if least is None:
        return None
    tried = (*SIZES[rank], *(tuple(size + more for size in least) for more in range(5)))
    try:
        drawn = [torch.randn(sizes) for sizes in tried]
        made = [value(call, operand) for operand in drawn]
        pairs = zip(drawn, made, strict=True)
        shares = any(x.untyped_storage().data_ptr() == result.untyped_storage().data_ptr() for x, result in pairs)
        low = [value(call, torch.randn(SIZES[rank][0]).to(dtype)) for dtype in DTYPES]
        x = torch.randn(SIZES[rank][0])
        once, again, other = value(call, x.clone()), value(call, x.clone(), seed=7), value(call, -2 * x.flip(0) - 1)
        if (
            made[0].shape == x.shape
            or not all(map(is_usual, (*made, *low)))
            or not same(once, again)
            or same(once, other)
            or same(once, x)
        ):
            return None  # it gives the activation, or something that does not depend on it
        if value(call, x.round()).shape != once.shape:
            return None  # the form hangs on values
    except Exception:  # whatever an operator raises, it is not listed
        return None
    forms = [(sizes, tuple(result.shape)) for sizes, result in zip(tried, made, strict=True)]
    if {len(shape) for _, shape in forms} != {made[0].dim()}:
        return None
    formulas = [find_formula(axis, forms) for axis in range(made[0].dim())]
    kept = all(result.dtype == dtype for result, dtype in zip(low, DTYPES, strict=True))
    dtype = None if kept else OF_FORM.get(made[0].dtype)
    told = kept or (dtype is not None and all(result.dtype == made[0].dtype for result in low))
    if not told or not all(formulas):
        return None
    return {"sizes": formulas, "dtype": dtype, "view": shares, "least": least}


def shortened(call: str, rank: int) -> str:
    """The call without the keywords that change nothing."""

    def gives(tree: ast.Expression) -> list[Any] | None:
        try:
            results = [value(ast.unparse(tree), x=drawn.clone()) for drawn in operands]
        except Exception:  # whatever an operator raises
            return None
        return torch.utils._pytree.tree_leaves(results)

    operands = [torch.randn(sizes) for sizes in SIZES[rank][:2]]
    tree = ast.parse(call.replace("{x}", "x"), mode="eval")
    before = gives(tree)
    if not isinstance(tree.body, ast.Call) or before is None:
        return call
    for keyword in list(tree.body.keywords):
        kept = tree.body.keywords
        tree.body.keywords = [other for other in kept if other is not keyword]
        after = gives(tree)
        if after is None or len(after) != len(before) or not all(map(is_same_object, before, after)):
            tree.body.keywords = kept
    return re.sub(r"\bx\b", "{x}", ast.unparse(tree).replace("'", '"'))


def is_same_object(left: Any, right: Any) -> bool:
    """Whether two results are the same number, or tensors of one dtype and the same values."""
    if is_usual(left) and is_usual(right):
        return left.dtype == right.dtype and left.stride() == right.stride() and same(left, right)
    return type(left) is type(right) is not torch.Tensor and bool(left == right)


def is_usual(made: Any) -> bool:
    """Whether a result is a dense tensor of real numbers or booleans."""
    return type(made) is torch.Tensor and made.layout == torch.strided and made.dtype in (*DTYPES, *OF_FORM)


def find_formula(axis: int, forms: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> list[Any] | None:
    """The axes, factor, what is added, and the divisor of a size; the simplest that holds for all operands' shapes."""
    rank = len(forms[0][0])
    chosen = [axes for many in range(rank + 1) for axes in itertools.combinations(range(rank), many)]
    for parts, factor, more, axes in itertools.product(PARTS, FACTORS, ADDED, chosen):
        if (factor == 0) != (not axes):
            continue
        if all((math.prod(of[at] for at in axes) * factor + more) // parts == shape[axis] for of, shape in forms):
            return [list(axes), factor, more, parts]
    return None


def find_least(call: str, rank: int) -> list[int] | None:
    """The least size of each axis with which the call runs, the others as they are; None if not all together."""

    def runs(sizes: list[int]) -> bool:
        try:
            return bool(value(call, torch.randn(sizes)).numel())
        except Exception:  # whatever an operator raises
            return False

    usual = list(SIZES[rank][0])
    tried = [[size for size in LEAST if runs([*usual[:at], size, *usual[at + 1 :]])] for at in range(rank)]
    least = [sizes[0] if sizes else 0 for sizes in tried]
    return least if all(least) and runs(least) else None


# -- calls that eager refuses ------------------------------------------------------------------------


def refused(operator: OpInfoOperator) -> Iterator[tuple[str, str, dict[str, bool]]]:
    """Error inputs that any activation makes an error."""
    if operator.name.startswith("_"):
        return
    entry = find_entry(operator.name, operator.variant)
    for error in list_errors(entry):
        sample = error.sample_input
        try:
            call = refusal(entry, sample)
        except UnusableSample:
            continue
        if (
            call is not None
            and len(call) <= LONGEST
            and not re.search(r"out=|\d{7}", call)
            and not _fits_nothing(operator)
        ):
            yield "refused", call, {}


def _fits_nothing(operator: OpInfoOperator) -> bool:
    """Whether a refused call that compiles could not be added to the activation: its result is no tensor."""
    return operator.name in ("equal", "allclose", "is_same_size", "item")


def refusal(entry: Any, sample: Any) -> str | None:
    """The call as text, its floating tensors made of the activation; None if eager accepts that."""
    speller = Speller()
    first, *rest = [speller.value(argument) for argument in (sample.input, *sample.args)]
    rest += [f"{name}={speller.value(argument)}" for name, argument in sample.kwargs.items()]
    tensors = spelled_tensors(speller, sample)
    wanted = message(lambda: entry.op(sample.input, *sample.args, **sample.kwargs))
    if wanted is None:
        return None
    for way in iter_forms(entry, "function", first, rest):
        text = way.replace("torch.nn.functional.", "F.").replace("'", '"')
        for chosen in itertools.product(*tensors.values()):
            call = text
            for name, tensor in zip(tensors, chosen, strict=True):
                call = re.sub(rf"\b{name}\b", lambda _, t=tensor: t, call)
            if "{x}" in call and attempts(lambda x, c=call: message(lambda: value(c, x)) == wanted, SHAPES):
                return call
    return None


def spelled_tensors(speller: Speller, sample: Any) -> dict[str, list[str]]:
    """Ways to make each tensor: the first as the activation, floating ones of it, others as they are."""
    leaves = torch.utils._pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    tensors = list({id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Tensor)}.values())
    ways: dict[str, list[str]] = {}
    for number, (name, tensor) in enumerate(zip(speller.tensors, tensors, strict=True)):
        shape, dtype = tuple(tensor.shape), tensor.dtype
        ones = [f"{{x}}.new_ones({shape}, dtype={dtype})"]
        if tensor.numel() <= 12 and not tensor.is_floating_point() and not tensor.is_complex():
            ones.insert(0, f"torch.tensor({tensor.tolist()}, dtype={dtype}, device={{x}}.device)")
        if tensor.is_floating_point():
            ones.insert(0, f"{{x}}.new_ones({shape})")
            if number == 0:
                ones.insert(0, "{x}")
        ways[name] = ones
    return ways


def message(function: Callable[[], object]) -> str | None:
    """The error that eager raises, numbers aside; None if it raises none that counts."""
    try:
        function()
    except REFUSALS as error:
        return re.sub(
            r"-?\d+|\[[^\]]*\]|\([^)]*\)|Float|Half|BFloat16|c10::\w+", "#", f"{type(error).__name__}: {error}"
        )[:80]
    except Exception:  # an error of another kind is the parser's
        return None
    return None


if __name__ == "__main__":
    main()
