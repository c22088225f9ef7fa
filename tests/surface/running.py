"""The command line in this process: as in a pipe, and as at a terminal."""

import contextlib
import io
import json
import os
import pty
import re
import sys
import threading
import tty
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast.cli import main

_UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_STYLE = re.compile("\x1b\\[[0-9;]*m")  # what rich itself writes


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str = ""

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def unsafe(text: str) -> list[str]:
    """What in it could drive a terminal."""
    return _UNSAFE.findall(text)


class Cli:
    """`cli("jobs", "list")` runs a command on this test's database, from its arguments to its exit code."""

    def __init__(self, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._dsn = dsn
        self._patch = monkeypatch

    def __call__(self, *words: str) -> Ran:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = self._main(words)
        return Ran(code, out.getvalue(), err.getvalue())

    def _main(self, words: tuple[str, ...]) -> int:
        self._patch.setattr(sys, "argv", ["holdfast", *words, "-d", self._dsn])
        try:
            main()
        except SystemExit as done:
            return done.code if isinstance(done.code, int) else 0 if done.code is None else 1
        return 0

    def text(self, *words: str) -> str:
        """What a command that must succeed prints."""
        ran = self(*words)
        assert (ran.code, ran.err) == (0, ""), ran
        return ran.out

    def json(self, *words: str) -> Any:
        return json.loads(self.text(*words, "--json"))

    def refused(self, *words: str) -> str:
        """The one line that a mistake of the user's ends with."""
        ran = self(*words)
        assert (ran.code, ran.out) == (2, ""), ran
        assert ran.err.startswith("holdfast: ")
        assert ran.err.count("\n") == 1
        return ran.err.removeprefix("holdfast: ").rstrip("\n")

    def at_terminal(
        self, *words: str, typed: str = "", bar_after: float = threading.TIMEOUT_MAX, coloured: bool = False
    ) -> Ran:
        """Everything that appears on the screen, without colours, and on a slow machine too without a bar."""
        with _terminal() as screen, pytest.MonkeyPatch.context() as patch:
            patch.setattr("holdfast.cli.busy.PATIENCE", bar_after)
            screen.type(typed)
            code = self._main(words)
        seen = "".join(screen.seen)
        return Ran(code, seen if coloured else _STYLE.sub("", seen))


@dataclass
class _Screen:
    master: int
    seen: list[str] = field(default_factory=list)

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def read(self) -> None:
        parts = []
        with contextlib.suppress(OSError):  # the other side is closed
            while part := os.read(self.master, 65536):
                parts.append(part)
        self.seen.append(b"".join(parts).decode())


@contextlib.contextmanager
def _terminal() -> Iterator[_Screen]:
    """A pseudo terminal as standard input, output and error of this process."""
    master, slave = pty.openpty()
    tty.setraw(slave)  # no echo, and line ends as they are written
    screen = _Screen(master)
    reader = threading.Thread(target=screen.read)
    reader.start()
    own_input = os.dup(0)
    os.dup2(slave, 0)
    try:
        with (
            open(os.dup(slave), "w", encoding="utf-8") as out,
            open(os.dup(slave), encoding="utf-8") as typed,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(out),
        ):
            before, sys.stdin = sys.stdin, typed
            try:
                yield screen
            finally:
                sys.stdin = before
    finally:
        os.dup2(own_input, 0)
        os.close(own_input)
        os.close(slave)
        reader.join(50)
        os.close(master)
