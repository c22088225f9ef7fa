"""What a child prints, logs and raises comes back, and never more than the worker can bear."""

import logging
import os
import threading
from functools import partial

import pytest
from tests.processes.conftest import Scene
from tests.processes.process_app import say, shout, talk

from holdfast import telemetry
from holdfast.runtime.processes.emitter import ROOM, Emitter
from holdfast.runtime.processes.output import LINES, Output

pytestmark = pytest.mark.usefixtures("adopted")

Events = list[telemetry.Event]


def lines_of(events: Events, job_id: object) -> list[str]:
    found = [e.fields for e in events if e.name == "process.output"]
    return [f["line"] for f in found if (f.get("job"), f.get("task")) == (str(job_id), "talk")]


def test_lines_and_the_traceback_come_back(scene: Scene, events: Events) -> None:
    handle = talk.enqueue("lines")
    scene.kit.run_worker(concurrency=1)
    assert lines_of(events, handle.id) == ["first line", "zweite Zeile: äöü", "begun"]
    assert scene.end(handle.id)[2] == "ValueError: after all that"
    trace = scene.trace(handle.id)
    assert trace.startswith("Traceback (most recent call last):")
    assert 'raise ValueError("after all that")' in trace
    assert trace.endswith("The process printed at last:\nfirst line\nzweite Zeile: äöü\nbegun\n")


def test_a_hundred_megabytes_neither_block_nor_pile_up(scene: Scene, events: Events) -> None:
    handle = talk.enqueue("much")
    scene.kit.run_worker(concurrency=1)
    assert lines_of(events, handle.id) == ["x" * 99] * LINES
    (cut,) = [e.fields for e in events if e.name == "process.output_cut"]
    assert cut["job"] == str(handle.id)
    assert cut["bytes"] > 99_000_000
    trace = scene.trace(handle.id)
    assert trace.endswith("x\nthe very last\n")
    assert len(trace) < 20_000


def test_a_line_without_an_end_is_cut_and_bytes_are_made_text(scene: Scene, events: Events) -> None:
    handles = [talk.enqueue("endless line"), talk.enqueue("bytes")]
    scene.kit.run_worker(concurrency=1)
    found = lines_of(events, handles[0].id)
    assert 0 < len(found) <= LINES
    assert max(len(line) for line in found) == 2003
    assert found[0] == "y" * 2000 + "..."
    assert lines_of(events, handles[1].id) == ["\ufffd\x00\x1b[31m"]
    assert [scene.end(h.id)[0] for h in handles] == ["dead_letter"] * 2


def test_log_lines_and_events_are_the_workers_with_the_job_they_belong_to(
    scene: Scene, events: Events, caplog: pytest.LogCaptureFixture
) -> None:
    contexts: list[dict[str, object]] = []

    class Look(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            contexts.append(dict(telemetry.job_context.get()))

    logger = logging.getLogger("crunch")
    handle = say.enqueue()
    look = Look()
    logger.addHandler(look)
    try:
        with caplog.at_level(logging.INFO):
            scene.kit.run_worker(concurrency=1)
    finally:
        logger.removeHandler(look)
    records = [r for r in caplog.records if r.name == "crunch"]
    assert [r.levelname for r in records] == ["INFO", "ERROR"]
    assert records[0].getMessage() == "counting sheep"
    assert records[1].getMessage().startswith("went wrong\nTraceback (most recent call last):")
    assert contexts == [{"job": str(handle.id), "task": "say", "attempt": 1}] * 2
    assert [e.fields["line"] for e in events if e.name == "process.output"] == ["from a fork"]
    assert not [e for e in events if e.name == "not.this"]
    (event,) = [e for e in events if e.name == "sheep.counted"]
    assert (event.level, event.fields["count"]) == (logging.WARNING, 3)
    assert event.fields["when"].startswith("<built-in function gmtime")


def test_output_is_cut_into_lines() -> None:
    output = Output()
    assert output.feed(b"one\ntw") == ["one"]
    assert output.feed(b"o\r\n\nth") == ["two", ""]
    assert output.end() == ["th"]
    assert output.end() == []
    assert output.tail() == "one\ntwo\r\n\nth"
    assert output.dropped == 0
    assert len(output.feed(b"a\n" * 2 * LINES)) == LINES - 4
    assert output.feed(b"b\n") == []
    assert output.dropped == 2 * (LINES + 4) + 2
    assert output.tail().endswith("a\nb")


def test_an_event_of_any_size_is_cut(scene: Scene, events: Events) -> None:
    handle = shout.enqueue()
    scene.kit.run_worker(concurrency=1)
    assert handle.result(timeout=25) != os.getpid()
    (event,) = [e for e in events if e.name == "shouted"]
    assert event.fields["text"] == "x" * 8192
    assert event.fields["many"].startswith('["yyy')
    assert len(event.fields["many"]) == 8192
    assert event.fields["few"] == [1, 2]


def test_what_nobody_takes_in_time_is_dropped_and_counted(events: Events) -> None:
    emitter, free, told = Emitter(), threading.Event(), list[object]()
    emitter.emit_later(lambda: told.append(free.wait(150)))
    for number in range(ROOM + 10):
        emitter.emit_later(partial(told.append, number))
    free.set()
    emitter.close(30)
    (event,) = [e for e in events if e.name == "process.dropped"]
    assert event.fields["count"] == ROOM + 11 - len(told)
    assert event.fields["count"] >= 10
    assert told == [True, *range(len(told) - 1)]
