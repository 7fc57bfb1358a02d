"""Drawing variations: one to three operators on a case, rendered as a case file that needs torch alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from fuzzcompile.generation.tensors import LAYOUTS, VALUES, filled, functions_in
from fuzzcompile.generation.toggles import config, options, toggle
from fuzzcompile.templating import template
from fuzzcompile.variations.program import edited, edits_of
from fuzzcompile.variations.survey import Input, Survey

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
        if compile_options := options(tuple(self.toggles)):
            settings.append(f"OPTIONS = {{**globals().get('OPTIONS', {{}}), **{compile_options!r}}}")
        if inductor := config(tuple(self.toggles)):
            own = "globals().get('CONFIG', {})"
            settings.append(f"CONFIG = {{**{own}, 'inductor': {{**{own}.get('inductor', {{}}), **{inductor!r}}}}}")
        if self.second:
            settings.append(self.second)
        return (
            template("variations/varied.py.j2")
            .render(
                source=self.source.rstrip(),
                names=self.names,
                inputs=self.inputs,
                functions=functions_in(self.inputs),
                model=self.model,
                settings=settings,
                own_calls=self.survey.own_calls,
                second=bool(self.second),
                autocast=self.autocast,
            )
            .rstrip()
            + "\n"
        )


def vary(survey: Survey, rng: random.Random) -> Variation:
    """Draw a variation of a surveyed case, with choices from ``rng``; it may turn out not to run in eager mode."""
    draft = _Draft(survey, rng, survey.source)
    wanted = rng.choice(range(1, _MOST_OPERATORS + 1))
    operators = list(_OPERATORS)
    rng.shuffle(operators)
    for operator in operators:
        if len(draft.names) < wanted:
            operator(draft)
    return Variation(draft.render(), tuple(draft.names))


# -- operators: each changes the draft and adds its name, or leaves it as it is ----------------------


def _program(draft: _Draft) -> None:
    edits = edits_of(draft.source)
    if edits:
        names = sorted({edit.name for edit in edits})
        name = draft.rng.choice(names)
        edit = draft.rng.choice([edit for edit in edits if edit.name == name])
        draft.source = edited(draft.source, edit)
        draft.names.append(name)


def _dtype(draft: _Draft) -> None:
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


def _size(draft: _Draft) -> None:
    chosen = _new_size(draft)
    if chosen is not None:
        places, size = chosen
        draft.inputs += _resizing(places, size)
        draft.names.append("size_0" if size == 0 else "size_1" if size == 1 else "size")


def _new_size(draft: _Draft) -> tuple[tuple[tuple[int, int], ...], int] | None:
    if not draft.survey.resizable:
        return None
    group = draft.rng.choice(draft.survey.resizable)
    present = {size for leaf in draft.survey.inputs for size in leaf.shape}  # sizes that coincide are worth a try
    sizes = [size for size in dict.fromkeys((*_SIZES, *sorted(present))) if size != group.size]
    return group.places, draft.rng.choice(sizes)


def _resizing(places: tuple[tuple[int, int], ...], size: int) -> list[str]:
    return [f"x[{number}] = _resized(x[{number}], {dimension}, {size})" for number, dimension in places]


def _layout(draft: _Draft) -> None:
    leaf = _any_input(draft, lambda leaf: bool(leaf.shape) and 0 not in leaf.shape)
    if leaf is not None:
        name = draft.rng.choice([name for name, layout in LAYOUTS.items() if len(leaf.shape) in layout.ranks])
        x, layout = f"x[{leaf.number}]", LAYOUTS[name]
        draft.inputs.append(f"{x} = {layout.packed.format(x=x)}{layout.view.format(shape=f'{x}.shape')}")
        draft.names.append(f"inputs_{name}")


def _aliased(draft: _Draft) -> None:
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


def _values(draft: _Draft) -> None:
    leaf = _any_input(draft, lambda leaf: leaf.floating and 0 not in leaf.shape)
    if leaf is not None:
        name, x = draft.rng.choice(list(VALUES)), f"x[{leaf.number}]"
        option = f", dtype={x}.dtype, device={x}.device"
        fresh = f"{x}.clone(memory_format=torch.contiguous_format)"
        values = filled(name, x, fresh, shape=f"{x}.shape", like=x, option=option, dtype=leaf.dtype)
        draft.inputs.append(f"{x} = {values}")
        draft.names.append(name)


def _training(draft: _Draft) -> None:
    if draft.survey.is_module:
        mode = draft.rng.choice(("train", "eval"))
        draft.model.append(f"model.{mode}()")
        draft.names.append(mode)


def _gradients(draft: _Draft) -> None:
    if not draft.survey.has_gradients:
        return
    if draft.survey.backward:
        draft.settings |= {"BACKWARD": "False", "GRAD": repr(draft.rng.choice(("no_grad", "inference_mode")))}
        draft.names.append("no_backward")
    elif not _needs_inference(draft):
        draft.settings |= {"BACKWARD": "True", "GRAD": repr("enabled")}
        draft.names.append("backward")


def _grad_mode(draft: _Draft) -> None:
    if draft.survey.backward or "GRAD" in draft.settings:
        return
    mode = draft.rng.choice([mode for mode in ("no_grad", "inference_mode", "enabled") if mode != draft.survey.grad])
    if mode != "enabled" or not _needs_inference(draft):
        draft.settings["GRAD"] = repr(mode)
        draft.names.append(f"grad_{mode}")


def _dynamic(draft: _Draft) -> None:
    draft.settings["DYNAMIC"] = draft.rng.choice(("True", "False"))
    draft.names.append(f"dynamic_{draft.settings['DYNAMIC'].lower()}")


def _second_call(draft: _Draft) -> None:
    """A second call at another size: guards, recompiles, and symbols for what changed."""
    chosen = None if draft.survey.own_calls else _new_size(draft)
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


def _autocast(draft: _Draft) -> None:
    if not draft.survey.own_calls and "autocast" not in draft.survey.source:
        draft.autocast = True
        draft.names.append("autocast")


def _setting(draft: _Draft) -> None:
    known = [] if draft.survey.has_mode else list(draft.survey.toggles)
    gradients = draft.survey.backward or draft.settings.get("BACKWARD") == "True" or draft.survey.grad == "enabled"
    if gradients or draft.settings.get("GRAD") == repr("enabled"):
        known = [name for name in known if not toggle(name).inference]
    if known:
        # As often as the generator draws them.
        name = draft.rng.choices(known, [toggle(name).weight for name in known])[0]
        draft.toggles.append(name)
        draft.names.append(name)


def _needs_inference(draft: _Draft) -> bool:
    """Whether a drawn setting acts on frozen weights."""
    return any(toggle(name).inference for name in draft.toggles)


def _any_input(draft: _Draft, fits: Callable[[Input], bool]) -> Input | None:
    fitting = [leaf for leaf in draft.survey.inputs if fits(leaf)]
    return draft.rng.choice(fitting) if fitting else None


_OPERATORS: tuple[Callable[[_Draft], None], ...] = (
    _program,
    _program,  # edits of the program find the most bugs
    _dtype,
    _size,
    _layout,
    _aliased,
    _values,
    _training,
    _gradients,
    _grad_mode,
    _dynamic,
    _second_call,
    _autocast,
    _setting,
)
