"""Which documents there are, and in which part of the navigation. Every docs/*.md is one, listed here or not."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What is named here comes first and in this order. The rest is how-to.
PARTS: dict[str, tuple[str, ...]] = {
    "Tutorial": ("README", "tutorial", "lab", "from-the-articles", "faq"),
    "How-to": ("django", "fastapi", "testing", "from-celery", "from-procrastinate", "from-rq", "deploy", "runbook"),
    "Concepts": (
        "concepts", "ordering", "ring", "wake-ups", "workflow-concepts", "comparison", "performance", "performance-peers",
        "words", "ARCHITECTURE",
    ),
    "Reference": (
        "api", "cli", "configuration", "monitoring", "log-events", "doctor", "roles", "claims", "SECURITY", "CHANGELOG",
    ),
}  # fmt: skip
OUTSIDE = ("README", "ARCHITECTURE", "SECURITY", "CHANGELOG", "CONTRIBUTING")


@dataclass(frozen=True, slots=True)
class Page:
    """A document. `path` is where its links count from, `target` its file in the site."""

    name: str
    part: str
    path: Path
    text: str

    @property
    def target(self) -> str:
        if self.name == "README":
            return "index.html"
        return f"{'adr-' if self.part == 'Decisions' else ''}{self.name}.html"

    @property
    def title(self) -> str:
        found = re.search(r"^# (.+)$", self.text, re.MULTILINE)
        return re.sub(r"[`*]", "", found[1]) if found else self.name


def part_of(name: str) -> str:
    return next((part for part, names in PARTS.items() if name in names), "How-to")


def pages(root: Path = ROOT) -> list[Page]:
    """All of them, in the order of the navigation."""
    files = {path.stem: path for path in sorted((root / "docs").glob("*.md"))}
    files |= {name: root / f"{name}.md" for name in OUTSIDE}
    order = [
        name for part, names in PARTS.items() for name in (*names, *(n for n in files if part_of(n) == part))
    ]
    found = [
        Page(name, part_of(name), files[name], files[name].read_text(encoding="utf-8"))
        for name in dict.fromkeys(order)
        if name in files
    ]
    decisions = [
        Page(path.stem, "Decisions", path, path.read_text(encoding="utf-8"))
        for path in sorted((root / "docs" / "adr").glob("*.md"))
    ]
    return [*found, *decisions]
