"""The table of tolerances, and a user's file over it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.profile_contract import ToleranceJson
from fuzzcompile.model.thresholds import ROUNDING_FACTOR
from fuzzcompile.model.tolerances import PAIRS, Tolerances

DTYPES = ("float64", "float32", "tf32", "float16", "bfloat16")


@pytest.fixture
def loaded(tmp_path: Path):
    def load(text: str) -> Tolerances:
        path = tmp_path / "mine.toml"
        path.write_text(text, encoding="utf-8")
        return Tolerances.load(path)

    return load


def test_every_pair_has_every_dtype_and_a_reason():
    table = Tolerances.load()
    rows = [table.for_pair(pair, dtype) for pair in PAIRS for dtype in DTYPES]
    assert set(table.rows) == {(pair, dtype) for pair in PAIRS for dtype in DTYPES}
    assert all(row.reason.endswith(".") and row.factor >= 1 and row.relative > 0 for row in rows)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_backend_has_the_judges_factor_and_devices_more(dtype: str):
    table = Tolerances.load()
    assert table.for_pair("same_backend", dtype).factor == ROUNDING_FACTOR
    assert table.for_pair("across_devices", dtype).factor > ROUNDING_FACTOR


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_the_relative_floor_is_one_unit_in_the_last_place(dtype: torch.dtype):
    for pair in PAIRS:
        row = Tolerances.load().for_pair(pair, str(dtype))
        assert row.relative == pytest.approx(torch.finfo(dtype).eps, rel=0.02)


@pytest.mark.parametrize(
    "name, row",
    [
        ("torch.float32", "float32"),
        ("complex64", "float32"),
        ("torch.complex128", "float64"),
        ("float8_e4m3fn", "bfloat16"),
        ("float4_e2m1fn_x2", "bfloat16"),
    ],
)
def test_a_dtype_without_a_row_has_that_of_its_parts_or_the_narrowest(name: str, row: str):
    assert Tolerances.load().for_pair("across_backends", name).dtype == row


@pytest.mark.parametrize("pair, dtype, known", [("nearby", "float32", PAIRS), ("same_backend", "int64", DTYPES)])
def test_an_unknown_row_is_refused_with_the_known_ones(pair: str, dtype: str, known: tuple[str, ...]):
    with pytest.raises(UsageError, match=f"no .*; use one of {', '.join(known)}"):
        Tolerances.load().for_pair(pair, dtype)


def test_a_file_changes_what_it_names_and_nothing_else(loaded):
    plain, table = Tolerances.load(), loaded("[across_backends.bfloat16]\nfactor = 20\nabsolute = 0.5\n")
    row, before = (each.for_pair("across_backends", "bfloat16") for each in (table, plain))
    assert (row.factor, row.absolute, row.relative) == (20.0, 0.5, before.relative)
    assert row.reason.startswith("mine.toml") and before.reason in row.reason
    assert {key for key in plain.rows if plain.rows[key] != table.rows[key]} == {("across_backends", "bfloat16")}


def test_a_file_may_give_its_own_reason(loaded):
    assert loaded('[same_backend.float16]\nreason = "ours"').for_pair("same_backend", "float16").reason == "ours"


@pytest.mark.parametrize(
    "text, words",
    [
        ("[nearby.float32]\nfactor = 2", "no pair 'nearby'; use one of same_backend, across_backends"),
        ("[same_backend.int8]\nfactor = 2", "no dtype 'int8'; use one of float64, float32"),
        ("[same_backend.float32]\nfaktor = 2", "no key 'faktor'; use one of factor, relative, absolute, reason"),
        ("[same_backend.float32]\nfactor = -1", "factor must be a number of at least 0, not -1"),
        ("[same_backend.float32]\nabsolute = nan", "absolute must be a number of at least 0, not nan"),
        ("[same_backend.float32]\nrelative = true", "relative must be a number of at least 0, not True"),
        ("[same_backend.float32]\nfactor = '6'", "factor must be a number of at least 0, not '6'"),
        ("[same_backend.float32]\nreason = 7", "reason must be text, not 7"),
        ("factor = 7", "no pair 'factor'"),
        ("same_backend = 7", "same_backend must be a table"),
        ("[same_backend]\nfloat32 = 7", "float32 must be a table"),
        ("[same_backend", "is not a TOML file"),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(loaded, text: str, words: str):
    with pytest.raises(UsageError) as refusal:
        loaded(text)
    assert words in str(refusal.value) and "mine.toml" in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_missing_file_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match=r"Cannot read .*absent\.toml"):
        Tolerances.load(tmp_path / "absent.toml")


def test_a_row_in_json_has_the_keys_of_the_contract():
    row = Tolerances.load().for_pair("across_devices", "float32")
    assert set(row.to_json()) == set(ToleranceJson.__annotations__)


def test_the_floor_is_in_units_of_the_size_and_of_the_value(loaded):
    row = loaded("[same_backend.float32]\nabsolute = 0.5\nrelative = 0.25").for_pair("same_backend", "float32")
    assert row.floor(4.0) == 3.0 and row.floor(4.0, 0.0) == 2.0 and row.floor(4.0, 8.0) == 4.0
