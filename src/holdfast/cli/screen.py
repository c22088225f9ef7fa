"""A view that is drawn again and again, in place. Over ssh as at home: one write for each picture, and nothing is cleared
that is not drawn over, so nothing flickers."""

import contextlib
import io
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from holdfast.cli import busy, render
from holdfast.cli.arguments import parse_span
from holdfast.errors import ConfigurationError, DatabaseUnavailable

EveryOption = Annotated[str, typer.Option(metavar="SPAN", help="How often to refresh: 2s, 500ms.")]
TimesOption = Annotated[
    int | None, typer.Option(min=1, help="Exit after that many frames.", show_default="never")
]

# Another screen, no cursor, and long lines are cut: a line that wraps would move all below it. And back.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_LEAST = 0.2  # seconds


class _Picture(io.StringIO):
    """Output that is printed into it has the colours of the target terminal."""

    def __init__(self, coloured: bool) -> None:
        super().__init__()
        self._coloured = coloured

    def isatty(self) -> bool:
        return self._coloured


def watch(
    look: Callable[[], Any], draw: Callable[[Any], None], every: str, times: int | None, as_json: bool
) -> None:
    """Query and draw until Ctrl-C, or that many times. `draw` prints. An outage of the database is waited out; one
    at the first query is an error, as for every command."""
    pause = parse_span(every, "--every")
    if pause < _LEAST:
        raise ConfigurationError(f"--every takes {_LEAST:g} s or more, not {every!r}")
    look = _seen_before(look)
    with contextlib.suppress(KeyboardInterrupt), _screen(as_json) as show:
        while times is None or times > 0:
            began = time.monotonic()
            _one(look, draw, show, as_json)
            times = None if times is None else times - 1
            if times != 0:
                time.sleep(max(0.05, pause - (time.monotonic() - began)))


def _seen_before(look: Callable[[], Any]) -> Callable[[], Any]:
    """The same, with its first query made now."""
    seen = [look()]
    return lambda: seen.pop() if seen else look()


def _one(
    look: Callable[[], Any], draw: Callable[[Any], None], show: Callable[[str], None], as_json: bool
) -> None:
    try:
        found = look()
    except DatabaseUnavailable as error:
        show(f"The database does not answer: {render.one_line(str(error), 200)}\n")
        return
    if as_json:
        render.print_json(found)
        return
    picture = _Picture(sys.stdout.isatty())
    with contextlib.redirect_stdout(picture):
        draw(found)
    show(picture.getvalue())


@contextlib.contextmanager
def _screen(as_json: bool) -> Iterator[Callable[[str], None]]:
    """What shows a picture. A pipe, and a terminal that cannot move its cursor, get one after the other, with an empty line
    between them."""
    busy.end()
    if as_json or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda text: typer.echo(text, err=as_json)
        return
    before = signal.signal(signal.SIGTERM, _leave)  # whatever ends it, the terminal is restored
    _write(_ENTER)
    try:
        yield lambda text: _write(placed(text, os.get_terminal_size().lines))
    finally:
        _write(_LEAVE)
        signal.signal(signal.SIGTERM, before)


def _leave(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def placed(text: str, lines: int) -> str:
    """The picture over the one before it, as far as the screen reaches."""
    drawn = text.rstrip("\n").split("\n")
    if len(drawn) > lines:
        drawn = [*drawn[: lines - 1], f"... {len(drawn) - lines + 1} more lines: a larger window shows them"]
    return _HOME + f"{_REST_OF_LINE}\r\n".join(drawn) + _REST_OF_LINE + _BELOW


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
