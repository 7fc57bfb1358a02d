"""Text of reports as HTML: code in backticks, highlighted sources, without paths of this machine."""

from __future__ import annotations

import re
from collections.abc import Container

from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from fuzzcompile.corpus.marking import PROJECT
from fuzzcompile.model.privacy import scrub

_CODE = re.compile(r"`([^`]+)`")
_ISSUE = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+)/(?:issues|pull)/(\d+)")


def inline(text: str) -> Markup:
    """A sentence with what stands in backticks as code, and issues on GitHub as links.

    A backtick without a partner goes.
    """
    parts = _CODE.split(scrub(text))
    pieces = (
        Markup("<code>{}</code>").format(part) if place % 2 else _with_links(part.replace("`", ""))
        for place, part in enumerate(parts)
    )
    return Markup("").join(pieces)


def _with_links(text: str) -> Markup:
    pieces, end = list[Markup](), 0
    for issue in _ISSUE.finditer(text):
        name = f"{'' if issue[1] == PROJECT else issue[1]}#{issue[2]}"
        link = Markup('<a href="{}" rel="noreferrer">{}</a>').format(issue[0], name)
        pieces += [escape(text[end : issue.start()]), link]
        end = issue.end()
    return Markup("").join([*pieces, escape(text[end:])])


def listing(source: str, marked: Container[int] = ()) -> Markup:
    """Python source, highlighted, a ``span`` of class ``line`` each line; those ``marked`` (from 1) stand out."""
    # Without stripping, which would shift the numbers of the lines.
    text = highlight(scrub(source), PythonLexer(stripnl=False), HtmlFormatter(nowrap=True, classprefix="t-"))
    lines = text.rstrip("\n").split("\n")
    return Markup("").join(
        Markup('<span class="line{}">{}\n</span>').format(" marked" if number in marked else "", Markup(line))
        for number, line in enumerate(lines, 1)
    )


def scrubbed(value: object) -> object:
    """The same JSON without paths of this machine in any text."""
    if isinstance(value, str):
        return scrub(value) if "/" in value or "\\" in value else value
    if isinstance(value, dict):
        return {key: scrubbed(item) for key, item in value.items()}
    return [scrubbed(item) for item in value] if isinstance(value, list | tuple) else value
