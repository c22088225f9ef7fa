"""Traces from enqueue to run, through the row: the span that sends, and the names that both sides use.

Only a process that has imported OpenTelemetry is traced; without the package nothing happens. The
context travels in the row's metadata as W3C `traceparent` and `tracestate`, so producers in any language can set it. The
conventions for messaging are still in development: their names are here and nowhere else.
"""

import contextlib
import json
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import telemetry
from ..errors import InvalidPayload
from ..model.job import Enqueued, NewRow
from ..store.chains import specs
from .newjob import FOLLOW_UP_BYTES
from .payload import METADATA_BYTES, dump

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

SYSTEM = "messaging.system"
OPERATION = "messaging.operation.type"
OPERATION_NAME = "messaging.operation.name"
QUEUE = "messaging.destination.name"
JOB_ID = "messaging.message.id"
BATCH = "messaging.batch.message_count"
WORKER = "messaging.client.id"
TASK = "holdfast.task"
ATTEMPT = "holdfast.attempt"
GENERATION = "holdfast.generation"
OUTCOME = "holdfast.outcome"
CREATED = "holdfast.created"
ERROR = "error.type"

KEYS = ("traceparent", "tracestate")
_PARENT = re.compile("[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_STATE = re.compile("[\x20-\x7e]{1,512}")
_told: list[bool] = []
_VARIABLE = "OTEL_PYTHON_TRACER_PROVIDER"  # names a provider that is loaded at first use
# What os.environ keeps. It raises and catches an exception for a name that is not set, and each enqueue asks.
_environment: Mapping[Any, Any] = getattr(os.environ, "_data", os.environ)
_key: Any = os.environ.encodekey(_VARIABLE) if _environment is not os.environ else _VARIABLE


def imported() -> bool:
    return "opentelemetry.trace" in sys.modules


def provider_named() -> bool:
    return bool(_environment.get(_key))


def traces() -> bool:
    """Whether tracing may be in use here."""
    return imported() or provider_named()


def tracer() -> "Tracer | None":
    """The tracer, or None if tracing is not in use."""
    if not traces():
        return None
    try:
        from opentelemetry import trace

        return trace.get_tracer("holdfast")
    except ImportError:
        return None
    except Exception as error:  # noqa: BLE001 a provider that cannot be loaded must not cost a job
        if not _told:
            _told.append(True)
            telemetry.emit("tracing.failed", level=logging.WARNING, error=f"{type(error).__name__}: {error}")
        return None


@contextlib.contextmanager
def publishing(types: Sequence[str], count: int) -> Iterator[dict[str, str]]:
    """A span around one publish, of one event or of many. Yields the context that each event carries."""
    active = tracer()
    if active is None:
        yield {}
        return
    from opentelemetry.trace import SpanKind
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    attributes: dict[str, Any] = {SYSTEM: "holdfast", OPERATION: "send", OPERATION_NAME: "publish"}
    if len(types) == 1:
        attributes[QUEUE] = types[0]
    if count > 1:
        attributes[BATCH] = count
    name = f"publish {types[0]}" if len(types) == 1 else "publish"
    with active.start_as_current_span(name, kind=SpanKind.PRODUCER, attributes=attributes):
        context: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(context)
        yield context


def received(headers: Mapping[str, str]) -> str | None:
    """Metadata of the job that a message becomes: the span that is active here, else the context that the sender gave. The
    names of headers are in lower case."""
    context: dict[str, str] = {}
    if imported():
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        TraceContextTextMapPropagator().inject(context)
    if not context and _PARENT.fullmatch(headers.get("traceparent", "")):
        context["traceparent"] = headers["traceparent"]
        if _STATE.fullmatch(headers.get("tracestate", "")):
            context["tracestate"] = headers["tracestate"]
    return dump(context, "metadata", METADATA_BYTES) if context else None


class Sending:
    """The rows of one enqueue, and their results."""

    def __init__(
        self, rows: Sequence[NewRow], span: Any = None, context: Mapping[str, str] | None = None
    ) -> None:
        self._context = context
        self.rows = self.carrying(rows)
        self._span = span

    def carrying(self, rows: Sequence[NewRow]) -> Sequence[NewRow]:
        """The rows with the context, and everything that follows them."""
        return [_carrying(row, self._context) for row in rows] if self._context else rows

    def sent(self, written: Sequence[Enqueued]) -> Sequence[Enqueued]:
        if self._span is not None and len(written) == 1:
            self._span.set_attribute(CREATED, written[0].created)
            self._span.set_attribute(JOB_ID, str(written[0].id))
        return written


@contextlib.contextmanager
def sending(rows: Sequence[NewRow]) -> Iterator[Sending]:
    """A span around one enqueue, of one job or of many; every row carries its context."""
    active = tracer()
    if active is None:
        yield Sending(rows)
        return
    from opentelemetry.trace import SpanKind
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    tasks, queues = sorted({r.task for r in rows}), sorted({r.queue for r in rows})
    attributes: dict[str, Any] = {SYSTEM: "holdfast", OPERATION: "send", OPERATION_NAME: "send"}
    if len(queues) == 1:
        attributes[QUEUE] = queues[0]
    if len(tasks) == 1:
        attributes[TASK] = tasks[0]
    if len(rows) > 1:
        attributes[BATCH] = len(rows)
    name = f"send {tasks[0]}" if len(tasks) == 1 else "send"
    with active.start_as_current_span(name, kind=SpanKind.PRODUCER, attributes=attributes) as span:
        context: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(context)
        yield Sending(rows, span, context)


def _carrying(row: NewRow, context: Mapping[str, str]) -> NewRow:
    """The row with the context in its metadata. The user's own keys win, and so does the limit: a job without a trace
    is better than none."""
    then = tuple(_carrying(follow_up, context) for follow_up in row.follow_ups)
    if then and len((specs(then) or "").encode()) <= FOLLOW_UP_BYTES:
        row = row._replace(follow_ups=then)
    metadata = json.loads(row.metadata) if row.metadata else {}
    if "traceparent" in metadata:
        return row
    for keys in (KEYS, KEYS[:1]):
        kept = {key: context[key] for key in keys if key in context}
        with contextlib.suppress(InvalidPayload):
            return row._replace(metadata=dump({**metadata, **kept}, "metadata", METADATA_BYTES))
    return row
