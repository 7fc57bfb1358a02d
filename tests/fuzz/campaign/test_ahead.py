"""What is drawn ahead by other processes is what would have been drawn, and their loss costs nothing."""

import os
import signal

import psutil

from fuzzcompile.fuzz.campaign.case_sources import GeneratorSource, ReadAheadSource, draw_ahead
from fuzzcompile.fuzz.campaign.steering import Steering


def sources(source: object, places: int, begin: int = 0) -> list[str]:
    steering = Steering(source, 5)  # type: ignore[arg-type]
    return [drawn[0].source for index in range(begin, begin + places) if (drawn := steering.at(index)) is not None]


def test_many_workers_get_the_cases_that_few_would_get_and_no_process_is_left():
    workers, before = 1, set(psutil.Process().children(recursive=True))
    with draw_ahead(GeneratorSource(), 4, lambda: workers) as source:
        assert isinstance(source, ReadAheadSource)
        alone = sources(source, 8)
        assert set(psutil.Process().children(recursive=True)) == before, "a few workers need no process"
        workers = 64
        assert sources(source, 40) == sources(GeneratorSource(), 40) and sources(source, 8) == alone
        drawing = [
            child for child in set(psutil.Process().children()) - before if "worker" in " ".join(child.cmdline())
        ]
        assert drawing
        for process in drawing:
            os.kill(process.pid, signal.SIGKILL)
        far = 2**40 + 3
        assert sources(source, 20, far) == sources(GeneratorSource(), 20, far)
    assert not [child for child in drawing if child.is_running()]
