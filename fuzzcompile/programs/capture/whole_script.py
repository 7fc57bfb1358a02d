"""A script from its first line to its last: what it raises behind its compiled calls, in eager mode and compiled."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import torch

from fuzzcompile.compiler.session import open_plain_session
from fuzzcompile.model.contract import WHOLE, LaterCallJson
from fuzzcompile.model.errors import CaseError
from fuzzcompile.model.evidence import JUDGED
from fuzzcompile.programs.capture.case_loader import ScriptRun, load
from fuzzcompile.programs.capture.interception import CallReached
from fuzzcompile.programs.capture.script_process import ring
from fuzzcompile.programs.casefiles.case_file import CaseFile
from fuzzcompile.run.case import Case, CompiledByParts, CompilePart, CompileSettings
from fuzzcompile.run.raise_sites import find_raise_site

# Seconds in which a script must come to its end, in eager mode and compiled.
MOST_SECONDS = 60.0
# Exceptions that Python itself raises where an iteration or a program ends.
_ENDINGS = (StopIteration, StopAsyncIteration, GeneratorExit, KeyboardInterrupt, CallReached)


@dataclass(frozen=True)
class Raised:
    """An exception as it comes to a line of the script, whether that is caught or not; ``kind`` is its class's name."""

    line: int
    kind: str


@dataclass
class _Errors:
    """The exceptions that come to a script's lines, but for those out of its compiled calls."""

    filename: str
    heard: list[tuple[Raised, BaseException]] = field(default_factory=list)
    _left_out: list[BaseException] = field(default_factory=list)

    @property
    def refused(self) -> list[tuple[Raised, BaseException]]:
        """All that was raised by anything but checks of the script's own."""
        return [(raised, error) for raised, error in self.heard if not _is_check(error)]

    @property
    def checks(self) -> list[Raised]:
        """All that checks of the script's own raised."""
        return [raised for raised, error in self.heard if _is_check(error)]

    @contextlib.contextmanager
    def listen(self) -> Iterator[None]:
        """Note what is raised in the block."""
        before = sys.gettrace()
        sys.settrace(self._enter_frame)
        try:
            yield
        finally:
            sys.settrace(before)

    def leave_out(self, call: Callable[..., object]) -> Callable[..., object]:
        """The callable, of which nothing is noted: its calls are judged on their own."""

        def unheard(*args: object, **kwargs: object) -> object:
            listener = sys.gettrace()
            sys.settrace(None)
            try:
                return call(*args, **kwargs)
            except BaseException as error:
                self._left_out.append(error)
                raise
            finally:
                sys.settrace(listener)

        return unheard

    def _is_script(self, frame: FrameType) -> bool:
        return frame.f_code.co_filename == self.filename

    def _enter_frame(self, frame: FrameType, event: str, given: object) -> Any:
        if not self._is_script(frame):
            return None
        frame.f_trace_lines = False
        return self._look_at

    def _look_at(self, frame: FrameType, event: str, given: Any) -> Any:
        if event == "exception":
            self._note(frame.f_lineno, given[1])
        return self._look_at

    def _note(self, line: int, error: object) -> None:
        if not isinstance(error, BaseException) or isinstance(error, _ENDINGS):
            return
        if isinstance(error, SystemExit) and not error.code:
            return  # all is well
        if not any(error is known for known in (*self._left_out, *(each for _, each in self.heard))):
            self.heard.append((Raised(line, type(error).__name__), error))  # else it only comes by


def _is_check(error: BaseException) -> bool:
    """Return whether a script itself raised what says that something is wrong."""
    site = find_raise_site(error)
    stated = site is not None and site.owner == "program" and site.how == "stated"
    return stated or isinstance(error, AssertionError | SystemExit)


@dataclass(frozen=True)
class WholeScript(CompiledByParts):
    """A script as what a case calls: it runs to its end, and raises what it raised at ``parting``, caught or not.

    Compiled, what the script gives to ``torch.compile`` is; in eager mode nothing is.
    """

    file: CaseFile
    device: torch.device
    parting: Raised | None = None

    def __call__(self) -> None:
        """Run the script in eager mode."""
        self.run(_leave_eager)

    def compile_by_parts(self, compile_part: CompilePart) -> Callable[[], None]:
        """The script, whose parts are compiled so."""
        return functools.partial(self.run, compile_part)

    def run(self, compile_part: CompilePart) -> None:
        """Run the script with its parts compiled so; the exception at ``parting`` is raised at its end."""
        for raised, error in self.listen(compile_part).refused:
            if raised == self.parting:
                raise error

    def listen(self, compile_part: CompilePart) -> _Errors:
        """Run the script with its parts compiled so, and note what is raised."""
        run = ScriptRun(self.file, self.device, visit=lambda *_: None)
        errors = _Errors(run.filename)
        run.interception.compile_part = lambda part, settings: errors.leave_out(compile_part(part, settings))
        with errors.listen():
            run.execute()
        return errors


@dataclass(frozen=True)
class Ending:
    """How a script behind its compiled calls compares with eager mode; both are None where it does the same.

    ``parting`` is the first exception that one of the two alone raises, and ``check`` the first of the script's own
    checks that fails compiled alone.
    """

    parting: Raised | None = None
    check: Raised | None = None


def find_ending(file: CaseFile, device: torch.device, deadline: float) -> Ending | None:
    """Run a script to its end, compiled and in eager mode; None if that takes too long."""
    script = WholeScript(file, device)
    late = list[bool]()

    def end() -> None:
        late.append(True)
        raise CallReached

    def listen(compile_part: CompilePart) -> _Errors:
        with ring(deadline - time.monotonic(), end):
            return script.listen(compile_part)

    with open_plain_session(CompileSettings()) as session:
        compiled = listen(session.compile_part)
    eager = compiled if late else listen(_leave_eager)
    if late:
        return None
    return Ending(
        _find_first(_name_all(compiled), _name_all(eager)) or _find_first(_name_all(eager), _name_all(compiled)),
        _find_first(compiled.checks, eager.checks),
    )


def _leave_eager(part: Callable[..., object], settings: CompileSettings) -> Callable[..., object]:
    return part


def _name_all(errors: _Errors) -> list[Raised]:
    return [raised for raised, _ in errors.refused]


def _find_first(raised: list[Raised], others: list[Raised]) -> Raised | None:
    """The first that is raised more often than among the others."""
    more = Counter(raised) - Counter(others)
    return next((each for each in raised if each in more), None)


def make_whole_case(case: Case, file: CaseFile, device: torch.device, parting: Raised) -> Case:
    """The script of a captured ``case`` as a case that shows what is raised at ``parting``."""
    script = WholeScript(file, device, parting)
    return Case(
        name=case.name,
        path=case.path,
        source=case.source,
        make=lambda: (script, ()),
        grad="enabled",
        backward=False,
        settings=case.settings,
        calls=None,
        run=None,
        notes=(f"{JUDGED}the {file.kind} to its end, for {parting.kind} at {file.place(parting.line)}",),
    )


def load_later_call(file: CaseFile, device: torch.device, call: LaterCallJson) -> Case:
    """The case of a script's later call, with open sizes where the script does not say, or of the whole script.

    Raises:
        CaseError: there is no such call, or the whole script does what it does in eager mode.
    """
    if call["number"] == WHOLE:
        return _load_whole(file, device)
    case = load(file, device, call=call["number"])
    if not call["dynamic"] or case.settings.dynamic is not None:
        return case
    return replace(case, settings=replace(case.settings, dynamic=True), notes=(*case.notes, _OPEN_SIZES))


def _load_whole(file: CaseFile, device: torch.device) -> Case:
    ending = find_ending(file, device, time.monotonic() + MOST_SECONDS)
    if ending is None or ending.parting is None:
        raise CaseError(f"{file.path} does to its end what it does in eager mode: leave out what it is judged for.")
    return make_whole_case(load(file, device), file, device, ending.parting)


_OPEN_SIZES = "compiled with dynamic=True, as dynamo compiles once a size or number has changed between calls"
