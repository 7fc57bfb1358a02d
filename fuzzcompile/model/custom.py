"""A user's own passes and backend, as the command line names them: ``module:attribute`` or ``file.py:attribute``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.stages import JOINT_GRAPH, POST_GRAD, PRE_GRAD

PLACES = (PRE_GRAD, JOINT_GRAPH, POST_GRAD)
"""The stages that run passes of the user's own, by the names that ``--at`` takes."""


@dataclass(frozen=True)
class ObjectPath:
    """An object of the user's: the module or file that defines it, and its path in there."""

    module: str
    attribute: str

    @classmethod
    def parse(cls, text: str, option: str) -> ObjectPath:
        """Read ``module:attribute`` or ``file.py:attribute``; a file is made absolute."""
        module, colon, attribute = text.rpartition(":")
        if not (module and colon and all(part.isidentifier() for part in attribute.split("."))):
            raise UsageError(f"{option} {text}: write module:attribute or file.py:attribute.")
        if module.endswith(".py"):
            path = Path(module).expanduser().resolve()
            if not path.is_file():
                raise UsageError(f"{option} {text}: there is no file {module}.")
            return cls(str(path), attribute)
        if not all(part.isidentifier() for part in module.split(".")):
            raise UsageError(f"{option} {text}: {module!r} is neither a module nor a file that ends in .py.")
        return cls(module, attribute)

    @property
    def is_file(self) -> bool:
        """True if the target names a file, and no module."""
        return self.module.endswith(".py")

    @property
    def name(self) -> str:
        """The name in reports: ``module:attribute``, for a file its name without folder and ending."""
        return f"{Path(self.module).stem if self.is_file else self.module}:{self.attribute}"

    def __str__(self) -> str:
        return f"{self.module}:{self.attribute}"


@dataclass(frozen=True)
class CustomPass:
    """A pass of the user's own, and the stage that runs it; None where the object itself decides."""

    target: ObjectPath
    at: str | None = None

    @classmethod
    def parse(cls, text: str) -> CustomPass:
        """Read ``module:attribute@stage``, in which the stage may be left out."""
        named, at, place = text.partition("@") if "@" in text.rpartition(":")[2] else (text, "", "")
        if at and place not in PLACES:
            raise UsageError(f"--pass {text}: there is no stage {place!r} for passes; use {', '.join(PLACES)}.")
        return cls(ObjectPath.parse(named, "--pass"), place or None)

    def __str__(self) -> str:
        return str(self.target) if self.at is None else f"{self.target}@{self.at}"


@dataclass(frozen=True)
class Custom:
    """The user's own parts of a compile: passes, and a backend by its registered name or as an object."""

    passes: tuple[CustomPass, ...] = ()
    backend: ObjectPath | str | None = None

    @classmethod
    def parse(cls, passes: Sequence[str], places: Sequence[str], backend: str | None) -> Custom:
        """Parse the values of ``--pass``, ``--at`` and ``--backend``.

        One ``--at`` is for every pass that names no stage itself (``module:attribute@stage``); of several, the first is
        for the first such pass, and so on.
        """
        named = [CustomPass.parse(text) for text in passes]
        if len({custom.target.name for custom in named}) < len(named):
            raise UsageError("--pass: two passes have the same name, so that reports could not tell them apart.")
        open_places = [custom for custom in named if custom.at is None]
        if len(places) > 1 and len(places) != len(open_places):
            raise UsageError(
                f"--at is given {len(places)} times for {len(open_places)} passes without a stage: give it once for all"
                " of them, once for each in their order, or write --pass module:attribute@stage."
            )
        if places and not open_places:
            raise UsageError("--at says where a --pass runs, and there is none without a stage of its own.")
        stages = iter(places if len(places) != 1 else tuple(places) * len(open_places))
        placed = tuple(replace(custom, at=next(stages, None)) if custom.at is None else custom for custom in named)
        return cls(placed, ObjectPath.parse(backend, "--backend") if backend and ":" in backend else backend)

    def __bool__(self) -> bool:
        return bool(self.passes) or self.backend is not None

    def options(self) -> dict[str, object]:
        """The options of the command line that ask for the same, for :func:`fuzzcompile.model.hints.format_command`."""
        return {"pass": tuple(map(str, self.passes)), "backend": None if self.backend is None else str(self.backend)}


@dataclass(frozen=True)
class LoadedCustom:
    """A pass or backend as a worker loaded it, in plain data."""

    name: str  # what reports call it
    kind: str  # ``pass`` or ``backend``
    place: str = ""  # of a pass, the stage that runs it; else empty
    setting: str = ""  # of a pass, the entry of Inductor's config that holds it; else empty
    rules: tuple[str, ...] = ()  # the patterns of its tables, by the names that reports use
    digest: str = ""  # a hash of the user's source files that it comes from; empty where there are none

    @property
    def key(self) -> str:
        """The key that distinguishes its stream of cases and its campaigns from others."""
        place = f"@{self.place}" if self.place else ""
        return f"{self.kind}={self.name}{place}" + (f"#{self.digest}" if self.digest else "")


def is_custom(pass_name: str | None) -> bool:
    """Return whether the pass of a label or culprit is a user's own: no pass of torch has a colon in its name."""
    return pass_name is not None and ":" in pass_name
