"""The sweep of eager mode alone: its cells, batch norm's backward with a transposed cotangent, a planted kernel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from sweeping import sweep_planted

from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.front.cli.main import cli
from fuzzcompile.fuzz.campaign.budget import BudgetClock, CampaignBudget
from fuzzcompile.fuzz.campaign.case_sources import OperatorSweep, open_tables
from fuzzcompile.fuzz.opinfo_cells import LAYOUTS, OpInfoCell
from fuzzcompile.model.errors import UsageError
from fuzzcompile.programs.casefiles.case_module import load_case

CPU = torch.device("cpu")
ONLY = ("nn.functional.batch_norm", "nn.functional.gelu", "logsumexp", "gather", "heaviside")


@pytest.fixture(scope="module")
def sweep() -> Iterator[OperatorSweep]:
    with open_tables(ONLY, eager=True) as tables:
        yield tables(0, BudgetClock(CampaignBudget.parse("60s")))


def find(sweep: OperatorSweep, name: str, **wanted: object) -> Iterator[tuple[int, OpInfoCell]]:
    for index, cell in enumerate(sweep.cells):
        if cell.name == name and all(getattr(cell, key) == value for key, value in wanted.items()):
            yield index, cell


def judge(write_case, sweep: OperatorSweep, index: int) -> dict | None:
    drawn = sweep.at(0, index)
    return None if drawn is None else triage(load_case(write_case(drawn.source)), CPU).to_json()


def test_cells_have_each_layout_of_operands_and_cotangents_and_both_sizes(sweep: OperatorSweep):
    cells = [cell for _, cell in find(sweep, "nn.functional.gelu", dtype="float32", chunk=0, form="function")]
    assert {cell.layout for cell in cells} == {cell.cotangent for cell in cells} == set(LAYOUTS)
    assert {cell.size for cell in cells} == {"given", "long", "single"} and all(cell.backward for cell in cells)
    assert len(set(cells)) == len(cells) and not list(find(sweep, "gather", form="error"))


def test_batch_norms_backward_with_a_transposed_cotangent_is_found(write_case, sweep: OperatorSweep):
    cells = find(
        sweep, "nn.functional.batch_norm", dtype="float32", layout="contiguous", cotangent="transposed", backward=True
    )
    found = [report for index, _ in cells if (report := judge(write_case, sweep, index))]
    named = {report["signature"] for report in found if report["verdict"] == "eager_wrong"}
    assert named == {"aten:-:native_batch_norm_backward"}


@pytest.mark.parametrize("name", ["nn.functional.gelu", "logsumexp", "gather"])
def test_a_clean_sample_of_cells_stays_clean(write_case, sweep: OperatorSweep, name: str):
    reports = [judge(write_case, sweep, index) for index, _ in list(find(sweep, name, chunk=0))[:14]]
    judged = [report for report in reports if report is not None]
    assert len(judged) > 5
    assert not [(report["verdict"], report["detail"]) for report in judged if report["is_bug"]]
    assert not any(report["cost"]["compiles"] for report in judged)


PLANT = """
import torch

kernel = torch.library.get_kernel(torch.ops.aten.hypot.default, "CPU")


def planted(keys, x, values):
    return kernel.call_boxed(keys, x, values) + (x > 0).to(x.dtype)


library = torch.library.Library("aten", "IMPL")
library.impl("hypot", planted, "CPU", with_keyset=True, allow_override=True)
"""


@pytest.mark.slow
def test_a_planted_kernel_is_found_and_a_second_run_resumes(tmp_path: Path):
    first, second = (sweep_planted(tmp_path, PLANT, "hypot", budget, eager=True) for budget in ("10c", "6c"))
    assert [finding.signature for finding in first.findings] == ["aten:-:hypot"], first.to_json()
    assert not any(finding.new for finding in second.findings)
    assert second.tally.cases <= 6


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "add --source opinfo"),
        (("--source", "opinfo", "--focus", "gelu"), "compiles nothing"),
        (("--source", "opinfo", "--screen-only"), "compiles nothing"),
        (("--source", "opinfo", "--target", "cuda:sm_90"), "compiles nothing"),
    ],
)
def test_what_does_not_go_with_it_is_refused_in_a_sentence(tmp_path: Path, options: tuple[str, ...], said: str):
    result = CliRunner().invoke(cli, ["run", "--eager", *options, "--corpus", str(tmp_path / "corpus")])
    assert isinstance(result.exception, UsageError) and said in str(result.exception)
