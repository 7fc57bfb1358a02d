"""Replacement of functions of torch for the time of a block: the one kind of patch, and its loader."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Protocol, TypeVar

from fuzzcompile.compiler.watch.unseen import Unseen
from fuzzcompile.model.errors import describe_error
from fuzzcompile.run.torch_attributes import Attribute

if TYPE_CHECKING:
    from fuzzcompile.compiler.watch.ledger import ProbeLedgers


Function = Callable[..., object]
PatchProbe = Callable[["ProbeLedgers"], str | None]
_MISSING = object()


class UnseenRecorder(Protocol):
    """Owner of a patch: it keeps a list of what went unseen."""

    def record_unseen(self, unseen: Unseen, error: BaseException | None = None) -> None:
        """Record a missed observation; ``error`` rose in the watching and does not reach the compile."""


W = TypeVar("W", bound=UnseenRecorder)


def forbid_wrapping(watcher: UnseenRecorder, original: Function, *args: object, **kwargs: object) -> object:
    """Stand for the members of a family of patches, each of which has a function of its own."""
    raise NotImplementedError("a family of patches wraps no function itself")


class IntendedError(Exception):
    """Raised by a wrapper that wants ``error`` to rise in the compile."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True)
class Patch(Attribute, Generic[W]):
    """A function of torch that is replaced while a compile is watched."""

    name: str  # what doctor and reports call it
    stages: tuple[str, ...]  # the stages of the compiler (:mod:`fuzzcompile.model.stages`) that it serves
    shows: str  # what is not seen without it, as the subject of a sentence in the plural
    module: str
    attribute: str
    # runs in the place of the function, given what watches, the original and the arguments of the call. What it raises
    # by itself never reaches the compile: see :func:`run_contained`
    wrap: Callable[Concatenate[W, Function, ...], object]
    # what is wrong with the patch on this torch, by what a few small compiles recorded; None if it holds
    probe: PatchProbe | None = None
    unprobed: str = ""  # why it has no probe, a sentence
    takes: tuple[str, ...] = ()  # the first parameters of the function, as the wrapper relies on them
    # of a family of functions, a patch for each; ``attribute`` describes them
    members: Callable[[W], Sequence[Patch[W]]] | None = None
    # entries of Inductor's config without any of which the patched function has nothing to do
    under: tuple[str, ...] = ()
    harmless: bool = False  # whether no verdict and no culprit can depend on it

    def check_parameters(self) -> str | None:
        """Return how the function's parameters differ from those that the wrapper relies on; None if they fit."""
        if not self.takes:
            return None
        parameters = tuple(inspect.signature(getattr(self.find_owner(), self.leaf)).parameters)
        return None if parameters[: len(self.takes)] == self.takes else f"takes {', '.join(parameters)}"

    @property
    def is_family(self) -> bool:
        """True where there is a patch for each of several functions."""
        return self.members is not None

    def make_unseen(self, why: str) -> Unseen:
        """Return the note that the observations of this patch are missing."""
        return Unseen(self.name, why, self.stages, self.shows, self.harmless)


switched_off: dict[str, str] = {}
"""Patches that failed their probe on this torch (see :mod:`fuzzcompile.compiler.watch.conformance`), and how."""


@contextlib.contextmanager
def install_patches(
    watcher: W, patches: Iterable[Patch[W]], config: Callable[[str], object] | None = None
) -> Iterator[None]:
    """Replace what the patches name for the time of the block; of two patches of one function, the later is outside.

    Those that this torch has no place for, or that failed their probe, are left out, and the watcher notes it.
    ``config`` gives the value of an entry of Inductor's config in the compile; without it, all have something to do.
    """
    selected = tuple(patches)
    reasons = {patch.name: switched_off.get(patch.name) or patch.check_place() for patch in selected}
    lacking = {name: why for name, why in reasons.items() if why is not None}
    with contextlib.ExitStack() as stack:
        for patch in selected:
            if patch.name not in lacking:
                for member in (patch,) if patch.members is None else patch.members(watcher):
                    stack.enter_context(_install_patch(watcher, member))
            elif config is None or not patch.under or any(config(entry) for entry in patch.under):
                watcher.record_unseen(patch.make_unseen(lacking[patch.name]))
        yield


def _install_patch(watcher: W, patch: Patch[W]) -> contextlib.AbstractContextManager[None]:
    owner, leaf = patch.find_owner(), patch.leaf
    original = getattr(owner, leaf, None)
    if not callable(original):  # an entry of a config in which the user has put nothing
        return contextlib.nullcontext()
    replacement = contain_errors(watcher, patch.make_unseen, functools.partial(patch.wrap, watcher), original)
    static = isinstance(inspect.getattr_static(owner, leaf, None), staticmethod)
    return patch.replace(staticmethod(replacement) if static else replacement)


Run = Callable[Concatenate[Function, ...], object]
"""Runs in the place of a function, given the original and the arguments of the call."""


def contain_errors(watcher: UnseenRecorder, unseen: Callable[[str], Unseen], run: Run, original: Function) -> Function:
    """A function to stand in the place of ``original``: each call of it is one of :func:`run_contained`."""

    @functools.wraps(original)
    def replacement(*args: object, **kwargs: object) -> object:
        return run_contained(watcher, unseen, run, original, *args, **kwargs)

    return replacement


def run_contained(
    watcher: UnseenRecorder, unseen: Callable[[str], Unseen], run: Run, original: Function, *args: Any, **kwargs: Any
) -> object:
    """Call ``run``, which calls ``original`` at some time, and keep errors of fuzzcompile's own from the compile.

    What ``original`` raised rises as it is. What ``run`` raises by itself is written down as ``unseen``, and the result
    is that of ``original``.
    """
    result: object = _MISSING
    raised: BaseException | None = None

    def attempt(*args: object, **kwargs: object) -> object:
        nonlocal result, raised
        try:
            result = original(*args, **kwargs)
        except BaseException as error:  # re-raised: only remembered here
            # Not even begun: this torch's function takes other arguments than the wrapper gives it.
            trace = error.__traceback__
            began = not isinstance(error, TypeError) or (trace is not None and trace.tb_next is not None)
            raised = error if began else None
            raise
        return result

    vars(attempt)["__wrapped__"] = original
    try:
        return run(attempt, *args, **kwargs)
    except IntendedError as intended:
        raise intended.error from None
    except Exception as error:  # whatever it is, it is no error of the compile that is watched
        if error is raised:
            raise
        watcher.record_unseen(unseen(describe_error(error)), error)
    if raised is not None:
        raise raised
    return original(*args, **kwargs) if result is _MISSING else result
