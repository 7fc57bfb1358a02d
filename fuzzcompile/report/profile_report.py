"""A profile for the terminal and as one self-contained HTML page: verdict, layers, attention, and what to do."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from markupsafe import Markup
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.evidence import ObservableName
from fuzzcompile.model.hints import CommandSubject
from fuzzcompile.model.package_files import get_environment as templates
from fuzzcompile.model.profile_contract import AttentionCallJson, LayerJson, ProfileJson
from fuzzcompile.model.versions import __version__
from fuzzcompile.report import verdict_text as triaged
from fuzzcompile.report.charts import Panel, Series, chart
from fuzzcompile.report.circumstances import WORDS, several, versions
from fuzzcompile.report.pages.case_page import render_section
from fuzzcompile.report.proof import format_number

_OUTSIDE = "an error that rounding does not explain is made outside of the layers that were looked at"
_COMPILED = ("inductor", "aot_eager")
_OPERATOR = ": "  # what stands between a layer and an operator in it
_TINY = 1e-30  # in place of no rounding at all
_ROWS = 40  # layers shown
_CALLS = 6  # calls of attention shown
_NOTHING = "-"


def print_profile(
    console: Console, profile: ProfileJson, *, name: str | CommandSubject = "CASE", proof: bool = False
) -> None:
    """Print a profile, and with ``proof`` that of the culprit that the triage of the layer names."""
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    say(
        f"{profile['case']}: {profile['verdict']}: {meaning(profile)} "
        f"[{profile['against']} against {profile['reference']}, torch {profile['torch']}, {profile['device']}]"
    )
    say(f"  rule: {profile['rule']}")
    console.print(_table(profile))
    left_out = len(profile.get("layers", [])) - len(_shown(profile))
    if left_out:
        say(f"  and {left_out} more layers, which make less for what rounding makes there (--json has all)")
    for line in (*remarks(profile), *map(attention_line, profile.get("attention", [])[:_CALLS])):
        say(f"  {line}")
    for judged in triages(profile, name):
        say(f"  {judged.what}:")
        triaged.print_report(console, judged.report, proof=proof, name=judged.name)
    if not any(judged.report["is_bug"] for judged in triages(profile, name)):  # whose reports say what to do
        say(f"  what to do: {advice(profile, name)}")


def meaning(profile: ProfileJson) -> str:
    """Explain the profile's verdict in a few words."""
    is_outside = profile["verdict"] == "jump" and profile.get("layer") is None
    return _OUTSIDE if is_outside else WORDS["profile_meaning"].get(profile["verdict"], "")


def advice(profile: ProfileJson, name: str | CommandSubject) -> str:
    """Advise on the profile; ``name`` is the case's name on a command line."""
    subject = CommandSubject.from_name(name)
    if profile["verdict"] == "jump":
        bugs = (judged for judged in triages(profile, subject) if judged.report["is_bug"])
        bug = next(bugs, None)
        return _deeper(profile, subject) if bug is None else triaged.advice(bug.report, bug.name)
    if profile["verdict"] == "unstable_reference":
        command = subject.format_command("profile", against="float64")
        how = f"float64 on both sides (`{command}` shows which layer loses the digits)"
        return f"compare something better conditioned: trained weights, real inputs, or {how}"
    if profile["verdict"] == "equal":
        return "nothing: the values are the same"
    text, program = "nothing to fix", [x for x in profile.get("layers", []) if x.get("kind") == "program"]
    if largest := max((layer.get("max_error") or 0.0 for layer in program), default=0.0):
        text += f"; a test of the output has to allow for {triaged.rounded_up(largest)}"
    if profile.get("attention") and not profile["reference"].startswith("sdpa"):
        text += "; --math-only shows how much of it the kernels of attention make (to validate, not for production)"
    return text


def _deeper(profile: ProfileJson, subject: CommandSubject) -> str:
    against, layer = profile["against"], profile.get("layer")

    def command(*, depth: int | None = None, ops: bool = False) -> str:
        return subject.format_command("profile", against=against, depth=depth, ops=ops)

    if layer is not None and _OPERATOR in layer:
        return f"compare {layer} alone on both sides, on the inputs that it gets there"
    if against.endswith(".safetensors"):
        return f"look deeper: record again with a larger --depth or --ops, and `{command()}` with the same"
    if not against.startswith(_COMPILED) and not profile["reference"].startswith(_COMPILED):
        return f"look deeper: `{command(ops=True)}` shows which operator makes the error"
    if layer is None or layer.startswith("("):  # no module: parameters that no layer holds
        return f"look deeper: `{command(depth=3)}` looks at more layers"
    line = _part(subject, layer).format_command("profile", against=against, depth=2)
    return f"look into {layer}: `{line}` shows which part of it"


def _part(subject: CommandSubject, layer: str) -> CommandSubject:
    # Without its rank, the number of a call, or "(gradient)".
    module = ObservableName.parse(layer.partition("#")[0].partition(" (")[0]).what
    outer = subject.options.get("module")
    return subject.with_options(module=f"{outer}.{module}" if outer else module)


class LayerReport(NamedTuple):
    """A report of ``triage`` within a profile: what was judged, and how it is named."""

    what: str
    name: CommandSubject
    report: ReportJson


def triages(profile: ProfileJson, name: str | CommandSubject) -> list[LayerReport]:
    """The reports of ``triage`` that the profile holds; ``name`` is how the case is named on a command line."""
    subject, layer = CommandSubject.from_name(name), profile.get("layer") or ""
    judged = [
        (f"{layer} alone, on its own inputs", _part(subject, layer), profile.get("triage")),
        ("the whole program", subject, profile.get("triage_whole")),
    ]
    return [LayerReport(what, named, report) for what, named, report in judged if report]


def cells(layer: LayerJson) -> dict[str, str]:
    """A layer's numbers as text, by key."""
    numbers = ((key, layer.get(key)) for key in WORDS["profile_columns"])
    forms = {"cosine": "{:.6f}".format, "amplification": lambda x: f"{x:.2f}" if x < 100 else format_number(x)}
    return {
        key: forms.get(key, format_number)(value) if isinstance(value, int | float) else _NOTHING
        for key, value in numbers
    }


def _table(profile: ProfileJson) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("  layer", overflow="fold", min_width=12)
    for heading in WORDS["profile_columns"].values():
        table.add_column(heading, justify="right", no_wrap=True)
    for layer in _shown(profile):
        jumps = layer.get("name") == profile.get("layer")
        label = Text(f"{'>' if jumps else ' '} {layer.get('name')}", style="bold red" if jumps else "")
        table.add_row(label, *cells(layer).values())
    return table


def _shown(profile: ProfileJson) -> list[LayerJson]:
    layers = profile.get("layers", [])
    if len(layers) <= _ROWS:
        return layers

    def ratio(layer: LayerJson) -> float:
        """The error against what rounding explains: made here, or of a gradient, which is only known up to here."""
        error, explained = layer.get("made"), layer.get("noise")
        if layer.get("kind") == "gradient":
            error, explained = layer.get("rms_error"), layer.get("rounding")
        return (error or 0.0) / (explained or _TINY)

    ranked = sorted(layers, key=ratio, reverse=True)[: _ROWS - 2]
    return [x for x in layers if x.get("name") == profile.get("layer") or x.get("kind") == "program" or x in ranked]


def remarks(profile: ProfileJson) -> Iterator[str]:
    """Yield what was not measured, by layer, and the profile's notes."""
    where = defaultdict[str, list[str]](list)
    for layer in profile.get("layers", []):
        for text in (layer.get("non_finite"), layer.get("note")):
            if text:
                where[text].append(str(layer.get("name")))
    yield from (f"{several(names, ', ')}: {text}" for text, names in where.items())
    yield from (f"note: {note}" for note in profile.get("notes", []))


def attention_line(call: AttentionCallJson) -> str:
    """A call of attention on one line: how often, its query, the kernel that torch chooses, and why others refuse."""
    query, traits = call["query"], {"causal": call["causal"], "masked": call["mask"], "dropout": call["dropout"]}
    kind = "".join(f" {trait}" for trait, holds in traits.items() if holds)
    described = f"attention, {call['calls']} x {query['dtype']}{query['shape']}{kind}"
    return f"{described}: {'; '.join(kernels(call)) or call['note']}"


def kernels(call: AttentionCallJson) -> list[str]:
    """The kernels for a call, the chosen one first, then the other usable ones, then those that refuse, and why."""
    chosen = [f"{kernel['name']} (chosen)" for kernel in call["backends"] if kernel["chosen"]]
    usable = [kernel["name"] for kernel in call["backends"] if kernel["usable"] and not kernel["chosen"]]
    refusing = defaultdict[str, list[str]](list)
    for kernel in call["backends"]:
        if not kernel["usable"]:
            refusing[kernel["reason"].rstrip(".")].append(kernel["name"])
    refused = [f"not {' or '.join(names)}: {reason}" for reason, names in refusing.items()]
    return [*chosen, *usable, *refused]


# The page.

_FINE = ("equal", "expected_compounding")
# What is drawn, by key of a layer; noise and rounding are what the others are held against.
_ERRORS = {"max_error": "largest", "rms_error": "RMS", "made": "newly made", "inherited": "inherited"}
_LIMITS = {"noise": "rounding in this layer", "rounding": "rounding up to here"}


def page_of_profile(profile: ProfileJson, *, name: str | CommandSubject) -> str:
    """The page on a profile (``profile --json``); without matplotlib it says in place of the plots what to install."""
    page = templates().get_template("pages/profile.html.j2")
    return page.render(
        profile=profile,
        is_fine=profile["verdict"] in _FINE,
        meaning=meaning(profile),
        advice=advice(profile, CommandSubject.from_name(name).to_publish()),
        plots=list(_plots(profile)),
        cells=cells,
        remarks=list(remarks(profile)),
        attention=[attention_line(call) for call in profile.get("attention", [])],
        triages=[(each.what, render_section(each.report, name=each.name)) for each in triages(profile, name)],
        versions=versions(profile.get("environment", {})),
        figure=format_number,
        fuzzcompile=__version__,
    )


def _plots(profile: ProfileJson) -> Iterator[tuple[str, Markup]]:
    layers = profile.get("layers", [])
    forward, gradients = ([x for x in layers if (x.get("kind") == "gradient") == wanted] for wanted in (False, True))
    plots = [("Error over depth", innermost(forward), "errors over depth")]
    plots += [("Gradients, from the last layer to the first", gradients, "errors of gradients")] if gradients else []
    for heading, shown, what in plots:
        series = [
            Series(label, [_relative(layer, key) for layer in shown], is_limit=key in _LIMITS)
            for key, label in {**_ERRORS, **_LIMITS}.items()
        ]
        measured = [each for each in series if any(value is not None for value in each.values)]
        cosine = Series("cosine", [layer.get("cosine") for layer in shown])
        plot = chart(
            [str(layer["name"]) for layer in shown],
            [Panel("error / size (RMS)", measured or series[:1]), Panel("cosine", [cosine], log=False)],
            axis="layer, in the order of execution",
            about=f"{profile['case']}: {what} of {profile['against']} against {profile['reference']}",
            highlight=_highlight(shown, profile.get("layer")),
        )
        yield heading, plot


def innermost(layers: Sequence[LayerJson]) -> list[LayerJson]:
    """The layers that contain no other one: outer ones would draw their last part a second time."""
    names = [_module(layer) for layer in layers]
    holding = {name[:index] for name in names for index, character in enumerate(name) if character == "."}
    return [layer for layer, name in zip(layers, names, strict=True) if name not in holding]


def _module(layer: LayerJson) -> str:
    return str(layer["name"]).partition("#")[0]


def _relative(layer: LayerJson, key: str) -> float | None:
    value, size = layer.get(key), layer.get("size")
    if not isinstance(value, int | float) or size is None:
        return None
    if not size:
        return math.inf if value else 0.0
    return value / size


def _highlight(layers: Sequence[LayerJson], jump: str | None) -> tuple[int, str] | None:
    if jump is None:
        return None
    names = [str(layer["name"]) for layer in layers]
    module = jump.partition("#")[0]
    inside = [index for index, layer in enumerate(layers) if f"{_module(layer)}.".startswith(f"{module}.")]
    if jump in names:
        return names.index(jump), f"jump: {jump}"
    return (inside[-1], f"jump: {jump}") if inside else None
