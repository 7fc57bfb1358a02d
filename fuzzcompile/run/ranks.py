"""One program on several processes at once, its ranks: the first decides what is run, and the others run it too.

What runs a program (in eager mode, in float64, compiled in some way) is called by the leader alone. It sends the others
the name of the function and its arguments, all of them call it, each on its own case, and the leader gets one
observation of what all of them saw. Nothing that waits for another process may run outside of such a call.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, NoReturn, TypeVar

import torch

from fuzzcompile.model.errors import CaseError, FuzzcompileError, describe_error
from fuzzcompile.model.evidence import ObservableName
from fuzzcompile.model.judge_task import NamedFunction
from fuzzcompile.run.case import Case, CompileSettings, GradMode
from fuzzcompile.run.observation import Failure, Observation, Value
from fuzzcompile.run.seats import Seat, forms_group
from fuzzcompile.run.sharded_tensors import forget_layouts, is_in_group
from fuzzcompile.run.tensors import reduce_operator
from fuzzcompile.run.torch_attributes import ReplacedAttribute

T = TypeVar("T")


class RankLost(FuzzcompileError):
    """A process of the group can run nothing any more: it has ended, or waits for another that will not come."""


class RankRefused(CaseError):
    """A process of the group cannot make a case of the script, although another can."""


class NotOnAllRanks(Exception):
    """A run that other processes would have to make too, and cannot be told to."""


# Where the processes of a script meet, as ``torchrun`` tells them.

# As gloo says that a process waits in vain, and what the others hear once it has given up.
_WAITED = re.compile("timed out|timeout caused|connection (?:closed|reset) by peer", re.IGNORECASE)
TIMEOUT = ReplacedAttribute(
    "torch.distributed.distributed_c10d",
    "default_pg_timeout",
    unprobed="A torch that reads its default elsewhere waits longer, and the limit of the case ends it.",
)
# Processes meet by how many groups each has formed: a group that only some come to form would keep them apart for good.
GROUP_COUNT = ReplacedAttribute(
    "torch.distributed.distributed_c10d",
    "_group_count",
    optional=True,
    unprobed="Where a torch counts otherwise, processes that failed to meet once wait in vain, and are replaced.",
)

# What looks up the group of a functional collective, those of DTensors among them.
GROUP_LOOKUPS = tuple(
    ReplacedAttribute(
        "torch.distributed._functional_collectives",
        name,
        optional=True,
        unprobed="Where a torch looks groups up otherwise, a collective of one process ends when its time is up.",
    )
    for name in ("_resolve_group", "_resolve_group_name")
)


@dataclass
class _Company:
    """Other processes as this one knows them: its own seat among them, and the lead."""

    seat: Seat = field(default_factory=Seat)
    leader: Leader | None = None
    lookups: Mapping[ReplacedAttribute, object] = field(default_factory=dict)  # as torch has them


_company = _Company()


@contextlib.contextmanager
def take_seat(seat: Seat) -> Iterator[None]:
    """Run scripts of the block as this process of several."""
    before, _company.seat = _company.seat, seat
    try:
        yield
    finally:
        _company.seat = before


def prepare_group(source: str) -> None:
    """Let a script that is about to run form its group of processes, with a meeting point of its own.

    A group that an earlier run of it has left is ended. Programs that are not distributed see nothing of this.
    """
    if not forms_group(source) and _company.seat.size == 1:
        return
    leave_group()
    os.environ.update(_company.seat.environment())
    limit_collectives(_company.seat.patience)


def limit_collectives(seconds: float) -> None:
    """Let collectives of groups that are formed from now on wait so long for the others, unless the program says."""
    if torch.distributed.is_available():
        TIMEOUT.put(timedelta(seconds=seconds))


def leave_group() -> None:
    """End the group of processes that a script has formed, if there is one."""
    if is_in_group():
        with contextlib.suppress(RuntimeError):  # another process is gone
            torch.distributed.destroy_process_group()
        forget_layouts()
    if "torch.distributed.distributed_c10d" in sys.modules:
        GROUP_COUNT.put(0)


# Calls that all ranks make.


@dataclass(frozen=True)
class Order:
    """A function ``module:name`` to call with the case, as it is differentiated and compiled, and these arguments."""

    function: str
    grad: GradMode
    backward: bool
    settings: CompileSettings
    args: tuple[object, ...]
    options: Mapping[str, object]


@dataclass(frozen=True)
class _Raised:
    """Answer of a rank whose order raised."""

    message: str


@dataclass
class Leader:
    """The first process's side: the lines to the others, in the order of their ranks.

    ``explain`` says why a rank's line is dead, None while it lives. While ``leads``, all run the same.
    """

    lines: Sequence[Connection]
    explain: Callable[[int], str | None]
    leads: bool = False
    lost: str | None = None
    parted: bool = False  # they live, but run nothing together any more
    answers: list[Any] = field(default_factory=list)  # of the others, to the latest order

    def lead(self, order: Order) -> contextlib.AbstractContextManager[None]:
        """Have the other ranks run an order, as it is now, while the block runs it here, and keep what they saw.

        Raises:
            RankLost: one of them is gone, or raised what its program did not.
            NotOnAllRanks: the order cannot be sent.
        """
        try:
            return self._lead(_pickle(order))
        except Exception as error:  # whatever the pickler of an argument raises
            raise NotOnAllRanks(
                f"{order.function} cannot be asked of other processes: {describe_error(error)}"
            ) from error

    @contextlib.contextmanager
    def _lead(self, sent: bytes) -> Iterator[None]:
        if self.lost is not None:
            raise RankLost(self.lost)
        self._send(sent)
        self.leads = True
        try:
            with allow_collectives():
                yield
        except BaseException:
            self.lost = "The processes are no longer at the same place of the program."
            raise
        finally:
            self.leads = False
        self.answers = self._receive_all()

    def ask(self, order: Order) -> list[Any]:
        """Have the other ranks run an order that calls no collective, and return what it gives there.

        Raises:
            RankLost: one of them is gone.
        """
        if self.lost is not None and not self.parted:
            raise RankLost(self.lost)
        self._send(_pickle(order))
        return self._receive_all()

    def _send(self, sent: bytes) -> None:
        for rank, line in enumerate(self.lines, 1):
            self._talk(rank, functools.partial(line.send_bytes, sent))

    def _receive_all(self) -> list[Any]:
        return [self._receive(rank, line) for rank, line in enumerate(self.lines, 1)]

    def merge(self, own: Observation) -> Observation:
        """The observation of all ranks: values of the others are named after their rank."""
        everywhere: list[Observation] = [own, *self.answers]
        failed = [(rank, seen) for rank, seen in enumerate(everywhere) if seen.failure is not None]
        if failed:
            rank, seen = failed[0]
            assert seen.failure is not None
            if len(failed) <= len(self.answers):  # the others may wait for it
                self.lost, self.parted = _describe_parting(rank, seen.failure), True
            return replace(seen, values=())
        others = (
            replace(
                value, name=name_on_rank(value.name, rank), aliases=tuple(name_on_rank(a, rank) for a in value.aliases)
            )
            for rank, seen in enumerate(self.answers, 1)
            for value in seen.values
        )
        return replace(own, values=(*own.values, *others))

    def _receive(self, rank: int, line: Connection) -> object:
        while not self._talk(rank, functools.partial(line.poll, 0.2)):
            if (why := self.explain(rank)) is not None:
                self._lose(rank, why)
        answer = pickle.loads(self._talk(rank, line.recv_bytes))
        if isinstance(answer, _Raised):
            self._lose(rank, answer.message)
        return answer

    def _talk(self, rank: int, talk: Callable[[], T]) -> T:
        try:
            return talk()
        except (EOFError, OSError):
            self._lose(rank, self.explain(rank) or "its process has ended")

    def _lose(self, rank: int, why: str) -> NoReturn:
        self.lost = f"Rank {rank} is lost, and the others cannot run without it: {why}."
        raise RankLost(self.lost)

    def dismiss(self) -> None:
        """Let the other ranks end."""
        for line in self.lines:
            with contextlib.suppress(OSError):
                line.send_bytes(pickle.dumps(None))
                line.close()


def tells_of_waiting(error: str) -> bool:
    """Return whether an error is that a collective waited in vain for another process, which may only be slow."""
    return _WAITED.search(error) is not None


def _describe_parting(rank: int, failure: Failure) -> str:
    if tells_of_waiting(str(failure)):
        return (
            f"Rank {rank} waits in a collective that not all processes call: let each call the same ones, or raise "
            "--timeout where they are slow."
        )
    return f"Rank {rank} raises {failure}, and the others do not."


class _Pickler(pickle.Pickler):
    """Sends operators by their names."""

    def reducer_override(self, value: object) -> Any:
        return reduce_operator(value) or NotImplemented


def _pickle(value: object) -> bytes:
    written = io.BytesIO()
    _Pickler(written).dump(value)
    return written.getvalue()


def name_on_rank(name: str, rank: int) -> str:
    """The name of an observable of another rank than the first."""
    return str(replace(ObservableName.parse(name), rank=rank))


@contextlib.contextmanager
def lead_ranks(leader: Leader) -> Iterator[None]:
    """Run what the block runs on all ranks.

    A functional collective that this process alone would call raises :class:`NotOnAllRanks` there.
    """
    found = {place: getattr(place.find_owner(), place.leaf, None) for place in GROUP_LOOKUPS}
    _company.leader, _company.lookups = leader, {place: lookup for place, lookup in found.items() if lookup is not None}
    try:
        with contextlib.ExitStack() as stack:
            for place in _company.lookups:
                stack.enter_context(place.replace(_refuse_collective))
            yield
    finally:
        _company.leader, _company.lookups = None, {}
        leader.dismiss()


def _refuse_collective(*args: object, **options: object) -> NoReturn:
    raise NotOnAllRanks("a collective of this process alone: the others would be waited for in vain")


@contextlib.contextmanager
def allow_collectives() -> Iterator[None]:
    """Let collectives be called in the block: the others call them too, or they are imitated."""
    with contextlib.ExitStack() as stack:
        for place, lookup in _company.lookups.items():
            stack.enter_context(place.replace(lookup))
        yield


def is_led() -> bool:
    """Return whether this process leads others."""
    return _company.leader is not None


def is_apart() -> bool:
    """Return whether this process leads others, and runs something that they do not run."""
    leader = _company.leader
    return leader is not None and not leader.leads


def require_one_process(what: str) -> None:
    """Refuse what compares within a run, and so would call collectives of its own.

    Raises:
        NotOnAllRanks: this process leads others.
    """
    if is_led():
        raise NotOnAllRanks(f"{what} is a matter of one process")


def check_company() -> None:
    """Refuse a run of the program that the other ranks do not make.

    Raises:
        NotOnAllRanks: they do not.
    """
    if is_apart():
        raise NotOnAllRanks("a run of this process alone: the others would be waited for in vain")


def on_all_ranks(
    function: str, case: Case, *args: object, **options: object
) -> contextlib.AbstractContextManager[None]:
    """Have the other ranks call ``function`` (``module:name``) while the block does the same here.

    What they saw is in :func:`merge_ranks` afterwards. Without other ranks, or within such a block, it does nothing.
    """
    leader = _company.leader
    if leader is None or leader.leads:
        return contextlib.nullcontext()
    return leader.lead(Order(function, case.grad, case.backward, case.settings, args, options))


def ask_ranks(function: str, case: Case, *args: object) -> list[Any]:
    """What ``function`` (``module:name``), which calls no collective, gives on each other rank, in their order.

    Raises:
        RankLost: one of them is gone.
    """
    leader = _company.leader
    return [] if leader is None else leader.ask(Order(function, case.grad, case.backward, case.settings, args, {}))


def collect_answers() -> list[Any]:
    """What the function gave on each other rank in the block that has just ended, in their order."""
    leader = _company.leader
    return [] if leader is None else list(leader.answers)


def explain_loss(why: str) -> None:
    """Say more of why the ranks run nothing together any more, if they do not."""
    leader = _company.leader
    if leader is not None and leader.lost is not None:
        leader.lost = f"{leader.lost} {why}"


def merge_ranks(own: Observation) -> Observation:
    """The observation of all ranks in the block that has just ended, given that of this process."""
    leader = _company.leader
    return own if leader is None or leader.leads else leader.merge(own)


def meet_at(port: int) -> contextlib.AbstractContextManager[None]:
    """Let scripts of the block form their groups at another place, which all ranks have to be told."""
    return take_seat(replace(_company.seat, port=port))


def follow(line: Connection, case: Case, device: torch.device) -> None:
    """Run on this rank what the first says, until it has said all or is gone."""
    with contextlib.suppress(EOFError, OSError):
        while (order := pickle.loads(line.recv_bytes())) is not None:
            line.send_bytes(_obey(order, case, device))


def _obey(order: Order, case: Case, device: torch.device) -> bytes:
    """The pickled answer to an order, of observations what can be sent; or a sentence on what it raised."""
    try:
        asked = replace(case, grad=order.grad, backward=order.backward, settings=order.settings)
        made = NamedFunction(order.function)(asked, device, *order.args, **order.options)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # ours or torch's: the leader is told
        return pickle.dumps(_Raised(describe_error(error)))
    seen = made[0] if isinstance(made, tuple) else made
    if not isinstance(seen, Observation):
        return pickle.dumps(made)
    if seen.failure is not None:  # of its places in the code, the leader needs none
        seen = replace(seen, failure=replace(seen.failure, chain=(), site=None))
    return pickle.dumps(replace(seen, values=tuple(filter(_can_be_sent, seen.values))))


def _can_be_sent(value: Value) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # an object of the program, whose own pickling may raise anything
        return False
    return True
