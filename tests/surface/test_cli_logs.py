"""The log of our own processes: events with their fields, users' lines with their job, and no way to forge either."""

import functools
import io
import json
import logging
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from tests.surface.running import unsafe
from tests.workflows.memory_journal import Store, run

from holdfast import SyncWorkflow, Workflow, telemetry
from holdfast.cli.logs import LogFormat, LogLevel, choose, configure
from holdfast.shapes.workflows.sync import run_in_thread

JOB = {"job": "id-1", "task": "mail", "queue": "inbox", "attempt": 2, "worker": "w"}
FORGED = "2026-01-01T00:00:00.000Z [info     ] job.completed            job=id-2"
NASTY = f"a\x1b[31m\n{FORGED}\r{FORGED}\u2028{FORGED}\x85{FORGED}\u202e"


@pytest.fixture
def log() -> Iterator[Callable[..., io.StringIO]]:
    """`log(LogFormat.json)` sends this process's log into the buffer it returns, until the test ends."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers[:] = []

    def start(
        form: LogFormat, level: LogLevel = LogLevel.info, stream: io.StringIO | None = None
    ) -> io.StringIO:
        stream = stream or io.StringIO()
        assert configure(form, level, stream) is form
        return stream

    yield start
    root.handlers[:] = before
    root.setLevel(level)
    logging.captureWarnings(False)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_line_with_its_fields(log: Callable[..., io.StringIO]) -> None:
    stream = log(LogFormat.json)
    telemetry.emit("job.retry", level=logging.WARNING, job="id-1", error=NASTY, trace="Traceback ...\n  x\n")
    (line,) = lines(stream)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "job.retry",
        "level": "warning",
        "job": "id-1",
        "error": NASTY,
        "exception": "Traceback ...\n  x",
    }


def test_what_a_handler_logs_carries_its_job(log: Callable[..., io.StringIO]) -> None:
    stream = log(LogFormat.json)
    with telemetry.bound(**JOB):
        logging.getLogger("shop").info("paid %s", NASTY, extra={"order": 7})
        telemetry.emit("something", count=1)
    logging.getLogger("shop").info("outside")
    first, second, third = lines(stream)
    assert {key: first[key] for key in JOB} == JOB
    assert (first["event"], first["logger"], first["order"]) == (f"paid {NASTY}", "shop", 7)
    assert {key: second[key] for key in JOB} == JOB
    assert (second["event"], second["count"]) == ("something", 1)
    assert "job" not in third


def test_tracebacks_of_handlers_are_in_the_line(log: Callable[..., io.StringIO]) -> None:
    stream = log(LogFormat.json)
    try:
        raise ValueError(NASTY)
    except ValueError:
        logging.getLogger("shop").exception("failed")
    (line,) = lines(stream)
    assert line["exception"].startswith("Traceback (most recent call last):")
    assert line["level"] == "error"


def test_console_lines_cannot_be_forged(log: Callable[..., io.StringIO]) -> None:
    stream = log(LogFormat.console)
    telemetry.emit("job.retry", error=NASTY, trace=f"Traceback ...\nValueError: {NASTY}")
    with telemetry.bound(**{**JOB, "task": NASTY}):
        logging.getLogger("shop").info(NASTY)
        logging.getLogger("shop").info("ok", extra={NASTY: 1})
        try:
            raise ValueError(NASTY)
        except ValueError:
            logging.getLogger("shop").exception("failed")
    text = stream.getvalue()
    assert unsafe(text) == []
    lines = text.splitlines()  # at every character that ends a line anywhere
    assert [line for line in lines if line.startswith(FORGED[:20])] == []
    events = [line for line in lines if not line.startswith("  | ")]
    assert [line.split("] ")[1].split(" ")[0] for line in events] == [
        "job.retry",
        f"a\\x1b[31m\\n{FORGED[:24]}",
        "ok",
        "failed",
    ]
    assert "  | Traceback ..." in lines
    assert "  | ValueError: a\\x1b[31m" in lines


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_console_line_is_brief_at_a_terminal(
    log: Callable[..., io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    stream = log(LogFormat.console, stream=Terminal())
    job = "01a1eb71-173e-782b-9b63-b02903e97010"
    telemetry.emit("job.retry", job=job, worker="host:1:abc", generation=3, task="charge", error="no")
    (line,) = (re.sub("\x1b\\[[0-9;]*m", "", text) for text in stream.getvalue().splitlines())
    assert re.match(r"\d\d:\d\d:\d\d \[info", line)
    assert "job=01a1eb71-173e-782b " in line
    assert "worker=" not in line
    assert "generation=" not in line
    assert len(line) < 120


@pytest.mark.parametrize("colour", ["", "1"], ids=["coloured", "plain"])
def test_console_lines_fit_the_terminal(
    log: Callable[..., io.StringIO], monkeypatch: pytest.MonkeyPatch, colour: str
) -> None:
    """Between words, and behind the time: no value can begin a line. A file has one line for each event."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", colour)
    stream, promise = log(LogFormat.console, stream=Terminal()), "a commit is on disk before it returns " * 4
    telemetry.emit("durability", promise=f"{promise}{FORGED}", trace="Traceback ...\n" + "x" * 90)
    shown = [re.sub("\x1b\\[[0-9;]*m", "", text) for text in stream.getvalue().splitlines()]
    event = [text for text in shown if not text.startswith("  | ")]
    assert [text for text in event if len(text) > 80] == []
    assert [text[:9].strip() for text in event[1:]] == [""] * (len(event) - 1)
    assert " ".join(" ".join(event).split()).endswith(f"promise='{promise}{' '.join(FORGED.split())}'")
    assert shown[len(event) :] == ["  | Traceback ...", "  | " + "x" * 90]
    stream = log(LogFormat.console)
    telemetry.emit("durability", promise=promise)
    assert len(stream.getvalue().splitlines()) == 1


def test_a_logger_with_a_level_of_its_own_keeps_to_ours(log: Callable[..., io.StringIO]) -> None:
    """Django's has one: its lines came through at --log-level warning."""
    stream, logger = log(LogFormat.json, LogLevel.warning), logging.getLogger("shop.own")
    logger.setLevel(logging.INFO)
    logger.info("quiet")
    logger.warning("loud")
    logger.setLevel(logging.NOTSET)
    assert [line["event"] for line in lines(stream)] == ["loud"]


def test_levels_and_warnings(log: Callable[..., io.StringIO]) -> None:
    stream = log(LogFormat.json, LogLevel.warning)
    telemetry.emit("quiet")
    telemetry.emit("loud", level=logging.WARNING)
    assert [line["event"] for line in lines(stream)] == ["loud"]


def test_auto_is_console_at_a_terminal_and_json_elsewhere() -> None:
    assert choose(LogFormat.auto, Terminal()) is LogFormat.console
    assert choose(LogFormat.auto, io.StringIO()) is LogFormat.json
    assert choose(LogFormat.console, io.StringIO()) is LogFormat.console


@pytest.mark.parametrize("plain", [False, True])
async def test_what_a_workflow_logs_in_a_replay_or_as_it_leaves_is_held_back(
    log: Callable[..., io.StringIO], plain: bool
) -> None:
    """What its steps log is new."""
    said = logging.getLogger("shop")

    def charge() -> None:
        said.info("charged")

    async def waits(wf: Workflow) -> None:
        said.info("begins")
        await wf.step(charge)
        try:
            await wf.sleep(60)
        finally:
            said.info("leaves")
        said.info("slept")

    def waits_plainly(wf: SyncWorkflow) -> None:
        said.info("begins")
        wf.step(charge)
        try:
            wf.sleep(60)
        finally:
            said.info("leaves")
        said.info("slept")

    stream = log(LogFormat.json)
    store = Store()
    flow: Any = functools.partial(run_in_thread, waits_plainly, arguments={}) if plain else waits
    for _ in range(2):
        await run(lambda wf: flow(workflow=wf) if plain else flow(wf), store)
        store.clock += timedelta(seconds=61)
    assert [line["event"] for line in lines(stream)] == ["begins", "charged", "leaves", "slept"]
