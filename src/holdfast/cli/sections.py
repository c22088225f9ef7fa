"""The first page of help: commands in sections, and the first sentence of each as a whole."""

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


class Sections(TyperGroup):
    """Whole sentences: long ones wrap."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        shown = {name: found for name, found in commands.items() if found is not None and not found.hidden}
        named = {name for names in SECTIONS.values() for name in names}
        sections = {**SECTIONS, OTHERS: tuple(name for name in shown if name not in named)}
        width = max(map(len, shown), default=0)
        for title, names in sections.items():
            rows = [(name.ljust(width), first_sentence(shown[name].help)) for name in names if name in shown]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
