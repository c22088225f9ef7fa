"""`holdfast lab`: the promises, each as a scene on a server and on workers of the lab's own. Loaded when it is asked for."""

from typing import Annotated, Any

import typer

from holdfast.cli import render
from holdfast.cli.exits import ENVIRONMENT
from holdfast.cli.logs import LogFormat, LogLevel, configure
from holdfast.cli.web import surface
from holdfast.errors import ConfigurationError


def lab_command(
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port, on 127.0.0.1 only.")] = 8766,
    play: Annotated[
        int | None, typer.Option(metavar="SCENE", help="Play the script of this scene, without a browser.")
    ] = None,
    unsafe: Annotated[
        bool, typer.Option("--unsafe", help="With the scene's guard switched off: the promise must break.")
    ] = False,
    seed: Annotated[int, typer.Option(help="The seed of the random choices in a play.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Watch each promise hold, and break without its guard: real workers on a temporary server."""
    configure(LogFormat.console, LogLevel.warning)
    if play is None and (unsafe or as_json):
        raise ConfigurationError(
            "--unsafe and --json belong to --play SCENE. In the browser each scene has a switch"
        )
    if play is None:
        surface("holdfast.lab.serve", "the lab").serve(port)
        return
    played = surface("holdfast.lab.play", "the lab").play_alone(play, unsafe=unsafe, seed=seed)
    if as_json:
        render.print_json(played.as_dict())
    else:
        _show(played)
    if not played.as_expected:
        raise typer.Exit(ENVIRONMENT)


def _show(played: Any) -> None:
    typer.echo("\n".join(played.lines()))
