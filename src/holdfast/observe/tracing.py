"""A span around each attempt, below the span that enqueued the job, so that one trace shows both.

It is middleware, and the outermost: the handler and other middleware run inside the span, async ones and those in threads.
"""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .. import telemetry
from ..model.outcome import DeadLettered, ErrorText, Failed, Lost, Outcome
from ..model.state import DEAD_LETTER, OTHER, OUTCOMES, RETRY
from ..runtime.job import Job
from ..runtime.middleware import Next, SkippableMiddleware
from ..tasks import tracing as names

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

_LABELS = {kind: row.label for kind, row in OUTCOMES.items()}


class TraceAttempt(SkippableMiddleware):
    """Middleware: does nothing when tracing is not in use."""

    def __init__(self) -> None:
        self._named = names.provider_named()

    def wanted(self) -> bool:
        return self._named or names.imported()

    async def __call__(self, job: Job, call_next: Next) -> Outcome:
        active = names.tracer()
        if active is None:
            return await call_next()
        with _process(active, job) as span:
            outcome = await call_next()
            _conclude(span, job, outcome)
            return outcome


@contextlib.contextmanager
def _process(active: "Tracer", job: Job) -> "Iterator[Span]":
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, SpanKind, format_trace_id, get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    # From an empty context: the one the worker was started in is not this job's.
    sent = TraceContextTextMapPropagator().extract(_carrier(job), Context())
    origin = get_current_span(sent).get_span_context()
    attributes: dict[str, Any] = {
        names.SYSTEM: "holdfast",
        names.OPERATION: "process",
        names.OPERATION_NAME: "process",
        names.QUEUE: job.queue,
        names.JOB_ID: str(job.id),
        names.WORKER: job._worker,
        names.TASK: job.task,
        names.ATTEMPT: job.attempt,
        names.GENERATION: job.generation,
    }
    links = (
        [Link(origin)] if origin.is_valid else []
    )  # the parent says it too; the conventions ask for a link
    with active.start_as_current_span(
        f"process {job.task}", context=sent, kind=SpanKind.CONSUMER, attributes=attributes, links=links
    ) as span:
        own = span.get_span_context()
        with (
            telemetry.bound(trace_id=format_trace_id(own.trace_id))
            if own.is_valid
            else contextlib.nullcontext()
        ):
            yield span


def _carrier(job: Job) -> dict[str, str]:
    """The keys of the metadata that a trace may come from. Anybody may have written them."""
    try:
        metadata = job.metadata
    except (ValueError, RecursionError):  # a number too long, or too deep, for Python
        return {}
    found = {key: metadata.get(key) for key in names.KEYS} if isinstance(metadata, dict) else {}
    return {key: value for key, value in found.items() if isinstance(value, str)}


def _conclude(span: "Span", job: Job, outcome: Outcome) -> None:
    from opentelemetry.trace import StatusCode

    if isinstance(outcome, Failed):
        last = job.attempt >= job.max_attempts
        span.set_attribute(names.OUTCOME, DEAD_LETTER if last else RETRY)
    else:
        span.set_attribute(names.OUTCOME, _LABELS.get(type(outcome), OTHER))
    if isinstance(outcome, Failed | DeadLettered):
        _record(span, outcome.error)
        span.set_status(StatusCode.ERROR, outcome.error.summary)
    elif isinstance(outcome, Lost):
        span.set_status(StatusCode.ERROR, "the lease was lost")


def _record(span: "Span", error: ErrorText) -> None:
    """The error as the job's row keeps it; the exception itself did not leave the attempt."""
    span.set_attribute(names.ERROR, error.kind)
    span.add_event(
        "exception",
        {
            "exception.type": error.kind,
            "exception.message": error.message,
            "exception.stacktrace": error.trace,
        },
    )
