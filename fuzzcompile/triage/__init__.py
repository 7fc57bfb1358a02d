"""Triage: the verdict on a case, the culprit, its proof and its cause."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from fuzzcompile.model.judge_task import NamedFunction

_CALL = NamedFunction("fuzzcompile.front.api.triage:triage")
_OPTIONS = NamedFunction("fuzzcompile.front.api.triage:make_triage")


class _CallableRoom(ModuleType):
    """The room as a module that is called like the public ``triage``.

    The import system binds a subpackage as an attribute of its parent, over the function that ``from fuzzcompile import
    triage`` loads lazily: as soon as a module of this room is imported, that name is the room.
    """

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Judge a call as :data:`fuzzcompile.front.api.triage.triage` does."""
        return _CALL(*args, **kwargs)

    def options(self, **changes: object) -> Any:
        """Return the public ``triage`` under other settings (:meth:`fuzzcompile.front.api.triage.Triage.options`)."""
        return _OPTIONS(**changes)


sys.modules[__name__].__class__ = _CallableRoom
