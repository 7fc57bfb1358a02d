"""Candidates of a reduction that fail in another way become findings of their own."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from answering import AnsweringPool

from fuzzcompile.corpus.records import Campaign
from fuzzcompile.corpus.store import Store
from fuzzcompile.diagnosis.worker.minimize_task import MinimizeTask
from fuzzcompile.front.minimize_case import store_secondary_findings
from fuzzcompile.fuzz.campaign.budget import CampaignBudget
from fuzzcompile.fuzz.campaign.campaign_engine import CampaignEngine
from fuzzcompile.fuzz.campaign.campaign_settings import CampaignSettings
from fuzzcompile.fuzz.campaign.case_sources import CaseSource, DrawnCase
from fuzzcompile.fuzz.generation.profile import Profile
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.judge_task import JudgeResult
from fuzzcompile.programs.shrink.outcome import MinimizeResult, SearchTally

KNOWN = Path(__file__).parents[2] / "known_issues"
TORCH = "2.13.0"


class One(CaseSource):
    """A single case."""

    name, profile = "one", None

    def at(self, seed: int, index: int, candidate: int = 0) -> DrawnCase:
        return DrawnCase("# found\n", "user")

    def of(self, choices: bytes) -> DrawnCase | None:
        return None


class Answers(AnsweringPool):
    """The first case is a bug; its reduction meets three others, of which each is a bug of another name."""

    def __init__(self) -> None:
        self.judged: list[str] = []

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        (task,) = args
        future: Future[Any] = Future()
        if isinstance(task, MinimizeTask):
            others = tuple(f"# other {number}\n" for number in range(3)) if "found" in task.source else ()
            outcome = MinimizeResult(
                task.source, task.report, task.source, True, "", None, "as found", False, "",
                SearchTally(others=dict(zip(others, others, strict=True))), 1.0, True, None, None,
            )  # fmt: skip
            future.set_result(replace(outcome, original=task.source))
            return future
        source = task.source
        self.judged.append(source)
        report = {"schema": 1, "torch": TORCH, "device": "cpu", "verdict": "miscompile", "is_bug": True}
        report |= {"signature": f"post_grad:-:{source.strip()}", "culprit": None, "evidence": {}, "cost": {}}
        future.set_result(JudgeResult({**report, "confidence": "high"}))
        return future


def test_a_campaign_judges_what_its_reductions_meet(tmp_path):
    settings = CampaignSettings(
        CampaignBudget(cases=1), 0, Profile(), "cpu", 1, TORCH, drafts=tmp_path / "drafts", source=One()
    )
    environment, executor = {"torch": TORCH, "device": "cpu"}, Answers()
    with Store.open(tmp_path / "corpus.db") as store:
        number = store.start_campaign(Campaign(0, {"stream": settings.stream}, "run", "0", environment))
        engine = CampaignEngine(settings, store, executor, environment, campaign=number)
        for _ in engine.run():
            pass
        engine.finish()
        signatures = {finding.signature for finding in store.findings()}
    assert executor.judged == ["# found\n", "# other 0\n", "# other 1\n"]  # and no more than two
    assert signatures == {"post_grad:-:# found", "post_grad:-:# other 0", "post_grad:-:# other 1"}


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="a bug of torch 2.13")
def test_what_minimizing_meets_is_judged_and_stored_once(tmp_path):
    bug = (KNOWN / "issue_193265.py").read_text()
    clean = "import torch\ndef make():\n    return torch.sin, (torch.ones(2),)\n"
    with Store.open(tmp_path / "corpus.db") as store:
        (secondary,) = store_secondary_findings(store, [clean, bug], Conditions("cpu"))
        assert secondary.is_new and secondary.signature.endswith("pointless_cumsum_replacement:no dimension")
        (stored,) = store.findings()
        assert (stored.public_id, stored.source) == (secondary.finding, bug)
        assert store_secondary_findings(store, [bug], Conditions("cpu")) == []
