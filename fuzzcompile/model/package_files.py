"""Files that the package holds: tables in TOML, and the templates of idioms, cases and reports."""

from __future__ import annotations

import importlib.resources
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from fuzzcompile.model.versions import PACKAGE

if TYPE_CHECKING:  # most commands render nothing
    from jinja2 import Environment, Template
    from jinja2.environment import TemplateModule


def find_template_folder() -> Path:
    """The templates inside an installed package, or at the top of a source checkout."""
    packaged = PACKAGE / "templates"
    return packaged if packaged.is_dir() else PACKAGE.parent / "templates"


@cache
def get_environment() -> Environment:
    """Environment over the templates; an unknown variable is an error, only HTML is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    return Environment(
        loader=FileSystemLoader(find_template_folder()),
        autoescape=select_autoescape(("html", "html.j2"), default=False, default_for_string=False),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


@cache
def get_template(name: str, source: str | None = None) -> Template:
    """The template that ``source`` spells, or the file ``name`` of the folder of templates."""
    return get_environment().get_template(name) if source is None else get_environment().from_string(source)


def expand_macro(module: TemplateModule | None, macro: str, *arguments: object) -> str:
    """Return the output of a macro for its arguments, stripped; an empty string where the module has no such macro."""
    function: Callable[..., str] | None = getattr(module, macro, None)
    return function(*arguments).strip() if function else ""


Row = TypeVar("Row")


def read_table(package: str, name: str) -> dict[str, Any]:
    """The table ``name.toml`` beside the modules of a ``package``."""
    return tomllib.loads((importlib.resources.files(package) / f"{name}.toml").read_text("utf-8"))


def read_rows(package: str, name: str, kind: type[Row]) -> tuple[Row, ...]:
    """The rows of that table in order, each as a ``kind`` whose ``name`` is the row's."""
    return tuple(msgspec.convert({"name": row, **entries}, kind) for row, entries in read_table(package, name).items())
