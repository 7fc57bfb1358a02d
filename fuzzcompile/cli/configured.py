"""Options whose values may also come from the environment or from pyproject.toml."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from fuzzcompile.errors import UsageError
from fuzzcompile.settings import Source, in_force, setting

Command = TypeVar("Command", bound=Callable[..., object])


class Configured(click.Option):
    """An option that takes its value from :mod:`fuzzcompile.settings` where the command line does not give one."""

    def __init__(self, *names: Any, key: str, **attributes: Any) -> None:
        super().__init__(*names, **{"envvar": setting(key).variable, "show_envvar": True, **attributes})
        self._key = key

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return nothing: the settings read the variable, and report what is wrong with it."""
        return None

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """The option alone: a wrong value was typed, not read from the environment."""
        return click.Parameter.get_error_hint(self, ctx)

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        """The value and where it comes from."""
        given, source = super().consume_value(ctx, opts)
        if source is not ParameterSource.DEFAULT or ctx.resilient_parsing:
            return given, source
        settings = in_force()
        value = settings.configured(self._key)
        if value is None:
            return given, source
        is_variable = settings.source(self._key) is Source.ENVIRONMENT
        return value, ParameterSource.ENVIRONMENT if is_variable else ParameterSource.DEFAULT_MAP


def configured(key: str, *names: str, **attributes: Any) -> Callable[[Command], Command]:
    """The option ``--KEY`` of that setting; its default is the one built in, unless ``default`` gives another.

    Args:
        key: the setting.
        names: further names, as for ``click.option``.
        attributes: as for ``click.option``.
    """
    attributes = {"default": setting(key).default, **attributes}
    return click.option(f"--{key}", *names, cls=Configured, key=key, **attributes)


def check_settings(*, asks_for_help: bool) -> None:
    """Refuse wrong settings whatever the command, but only warn of them where help is asked for.

    Raises:
        UsageError: as of :func:`fuzzcompile.settings.in_force`.
    """
    try:
        in_force()
    except UsageError as error:
        if not asks_for_help:
            raise
        click.echo(f"fuzzcompile: warning: {error}", err=True)
