"""The public benchmark's table: each of the 130 is put back by a plant with a reproducer, or has a reason."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from benchmark130 import judge
from put_back import FOLDER, PublicBug, read_bugs

from fuzzcompile.model.stages import STAGE_TABLE

BUGS = read_bugs()
PUT_BACK = [bug for bug in BUGS if not bug.reason]


def test_the_table_has_all_of_them():
    assert len({bug.issue for bug in BUGS}) == len(BUGS) == 130
    assert sum(bug.six for bug in BUGS) == 31
    assert Counter(bug.pattern for bug in BUGS)["non-tensor construct"] == 34
    assert {path.stem for path in FOLDER.glob("issue_*.py")} == {f"issue_{bug.issue}" for bug in PUT_BACK}


@pytest.mark.parametrize("bug", PUT_BACK, ids=lambda bug: str(bug.issue))
def test_a_plant_says_what_is_to_be_found(bug):
    compile(bug.case, "case.py", "exec")
    assert "make()" in bug.case or "torch.compile" in bug.case
    assert bug.stages and set(bug.stages) <= {stage.name for stage in STAGE_TABLE} and bug.names


def test_a_reason_says_its_kind():
    assert all(":" in bug.reason for bug in BUGS if bug.reason)
    assert all(bool(bug.named) != bool(bug.reason) for bug in BUGS)


def is_named_here(bug: PublicBug) -> bool:
    """Return whether the table says that the bug is named on such a processor: a race is so at times alone."""
    return bug.named == "yes" or (
        bug.named == "with AVX-512" and torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    )


@pytest.mark.slow
@pytest.mark.parametrize("bug", filter(is_named_here, PUT_BACK), ids=lambda bug: str(bug.issue))
def test_what_was_named_is_named(bug):
    answer = judge(bug, clean=False)
    assert answer.found and answer.named, answer
