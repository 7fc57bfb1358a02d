"""The one Jinja environment of the project: idioms, cases, reports."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

_PACKAGE = Path(__file__).parent


def template_folder() -> Path:
    """The templates inside an installed package, or at the top of a source checkout."""
    packaged = _PACKAGE / "templates"
    return packaged if packaged.is_dir() else _PACKAGE.parent / "templates"


@cache
def environment() -> Environment:
    """Environment over the templates; an unknown variable is an error, only HTML is escaped."""
    return Environment(
        loader=FileSystemLoader(template_folder()),
        autoescape=select_autoescape(("html", "html.j2"), default=False, default_for_string=False),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
