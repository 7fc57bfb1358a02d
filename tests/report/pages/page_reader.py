"""Reads a page of HTML, for tests."""

from __future__ import annotations

from html.parser import HTMLParser


class Reader(HTMLParser):
    """The text of a page, its tags, and whether they are closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.open, self.tags = "", list[str](), list[tuple[str, dict[str, str | None]]]()
        self.feed(page)
        self.close()
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "br", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, self.getpos()

    @property
    def stands_alone(self) -> bool:
        """Whether no tag loads or runs anything."""
        refers = [value for _, tag in self.tags for key, value in tag.items() if key in ("src", "href", "xlink:href")]
        loads = {"script", "link", "iframe", "object", "embed", "img"} & {name for name, _ in self.tags}
        return not loads and all(str(value).startswith("#") for value in refers)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.text += f" {data}"
