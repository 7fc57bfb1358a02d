"""Help of commands on one screen: the options that most calls need, and all of them with ``--help-all``."""

from __future__ import annotations

import itertools
import re
import textwrap
from typing import Any

import click

# The options that ``--help`` shows, of whatever command has them.
COMMON = frozenset(
    ("--all", "--anyway", "--budget", "--call", "--comment", "--corpus", "--device", "--fail-on", "--focus", "--from",
     "--hf-config", "--json", "--module", "--note", "--nproc", "--out", "--page", "--pending", "--search", "--seed",
     "--select", "--source", "--stage", "--workers", "--help")
)  # fmt: skip
# Paragraphs of a command's text that it shows.
_PARAGRAPHS = 2
_ALL = "--help-all"
# Characters of an option with what it takes.
_WIDEST = 40


class FoldedCommand(click.Command):
    """A command whose ``--help`` leaves out the options that few calls need, and the later paragraphs of its text."""

    def __init__(self, *arguments: Any, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        said = "Show this message with all options, and exit."
        self.params.append(
            click.Option([_ALL], is_flag=True, is_eager=True, expose_value=False, callback=_show_all, help=said)
        )

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the first paragraphs of the text, or all of them."""
        whole = self.help
        if whole is not None and not ctx.meta.get(_ALL):
            self.help = "\n\n".join(itertools.islice(whole.split("\n\n"), _PARAGRAPHS))
        try:
            super().format_help_text(ctx, formatter)
        finally:
            self.help = whole

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options that most calls need, or all of them."""
        options = [option for option in self.get_params(ctx) if isinstance(option, click.Option) and not option.hidden]
        rare = [option for option in options if not COMMON.intersection(option.opts) and option.opts != [_ALL]]
        if ctx.meta.get(_ALL) or not rare:
            super().format_options(ctx, formatter)
            return
        with formatter.section("Options"):
            formatter.write_dl([_shorten(option, ctx) for option in options if option not in rare])
        names = " ".join(sorted(max(option.opts, key=len) for option in rare))
        with formatter.section("Beside them"):
            for line in textwrap.wrap(names, formatter.width - formatter.current_indent, break_on_hyphens=False):
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")


def _shorten(option: click.Option, ctx: click.Context) -> tuple[str, str]:
    """An option with the first sentence of its help and its default; a long list of what it takes is left out."""
    names, text = option.get_help_record(ctx) or ("", "")
    names = names if len(names) <= _WIDEST else names.partition(" ")[0] + " WORD"
    said, bracket, extra = text.partition("  [")
    default = re.search(r"default: [^;\]]+", bracket + extra)
    return names, re.split(r"(?<=\w[.;]) ", said)[0].rstrip(";") + (f"  [{default[0]}]" if default else "")


def _show_all(ctx: click.Context, option: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()
