"""Modes of a program's own, which see each function or operator that is called: eager mode without them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fuzzcompile.run.call_state import is_own_mode
from fuzzcompile.run.torch_attributes import replace_attribute

_HANDLERS: Mapping[type[object], str] = {
    TorchDispatchMode: "__torch_dispatch__",
    TorchFunctionMode: "__torch_function__",
}


@contextlib.contextmanager
def bypass_modes(only: Collection[str] | None = None) -> Iterator[Collection[str]]:
    """Let every call through the modes that are not torch's, all of them or those of some names, unseen in this block.

    Yields:
        The names of the classes of those that were to see a call so far, in their order.
    """
    seen = dict[str, None]()

    def let_through(name: str) -> Callable[..., object]:
        def handle(
            mode: object,
            function: Callable[..., object],
            types: object,
            args: Sequence[object] = (),
            kwargs: Any = None,
        ) -> object:
            seen.setdefault(name)
            return function(*args, **(kwargs or {}))

        return handle

    with contextlib.ExitStack() as stack:
        for kind, handler in list_modes():
            if only is None or kind.__name__ in only:
                stack.enter_context(replace_attribute(kind, handler, let_through(kind.__name__)))
        yield seen.keys()


def list_modes() -> list[tuple[type[object], str]]:
    """The classes of modes in this process that are not torch's or ours, each with its method that sees a call."""
    kinds = ((kind, handler) for base, handler in _HANDLERS.items() for kind in _list_subclasses(base))
    return [(kind, at) for kind, at in kinds if at in vars(kind) and is_own_mode(kind)]


def _list_subclasses(base: type[object]) -> Iterator[type[object]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _list_subclasses(kind)
