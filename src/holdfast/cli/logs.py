"""How our own processes write their log: structlog's rendering on top of standard logging.

Telemetry events reach the standard logger `holdfast` through the library's own subscriber; here they become lines with
their fields. Whatever a handler logs while it runs a job carries that job's context too. A payload or an error message can
neither drive the terminal nor forge a line.
"""

import functools
import json
import logging
import sys
from collections.abc import MutableMapping
from enum import StrEnum
from typing import Any, TextIO

from holdfast import telemetry
from holdfast.cli.render import colourful, folded
from holdfast.model.text import printable

_EventDict = MutableMapping[str, Any]
_OWN = {*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName", "event", "fields"}
_BLOCKS = ("exception", "stack")  # shown below the line
_MARK = "  | "
_SAME = ("worker", "generation")  # of a console line: there is one worker at a terminal
_SHORT_ID = 18  # characters of an id, as in tables
_INDENT = 9  # of what does not fit the first line: behind the time, so that no value can begin a line


class LogFormat(StrEnum):
    auto = "auto"
    console = "console"
    json = "json"


class LogLevel(StrEnum):
    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


def choose(wanted: LogFormat, stream: TextIO | None = None) -> LogFormat:
    """Console lines for a person at a terminal, JSON for everything else."""
    if wanted is not LogFormat.auto:
        return wanted
    return LogFormat.console if (stream or sys.stderr).isatty() else LogFormat.json


def configure(wanted: LogFormat, level: LogLevel, stream: TextIO | None = None) -> LogFormat:
    """Make this process log to `stream` (stderr) in one format, whatever was set up before. Answers the format."""
    import structlog

    out: TextIO = sys.stderr if stream is None else stream
    chosen = choose(wanted, out)
    renderer: Any
    if chosen is LogFormat.json:
        renderer = structlog.processors.JSONRenderer(serializer=json.dumps, default=str)
        finish = [renderer]
    else:
        plain = structlog.dev.plain_traceback
        renderer = structlog.dev.ConsoleRenderer(
            colors=colourful(out), exception_formatter=plain, pad_event_to=24, sort_keys=False
        )
        at_terminal = out.isatty()
        fitted = [functools.partial(_fit, out)] if at_terminal else []
        finish = [*([_briefly] if at_terminal else []), _escape, renderer, *fitted]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.stdlib.add_log_level,
            _read_record,
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
        ],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *finish],
    )
    handler = logging.StreamHandler(out)
    handler.setLevel(
        level.value.upper()
    )  # a logger with a level of its own, as Django's, does not ask the root
    handler.setFormatter(formatter)
    handler.addFilter(_is_new)
    logging.basicConfig(handlers=[handler], level=level.value.upper(), force=True)
    logging.captureWarnings(True)
    return chosen


def _is_new(record: logging.LogRecord) -> bool:
    """Not what the code of a workflow says again in a replay."""
    return record.name == telemetry.log.name or not telemetry.held_back()


def _read_record(_: Any, __: str, event: _EventDict) -> _EventDict:
    """The content of a standard log record: its fields, if it is a telemetry event, and its job."""
    record: logging.LogRecord = event["_record"]
    event["timestamp"] = _time(record.created)
    fields = getattr(record, "fields", None)
    if record.name == telemetry.log.name and isinstance(fields, dict):
        said = {**fields}
        event["event"] = getattr(record, "event", event["event"])
        if trace := said.pop("trace", None):
            event["exception"] = str(trace).rstrip()
    else:
        extra = {key: value for key, value in record.__dict__.items() if key not in _OWN}
        said = {"logger": record.name, **telemetry.job_context.get(), **extra}
    for key, value in said.items():
        event.setdefault(key, value)
    return event


def _briefly(_: Any, __: str, event: _EventDict) -> _EventDict:
    """For a terminal: the time of the day, ids by their beginning, and nothing that is the same in every line."""
    at = event.get("timestamp")
    if isinstance(at, str):
        event["timestamp"] = _of_day(at)
    if "job" in event:
        event["job"] = str(event["job"])[:_SHORT_ID]
    for name in _SAME:
        event.pop(name, None)
    return event


def _fit(out: TextIO, _: Any, __: str, text: str) -> str:
    """Its first line is the event; what is below has its own lines."""
    head, mark, below = text.partition("\n")
    return f"{folded(head.rstrip(' '), _INDENT, out)}{mark}{below}"


def _of_day(text: str) -> str:
    """The local time: somebody watches this terminal, and compares with a clock. Commands print UTC."""
    from datetime import datetime

    return datetime.fromisoformat(text).astimezone().strftime("%H:%M:%S")


def _time(seconds: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _escape(_: Any, __: str, event: _EventDict) -> _EventDict:
    """One line per event whatever its names and values are. Tracebacks keep their lines, each behind a mark that no event
    has: their last lines are the error's own text."""
    shown: _EventDict = {}
    for key, value in event.items():
        if key in _BLOCKS:
            shown[key] = "\n".join(f"{_MARK}{line}" for line in printable(str(value)).split("\n"))
        elif isinstance(value, bool | int | float | None):
            shown[_line(key)] = value
        else:
            shown[_line(key)] = _line(str(value))
    return shown


def _line(text: str) -> str:
    return printable(text).replace("\n", "\\n")
