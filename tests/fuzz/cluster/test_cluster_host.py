"""What a Dask worker answers where its machine is slow or unfit."""

from __future__ import annotations

import asyncio
import pickle
import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("distributed", reason="needs the extra `cluster`")

from fuzzcompile.fuzz.cluster.cluster_messages import Unhosted
from fuzzcompile.fuzz.cluster.dask_host import CampaignHost, open_host
from fuzzcompile.model.errors import MachineUnfit


def test_a_machine_that_can_compile_no_more_gives_its_cases_back():
    answers: list[object] = [
        MachineUnfit("No space left on device."), SimpleNamespace(screened=True), SimpleNamespace(screened=False),
        MachineUnfit("No space left on device."), SimpleNamespace(screened=True), MachineUnfit("No space left."),
    ]  # fmt: skip

    def schedule(*_: Any, **__: Any) -> Future[object]:
        future: Future[object] = Future()
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        return future

    pool = SimpleNamespace(schedule=schedule, kill_workers=lambda: None)
    host = CampaignHost(SimpleNamespace(opens=lambda charter, stack: (pool, None)))  # type: ignore[arg-type]
    host.open()
    raised: list[object] = []
    for _ in range(6):
        try:
            host.run(1, len, (), {}, {})
            raised.append(None)
        except Exception as error:
            raised.append(error)
    host.close()
    assert [type(error) for error in raised] == [
        MachineUnfit,
        type(None),
        type(None),
        MachineUnfit,
        type(None),
        Unhosted,
    ]
    last = raised[-1]
    assert isinstance(last, Unhosted) and isinstance(last.__cause__, MachineUnfit), "the reason for which it is refused"


def test_a_campaign_that_asks_again_waits_for_the_host_that_opens_already():
    """A slow machine would begin to open with each ask, and never end."""
    opened, released = list[object](), threading.Event()

    def opens(charter: object, stack: object) -> tuple[object, str]:
        opened.append(charter)
        assert released.wait(30)
        return SimpleNamespace(kill_workers=lambda: None), "described"

    class DaskWorker:
        def __init__(self) -> None:
            self.plugins: dict[str, CampaignHost] = {}

        async def plugin_add(self, host: CampaignHost, name: str) -> None:
            self.plugins[name] = host

    async def ask() -> list[object]:
        worker: Any = DaskWorker()
        charter: Any = SimpleNamespace(campaign="one", opens=opens)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(open_host(charter, worker), 0.2)
        again = asyncio.create_task(open_host(charter, worker))
        await asyncio.sleep(0.2)
        released.set()
        answers = [pickle.loads(await again), pickle.loads(await open_host(charter, worker))]
        for host in worker.plugins.values():
            host.close()
        return answers

    assert asyncio.run(ask()) == ["described", "described"]
    assert len(opened) == 2, "the second host takes the place of the first, which was open"
