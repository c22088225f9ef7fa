"""The documentation as a site: every document is in it, no link leads nowhere, it needs no network, and search finds."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from playwright.sync_api import Page, expect, sync_playwright
from scripts.site import build as site_build
from scripts.site.build import BrokenLink, Site, build
from scripts.site.pages import PARTS, pages
from scripts.site.pages import Page as Document
from tests.web.browser import FLAGS, PROGRAM

from holdfast.testing import TestServer

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, holdfast_server: TestServer) -> Path:
    target = tmp_path_factory.mktemp("site") / "site"
    name = holdfast_server.clone()
    try:
        with psycopg.connect(holdfast_server.url(name)) as conn:
            build(conn, target)
    finally:
        holdfast_server.drop(name)
    return target


def document(text: str, name: str = "page") -> Document:
    return Document(name, "How-to", ROOT / "docs" / f"{name}.md", text)


def test_every_document_is_a_page(folder: Path) -> None:
    for path in (ROOT / "docs").glob("*.md"):
        assert (folder / f"{path.stem}.html").is_file(), path.name
    for path in (ROOT / "docs" / "adr").glob("*.md"):
        assert (folder / f"adr-{path.stem}.html").is_file(), path.name
    assert "Background jobs and events" in (folder / "index.html").read_text(encoding="utf-8")


def test_a_document_that_nobody_listed_is_how_to(tmp_path: Path) -> None:
    (tmp_path / "docs" / "adr").mkdir(parents=True)
    (tmp_path / "docs" / "brand-new.md").write_text("# Brand new\n", encoding="utf-8")
    for name in ("README", "ARCHITECTURE", "SECURITY", "CHANGELOG", "CONTRIBUTING"):
        (tmp_path / f"{name}.md").write_text(f"# {name}\n", encoding="utf-8")
    assert {page.part for page in pages(tmp_path) if page.name == "brand-new"} == {"How-to"}


def test_every_page_has_the_four_parts_and_is_in_one_of_them(folder: Path) -> None:
    text = (folder / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<summary>(.*?)</summary>", text) == list(PARTS)
    linked = set(re.findall(r'<li><a href="([^"#]+)"', text))
    assert [p.target for p in pages() if p.part != "Decisions" and p.target not in linked] == []


def test_nothing_is_asked_of_the_network(folder: Path) -> None:
    for file in [*folder.glob("*.html"), folder / "style.css", folder / "site.js"]:
        text = file.read_text(encoding="utf-8")
        assert not re.search(r'(?:src|<link[^>]*href)="(?:https?:)?//', text), file.name
        assert (
            not re.search(r"@import|url\(\s*[\"']?(?:https?:)?//|fetch\(|XMLHttpRequest", text)
            or file.suffix == ".html"
        )


def test_every_link_between_files_leads_to_one(folder: Path) -> None:
    for file in folder.glob("*.html"):
        for link in re.findall(r'(?:href|src)="([^"#:]+)(?:#[^"]*)?"', file.read_text(encoding="utf-8")):
            assert (folder / link).is_file(), f"{file.name} links to {link}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[x](nowhere.md)", "docs/page.md links to docs/nowhere.md, which is not there"),
        ("![x](web/nothing.png)", "docs/page.md links to docs/web/nothing.png, which is not there"),
        ("[x](../../outside.txt)", "docs/page.md links to ../outside.txt, which is not there"),
    ],
)
def test_a_link_that_leads_nowhere_fails_the_build(text: str, said: str) -> None:
    with pytest.raises(BrokenLink, match=f"^{re.escape(said)}$"):
        Site([document(text)])


def test_a_link_to_a_part_that_is_not_there_fails_it_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = [
        document("# Page\n\n## Real part\n\n[a](#real-part) [b](#unreal) [c](other.md#x)"),
        document("# Other", "other"),
    ]
    assert Site(found).broken() == [
        "docs/page.md links to other.md#x",
        "docs/page.md links to page.md#unreal",
    ]
    monkeypatch.setattr(site_build, "all_pages", lambda conn, root: found)
    with pytest.raises(BrokenLink, match=r"page\.md#unreal"):
        build(None, tmp_path / "site")  # type: ignore[arg-type]


def test_the_reference_has_functions_tables_commands_and_names(folder: Path) -> None:
    for page, words in {
        "reference-sql": ["enqueue()", "dead_letters", "lease_expires_at timestamp with time zone"],
        "reference-commands": ["holdfast dead redrive", "--dry-run"],
        "reference-python": ["sharded_key", "One of <code>shards</code> keys in place of a hot one"],
        "reference-settings": ["HOLDFAST_DEAD_AFTER"],
        "reference-errors": ["LeaseLost"],
        "reference-metrics": ["holdfast_queue_jobs"],
    }.items():
        text = (folder / f"{page}.html").read_text(encoding="utf-8")
        for word in words:
            assert word in text, f"{page} has no {word}"


@pytest.fixture(scope="module")
def page(folder: Path) -> Iterator[Page]:
    """A browser that cannot reach anything but files."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=FLAGS)
        context = browser.new_context(offline=True)
        yield context.new_page()
        browser.close()


@pytest.mark.slow
def test_search_finds_a_page_from_a_file_without_a_network(page: Page, folder: Path) -> None:
    asked: list[Any] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"file://{folder}/index.html")
    page.keyboard.press("/")
    page.keyboard.type("wake-ups pooler")
    first = page.locator("#results a").first
    expect(first).to_contain_text("Behind a pooler · Wake-ups")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/wake-ups\.html#behind-a-pooler$"))
    expect(page.locator("nav [aria-current=page]")).to_have_text("Wake-ups")
    page.locator("#search").fill("zzzzqq")
    expect(page.locator("#results")).to_have_text("Nothing found")
    assert [url for url in asked if not url.startswith("file://")] == []


def test_the_drawings_are_what_the_script_draws() -> None:
    from scripts.drawings import DRAWINGS, FOLDER

    text = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    for name, draw in DRAWINGS.items():
        assert (FOLDER / f"{name}.svg").read_text(encoding="utf-8") == draw().svg(), f"{name}.svg: make docs"
        assert f"(concepts/{name}.svg)" in text


def test_llms_txt_names_every_page_with_what_it_is_about(folder: Path) -> None:
    text = (folder / "llms.txt").read_text(encoding="utf-8")
    assert text.startswith("# Holdfast\n\n> ")
    linked = re.findall(r"^- \[[^\]]+\]\(([^)]+)\)(: .+)?$", text, re.MULTILINE)
    assert all((folder / target).is_file() for target, _ in linked)
    assert {p.target for p in pages() if p.part != "Decisions"} <= {target for target, _ in linked}
    silent = [target for target, words in linked if not words]
    assert len(silent) < len(linked) / 4, silent
