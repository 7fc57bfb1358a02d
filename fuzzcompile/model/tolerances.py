"""Tolerances between two ways to run a program, by pair and dtype: one table, with the reason for each number."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.package_files import read_table
from fuzzcompile.model.profile_contract import ToleranceJson


@dataclass(frozen=True)
class Tolerance:
    """Difference allowed between one pair of ways to run, in one dtype.

    An error newly made in a layer is a jump if it exceeds both ``factor`` times the local rounding noise of the
    reference and ``absolute * size + relative * |reference|``, with ``size`` the RMS of the layer's output.
    """

    pair: str  # the kind of pair
    dtype: str  # the narrower dtype of the two sides
    factor: float  # multiple of the noise
    relative: float  # share of the value itself; no unit
    absolute: float  # in units of the RMS size of the layer's output
    reason: str  # why these numbers

    def floor(self, size: float, value: float | None = None) -> float:
        """The error that is never a jump; ``value`` is the magnitude of the reference where it is (None: RMS size)."""
        return self.absolute * size + self.relative * (size if value is None else value)

    def to_json(self) -> ToleranceJson:
        """The entry of the contract."""
        return cast(ToleranceJson, asdict(self))


PAIRS = ("same_backend", "across_backends", "across_devices", "across_dtypes")
_NUMBERS = ("factor", "relative", "absolute")
_KEYS = (*_NUMBERS, "reason")
# Dtypes without rows of their own round as these do, part by part.
_STANDS_FOR = {"complex64": "float32", "complex128": "float64", "complex32": "float16"}


@dataclass(frozen=True)
class Tolerances:
    """The rows by pair and dtype."""

    rows: Mapping[tuple[str, str], Tolerance]

    @classmethod
    def load(cls, path: Path | None = None) -> Tolerances:
        """The table that comes with fuzzcompile, with the entries of a user's TOML file in place of its own.

        A file holds tables such as ``[same_backend.float32]``, each with any of ``factor``, ``relative``, ``absolute``
        and ``reason``. UsageError says what cannot be read or used of it.
        """
        table, own = read_table(__package__, "tolerances"), Path("tolerances.toml")
        rows = {key: Tolerance(*key, **entries) for key, entries in _iter_rows(table, own, None)}
        known = cls(rows).dtypes
        for key, entries in () if path is None else _iter_rows(_read(path), path, known):
            reason = f"{path and path.name}, in place of: {rows[key].reason}"
            rows[key] = replace(rows[key], **{"reason": reason, **entries})
        return cls(rows)

    def for_pair(self, kind: str, dtype: str) -> Tolerance:
        """The row of a pair, one of :data:`PAIRS`, in a dtype, such as ``float32`` or ``torch.float32``.

        A complex dtype has the row of its parts, a float8 or float4 dtype that of bfloat16, the narrowest. UsageError
        if there is no such pair or dtype.
        """
        name = dtype.removeprefix("torch.")
        name = "bfloat16" if name.startswith(("float8", "float4")) else _STANDS_FOR.get(name, name)
        _check_known("pair", kind, PAIRS, "the table of tolerances")
        _check_known("dtype", name, self.dtypes, "the table of tolerances")
        return self.rows[kind, name]

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Those that have rows, widest first."""
        return tuple(dict.fromkeys(dtype for _, dtype in self.rows))


def _read(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}; name a TOML file of tolerances.") from error
    except ValueError as error:  # of TOML and of UTF-8
        raise UsageError(f"{path} is not a TOML file ({error}); correct it.") from error


def _iter_rows(
    table: Mapping[str, object], path: Path, dtypes: Iterable[str] | None
) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    for pair, of_pair in table.items():
        _check_known("pair", pair, PAIRS, str(path))
        for dtype, entries in _check_table(pair, of_pair, path).items():
            _check_known("dtype", dtype, [dtype] if dtypes is None else dtypes, str(path))
            yield (pair, dtype), _check_entries(_check_table(dtype, entries, path), path)


def _check_table(name: str, value: object, path: Path) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{path}: {name} must be a table, as in [same_backend.float32].")
    return value


def _check_known(what: str, name: str, known: Iterable[str], where: str) -> None:
    if name not in known:
        raise UsageError(f"{where}: there is no {what} {name!r}; use one of {', '.join(known)}.")


def _check_entries(entries: Mapping[str, Any], path: Path) -> dict[str, Any]:
    for key, value in entries.items():
        _check_known("key", key, _KEYS, str(path))
        if key == "reason" and not isinstance(value, str):
            raise UsageError(f"{path}: reason must be text, not {value!r}.")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if key in _NUMBERS and not (is_number and math.isfinite(value) and value >= 0):
            raise UsageError(f"{path}: {key} must be a number of at least 0, not {value!r}.")
    return {key: float(value) if key in _NUMBERS else value for key, value in entries.items()}
