"""The case file of an architecture: its configuration, its random weights and its inputs as Python."""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib.util
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import platformdirs

from fuzzcompile.model.errors import EnvironmentUnfit, UsageError
from fuzzcompile.model.package_files import read_table

_TIMM = "timm/"


@dataclass(frozen=True)
class Architecture:
    """One entry of ``bundled_models.toml``, which explains its fields."""

    name: str
    published: Mapping[str, object]
    narrow: Mapping[str, object]
    tiny: Mapping[str, object]
    config: str = ""  # the configuration class of transformers; empty for a model of timm
    model: str = ""  # the model class of transformers, or the name that timm builds it by
    inputs: str = "seen"
    unlabelled: bool = False  # the model takes no labels in training
    # Height and width of the images of a model that does not name them in its configuration, in pixels.
    image: int = 224
    aliases: Sequence[str] = ()

    @property
    def library(self) -> str:
        """The library that defines it: ``transformers`` or ``timm``."""
        return "transformers" if self.config else "timm"


@functools.cache
def _load_table() -> dict[str, Architecture]:
    rows: dict[str, dict[str, Any]] = read_table(__package__, "bundled_models")
    return {name: Architecture(name, **{"model": name.removeprefix(_TIMM), **row}) for name, row in rows.items()}


def list_architectures() -> tuple[str, ...]:
    """The names of all bundled configurations, transformers' first."""
    return tuple(_load_table())


def find_architecture(name: str) -> Architecture:
    """The architecture of that name or alias, in any case, with or without the hub's owner; or `UsageError`."""
    known = {spelling.lower(): each for each in _load_table().values() for spelling in (each.name, *each.aliases)}
    wanted = name.lower()
    for spelling in (wanted, wanted.rpartition("/")[2]):
        if spelling in known:
            return known[spelling]
    close = dict.fromkeys(known[match].name for match in difflib.get_close_matches(wanted, known, n=5, cutoff=0.5))
    hint = f"close ones are {', '.join(close)}" if close else f"there are {', '.join(_load_table())}"
    raise UsageError(f"--hf-config knows no {name!r}: {hint}; load any other model in a script and give that.")


Size = Literal["tiny", "narrow", "full"]
SIZES: tuple[Size, ...] = get_args(Size)

_BATCH, _TOKENS, _DECODED = 2, 16, 8
# Tokens at the end of the second sequence that are padding.
_PADDING = 5
# Images of a narrow model that takes images of any size, in pixels.
_NARROW_IMAGE = 64
_SIZES = {
    "tiny": "the published configuration cut down to small widths and two layers of each kind",
    "narrow": "the published configuration with all its layers, cut down to small widths",
    "full": "the published configuration",
}


def write_case_file(name: str, *, training: bool = False, size: Size = "tiny", dtype: str = "float32") -> Path:
    """Write :func:`render_case` into the user's cache for later commands; `EnvironmentUnfit` without the library."""
    chosen = find_architecture(name)
    if importlib.util.find_spec(chosen.library) is None:
        extra = "timm" if chosen.library == "timm" else "models"
        raise EnvironmentUnfit(
            f"--hf-config {name} needs {chosen.library}, which is not installed: pip install 'fuzzcompile[{extra}]'."
        )
    text = render_case(name, training=training, size=size, dtype=dtype)
    choices = [chosen.name.rpartition("/")[2]]
    choices += [choice for choice, default in ((size, "tiny"), (dtype, "float32")) if choice != default]
    path = _find_folder() / f"{'-'.join([*choices, *(['train'] if training else [])])}.py"
    draft = path.with_suffix(f".{os.getpid()}")  # another process may be reading the file
    draft.write_text(text, encoding="utf-8")
    return draft.replace(path)


def _find_folder() -> Path:
    folder = platformdirs.user_cache_path("fuzzcompile") / "models"
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    return Path(tempfile.mkdtemp(prefix="fuzzcompile-models-"))


def render_case(name: str, *, training: bool = False, size: Size = "tiny", dtype: str = "float32") -> str:
    """The source of a case file that builds the architecture ``name`` with random weights, and inputs for it.

    The file needs torch and the library that defines the architecture, and no network. In ``training`` it has labels
    and a backward pass; ``dtype`` is that of parameters and floating inputs, as torch names it.
    """
    from fuzzcompile.model.package_files import get_template

    chosen = find_architecture(name)
    arguments = {
        **chosen.published,
        **(chosen.narrow if size != "full" else {}),
        **(chosen.tiny if size == "tiny" else {}),
    }
    inputs = _make_inputs(chosen, arguments, size, training=training, dtype=dtype)
    what = f"{chosen.model} of {chosen.library}, {_SIZES[size]}, with random weights"
    return get_template("hf_config.py.j2").render(
        name=chosen.name,
        description=f"{what}{', in training' if training else ''}",
        config=chosen.config,
        model=chosen.model,
        arguments=[(key, repr(value)) for key, value in arguments.items()],
        inputs=inputs.items(),
        training=training,
        cast="" if dtype == "float32" else f".to(torch.{dtype})",
        mask=_PADDING if "attention_mask" in inputs else 0,
        labelled_text=training and chosen.inputs in ("masked", "causal"),
    )


def _make_inputs(
    chosen: Architecture, arguments: Mapping[str, object], size: Size, *, training: bool, dtype: str
) -> dict[str, str]:
    option = "" if dtype == "float32" else f", dtype=torch.{dtype}"
    if chosen.inputs == "seen":
        free = chosen.image if size == "full" else _NARROW_IMAGE
        pixels = arguments.get("image_size", arguments.get("img_size", free))
        images = f"torch.randn({_BATCH}, 3, {pixels}, {pixels}{option})"
        if chosen.library == "timm":
            return {"x": images}
        labelled = training and not chosen.unlabelled
        return {"pixel_values": images, **({"labels": f"torch.arange({_BATCH})"} if labelled else {})}

    def make_tokens(length: int) -> str:
        # None of the special ones that stand first.
        return f"torch.randint(4, {arguments['vocab_size']}, ({_BATCH}, {length}))"

    if chosen.inputs == "heard":
        frames = f"{_BATCH}, {arguments['num_mel_bins']}, 2 * {arguments['max_source_positions']}"
        made = {"input_features": f"torch.randn({frames}{option})"}
    else:
        mask = f"torch.ones({_BATCH}, {_TOKENS}, dtype=torch.long)"
        made = {"input_ids": make_tokens(_TOKENS), "attention_mask": mask}
    if chosen.inputs in ("translated", "heard"):
        made["labels" if training else "decoder_input_ids"] = make_tokens(_DECODED)
    elif training:
        discriminated = f"torch.randint(2, ({_BATCH}, {_TOKENS}))"
        made["labels"] = discriminated if chosen.inputs == "discriminated" else make_tokens(_TOKENS)
    return made
