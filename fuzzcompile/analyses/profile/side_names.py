"""Names that users give to the ways to run a model. Needs no torch."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from fuzzcompile.model.errors import UsageError

KERNELS = ("math", "flash", "efficient", "cudnn")
DTYPES = ("bfloat16", "float16", "float32", "float64")
_SPELLINGS = (
    "eager, inductor[:mode], aot_eager, float64, cpu, cuda[:N], sdpa:math|flash|efficient|cudnn, dtype:bfloat16, "
    "or a recording (a file whose name ends in .safetensors)"
)


def spelled(text: str, modes: Collection[str] | None) -> tuple[str, str]:
    """The kind of run that ``text`` names, and what stands behind the colon; for a file, ``recording`` and its path.

    ``modes`` are those that ``torch.compile`` takes; None accepts any. If it names none, UsageError lists what does.
    """
    if text.endswith(".safetensors") or (text and Path(text).is_file()):
        if not Path(text).is_file():
            raise UsageError(f"There is no recording {text}; make one with --record {text}.")
        return "recording", text
    kind, _, argument = text.partition(":")
    known: dict[str, tuple[str, ...] | None] = {
        "inductor": None if modes is None else ("", *modes),
        "sdpa": KERNELS,
        "dtype": DTYPES,
        "cuda": None,
        **dict.fromkeys(("eager", "aot_eager", "float64", "cpu"), ("",)),
    }
    if kind not in known:
        raise UsageError(f"Nothing runs as {text!r}; use {_SPELLINGS}.")
    accepted = known[kind]
    if kind == "cuda" and argument and not argument.isdigit():
        raise UsageError(f"{text!r} is not a device; use cuda or cuda:N.")
    if accepted is not None and argument not in accepted:
        choices = ", ".join(f"{kind}:{name}" if name else kind for name in accepted)
        raise UsageError(f"Nothing runs as {text!r}; use one of {choices}.")
    return kind, argument
