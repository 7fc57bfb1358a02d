"""Cases from torch's tables: files that run alone, what is left out is counted, and a planted error is found."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sweeping import sweep_planted

from fuzzcompile.fuzz.campaign.budget import BudgetClock, CampaignBudget
from fuzzcompile.fuzz.campaign.case_sources import DrawnCase, OperatorSweep, open_tables
from fuzzcompile.fuzz.opinfo_cells import OpInfoCell
from fuzzcompile.model.errors import UsageError


@pytest.fixture(scope="module")
def sweep() -> Iterator[OperatorSweep]:
    only = ("index_select", "polygamma.polygamma_n_1", "empty_like", "T")
    with open_tables(only) as tables:
        yield tables(0, BudgetClock(CampaignBudget.parse("60s")))


@pytest.fixture(scope="module")
def cases(sweep: OperatorSweep) -> list[DrawnCase]:
    errors = [index for index, cell in enumerate(sweep.cells) if cell.form == "error"]
    return [case for case in (sweep.at(0, index) for index in (*range(72), *errors[:1])) if case is not None]


def made(case: DrawnCase) -> tuple[Any, Any]:
    space: dict[str, Any] = {}
    exec(case.source, space)
    program, inputs = space["make"]()
    return program, inputs


def test_cases_need_torch_alone_and_run_in_eager_mode(cases: list[DrawnCase]):
    assert len(cases) > 30
    for case in cases:
        program, inputs = made(case)
        if "error" in case.features:
            with pytest.raises((RuntimeError, ValueError, IndexError, TypeError)):
                program(*inputs)
        else:
            results = program(*(value.detach() for value in inputs))
            assert all(isinstance(result, torch.Tensor) for result in torch.utils._pytree.tree_leaves(results))


def test_cases_have_the_dtype_layout_and_gradients_that_they_name(cases: list[DrawnCase]):
    seen = set[str]()
    for case in cases:
        _, inputs = made(case)
        seen |= set(case.features)
        assert ("BACKWARD = True" in case.source) == ("backward" in case.features)
        if "transposed" in case.features:
            assert any(not value.is_contiguous() for value in inputs)
        if "float16" in case.features:
            assert any(value.dtype == torch.float16 for value in inputs)
    assert {"transposed", "expanded", "backward", "in_place", "error", "index_select"} <= seen


def test_what_is_not_determined_is_left_out_and_counted(sweep: OperatorSweep, cases: list[DrawnCase]):
    for case in cases:
        if "torch.empty_like" in case.source:
            program, inputs = made(case)
            assert not any(result.numel() for result in torch.utils._pytree.tree_leaves(program(*inputs)))
    reasons = sweep.account["left_out"]
    assert isinstance(reasons, dict)
    assert reasons["functions of the test suite, and values that are not determined"] > 0


@pytest.mark.slow
def test_elementwise_operators_that_take_one_dtype_share_a_case_that_is_compiled_in_full():
    names = ("asinh", "exp2", "fmod", "bitwise_not", "index_select")
    with open_tables(names) as tables:
        sweep = tables(0, BudgetClock(CampaignBudget.parse("60s")))
        drawn = [case for number in range(30) if (case := sweep.draw(random.Random(number))) is not None]
    shared = [case for case in drawn if "shared" in case.features]
    assert shared and all(case.needs_code and "index_select" not in case.features for case in shared)
    together = set[int]()
    for case in shared:
        program, inputs = made(case)
        called = [name for name in names if f"torch.{name}(" in case.source]
        assert set(called) <= set(case.features)  # one without a sample that can be spelled is named alone
        assert len(program(*(value.detach() for value in inputs))) >= len(called)
        together.add(len(called))
    assert max(together) > 2
    assert any("extreme" in case.features and "inf" in case.source for case in shared)
    assert {case.needs_code for case in drawn if "index_select" in case.features} == {True, False}


def test_each_operator_has_its_turn_before_one_comes_again():
    names = {"index_select", "diag_embed", "cumsum", "roll", "flip"}
    with open_tables(tuple(names)) as tables:
        sweep = tables(0, BudgetClock(CampaignBudget.parse("60s")))
        drawn = [sweep.draw(random.Random(number)) for number in range(2 * len(names))]
    turns = Counter(name for case in drawn if case is not None for name in names & set(case.features))
    assert turns.keys() == names and max(turns.values()) == 2, turns  # a cell may have no sample that can be spelled


def test_the_samples_of_a_case_are_spread_over_the_table():
    cell = OpInfoCell("nn.functional.max_pool2d", "", "function", "float32")
    with open_tables((cell.name,)) as tables:  # in a process of their own: importing them freezes torch's flags
        (written,) = tables(0, BudgetClock(CampaignBudget.parse("60s"))).write([cell]).result()
    assert written.source is not None
    sizes, padding = (
        set(re.findall(rf"{name}=([^,]+(?:, \d+\))?)", written.source)) for name in ("kernel_size", "padding")
    )
    assert len(sizes) > 1 and len(padding) > 1, written.source


def test_indices_that_nothing_checks_are_left_in_range():
    cell = OpInfoCell("_unsafe_masked_index", "", "function", "float32", values="extreme")
    with open_tables((cell.name,)) as tables:
        (written,) = tables(0, BudgetClock(CampaignBudget.parse("60s"))).write([cell]).result()
    assert written.source is not None and "inf" in written.source
    assert str(torch.iinfo(torch.int64).max) not in written.source


@pytest.mark.slow
def test_a_name_that_no_operator_has_is_refused():
    with open_tables(("no_such_operator",)) as tables, pytest.raises(UsageError, match="no_such_operator"):
        tables(0, BudgetClock(CampaignBudget.parse("60s")))


PLANT = """
import torch
from torch._inductor.decomposition import decompositions
from torch._inductor.lowering import lowerings


def planted_heaviside(x, values):
    return torch.where(x == 0, values, (x >= 1).to(x.dtype))


decompositions[torch.ops.aten.heaviside.default] = planted_heaviside
"""


@pytest.mark.slow
def test_a_planted_error_of_a_decomposition_is_found(tmp_path: Path):
    summary = sweep_planted(tmp_path, PLANT, "heaviside", "12c")
    assert any("heaviside" in finding.signature for finding in summary.findings), summary.to_json()
