"""A campaign on a cluster and a database whose processes are killed, stopped and cut off at random moments.

    python bench/chaos.py [--events 100] [--gap 4] [--workers 4] [--seed 0]

Starts PostgreSQL, a Dask scheduler and workers with nannies, and a campaign on them. Then, every few seconds, one of
them is killed with SIGKILL, stopped and continued, or its network is cut. A campaign that ends must do so with status 0
or 3 and one sentence, and is then resumed. Afterwards: every announced case is stored, once; every finding has its
first case; the database is sound; no process is left. Exits with 1 where one of these does not hold.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from chaotic.house import House, blows
from postgres_server import PostgresServer, lacking
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from fuzzcompile.corpus.models import CaseRow, FindingRow, RunRow
from fuzzcompile.corpus.store import Store
from fuzzcompile.model.errors import EnvironmentUnfit

sys.path.insert(0, str(Path(__file__).parent))


# Seconds in peace within which a case has to be judged, on a machine where all workers may prove a bug at once; a slow
# machine gets them to judge as many cases as there were blows.
_PEACE = 240.0
# After so many blows, one more case has to be judged before the next.
_BREATH = 4


@dataclass
class Ended:
    """How one start of the campaign ended: its exit status, the last line that it said, and any traceback before."""

    status: int
    said: str
    traceback: str = ""


@dataclass
class Outcome:
    """What was done, what became of it, and what is wrong: nothing, if all is well."""

    blows: Counter[str] = field(default_factory=Counter)
    ends: list[Ended] = field(default_factory=list)
    announced: int = 0
    stored: int = 0
    findings: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)


class Driver:
    """The campaign, started again whenever it ends, in a thread."""

    def __init__(self, house: House, database: str, seed: int) -> None:
        self.house, self.database, self.seed = house, database, seed
        self.ends: list[Ended] = []
        self._over = threading.Event()
        self._starting = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def logs(self) -> list[Path]:
        """One for each start."""
        return sorted(self.house.folder.glob("campaign*.jsonl"))

    def _run(self) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            self._campaign(self.house.folder / f"campaign{number:03}.jsonl")
            self._over.wait(2.0)

    def _campaign(self, log: Path) -> None:
        options = ["--cluster", self.house.address, "--corpus", self.house.corpus(self.database), "--device", "cpu"]
        options += [
            "--seed",
            str(self.seed),
            "--budget",
            "2h",
            "--log",
            str(log),
            "--drafts",
            str(log.parent / "drafts"),
        ]
        with tempfile.TemporaryFile("w+") as said:
            with self._starting:
                if self._over.is_set():
                    return
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "fuzzcompile", "run", *options], stdin=subprocess.DEVNULL,
                    stdout=said, stderr=said, text=True, cwd=self.house.folder, env=self.house.environment,
                )  # fmt: skip
            status = self._process.wait()
            said.seek(0)
            text = said.read().strip()
        (log.parent / f"{log.stem}.said").write_text(text)
        self.ends.append(Ended(status, text.rpartition("\n")[2], text.partition("Traceback")[2][-500:]))

    def stop(self) -> None:
        """End the campaign as Ctrl-C does, and wait for it."""
        with self._starting:
            self._over.set()
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
        self._thread.join(120.0)
        if self._thread.is_alive() and self._process is not None:
            self._process.kill()
            self._thread.join()
            self.ends.append(Ended(-9, "it did not end within two minutes of SIGTERM"))


def chaos(folder: Path, *, events: int, gap: float, workers: int = 4, seed: int = 0) -> Outcome:
    """Run a campaign under blows, and look at what is left.

    Args:
        folder: for logs.
        events: how many blows.
        gap: seconds between two of them.
        workers: Dask workers.
        seed: names the blows and the cases.
    """
    outcome, began = Outcome(), time.monotonic()
    with PostgresServer() as server:
        database = server.create()
        house = House(folder, workers, server)
        driver = Driver(house, database, seed)
        try:
            house.tend()
            _wait_for_cases(driver, 1, 180.0)
            judged = 0
            for number, blow in enumerate(blows(seed, events, workers)):
                if number % _BREATH == 0:  # a house whose workers never start shows nothing
                    _pause(house, 90.0, lambda: len(_announced(driver)) > judged)  # noqa: B023 (called at once)
                    judged = len(_announced(driver))
                _say(f"[{number + 1}/{events}] {blow}; {judged} cases announced")
                house.strike(blow)
                outcome.blows[f"{blow.action} {blow.target}"] += 1
                _pause(house, gap)
            judged = len(_announced(driver))
            _pause(house, _PEACE, lambda: len(_announced(driver)) > max(judged, events))
            if len(_announced(driver)) == judged:
                outcome.wrong.append(f"no case was judged in {_PEACE:.0f} s of peace")
        finally:
            driver.stop()
            left = house.close()
        outcome.ends = driver.ends
        if not server.is_running:
            server.start()
        _look(outcome, driver, server.url(database))
        outcome.wrong += [f"left behind: {process}" for process in left]
    outcome.seconds = time.monotonic() - began
    return outcome


def _pause(house: House, seconds: float, enough: Callable[[], bool] = lambda: False) -> None:
    """Wait so long or until it is enough, and start again what was killed, as an operator's supervisor does."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not enough():
        house.tend()
        time.sleep(0.25)


def _wait_for_cases(driver: Driver, number: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    while len(_announced(driver)) < number:
        if time.monotonic() > end or any(ended.status == 2 for ended in driver.ends):
            said = [ended.said for ended in driver.ends]
            raise EnvironmentUnfit(f"The campaign judged no case within {seconds:.0f} s: {said or 'it is silent'}.")
        time.sleep(0.5)


def _announced(driver: Driver) -> list[dict[str, object]]:
    """The cases that the logs announce; of a line that is being written, nothing."""
    entries = []
    for log in driver.logs:
        for line in log.read_text().splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if entry.get("event") == "case_judged":
                entries.append(entry)
    return entries


def _look(outcome: Outcome, driver: Driver, url: str) -> None:
    """Compare what was announced with what is stored, and check the corpus."""
    announced = Counter(
        (str(entry["case"]).removeprefix("case_"), str(entry["verdict"])) for entry in _announced(driver)
    )
    places = Counter(entry["index"] for entry in _announced(driver) if entry["index"] != -1)
    with Store.open(url, create=False) as store:
        if store.integrity() != "ok":
            outcome.wrong.append(f"integrity: {store.integrity()}")
        stream = next(str(campaign.settings["stream"]) for campaign in store.campaigns())
        with Session(store._engine) as session:
            rows = session.execute(
                select(CaseRow.sha256, RunRow.verdict, RunRow.stream_index).join(CaseRow, RunRow.case_id == CaseRow.id)
            ).all()
            tokens = session.scalar(select(func.count(func.distinct(RunRow.token)))) or 0
            homeless = session.scalars(
                select(FindingRow.id).outerjoin(RunRow, FindingRow.best_run_id == RunRow.id).where(RunRow.id.is_(None))
            ).all()
            hits = dict(session.execute(select(RunRow.finding_id, func.count()).group_by(RunRow.finding_id)).all())
            counted = dict(session.execute(select(FindingRow.id, FindingRow.hits)).all())
        outcome.stored, outcome.announced, outcome.findings = len(rows), announced.total(), len(counted)
        stored = Counter((sha256[:12], verdict) for sha256, verdict, _ in rows)
        at = Counter(index for _, _, index in rows if index is not None)
        outcome.wrong += [f"announced and not stored: {case}" for case in announced - stored]
        # What a start of the campaign stored last, it may not have had the time to announce.
        unannounced = (stored - announced).total()
        if unannounced > len(driver.ends):
            outcome.wrong.append(f"{unannounced} runs were stored and not announced, by {len(driver.ends)} starts")
        retried = {entry["index"] for entry in _announced(driver) if entry["verdict"] in ("crash", "timeout")}
        twice = [
            index for index, number in at.items() if number > places[index] + 1 or (number > 1 and index not in retried)
        ]
        outcome.wrong += [f"place {index} of the stream is stored {at[index]} times" for index in twice]
        if tokens != len(rows):
            outcome.wrong.append(f"{len(rows)} runs have {tokens} tokens")
        outcome.wrong += [f"finding {key} has no first case" for key in homeless]
        outcome.wrong += [f"finding {key} counts {counted[key]} hits of {hits.get(key, 0)}" for key in counted
                          if counted[key] != hits.get(key, 0)]  # fmt: skip
        if not store.recorded_indices(stream):
            outcome.wrong.append("no case of the stream is stored")
    for ended in outcome.ends:
        if ended.traceback:
            outcome.wrong.append(f"the campaign printed a traceback: {ended.traceback}")
        if ended.status not in (0, 3) or (ended.status == 3 and not ended.said.endswith(".")):
            outcome.wrong.append(f"the campaign ended with status {ended.status}: {ended.said[:300]}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Run it and print what became of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=100)
    parser.add_argument("--gap", type=float, default=4.0, help="seconds between two blows")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keeps the logs")
    given = parser.parse_args()
    if (why := lacking()) is not None:
        _say(f"Nothing can be shown here: it {why}.")
        return 3
    import distributed

    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            outcome = chaos(folder, events=given.events, gap=given.gap, workers=given.workers, seed=given.seed)
        except EnvironmentUnfit as error:
            _say(str(error))
            return 3
    print(f"{platform.platform()}, Python {platform.python_version()}, Dask {distributed.__version__}")
    print(f"{sum(outcome.blows.values())} blows in {outcome.seconds:.0f} s: " +
          ", ".join(f"{name} {number}" for name, number in sorted(outcome.blows.items())))  # fmt: skip
    print(f"{outcome.announced} cases announced, {outcome.stored} runs stored, {outcome.findings} findings")
    for ended in outcome.ends:
        print(f"the campaign ended with status {ended.status}: {ended.said[:160]}")
    for wrong in outcome.wrong:
        print(f"WRONG: {wrong}")
    return 1 if outcome.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
