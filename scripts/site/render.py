"""Markdown to HTML: anchors as on a forge, links to pages of the site, and files beside it that a page names."""

import posixpath
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from html import escape
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

Resolve = Callable[[str], str]


@dataclass
class Rendered:
    html: str
    headings: list[tuple[int, str, str]] = field(default_factory=list)  # level, anchor, text

    @property
    def anchors(self) -> set[str]:
        return {anchor for _, anchor, _ in self.headings}


def slug(text: str) -> str:
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", text.strip().lower()))


def plain(token: Token) -> str:
    return "".join(child.content for child in token.children or () if child.type in ("text", "code_inline"))


def render(text: str, resolve: Resolve) -> Rendered:
    """`resolve` says where a link or a picture leads; it raises where there is nothing."""
    markdown = MarkdownIt("commonmark", {"html": True, "highlight": _code}).enable("table")
    tokens = markdown.parse(text)
    headings: list[tuple[int, str, str]] = []
    taken: dict[str, int] = {}
    for place, token in enumerate(tokens):
        if token.type == "heading_open":
            title = plain(tokens[place + 1])
            anchor = slug(title)
            taken[anchor] = taken.get(anchor, -1) + 1
            anchor += f"-{taken[anchor]}" if taken[anchor] else ""
            token.attrSet("id", anchor)
            headings.append((int(token.tag[1]), anchor, title))
        _lead(token.children or (), resolve)
    html = markdown.renderer.render(tokens, markdown.options, {})
    return Rendered(
        html.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>"), headings
    )


def _lead(tokens: Iterable[Token], resolve: Resolve) -> None:
    for token in tokens:
        for name in ("href", "src"):
            value = token.attrGet(name)
            if isinstance(value, str) and not re.match(r"[a-z]+:", value):
                token.attrSet(name, resolve(value))


def _code(code: str, language: str, _: Any) -> str:
    """Comments and strings stand out; more would be a library at view time or another at build time."""
    text = escape(code, quote=False)
    mark = {
        "python": "#",
        "console": "#",
        "toml": "#",
        "yaml": "#",
        "dockerfile": "#",
        "ini": "#",
        "sql": "--",
    }.get(language)
    if mark:
        text = re.sub(rf"(^|\s)({mark} [^\n]*)", r'\1<span class="c">\2</span>', text)
    if language == "console":
        text = re.sub(r"^(\$ )([^\n<]*)", r'<span class="p">\1</span><b>\2</b>', text, flags=re.MULTILINE)
    return text


def relative(where: str, link: str) -> tuple[str, str]:
    """The path of a link in the repository, seen from the folder `where`, and its anchor."""
    path, _, anchor = link.partition("#")
    return (posixpath.normpath(posixpath.join(where, path)) if path else ""), anchor
