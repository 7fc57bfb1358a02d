"""Torch's own tables of operators, as `torch.testing._internal` has them."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch

from fuzzcompile.errors import EnvironmentUnfit, UsageError
from fuzzcompile.opinfo.cells import DTYPES, Operator


def operators(only: Sequence[str] = ()) -> tuple[Operator, ...]:
    """The entries of the tables that run on the CPU, in their order.

    Args:
        only: names of operators, with or without a variant (``add``, ``nn.functional.gelu``); all by default.

    Raises:
        EnvironmentUnfit: the tables cannot be imported.
        UsageError: there is no operator of a name.
    """
    entries = {key: entry for key, entry in _database().items() if _takes(entry)}
    for name in only:
        if not any(name in _names(*key) for key in entries):
            raise UsageError(f"Torch's tables have no operator {name}; names are such as add and nn.functional.gelu.")
    chosen = [entry for key, entry in entries.items() if not only or set(_names(*key)) & set(only)]
    with quietly():
        return tuple(_operator(entry) for entry in chosen)


def entry_of(name: str, variant: str) -> Any:
    """The OpInfo of an operator.

    Raises:
        EnvironmentUnfit: the tables cannot be imported.
        KeyError: they have no such entry.
    """
    return _database()[name, variant]


def samples_of(entry: Any, dtype: str, *, gradients: bool = False) -> Iterator[Any]:
    """The table's sample inputs on the CPU, the same ones each time."""
    torch.manual_seed(0)
    yield from entry.sample_inputs("cpu", getattr(torch, dtype), requires_grad=gradients)


def errors_of(entry: Any) -> Sequence[Any]:
    """The table's calls that eager refuses; none where the table has none for the CPU, or cannot make them here."""
    if entry.error_inputs_func is None:
        return ()
    torch.manual_seed(0)
    try:
        return tuple(entry.error_inputs("cpu"))
    except (RuntimeError, NotImplementedError):  # some need a device that is not there
        return ()


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without the warnings that making samples of deprecated or beta functions gives."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@cache
def _database() -> dict[tuple[str, str], Any]:
    try:
        with quietly():
            from torch.testing._internal.common_methods_invocations import op_db
    except ImportError as error:
        raise EnvironmentUnfit(
            f"Torch's tables of operators cannot be imported ({error}): pip install 'fuzzcompile[opinfo]'."
        ) from error
    return {(entry.name, entry.variant_test_name): entry for entry in op_db}


def _names(name: str, variant: str) -> tuple[str, ...]:
    return (name, f"{name}.{variant}") if variant else (name,)


def _takes(entry: Any) -> bool:
    """Whether the CPU runs it: jiterated functions are CUDA's own."""
    return bool(_dtypes(entry)) and not entry.name.startswith("jiterator")


def _dtypes(entry: Any) -> tuple[str, ...]:
    supported = entry.supported_dtypes("cpu")
    return tuple(name for name in DTYPES if getattr(torch, name) in supported)


def _operator(entry: Any) -> Operator:
    dtypes = _dtypes(entry)
    backward = entry.supported_backward_dtypes("cpu") if entry.supports_autograd else ()
    differentiable = tuple(name for name in dtypes if getattr(torch, name) in backward)
    count = sum(1 for _ in itertools.islice(samples_of(entry, dtypes[0]), 10_000))
    in_place = entry.inplace_variant is not None
    return Operator(entry.name, entry.variant_test_name, dtypes, differentiable, in_place, count, len(errors_of(entry)))
