"""All pages, the search index and the files that pages name, into a folder."""

import json
import posixpath
import re
import shutil
from collections.abc import Iterable
from html import unescape
from pathlib import Path
from typing import Any

import psycopg
from jinja2 import Environment, FileSystemLoader, select_autoescape

from .pages import PARTS, ROOT, Page, pages
from .reference import reference
from .render import Rendered, relative, render

HERE = Path(__file__).resolve().parent
DASHBOARD = ROOT / "src" / "holdfast" / "web" / "assets" / "style.css"
WORDS = 400  # of each section, for the search


class BrokenLink(Exception):
    """A link that leads nowhere."""


class Site:
    """What is known while it is made: which pages there are, and which files have to lie beside them."""

    def __init__(self, found: list[Page], root: Path = ROOT) -> None:
        self.root = root
        self.pages = found
        self.files: dict[str, str] = {}  # path in the repository -> path in the site
        self._targets = {page.path.relative_to(root).as_posix(): page for page in found}
        self._links: list[tuple[Page, Page, str]] = []
        self.rendered = {page.target: self._render(page) for page in found}

    def _render(self, page: Page) -> Rendered:
        where = posixpath.dirname(page.path.relative_to(self.root).as_posix())

        def resolve(link: str) -> str:
            path, anchor = relative(where, link)
            target = self._targets.get(path) if path else page
            if target is not None:
                if anchor:
                    self._links.append((page, target, anchor))
                return f"{target.target if path else ''}{'#' + anchor if anchor else ''}" or target.target
            return self._file(page, path)

        return render(page.text, resolve)

    def _file(self, page: Page, path: str) -> str:
        """A picture, or a file of the repository: it lies beside the pages, source code as text."""
        place = self.root / path
        if path in ("docs/adr", "docs"):
            return "adr.html"
        if not place.is_file() or path.startswith(".."):
            raise BrokenLink(f"{page.path.relative_to(self.root)} links to {path}, which is not there")
        picture = place.suffix in (".png", ".svg")
        self.files[path] = f"files/{path}" + ("" if picture else ".txt")
        return self.files[path]

    def broken(self) -> list[str]:
        """Links to a part of a page that it does not have."""
        return sorted(
            f"{page.path.relative_to(self.root)} links to {target.path.name}#{anchor}"
            for page, target, anchor in self._links
            if anchor not in self.rendered[target.target].anchors
        )


def sections(html: str) -> Iterable[tuple[str, str, str]]:
    """(anchor, heading, text) of each part of a page, as the search knows it."""
    for part in re.split(r"(?=<h[1-4] id=)", html):
        head = re.match(r'<h[1-4] id="([^"]*)">(.*?)</h[1-4]>', part, re.DOTALL)
        text = unescape(re.sub(r"<[^>]+>", " ", part[head.end() :] if head else part))
        yield (head[1], unescape(re.sub(r"<[^>]+>", "", head[2])), text) if head else ("", "", text)


def index(site: Site) -> list[dict[str, str]]:
    found = []
    for page in site.pages:
        for anchor, heading, text in sections(site.rendered[page.target].html):
            words = " ".join(text.split()[:WORDS])
            if heading or words:
                found.append(
                    {
                        "u": f"{page.target}#{anchor}" if anchor else page.target,
                        "p": page.title,
                        "h": heading,
                        "t": words,
                    }
                )
    return found


def all_pages(conn: psycopg.Connection[Any], root: Path = ROOT) -> list[Page]:
    """Documents, then what is made from the code."""
    made = [
        Page(name, "Reference", root / "docs" / f"{name}.md", text) for name, text in reference(conn).items()
    ]
    found = pages(root)
    decisions = [page for page in found if page.part == "Decisions"]
    lines = [f"- [{page.title}](adr/{page.name}.md)" for page in decisions]
    listed = Page("adr", "Reference", root / "docs" / "adr.md", "\n".join(["# Decisions", "", *lines, ""]))
    return [*(page for page in found if page.part != "Decisions"), *made, listed, *decisions]


def first_words(page: Page) -> str:
    """The first paragraph of prose, for a list of pages."""
    for paragraph in re.split(r"\n\n+", re.sub(r"<!--.*?-->", "", page.text, flags=re.DOTALL)):
        if re.match(r"[A-Za-z*`]", paragraph) and not paragraph.startswith("```"):
            plain = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", " ".join(paragraph.replace("*", "").split()))
            return re.split(r"(?<=[.:]) ", plain)[0].rstrip(":")
    return ""


def llms(site: Site) -> str:
    """llms.txt: what this is, and every page with what it is about, for a program that reads."""
    lines = [
        "# Holdfast",
        "",
        "> Durable work on PostgreSQL for Python: jobs, events, relays, webhooks, workflows.",
        "",
    ]
    for part in PARTS:
        lines += [f"## {part}", ""]
        for page in site.pages:
            if page.part == part:
                words = first_words(page)
                lines.append(f"- [{page.title}]({page.target})" + (f": {words}" if words else ""))
        lines.append("")
    return "\n".join(lines)


def build(conn: psycopg.Connection[Any], target: Path, root: Path = ROOT) -> Site:
    """The whole site. Raises BrokenLink for a link that leads nowhere."""
    site = Site(all_pages(conn, root), root)
    if site.broken():
        raise BrokenLink("; ".join(site.broken()))
    shutil.rmtree(target, ignore_errors=True)
    (target / "files").mkdir(parents=True)
    templates = Environment(loader=FileSystemLoader(HERE), autoescape=select_autoescape())
    template = templates.get_template("page.html")
    navigation = {part: [page for page in site.pages if page.part == part] for part in PARTS}
    for page in site.pages:
        made = site.rendered[page.target]
        contents = [(anchor, text) for level, anchor, text in made.headings if level == 2]
        html = template.render(page=page, body=made.html, navigation=navigation, contents=contents)
        (target / page.target).write_text(html, encoding="utf-8")
    for path, place in site.files.items():
        (target / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path, target / place)
    tokens = DASHBOARD.read_text(encoding="utf-8").split("/* ---------- base")[0]
    own = (HERE / "style.css").read_text(encoding="utf-8")
    (target / "style.css").write_text(tokens + own, encoding="utf-8")
    shutil.copyfile(HERE / "site.js", target / "site.js")
    (target / "llms.txt").write_text(llms(site), encoding="utf-8")
    # A script and not JSON: a page that is opened as a file may not fetch.
    (target / "index.js").write_text(f"window.searchIndex = {json.dumps(index(site))};\n", encoding="utf-8")
    return site
