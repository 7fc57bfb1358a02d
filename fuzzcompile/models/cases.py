"""The case file of an architecture: its configuration, its random weights and its inputs as Python."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

from fuzzcompile.errors import EnvironmentUnfit
from fuzzcompile.models.architectures import Architecture, architecture

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


def case_file(name: str, *, training: bool = False, size: Size = "tiny", dtype: str = "float32") -> Path:
    """Write :func:`case_text` into the user's cache, where later commands find it under the same name.

    Raises:
        UsageError: there is no such configuration.
        EnvironmentUnfit: the library that defines the architecture is not installed.
    """
    chosen = architecture(name)
    if importlib.util.find_spec(chosen.library) is None:
        extra = "timm" if chosen.library == "timm" else "models"
        raise EnvironmentUnfit(
            f"--hf-config {name} needs {chosen.library}, which is not installed: pip install 'fuzzcompile[{extra}]'."
        )
    text = case_text(name, training=training, size=size, dtype=dtype)
    choices = [chosen.name.rpartition("/")[2]]
    choices += [choice for choice, default in ((size, "tiny"), (dtype, "float32")) if choice != default]
    path = _folder() / f"{'-'.join([*choices, *(['train'] if training else [])])}.py"
    draft = path.with_suffix(f".{os.getpid()}")  # another process may be reading the file
    draft.write_text(text, encoding="utf-8")
    return draft.replace(path)


def _folder() -> Path:
    """The folder for case files in the user's cache, or a temporary one where the cache cannot be written."""
    cache = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(cache) if cache else Path.home() / ".cache") / "fuzzcompile" / "models"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except OSError:
        writable = False
    return folder if writable else Path(tempfile.mkdtemp(prefix="fuzzcompile-models-"))


def case_text(name: str, *, training: bool = False, size: Size = "tiny", dtype: str = "float32") -> str:
    """The source of a case file that builds the architecture ``name`` with random weights, and inputs for it.

    The file needs torch and the library that defines the architecture, and no network.

    Args:
        name: a bundled configuration (see :func:`fuzzcompile.models.names`).
        training: train mode with labels, and a backward pass.
        size: ``tiny`` (small widths, two layers of each kind), ``narrow`` (small widths, all layers) or ``full``.
        dtype: the dtype of parameters and of floating inputs, as torch names it.

    Raises:
        UsageError: there is no such configuration.
    """
    from fuzzcompile.templating import template  # every command reads the names of sizes here, and few a template

    chosen = architecture(name)
    arguments = _arguments(chosen, size)
    inputs = _inputs(chosen, arguments, size, training=training, dtype=dtype)
    what = f"{chosen.model} of {chosen.library}, {_SIZES[size]}, with random weights"
    return template("hf_config.py.j2").render(
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


def _arguments(chosen: Architecture, size: Size) -> dict[str, object]:
    narrow = {} if size == "full" else chosen.narrow
    tiny = chosen.tiny if size == "tiny" else {}
    return {**chosen.published, **narrow, **tiny}


def _inputs(
    chosen: Architecture, arguments: Mapping[str, object], size: Size, *, training: bool, dtype: str
) -> dict[str, str]:
    """The keyword arguments of a call, as Python expressions."""
    if chosen.inputs == "seen":
        return _images(chosen, arguments, size, training=training, dtype=dtype)
    tokens = _tokens(arguments, _TOKENS)
    if chosen.inputs == "heard":
        frames = f"{_BATCH}, {arguments['num_mel_bins']}, 2 * {arguments['max_source_positions']}"
        made = {"input_features": f"torch.randn({frames}{_typed(dtype)})"}
    else:
        made = {"input_ids": tokens, "attention_mask": f"torch.ones({_BATCH}, {_TOKENS}, dtype=torch.long)"}
    if chosen.inputs in ("translated", "heard"):
        made["labels" if training else "decoder_input_ids"] = _tokens(arguments, _DECODED)
    elif training:
        made["labels"] = f"torch.randint(2, ({_BATCH}, {_TOKENS}))" if chosen.inputs == "discriminated" else tokens
    return made


def _images(
    chosen: Architecture, arguments: Mapping[str, object], size: Size, *, training: bool, dtype: str
) -> dict[str, str]:
    """Images for a classifier. Models of timm name their input ``x`` and take no labels."""
    free = chosen.image if size == "full" else _NARROW_IMAGE
    pixels = arguments.get("image_size", arguments.get("img_size", free))
    images = f"torch.randn({_BATCH}, 3, {pixels}, {pixels}{_typed(dtype)})"
    if chosen.library == "timm":
        return {"x": images}
    labelled = training and not chosen.unlabelled
    return {"pixel_values": images, **({"labels": f"torch.arange({_BATCH})"} if labelled else {})}


def _tokens(arguments: Mapping[str, object], length: int) -> str:
    """Random tokens, none of the special ones that stand first."""
    return f"torch.randint(4, {arguments['vocab_size']}, ({_BATCH}, {length}))"


def _typed(dtype: str) -> str:
    return "" if dtype == "float32" else f", dtype=torch.{dtype}"
