"""The three configs of the compiler, and the entries they have."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Protocol, cast

CONFIGS: Mapping[str, str] = MappingProxyType(
    {
        "inductor": "torch._inductor.config",
        "dynamo": "torch._dynamo.config",
        "functorch": "torch._functorch.config",
    }
)
"""The module of each config, by the name that settings and reports use."""


class Config(Protocol):
    """Common interface of torch's config modules (``torch.utils._config_module.ConfigModule``)."""

    def patch(self, changes: Mapping[str, object], /) -> contextlib.AbstractContextManager[None]:
        """Set entries for the time of a block."""

    def get_config_copy(self) -> dict[str, object]:
        """Every entry with a copy of its present value."""


def config_of(name: str) -> Config:
    """The config called ``inductor``, ``dynamo`` or ``functorch``."""
    return cast(Config, importlib.import_module(CONFIGS[name]))


def has_entry(config: Config, key: str) -> bool:
    """Return whether a config has an entry; ``key`` may be dotted (``cpp.simdlen``)."""
    owner: object = config
    for part in key.split("."):
        if not hasattr(owner, part):
            return False
        owner = getattr(owner, part)
    return True


def patched(name: str, changes: Mapping[str, object]) -> contextlib.AbstractContextManager[None]:
    """Set those of the entries that this torch has for the time of a block."""
    config = config_of(name)
    present = {key: value for key, value in changes.items() if has_entry(config, key)}
    return config.patch(present) if present else contextlib.nullcontext()


@contextlib.contextmanager
def preserved_config() -> Iterator[None]:
    """Set every config back at the end of the block to what it was at its beginning."""
    with contextlib.ExitStack() as stack:
        for name in CONFIGS:
            config = config_of(name)
            stack.enter_context(config.patch(config.get_config_copy()))
        yield


def changed_entries(name: str) -> dict[str, object]:
    """The entries of a config that do not have torch's default; none of a config that nothing has imported yet."""
    if CONFIGS[name] not in sys.modules:
        return {}
    config = config_of(name)
    is_default = getattr(config, "_is_default", lambda key: False)
    return {key: value for key, value in config.get_config_copy().items() if not is_default(key)}
