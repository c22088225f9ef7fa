"""`holdfast top` and `status --watch`: drawn in place, over and over, also while the database is away."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from tests.conftest import within
from typer.testing import CliRunner

from holdfast import ConfigurationError, Holdfast
from holdfast.cli import app as cli
from holdfast.cli.screen import placed
from holdfast.testing import Kit


@pytest.fixture
def shop(app: Holdfast, kit: Kit) -> Kit:
    @app.task(name="send")
    async def send(n: int) -> None:
        if n == 3:
            raise ValueError("no")

    for n in range(5):
        send.using(max_attempts=1).enqueue(n=n)
    kit.run_worker()
    send.enqueue(n=9)
    return kit


def test_a_pipe_gets_one_picture_after_the_other(shop: Kit) -> None:
    done = CliRunner().invoke(cli, ["top", "-d", shop.url, "--times", "2", "--every", "200ms"])
    assert done.exit_code == 0, done.output
    pictures = done.output.split("every 200ms, Ctrl-C leaves")
    assert len(pictures) == 3
    assert re.match(r"\d\d:\d\d:\d\d UTC, every", done.output), "a narrow terminal cuts the address, not this"
    for picture in pictures[1:]:
        assert "0 workers, " in picture
        assert "1 dead letters" in picture
        assert "WARNING 1 queue with due jobs and no live worker\n        holdfast worker" in picture
        assert re.search(r"^inbox +1 ", picture, re.MULTILINE), "what waits"
        assert re.search(r"^inbox +4 +1 +1 ", picture, re.MULTILINE), "what was done"
        assert "No workers. Start one: holdfast worker MODULE:APP" in picture
    assert "\x1b" not in done.output


def test_programs_get_a_document_for_each_look(shop: Kit) -> None:
    done = CliRunner().invoke(cli, ["top", "-d", shop.url, "--times", "2", "--every", "200ms", "--json"])
    first, second = (json.loads(line) for line in done.output.splitlines())
    assert first["overview"]["dead_letters"]["count"] == second["overview"]["dead_letters"]["count"] == 1
    assert [f["code"] for f in first["wrong"]] == [f["code"] for f in second["wrong"]]
    assert "unserved_queue" in [f["code"] for f in first["wrong"]]


def test_status_is_watched_too(shop: Kit) -> None:
    done = CliRunner().invoke(cli, ["status", "-d", shop.url, "--watch", "--times", "3", "--every", "0.2s"])
    assert done.exit_code == 0, done.output
    assert done.output.count("\ndurability  ") == 3
    looked = CliRunner().invoke(
        cli, ["status", "-d", shop.url, "--watch", "--times", "2", "--every", "0.2s", "--json"]
    )
    assert [len(json.loads(line)["queues"]) for line in looked.output.splitlines()] == [1, 1]


@pytest.mark.parametrize(
    ("every", "said"),
    [("10ms", "--every takes 0.2 s or more"), ("soon", "--every 'soon' is no span of time")],
)
def test_what_is_no_pace_is_refused(shop: Kit, every: str, said: str) -> None:
    error = CliRunner().invoke(cli, ["top", "-d", shop.url, "--every", every]).exception
    assert isinstance(error, ConfigurationError)
    assert str(error).startswith(said)


def test_a_picture_is_drawn_over_the_one_before_it() -> None:
    assert placed("a\nb\n", 10) == "\x1b[Ha\x1b[K\r\nb\x1b[K\x1b[J"
    shown = placed("\n".join("abcdef"), 4)
    assert shown.count("\r\n") == 3
    assert "... 3 more lines: a larger window shows them" in shown
    assert "\x1b[2J" not in shown, "a cleared screen flickers"


class Terminal:
    """`holdfast top` at a terminal of 24 lines and 80 columns."""

    def __init__(self, url: str, kind: str = "xterm") -> None:
        self._ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": kind, "COLUMNS": "80", "LINES": "24"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "top", "-d", url, "--every", "200ms"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
            start_new_session=True,
        )
        os.close(theirs)
        self.text = ""

    def until(self, wanted: str, count: int = 1) -> None:
        deadline = time.monotonic() + within(20)
        while self.text.count(wanted) < count:
            assert time.monotonic() < deadline, f"not seen: {wanted!r} in {self.text[-2000:]!r}"
            if select.select([self._ours], [], [], 0.2)[0]:
                try:
                    self.text += os.read(self._ours, 65536).decode(errors="replace")
                except OSError:  # it has left
                    assert wanted in self.text
                    return

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.fixture
def terminal(shop: Kit) -> Iterator[Terminal]:
    made = Terminal(shop.url)
    yield made
    made.close()


def test_at_a_terminal_it_has_a_screen_of_its_own_and_gives_it_back(terminal: Terminal) -> None:
    terminal.until("Ctrl-C leaves", 3)
    assert terminal.text.startswith("\x1b[?1049h\x1b[?25l\x1b[?7l")  # no line goes on in the next
    assert "\x1b[2J" not in terminal.text
    terminal.process.send_signal(signal.SIGINT)
    terminal.until("\x1b[?7h\x1b[?25h\x1b[?1049l")
    assert terminal.process.wait(within(10)) == 0


def test_ended_by_a_signal_it_gives_the_terminal_back(terminal: Terminal) -> None:
    terminal.until("Ctrl-C leaves")
    terminal.process.terminate()
    terminal.until("\x1b[?7h\x1b[?25h\x1b[?1049l")
    assert terminal.process.wait(within(10)) == 128 + signal.SIGTERM


def test_a_terminal_that_cannot_move_its_cursor_gets_one_after_the_other(shop: Kit) -> None:
    dumb = Terminal(shop.url, "dumb")
    try:
        dumb.until("Ctrl-C leaves", 2)
    finally:
        dumb.close()
    assert "\x1b" not in dumb.text


def test_a_database_that_is_away_is_said_and_waited_for(shop: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.cli import top
    from holdfast.errors import DatabaseUnavailable

    real, looks = top.Looking.__call__, iter(range(10))

    def sometimes(self: top.Looking) -> top.Top:
        if next(looks) == 1:
            raise DatabaseUnavailable("the server closed the connection")
        return real(self)

    monkeypatch.setattr(top.Looking, "__call__", sometimes)
    done = CliRunner().invoke(cli, ["top", "-d", shop.url, "--times", "3", "--every", "0.2s"])
    assert done.exit_code == 0, done.output
    assert done.output.count("Ctrl-C leaves") == 2
    assert "The database does not answer: the server closed the connection" in done.output
