"""The commands, built once per process.

A program builds the tree of its commands when it starts: 60 ms for a hundred commands. Tests run a thousand commands in one
process; here the tree is built again only when commands were added or taken away."""

from typing import Any

import typer.main
import typer.testing

_build = typer.main.get_command
_built: dict[tuple[int, int, int], Any] = {}


def _once(program: typer.Typer) -> Any:
    key = (id(program), len(program.registered_commands), len(program.registered_groups))
    if key not in _built:
        _built[key] = (program, _build(program))  # the program is kept, and so its id is no other's
    return _built[key][1]


def keep_tree() -> None:
    for module, name in ((typer.main, "get_command"), (typer.testing, "_get_command")):
        assert getattr(module, name) in (_build, _once), f"{module.__name__} builds its commands elsewhere"
        setattr(module, name, _once)
