"""`holdfast init`: the files of a first app."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from holdfast.errors import ConfigurationError

NEW = {  # file -> what it is
    "jobs.py": "an app with one task",
    "holdfast.toml": "its settings",
    "compose.yaml": "a PostgreSQL in a container",
    "test_jobs.py": "a test",
}
FolderArgument = Annotated[
    Path, typer.Argument(help="Where to write them; created if missing.", show_default="this folder")
]


def init_command(folder: FolderArgument = Path()) -> None:
    """Write a first app, its settings, a compose file and a test. What is there already is never written over."""
    there = [name for name in NEW if (folder / name).exists() or (folder / name).is_symlink()]
    if there:
        raise ConfigurationError(
            f"{', '.join(there)} exist{'s' if len(there) == 1 else ''} in {folder.resolve()} already, so nothing was "
            "written. Name another folder: holdfast init FOLDER"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in NEW:
            text = files("holdfast.cli").joinpath("new", f"{name}.txt").read_text(encoding="utf-8")
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be written: {error}. Name another folder") from None
    for name, what in NEW.items():
        typer.echo(f"{folder / name}: {what}")
    typer.echo("\nNext:")
    if folder != Path():
        typer.echo(f"  cd {folder}")
    typer.echo("  holdfast dev jobs:app")
