"""Campaigns from end to end, on real compiles: findings, resuming, losing workers, being killed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import torch
from interrupting import heed_interrupts

from fuzzcompile.corpus.records import CorpusError
from fuzzcompile.corpus.store import Store
from fuzzcompile.diagnosis.worker.local_pool import open_pool
from fuzzcompile.front.cli.main import main
from fuzzcompile.fuzz.campaign.budget import CampaignBudget, format_duration
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.judge_task import JUDGE, JudgeTask

KNOWN = Path(__file__).parents[2] / "known_issues"
# A known issue, and its signature: one that fails while it compiles, and a wrong result, whose search takes minutes.
ISSUES = [
    ("issue_193265", "post_grad:torch/_inductor/fx_passes/post_grad.py:pointless_cumsum_replacement:no dimension"),
    pytest.param(
        ("issue_195320", "joint_graph:torch/_inductor/fx_passes/fuse_attention.py:sfdp:permute(dims)"),
        marks=pytest.mark.slow,
    ),
]


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fuzzcompile", "run", "--device", "cpu", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )


def here(*arguments: str) -> int:
    """The exit status of a command in this process: it starts faster than one of its own."""
    with pytest.raises(SystemExit) as ending:
        main(arguments)
    return int(ending.value.code or 0)


def run(folder: Path, *arguments: str) -> dict:
    """The summary of a campaign that ends within its budget."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = here("run", "--device", "cpu", *arguments, "--json")
    assert status == 0, err.getvalue()
    return json.loads(out.getvalue())


def wait_for(condition, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.2)


def judged(folder: Path) -> int:
    """Runs stored so far; none while the corpus is being made."""
    try:
        with Store.open(folder / "corpus" / "fuzzcompile.db", create=False) as store:
            return store.counters().runs
    except CorpusError:
        return 0


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("90s", CampaignBudget(seconds=90)),
        ("10m", CampaignBudget(seconds=600)),
        ("1.5h", CampaignBudget(seconds=5400)),
        ("200c", CampaignBudget(cases=200)),
    ],
)
def test_budgets(text, budget):
    assert CampaignBudget.parse(text) == budget


@pytest.mark.parametrize("text", ["", "10", "m", "-5s", "0c", "1.5c", "10 minutes", "nan s"])
def test_what_is_no_budget(text):
    with pytest.raises(UsageError, match="no budget"):
        CampaignBudget.parse(text)


def test_clock():
    assert (format_duration(61), format_duration(3723)) == ("1:01", "1:02:03")


@dataclass(frozen=True)
class Campaign:
    """A short campaign of one worker over variations of a case with a real bug; the case itself comes first."""

    folder: Path
    case: Path
    signature: str
    summary: dict

    @property
    def family(self) -> str:
        return self.signature.split(":")[2]

    @property
    def finding(self) -> dict:
        (finding,) = [finding for finding in self.summary["findings"] if self.family in finding["culprit"]]
        return finding


@pytest.fixture(scope="module", params=ISSUES, ids=lambda issue: issue[0])
def campaign(request, tmp_path_factory) -> Campaign:
    issue, signature = request.param
    folder, case = tmp_path_factory.mktemp("campaign"), KNOWN / f"{issue}.py"
    files = ("--log", "log.jsonl", "--sarif", "findings.sarif", "--summary", "summary.json")
    summary = run(folder, "--budget", "3c", "--workers", "1", "--from", str(case), *files)
    return Campaign(folder, case, signature, summary)


# Fused attentions have known bugs of layouts in this torch.
CLEAN = ("--workers", "1", "--seed", "5", "--no-near-misses", "--veto", "_sfdp")


@pytest.fixture(scope="module")
def generated(tmp_path_factory) -> tuple[Path, dict]:
    """A short campaign of one worker without a finding, which would be minimized for a minute."""
    folder = tmp_path_factory.mktemp("generated")
    return folder, run(folder, "--budget", "4c", *CLEAN, "--log", "log.jsonl")


def test_a_campaign_finds_explains_shrinks_and_drafts_a_real_bug(campaign):
    folder, finding = campaign.folder, campaign.finding
    assert campaign.summary["ended"] == "budget" and campaign.summary["cases"] >= 3
    assert finding["necessary"] is True and finding["confirmed"] is True and finding["reproducer_lines"] <= 40
    draft = Path(folder, finding["draft"])
    assert "### 🐛 Describe the bug" in draft.read_text() and "**Proof:**" in draft.read_text()
    assert f"[{finding['finding']}]({draft.name})" in draft.with_name("INDEX.md").read_text()
    with Store.open(folder / "corpus" / "fuzzcompile.db") as store:
        found = store.finding(finding["finding"])
        assert found.signature == campaign.signature
        reproducer = store.best_reproducer(found.id)
        assert store.coverage() and store.integrity() == "ok"
        stream = store.campaigns()[0].settings["stream"]
        assert store.stream_runs(stream, torch.__version__)[0].features == ("as_given",)
    script = folder / "repro.py"
    script.write_text(reproducer.source)
    alone = subprocess.run([sys.executable, "repro.py"], cwd=folder, capture_output=True, check=False)
    assert alone.returncode == 1


def test_a_campaign_writes_its_events_its_summary_and_its_findings(campaign):
    lines = [json.loads(line) for line in Path(campaign.folder, "log.jsonl").read_text().splitlines()]
    events = [line["event"] for line in lines]
    assert (events[0], events[-1]) == ("campaign_started", "campaign_finished")
    assert [line["time"] for line in lines] == sorted(line["time"] for line in lines)
    judged = [line for line in lines if line["event"] == "case_judged"]
    assert len(judged) >= campaign.summary["cases"] and judged[0]["finding"] == campaign.finding["finding"]
    (reduced,) = [line for line in lines if line["event"] == "finding_reduced"]
    assert reduced["confirmed"] and reduced["lines"] == campaign.finding["reproducer_lines"]
    assert json.loads(Path(campaign.folder, "summary.json").read_text()) == campaign.summary
    (sarif,) = json.loads(Path(campaign.folder, "findings.sarif").read_text())["runs"]
    (result,) = sarif["results"]
    assert result["partialFingerprints"]["signature/v1"].startswith(campaign.signature)
    place, artifact = result["locations"][0]["physicalLocation"], sarif["artifacts"][0]
    assert place["artifactLocation"]["uri"] == artifact["location"]["uri"]
    assert place["region"]["startLine"] <= len(artifact["contents"]["text"].splitlines())


@pytest.mark.slow
def test_a_second_run_goes_on_and_repeats_no_case(campaign):
    second = run(campaign.folder, "--budget", "2c", "--workers", "1", "--from", str(campaign.case))
    assert second["cases"] >= 2
    with Store.open(campaign.folder / "corpus" / "fuzzcompile.db") as store:
        campaigns = store.campaigns()
        stream = campaigns[0].settings["stream"]
        assert store.recorded_indices(stream) >= set(range(5))
        assert [c.ended for c in campaigns] == ["budget", "budget"]
        assert store.counters().runs == campaign.summary["cases"] + second["cases"]


@pytest.mark.slow
def test_most_cases_are_screened_and_what_was_reached_is_shown(generated, monkeypatch, capsys):
    folder, summary = generated
    assert 0 < summary["screened"] <= summary["cases"]
    with Store.open(folder / "corpus" / "fuzzcompile.db") as store:
        runs = store.stream_runs(store.campaigns()[0].settings["stream"], torch.__version__)
        assert all(run.features for run in runs) and runs[0].firsts
        assert {"joint_graph", "decomposition"} <= {row.stage for row in store.coverage()}
    monkeypatch.chdir(folder)
    assert here("coverage", "--json") == 0
    assert any(row["fired"] for row in json.loads(capsys.readouterr().out)["stages"])


@pytest.mark.slow
def test_the_same_seed_gives_the_same_cases(generated, tmp_path):
    folder, _ = generated
    run(tmp_path, "--budget", "2c", *CLEAN)
    with (
        Store.open(tmp_path / "corpus" / "fuzzcompile.db") as again,
        Store.open(folder / "corpus" / "fuzzcompile.db") as before,
    ):
        stream = again.campaigns()[0].settings["stream"]
        assert again.recorded_indices(stream) <= before.recorded_indices(stream)
        drawn = [
            [run.features for run in store.stream_runs(stream, torch.__version__)][:2] for store in (again, before)
        ]
        assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--screen-only", "--full-only"], "not both"),
        (["--from", "nothing.py"], "nothing.py does not exist"),
        (["--log", "."], "name another file for --log"),
        (["--sarif", "no/such/folder.sarif"], "name another file for --sarif"),
        (["--summary", "no/such/folder.json"], "name another file for --summary"),
        (["--from", "script.py"], "defines no make()"),
    ],
)
def test_wrong_use_is_said_in_one_sentence(tmp_path, monkeypatch, capsys, arguments, said):
    Path(tmp_path, "script.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    assert here("run", "--device", "cpu", *arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and said in err and len(err.strip().splitlines()) == 1


def test_commands_on_a_stored_finding(campaign, monkeypatch, capsys):
    finding, name = campaign.finding["finding"], campaign.family[:12]  # a table cuts names short
    monkeypatch.chdir(campaign.folder)
    for arguments in (
        ["corpus", "list"],
        ["corpus", "show", finding],
        ["issue", finding],
        ["corpus", "export", finding, "out"],
    ):
        assert here(*arguments) == 0
        out = capsys.readouterr().out
        assert name in out or "out/" in out
    assert here("issue", "F99") == 2
    assert finding in capsys.readouterr().err


ENDLESS = ("--budget", "10m", "--workers", "1", "--from", "slow.py")
# Clean, and so slow that the process it names last is still judging it when it is killed.
SLOW = """
import os
import time

import torch


def make():
    with open({began!r}, "a") as began:
        print(os.getpid(), file=began, flush=True)
    time.sleep(0.5)
    return torch.sin, (torch.ones(3, 5),)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> tuple[Path, list[psutil.Process]]:
    """The folder of a campaign that lost its worker and was killed later, and the processes that it had then."""
    folder = tmp_path_factory.mktemp("killed")
    began = folder / "began"
    began.touch()
    Path(folder, "slow.py").write_text(SLOW.format(began=str(began)))
    process = start(folder, *ENDLESS)
    wait_for(lambda: judged(folder) >= 1)
    made = began.read_text()
    wait_for(lambda: began.read_text() != made)
    os.kill(int(began.read_text().split()[-1]), signal.SIGKILL)
    before = judged(folder)
    wait_for(lambda: judged(folder) >= before + 2)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    return folder, children


@pytest.mark.slow
def test_a_killed_worker_costs_its_case_only_and_a_killed_campaign_nothing_stored(killed):
    folder, children = killed
    with Store.open(folder / "corpus" / "fuzzcompile.db") as store:
        assert store.integrity() == "ok" and store.campaigns()[0].ended is None
        assert store.counters().by_verdict.get("crash", 0) >= 1
    wait_for(lambda: not any(child.is_running() for child in children), 20)


@pytest.mark.slow
def test_a_killed_campaign_goes_on_and_ctrl_c_ends_it_with_the_summary(killed):
    folder, _ = killed
    stored = judged(folder)
    process = start(folder, *ENDLESS, "--log", "log.jsonl", "--summary", "summary.json")
    wait_for(lambda: judged(folder) > stored)
    process.send_signal(signal.SIGINT)
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0 and "Traceback" not in err
    assert "Campaign interrupted" in out and "Verdicts:" in out
    assert json.loads(Path(folder, "summary.json").read_text())["ended"] == "interrupted"
    last = json.loads(Path(folder, "log.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["ended"]) == ("campaign_finished", "interrupted")
    with Store.open(folder / "corpus" / "fuzzcompile.db") as store:
        assert store.campaigns()[-1].ended == "interrupted"


@pytest.mark.slow
def test_every_case_can_be_judged_again_from_its_record_alone(generated, capsys):
    """In the opposite order, by another worker, with nothing of the campaign but what the corpus prints."""
    folder, _ = generated
    corpus = str(folder / "corpus" / "fuzzcompile.db")
    with Store.open(corpus) as store:
        stream = str(store.campaigns()[0].settings["stream"])
        assert store.recorded_indices(stream) == {0, 1, 2, 3}
    entries = [json.loads(line) for line in Path(folder, "log.jsonl").read_text().splitlines()]
    names = [entry["case"] for entry in entries if entry["event"] == "case_judged"]
    assert len(set(names)) == 4 and all(name.startswith("case_") for name in names)
    with open_pool(Conditions("cpu"), 1) as pool:
        for name in reversed(names):
            assert here("corpus", "case", name, "--corpus", corpus, "--json") == 0
            told = json.loads(capsys.readouterr().out)
            (run,) = told["runs"]
            assert (run["place"][0], run["conditions"]["vetoes"]) == (stream, ["_sfdp"]) and told["trusted"] is True
            task = JudgeTask(
                path=f"{name}.py", source=told["source"], screen=run["screened"],
                vetoes=tuple(run["conditions"]["vetoes"]),
            )  # fmt: skip
            again = pool.submit(JUDGE, task).result()
            assert (again.report["verdict"], again.screened) == (run["report"]["verdict"], run["screened"])
            assert again.report["evidence"]["outputs"] == run["report"]["evidence"]["outputs"]


def test_a_case_is_printed_as_it_was_judged(generated, capsys):
    folder, _ = generated
    corpus = str(folder / "corpus" / "fuzzcompile.db")
    assert here("corpus", "case", _first_case(folder), "--corpus", corpus) == 0
    told = capsys.readouterr()
    assert "def make()" in told.out and "place " in told.err and "vetoes _sfdp" in told.err
    assert "Judge it again:" in told.err and "--veto _sfdp" in told.err
    for wrong in ("xyz", "12", "000000000000"):
        assert here("corpus", "case", wrong, "--corpus", corpus) == 2
        assert "case" in capsys.readouterr().err


def _first_case(folder: Path) -> str:
    entries = map(json.loads, Path(folder, "log.jsonl").read_text().splitlines())
    return next(entry["case"] for entry in entries if entry["event"] == "case_judged")
