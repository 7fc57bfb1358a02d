"""What a Dask worker answers where its machine is unfit."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("distributed", reason="needs the extra `cluster`")

from fuzzcompile.fuzz.cluster.cluster_messages import Unhosted
from fuzzcompile.fuzz.cluster.dask_host import CampaignHost
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
