"""Flags of the C++ compiler to which Inductor gives the code that it generates for a CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from fuzzcompile.compiler.torch_config import load_config
from fuzzcompile.run.torch_attributes import ReplacedAttribute


def _probe_flags() -> str | None:
    from torch._inductor.cpp_builder import CppTorchOptions

    with add_flags(("O0",)):
        known = CppTorchOptions().get_cflags()
    return None if "O0" in known else f"a flag that is added is missing from {known}"


FLAGS = ReplacedAttribute("torch._inductor.cpp_builder", "_get_ffast_math_flags", probe=_probe_flags)


@contextlib.contextmanager
def add_flags(flags: Sequence[str]) -> Iterator[None]:
    """Give the compiler these flags too, without the leading dash (``ffp-contract=off``); the last of two counts."""
    usual: Callable[[], list[str]] = getattr(FLAGS.find_owner(), FLAGS.leaf)
    # Of two equal flags Inductor keeps the first, and the compiler heeds the last of two that contradict each other.
    # A header that is compiled ahead holds for one set of flags, and takes 130 MB of the disk.
    headers = load_config("inductor").patch({"cpp_cache_precompile_headers": False})
    with headers, FLAGS.replace(lambda: [*(flag for flag in usual() if flag not in flags), *flags]):
        yield
