"""Every command of the program, found by walking it."""

from collections.abc import Iterator
from typing import Any

import typer

from holdfast.cli import app


def every_command() -> dict[str, Any]:
    """`queue pause` -> the command; a group that does something by itself is one too."""
    return dict(_walk((), typer.main.get_command(app)))


def _walk(name: tuple[str, ...], command: Any) -> Iterator[tuple[str, Any]]:
    parts = getattr(command, "commands", None)
    if parts is None or command.invoke_without_command:
        yield " ".join(name), command
    for word, part in (parts or {}).items():
        yield from _walk((*name, word), part)
