"""``fuzzcompile run --cluster``, as a user types it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from calling import PLANT, call, sentence
from clustered import PATIENCE, until
from interrupting import heed_interrupts

from fuzzcompile.corpus.store import Store
from fuzzcompile.fuzz.campaign.campaign_display import CampaignProgress
from fuzzcompile.fuzz.campaign.campaign_outputs import format_entry
from fuzzcompile.fuzz.cluster.cluster_state import ClusterAddress, ClusterChange, ClusterState
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.judge_task import WorkerDescription

pytest.importorskip("distributed", reason="Dask is an extra: pip install 'fuzzcompile[cluster]'")


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-m", "fuzzcompile", "run", "--device", "cpu", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=15 * 60,
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--cluster", "nowhere"), "there is no such scheduler file"),
        (("--cluster", "local:none"), "write local:N"),
        (("--torch", "2.13.0"), "--torch picks among the workers of a --cluster"),
    ],
)
def test_a_wrong_option_is_one_sentence(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert call("run", *arguments) == 2
    assert said in sentence(capsys)


def test_what_happens_to_the_cluster_is_said_and_logged(monkeypatch):
    import io

    from rich.console import Console

    from fuzzcompile.fuzz.cluster import cluster_pool
    from fuzzcompile.fuzz.cluster.cluster_pool import ClusterPool, ClusterTask, ClusterWorker

    class Client:
        status, present = "running", ("tcp://a:1", "tcp://c:1")

        async def nthreads(self):
            return dict.fromkeys(self.present, 1)

        def submit(self, *_, **__):
            future = asyncio.Future()
            future.release = lambda: None
            return future

        def subscribe_topic(self, *_): ...

    clients = [Client()]

    async def connect(*_):
        clients.append(Client())
        clients[-1].present = ()
        return clients[-2], "tcp://s:8786"

    async def suffer() -> list[ClusterChange]:
        pool = ClusterPool(ClusterAddress("tcp://s:8786"), Conditions(device="cpu"))
        here = WorkerDescription({"machine": "12345678", "torch": "2.13.0+cpu"}, "cpu")
        for address, slots in (("tcp://a:1", 4), ("tcp://c:1", 2)):
            pool._known[address] = ClusterWorker(address)
            pool._welcome(pool._known[address], slots, here)
        keeping = asyncio.create_task(pool._keep())
        await asyncio.sleep(0.02)
        for number in range(4):
            pool._add_task(ClusterTask("c", number, (len, (), {}), {}, "judge"))
        assert len(pool._known["tcp://a:1"].running) == 3
        clients[0].present = ("tcp://c:1",)
        while "tcp://a:1" in pool._known:
            await asyncio.sleep(0.01)
        pool._refuse(ClusterWorker("tcp://b:1"), "no torch is installed there")
        clients[0].status = "closed"
        while len(pool._changes) < 6:
            await asyncio.sleep(0.01)
        keeping.cancel()
        return pool.changes()

    monkeypatch.setattr(cluster_pool, "_TICK", 0.01)
    monkeypatch.setattr(cluster_pool, "connect", connect)
    console = Console(file=io.StringIO(), width=200)
    changes = asyncio.run(suffer())
    assert [(change.event, *change.fields) for change in changes] == [
        ("worker_joined", "worker", "machine", "slots", "torch", "device"),
        ("worker_joined", "worker", "machine", "slots", "torch", "device"),
        ("worker_lost", "worker", "machine", "tasks", "why"),
        ("worker_refused", "worker", "why"),
        ("scheduler_lost", "scheduler", "patience"),
        ("scheduler_back", "scheduler", "tasks"),
    ]
    for change in changes:
        CampaignProgress(console).handle(change)
        assert json.dumps(format_entry(change)[1])
    assert console.file.getvalue().splitlines() == [
        "Worker tcp://a:1 joins: 4 cases at a time on cpu, torch 2.13.0+cpu, machine 12345678.",
        "Worker tcp://c:1 joins: 2 cases at a time on cpu, torch 2.13.0+cpu, machine 12345678.",
        "Worker tcp://a:1 on machine 12345678 is lost: it is gone; 3 running there begin anew.",
        "Worker tcp://b:1 is refused: no torch is installed there.",
        "The Dask scheduler at tcp://s:8786 is lost; the campaign waits 60 s for it.",
        "The Dask scheduler at tcp://s:8786 is back; 2 running cases begin anew.",
    ]
    assert str(ClusterState("tcp://s:8786", "", 3, 2, 12, 7)) == "3 Dask workers on 2 machines, 7 of 12 slots busy"


@pytest.mark.slow
def test_a_campaign_on_a_cluster_judges_the_cases_of_a_local_one_and_finds_the_same(tmp_path):
    plant = tmp_path / "plant.py"
    plant.write_text(PLANT)
    options = ("--budget", "6c", "--seed", "0", "--no-steering", "--screen-only", "--plant", str(plant), "--json")
    there = run(tmp_path / "there", "--cluster", "local:2", *options, "--log", "log")
    here = run(tmp_path / "here", "--workers", "2", *options)
    assert there.returncode == here.returncode == 0, there.stderr
    stored = []
    for folder in ("there", "here"):
        with Store.open(str(tmp_path / folder / "corpus" / "fuzzcompile.db")) as store:
            stream = store.campaigns()[0].settings["stream"]
            stored.append((stream, store.recorded_indices(stream), {f.signature for f in store.findings()}))
    assert stored[0][:2] == stored[1][:2] and len(stored[0][1]) == 6
    events = [json.loads(line) for line in (tmp_path / "there" / "log").read_text().splitlines()]
    assert [event["event"] for event in events].count("worker_joined") == 2
    judged = [event for event in events if event["event"] == "case_judged"]
    assert len({event["index"] for event in judged if event["index"] >= 0}) == 6


@pytest.mark.slow
def test_an_interrupt_ends_it_with_its_summary_and_leaves_no_process(tmp_path):
    import psutil

    campaign = subprocess.Popen(
        [sys.executable, "-m", "fuzzcompile", "run", "--cluster", "local:2", "--budget", "10m", "--device", "cpu"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
        start_new_session=True,
    )
    assert campaign.stderr is not None
    until(lambda: " joins: " in campaign.stderr.readline())
    children = psutil.Process(campaign.pid).children(recursive=True)
    assert len(children) > 4
    os.killpg(campaign.pid, signal.SIGINT)  # as Ctrl-C does: every process of the terminal gets it
    out, err = campaign.communicate(timeout=PATIENCE)
    assert campaign.returncode == 0 and "Campaign interrupted after" in out
    assert "Traceback" not in err
    until(lambda: not [each for each in children if each.is_running() and each.status() != psutil.STATUS_ZOMBIE], 5)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")
def test_certificates_come_from_dasks_own_configuration(tmp_path):
    import dask
    from clustered import EVAL, PLAIN
    from distributed import LocalCluster
    from distributed.security import Security

    from fuzzcompile.fuzz.cluster.cluster_pool import ClusterPool
    from fuzzcompile.model.errors import EnvironmentUnfit

    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [
            *["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"],
            "-keyout",
            str(key),
            "-out",
            str(certificate),
        ],
        check=True,
        capture_output=True,
    )
    tls = "distributed.comm.tls"
    settings = {f"{tls}.ca-file": str(certificate), "distributed.comm.require-encryption": True}
    for side in ("scheduler", "worker", "client"):
        settings |= {f"{tls}.{side}.key": str(key), f"{tls}.{side}.cert": str(certificate)}

    def joined(cluster):
        return ClusterPool(ClusterAddress.parse(cluster.scheduler_address), Conditions(device="cpu"), opens=PLAIN)

    with (
        dask.config.set(settings),
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=False,
            protocol="tls",
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            security=Security(),
            silence_logs=50,
        ) as cluster,
    ):
        assert cluster.scheduler_address.startswith("tls://")
        with joined(cluster) as pool:
            pool.wait_for_worker(PATIENCE)
            assert pool.schedule(EVAL, ("6 * 7",)).result(PATIENCE) == 42
        nothing = dict.fromkeys(settings)
        with dask.config.set(nothing), joined(cluster) as pool:
            with pytest.raises(EnvironmentUnfit, match="certificates") as refused:
                pool.wait_for_worker(PATIENCE)
            assert "\n" not in str(refused.value)
