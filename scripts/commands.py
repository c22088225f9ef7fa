"""Print every command of the program with the first sentence of its help: docs/cli.md quotes it."""

from collections.abc import Iterator
from typing import Any

import typer

from holdfast.cli import app


def lines(name: str, command: Any) -> Iterator[tuple[str, str]]:
    parts = getattr(command, "commands", None)
    if parts is None or command.invoke_without_command:
        yield name, (command.help or "").strip().split("\n", 1)[0].split(". ", 1)[0].rstrip(".")
    for word, part in sorted((parts or {}).items()):
        yield from lines(f"{name} {word}".strip(), part)


def main() -> None:
    root = typer.main.get_command(app)
    found = list(lines("", root))
    width = max(len(name) for name, _ in found)
    for name, text in found:
        print(f"holdfast {name.ljust(width)}  {text}")


if __name__ == "__main__":
    main()
