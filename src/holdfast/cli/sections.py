"""The pages of help: commands in sections, and the first sentence of each as a whole."""

import re
from typing import Any

from typer.core import TyperGroup

SECTIONS = {
    "Begin": ("init", "dev", "lab", "enqueue"),
    "Run": ("worker", "web", "migrate", "db", "bench"),
    "How things stand": ("status", "top", "doctor", "explain", "stats", "runbook", "audit"),
    "Jobs": ("jobs", "dead", "archive", "group", "operations", "undo"),
    "Queues, keys and workers": ("queue", "task", "keys", "ring", "workers", "schedule"),
    "Events, webhooks and workflows": (
        "events", "subscriptions", "projection", "contracts", "relays", "received", "webhook", "workflow",
    ),
    "Set up": ("config", "roles", "monitoring"),
}  # fmt: skip
OTHERS = "More"


def first_sentence(text: str | None) -> str:
    """Up to the first full stop that ends a sentence."""
    flat = " ".join((text or "").split())
    found = re.match(r".*?[.!?](?= [A-Z`]|$)", flat)
    return found[0] if found else flat


class Whole(TyperGroup):
    """Whole sentences in the list of commands: long ones wrap."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        found = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        shown = {name: one for name, one in found.items() if one is not None and not one.hidden}
        width = max(map(len, shown), default=0)
        for title, names in self.sections(tuple(shown)).items():
            rows = [(name.ljust(width), first_sentence(shown[name].help)) for name in names if name in shown]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def sections(self, names: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        return {"Commands": names}


class Sections(Whole):
    """The first page: its commands in SECTIONS."""

    def sections(self, names: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        named = {name for section in SECTIONS.values() for name in section}
        return {**SECTIONS, OTHERS: tuple(name for name in names if name not in named)}
