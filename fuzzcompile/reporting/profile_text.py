"""A profile for the terminal: the verdict, its rule, the layers, and what to do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fuzzcompile.contract import AttentionCallJson, LayerJson, ProfileJson, ReportJson
from fuzzcompile.reporting import verdict as triaged
from fuzzcompile.reporting.circumstances import several
from fuzzcompile.reporting.proof import figure

_MEANING = {
    "equal": "both sides return the same values in every layer",
    "expected_compounding": "rounding explains what each layer adds; the rest of the difference was passed on to it",
    "jump": "a layer makes an error that rounding does not explain",
    "unstable_reference": "the reference has no digits to compare: rounding alone, or another run of it, moves its "
    "output as far",
}
_OUTSIDE = "an error that rounding does not explain is made outside of the layers that were looked at"
_ROWS = 40  # layers shown
_CALLS = 6  # calls of attention shown
_NOTHING = "-"
# What the columns of the table hold, in their order: keys of a layer, and headings on two lines.
_COLUMNS = {
    "size": "size\nRMS",
    "max_error": "error\nlargest",
    "rms_error": "\nRMS",
    "cosine": "\ncosine",
    "made": "newly\nmade",
    "noise": "rounding\nhere",
    "inherited": "\ninherited",
    "amplification": "ampli-\nfied",
    "float64_error": "vs float64\nagainst",
    "reference_float64_error": "\nreference",
}


def print_profile(console: Console, profile: ProfileJson, *, name: str = "CASE", proof: bool = False) -> None:
    """Print a profile.

    Args:
        console: where to print.
        profile: what ``profile --json`` prints.
        name: what to type for the case.
        proof: also print the proof of the culprit that the triage of the layer names.
    """

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    say(
        f"{profile['case']}: {profile['verdict']}: {meaning(profile)} "
        f"[{profile['against']} against {profile['reference']}, torch {profile['torch']}, {profile['device']}]"
    )
    say(f"  {profile['rule']}")
    console.print(_table(profile))
    for line in (*_left_out(profile), *remarks(profile), *map(attention_line, profile.get("attention", [])[:_CALLS])):
        say(f"  {line}")
    for what, report in triages(profile):
        say(f"  {what}:")
        triaged.print_report(console, report, proof=proof, name=name)
    say(f"  what to do: {advice(profile, name)}")


def meaning(profile: ProfileJson) -> str:
    """What the profile's verdict means, in a few words."""
    return _OUTSIDE if is_outside(profile) else _MEANING.get(profile["verdict"], "")


def is_outside(profile: ProfileJson) -> bool:
    """Whether the error is made in none of the layers that were looked at."""
    return profile["verdict"] == "jump" and profile.get("layer") is None


def advice(profile: ProfileJson, name: str) -> str:
    """What to do about the profile; ``name`` is what to type for the case."""
    if profile["verdict"] == "jump":
        return _about_jump(profile, name)
    if profile["verdict"] == "unstable_reference":
        return (
            "compare something better conditioned: trained weights, real inputs, or float64 on both sides "
            f"(`fuzzcompile profile {name} --against float64` shows which layer loses the digits)"
        )
    if profile["verdict"] == "equal":
        return "nothing: the values are the same"
    largest = profile["layers"][-1].get("max_error") if profile.get("layers") else None
    text = "nothing to fix"
    if largest:
        text += f"; a test of the output has to allow for {triaged.rounded_up(largest)}"
    if profile.get("attention") and not profile["reference"].startswith("sdpa"):
        text += "; --math-only shows how much of it the kernels of attention make (to validate, not for production)"
    return text


def _about_jump(profile: ProfileJson, name: str) -> str:
    bugs = [(what, report) for what, report in triages(profile) if report.get("is_bug")]
    layer = profile.get("layer")
    if bugs:
        report = bugs[0][1]
        whole = report is profile.get("triage_whole") or layer is None
        return triaged.advice(report, name if whole else f"{name} --module {_module(layer or '')}")
    command = f"fuzzcompile profile {name} --against {profile['against']}"
    if layer is None:
        return f"look deeper: `{command} --depth 3`, or --ops for every operator"
    return f"look into {layer}: `{command} --ops` shows which of its operators makes the error"


def triages(profile: ProfileJson) -> list[tuple[str, ReportJson]]:
    """The reports of ``triage`` that the profile holds, each with what was judged."""
    layer, whole = profile.get("triage"), profile.get("triage_whole")
    judged = [(f"{profile.get('layer')} alone, on its own inputs", layer), ("the whole program", whole)]
    return [(what, report) for what, report in judged if report]


def _module(label: str) -> str:
    return label.partition("#")[0]


# -- layers ---------------------------------------------------------------------------------------


def cells(layer: LayerJson) -> dict[str, str]:
    """A layer's numbers as text, by key."""
    numbers = {key: layer.get(key) for key in _COLUMNS}
    return {key: _number(key, value) for key, value in numbers.items()}


def _number(key: str, value: object) -> str:
    if not isinstance(value, int | float):
        return _NOTHING
    if key == "cosine":
        return f"{value:.6f}"
    return f"{value:.2f}" if key == "amplification" and value < 100 else figure(value)


def _table(profile: ProfileJson) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("  layer", overflow="fold", min_width=12)
    for heading in _COLUMNS.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for layer in _shown(profile):
        jumps = layer.get("name") == profile.get("layer")
        label = Text(f"{'>' if jumps else ' '} {layer.get('name')}", style="bold red" if jumps else "")
        table.add_row(label, *cells(layer).values())
    return table


def _shown(profile: ProfileJson) -> list[LayerJson]:
    """The rows that say most: the layer of a jump, the last one, and those that make the most for their rounding."""
    layers = profile.get("layers", [])
    if len(layers) <= _ROWS:
        return layers
    ranked = sorted(range(len(layers)), key=lambda index: -_ratio(layers[index]))
    named = [index for index, layer in enumerate(layers) if layer.get("name") == profile.get("layer")]
    return [layers[index] for index in sorted({*named, len(layers) - 1, *ranked[: _ROWS - 2]})]


def _ratio(layer: LayerJson) -> float:
    return (layer.get("made") or 0.0) / (layer.get("noise") or 1e-30)


def _left_out(profile: ProfileJson) -> Iterator[str]:
    count = len(profile.get("layers", [])) - len(_shown(profile))
    if count:
        yield f"and {count} more layers, which make less for what rounding makes there (--json has all)"


def remarks(profile: ProfileJson) -> Iterator[str]:
    """What was not measured, in which layers, and the profile's notes."""
    where = defaultdict[str, list[str]](list)
    for layer in profile.get("layers", []):
        for text in (layer.get("non_finite"), layer.get("note")):
            if text:
                where[text].append(str(layer.get("name")))
    yield from (f"{several(names, ', ')}: {text}" for text, names in where.items())
    yield from (f"note: {note}" for note in profile.get("notes", []))


# -- attention ------------------------------------------------------------------------------------


def attention_line(call: AttentionCallJson) -> str:
    """A call of attention on one line: how often, its query, the kernel that torch chooses, and why others refuse."""
    query = call["query"]
    kind = [part for part, holds in (("causal", call["causal"]), ("masked", call["mask"]), ("dropout", call["dropout"]))
            if holds]  # fmt: skip
    described = " ".join([f"attention, {call['calls']} x {query['dtype']}{query['shape']}", *kind])
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
