"""`holdfast bench`: measure. The measuring itself is a program of its own, `python -m holdfast.bench`."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from holdfast.runtime.processes.origin import python

PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}


def bench_command(
    context: typer.Context,
    scenarios: Annotated[
        list[str] | None,
        typer.Argument(metavar="SCENARIO...", help="What to measure; `list` names them, `all` is every one."),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the results to this file.")
    ] = None,
    append: Annotated[
        bool, typer.Option("--append", help="Keep the other scenarios that FILE holds.")
    ] = False,
    url: Annotated[
        str | None,
        typer.Option(
            help="Measure this server, in temporary databases.",
            show_default="a temporary server",
        ),
    ] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Rounds.", show_default="5")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Jobs of a drain.", show_default="100,000")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, one round: does it work.")] = False,
) -> None:
    """Measure what this machine and this server do. More options, for the sizes: python -m holdfast.bench --help."""
    words = [*(scenarios or []), *context.args]
    words += [f"--json={json_file}"] if json_file is not None else []
    words += [f"--url={url}"] if url is not None else []
    words += [f"--repeats={repeats}"] if repeats is not None else []
    words += [f"--jobs={jobs}"] if jobs is not None else []
    words += ["--append"] if append else []
    words += ["--quick"] if quick else []
    if code := _run([*python("holdfast.bench"), *words]):
        raise typer.Exit(code)


def _run(command: list[str]) -> int:
    """As a child, which Ctrl-C reaches by itself: our handler does nothing, and unlike SIG_IGN it is not inherited."""
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, bufsize=1) as child:
        before = {
            signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),
            signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: child.terminate()),
        }
        try:
            assert child.stderr is not None
            for line in child.stderr:
                sys.stderr.write(line)
                sys.stderr.flush()
            return child.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
