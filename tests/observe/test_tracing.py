"""Spans from enqueue to run, through the row, with the real SDK."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id
from opentelemetry.util._once import Once

from holdfast import (
    AsyncTransaction,
    Batch,
    Cancel,
    DeadLetter,
    Holdfast,
    Job,
    Next,
    Outcome,
    Retry,
    Snooze,
    Transaction,
    UnknownQueue,
    telemetry,
)
from holdfast.testing import Kit

ROOT = Path(__file__).resolve().parents[2]
FOREIGN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"  # of a producer in another language


def _install(provider: TracerProvider | None) -> None:
    trace._TRACER_PROVIDER_SET_ONCE = Once()
    trace._TRACER_PROVIDER = None
    if provider is not None:
        trace.set_tracer_provider(provider)


class Spans:
    def __init__(self, provider: TracerProvider) -> None:
        self._exporter = InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("the application")

    def all(self, name: str) -> list[ReadableSpan]:
        return [s for s in self._exporter.get_finished_spans() if s.name == name]

    def one(self, name: str) -> ReadableSpan:
        (found,) = self.all(name)
        return found


@pytest.fixture
def spans() -> Iterator[Spans]:
    provider = TracerProvider()
    _install(provider)
    yield Spans(provider)
    provider.shutdown()
    _install(None)


def ids(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def parent(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_one_trace_from_the_request_to_the_run(app: Holdfast, kit: Kit, spans: Spans) -> None:
    @app.task
    async def good(n: int) -> int:
        return n

    with spans.tracer.start_as_current_span("request"):
        handle = good.enqueue(1)
    kit.run_worker()
    request, send, process = (spans.one(n) for n in ("request", "send good", "process good"))
    assert parent(request) is None
    assert parent(send) == ids(request)
    assert parent(process) == ids(send)
    assert [(link.context.trace_id, link.context.span_id) for link in process.links] == [ids(send)]
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert attributes(send) == {
        "messaging.system": "holdfast",
        "messaging.operation.type": "send",
        "messaging.operation.name": "send",
        "messaging.destination.name": "inbox",
        "messaging.message.id": str(handle.id),
        "holdfast.task": "good",
        "holdfast.created": True,
    }
    said = attributes(process)
    assert said.pop("messaging.client.id")
    assert said == {
        "messaging.system": "holdfast",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": "inbox",
        "messaging.message.id": str(handle.id),
        "holdfast.task": "good",
        "holdfast.attempt": 1,
        "holdfast.generation": 1,
        "holdfast.outcome": "completed",
    }
    assert process.status.status_code is StatusCode.UNSET


def test_every_way_to_enqueue_makes_one_span_that_the_rows_carry(
    app: Holdfast, kit: Kit, spans: Spans
) -> None:
    @app.task
    async def good(n: int) -> None: ...

    async def asynchronous() -> None:
        async with app:
            await good.aenqueue(1)
            await app.asend("good", {"n": 2})
            await app.aenqueue_many([good.job(3), good.job(4)])
            async with await psycopg.AsyncConnection.connect(kit.url) as conn:
                await good.using(conn=conn).aenqueue(5)

    good.enqueue(6)
    app.send("good", {"n": 7})
    app.enqueue_many([good.job(8), good.job(9)])
    with psycopg.connect(kit.url) as conn:
        good.using(conn=conn).enqueue(10)
    asyncio.run(asynchronous())
    sent = spans.all("send good")
    assert len(sent) == 8
    batches = [s for s in sent if "messaging.batch.message_count" in attributes(s)]
    assert [attributes(s)["messaging.batch.message_count"] for s in batches] == [2, 2]
    kit.run_worker()
    parents = sorted(parent(s) or (0, 0) for s in spans.all("process good"))
    assert parents == sorted([ids(s) for s in sent] + [ids(s) for s in batches])
    assert app.enqueue_many([]) == []
    assert len(spans.all("send good")) == 8


def test_a_batch_of_several_tasks_is_one_span(app: Holdfast, kit: Kit, spans: Spans) -> None:
    @app.task
    async def one() -> None: ...

    @app.task
    async def other() -> None: ...

    app.enqueue_many([one.job(), other.job()])
    send = spans.one("send")
    kit.run_worker()
    assert parent(spans.one("process one")) == parent(spans.one("process other")) == ids(send)


def test_what_a_handler_does_is_inside_its_span(app: Holdfast, kit: Kit, spans: Spans) -> None:
    def inner(name: str) -> None:
        with spans.tracer.start_as_current_span(f"inside {name}"):
            pass

    @app.task
    async def async_one() -> None:
        inner("async_one")

    @app.task
    def sync_one() -> None:
        inner("sync_one")

    @app.task
    def sync_tx(tx: Transaction) -> None:
        inner("sync_tx")

    @app.task
    async def async_tx(tx: AsyncTransaction) -> None:
        inner("async_tx")

    for task in (async_one, sync_one, sync_tx, async_tx):
        task.enqueue()
    kit.run_worker()
    for name in ("async_one", "sync_one", "sync_tx", "async_tx"):
        assert parent(spans.one(f"inside {name}")) == ids(spans.one(f"process {name}"))
        assert attributes(spans.one(f"process {name}"))["holdfast.outcome"] == "completed"


def test_a_follow_up_belongs_to_the_same_trace(app: Holdfast, kit: Kit, spans: Spans) -> None:
    @app.task
    async def second() -> None: ...

    @app.task
    async def first(tx: AsyncTransaction) -> None:
        await second.using(conn=tx).aenqueue()

    first.enqueue()
    kit.run_worker()
    assert parent(spans.one("send second")) == ids(spans.one("process first"))
    assert parent(spans.one("process second")) == ids(spans.one("send second"))


def test_what_is_chained_and_the_callback_of_a_group_belong_to_the_trace_that_enqueued_them(
    app: Holdfast, kit: Kit, spans: Spans
) -> None:
    @app.task
    def step(n: int) -> None: ...

    with spans.tracer.start_as_current_span("request"):
        app.group([step.using(then=step.using(then=step.job(3)).job(2)).job(1)], then=step.job(4))
    kit.run_worker()
    runs = spans.all("process step")
    assert len(runs) == 4
    assert {s.context.trace_id for s in runs if s.context} == {spans.one("request").context.trace_id}


def test_middleware_of_the_application_is_inside_too(holdfast_kit: Callable[..., Kit], spans: Spans) -> None:
    async def layer(job: Job, call_next: Next) -> Outcome:
        with spans.tracer.start_as_current_span("layer"):
            return await call_next()

    app = Holdfast("postgresql://unused.invalid/none", middleware=[layer])

    @app.task
    async def good() -> None: ...

    kit = holdfast_kit(app)
    good.enqueue()
    kit.run_worker()
    assert parent(spans.one("layer")) == ids(spans.one("process good"))


def test_a_failure_is_an_error_with_its_exception_and_every_attempt_is_in_the_trace(
    app: Holdfast, kit: Kit, spans: Spans
) -> None:
    @app.task(max_attempts=2)
    def fails() -> None:
        raise ValueError("no stock")

    fails.enqueue()
    kit.run_worker()
    kit.clock.advance(3600)
    kit.run_worker()
    first, last = spans.all("process fails")
    for span, attempt, outcome in ((first, 1, "retry"), (last, 2, "dead_letter")):
        assert parent(span) == ids(spans.one("send fails"))
        assert span.status.status_code is StatusCode.ERROR
        assert span.status.description == "ValueError: no stock"
        said = attributes(span)
        assert (said["holdfast.attempt"], said["holdfast.outcome"]) == (attempt, outcome)
        assert said["error.type"] == "ValueError"
        (event,) = span.events
        details = dict(event.attributes or {})
        assert event.name == "exception"
        assert (details["exception.type"], details["exception.message"]) == ("ValueError", "no stock")
        assert 'raise ValueError("no stock")' in str(details["exception.stacktrace"])


@pytest.mark.parametrize(
    ("signal", "outcome", "status"),
    [
        (Snooze(3600), "snoozed", StatusCode.UNSET),
        (Cancel("no need"), "cancelled", StatusCode.UNSET),
        (DeadLetter("hopeless"), "dead_letter", StatusCode.ERROR),
        (Retry("busy", after=3600), "retry", StatusCode.ERROR),
    ],
    ids=["snooze", "cancel", "dead letter", "retry"],
)
def test_other_ends(
    app: Holdfast, kit: Kit, spans: Spans, signal: BaseException, outcome: str, status: StatusCode
) -> None:
    @app.task
    async def ends() -> None:
        raise signal

    ends.enqueue()
    kit.run_worker()
    span = spans.one("process ends")
    assert (attributes(span)["holdfast.outcome"], span.status.status_code) == (outcome, status)


def test_an_enqueue_that_is_refused_is_an_error(app: Holdfast, kit: Kit, spans: Spans) -> None:
    with pytest.raises(UnknownQueue):
        app.send("good", {}, queue="mial")
    send = spans.one("send good")
    assert send.status.status_code is StatusCode.ERROR
    assert [e.name for e in send.events] == ["exception"]


def test_the_metadata_of_the_user_stays_and_his_own_trace_wins(app: Holdfast, kit: Kit, spans: Spans) -> None:
    seen: list[dict[str, Any]] = []

    @app.task
    async def good(job: Job) -> None:
        seen.append(job.metadata)

    good.using(metadata={"tenant": "a", "n": 1.5}).enqueue()
    good.using(metadata={"traceparent": FOREIGN}).enqueue()
    kit.run_worker()
    (ours,) = [m for m in seen if "tenant" in m]
    trace_id, span_id = ids(spans.all("send good")[0])
    assert ours.pop("traceparent")[:-2] == f"00-{format_trace_id(trace_id)}-{format_span_id(span_id)}-"
    assert ours == {"tenant": "a", "n": 1.5}
    assert {"traceparent": FOREIGN} in seen
    traces = {format_trace_id(ids(s)[0]) for s in spans.all("process good")}
    assert FOREIGN.split("-")[1] in traces


def test_metadata_that_is_full_costs_the_trace_and_not_the_job(app: Holdfast, kit: Kit, spans: Spans) -> None:
    @app.task
    async def good() -> None: ...

    full = {"text": "x" * (8192 - len('{"text": ""}'))}
    nearly = {"text": "x" * (8192 - len('{"text": "", "traceparent": ""}') - len(FOREIGN))}
    for metadata in (full, nearly):
        good.using(metadata=metadata).enqueue()
    stored = [row["metadata"] for row in kit.jobs(good)]
    assert stored[0] == full
    assert set(stored[1]) == {"text", "traceparent"}
    kit.run_worker()
    assert [row["status"] for row in kit.jobs(good)] == ["completed"] * 2
    assert [s.parent is None for s in spans.all("process good")].count(True) == 1


def test_the_state_of_the_trace_travels_where_there_is_room(app: Holdfast, kit: Kit, spans: Spans) -> None:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    @app.task
    async def good() -> None: ...

    state = {"traceparent": FOREIGN, "tracestate": "vendor=opaque"}
    room = {"text": "x" * (8192 - len('{"text": "", "traceparent": ""}') - len(FOREIGN))}
    with trace.use_span(trace.get_current_span(TraceContextTextMapPropagator().extract(state))):
        good.enqueue()
        good.using(metadata=room).enqueue()
    first, second = [row["metadata"] for row in kit.jobs(good)]
    assert first["tracestate"] == "vendor=opaque"
    assert "traceparent" in second
    assert "tracestate" not in second
    kit.run_worker()
    for span in spans.all("process good"):
        assert format_trace_id(ids(span)[0]) == FOREIGN.split("-")[1]


def test_a_trace_is_no_part_of_the_idempotency_key(app: Holdfast, kit: Kit, spans: Spans) -> None:
    @app.task
    async def good(n: int) -> None: ...

    first = good.using(idempotency_key="k").enqueue(1)
    again = good.using(idempotency_key="k").enqueue(1)
    assert (first.id, first.created, again.created) == (again.id, True, False)
    assert [attributes(s)["holdfast.created"] for s in spans.all("send good")] == [True, False]
    kit.run_worker()
    assert parent(spans.one("process good")) == ids(spans.all("send good")[0])


def test_a_producer_in_another_language_sets_the_trace_in_sql(app: Holdfast, kit: Kit, spans: Spans) -> None:
    @app.task
    async def good() -> None: ...

    kit.sql(
        "SELECT * FROM holdfast.enqueue('good', metadata => jsonb_build_object('traceparent', %s::text))",
        [FOREIGN],
    )
    kit.run_worker()
    found = parent(spans.one("process good"))
    assert found == (int(FOREIGN.split("-")[1], 16), int(FOREIGN.split("-")[2], 16))


@pytest.mark.parametrize(
    "metadata",
    ['{"traceparent": "garbage"}', '{"traceparent": 7, "tracestate": []}', '["traceparent"]', '"x"', "null"],
)
def test_metadata_that_is_no_trace_is_left_alone(
    app: Holdfast, kit: Kit, spans: Spans, metadata: str
) -> None:
    @app.task
    async def good() -> None: ...

    kit.sql("SELECT * FROM holdfast.enqueue('good', metadata => %s::jsonb)", [metadata])
    kit.run_worker()
    process = spans.one("process good")
    assert process.parent is None
    assert not process.links
    assert attributes(process)["holdfast.outcome"] == "completed"


def test_the_span_a_worker_was_started_in_is_not_the_parent_of_its_jobs(
    app: Holdfast, kit: Kit, spans: Spans
) -> None:
    @app.task
    async def good() -> None: ...

    kit.sql("SELECT * FROM holdfast.enqueue('good')")
    with spans.tracer.start_as_current_span("the life of a worker"):
        kit.run_worker()
    assert spans.one("process good").parent is None


def test_a_trace_that_is_not_sampled_stays_so(app: Holdfast, kit: Kit) -> None:
    provider = TracerProvider(sampler=ALWAYS_OFF)
    _install(provider)
    spans = Spans(provider)
    try:

        @app.task
        async def good() -> None: ...

        good.enqueue()
        (row,) = kit.jobs(good)
        assert int(row["metadata"]["traceparent"][-2:], 16) & 1 == 0  # the flag "sampled"
        kit.run_worker()
        assert spans.all("process good") == []
        assert kit.jobs(good)[0]["status"] == "completed"
    finally:
        _install(None)


def test_log_lines_of_a_job_carry_its_trace(app: Holdfast, kit: Kit, spans: Spans) -> None:
    seen: list[dict[str, Any]] = []

    @app.task
    def good() -> None:
        seen.append(dict(telemetry.job_context.get()))

    good.enqueue()
    kit.run_worker()
    assert seen[0]["trace_id"] == format_trace_id(ids(spans.one("send good"))[0])
    assert seen[0]["task"] == "good"


def test_without_an_sdk_nothing_is_written(app: Holdfast, kit: Kit) -> None:
    _install(None)

    @app.task
    async def good() -> None: ...

    good.enqueue()
    good.using(metadata={"mine": 1}).enqueue()
    assert [row["metadata"] for row in kit.jobs(good)] == [None, {"mine": 1}]
    kit.run_worker()
    assert [row["status"] for row in kit.jobs(good)] == ["completed"] * 2


def test_without_the_package_everything_works(kit: Kit) -> None:
    code = """
import asyncio, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
from holdfast import Holdfast
app = Holdfast()
@app.task
def good() -> None: ...
good.enqueue()
async def main():
    async with app:
        await good.aenqueue()
        await app.run_worker(until_idle=True)
asyncio.run(main())
"""
    env = {"HOLDFAST_DATABASE_URL": kit.url, "PATH": "/usr/bin", "OTEL_PYTHON_TRACER_PROVIDER": "sdk"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [row["status"] for row in kit.jobs("good")] == ["completed"] * 2


def test_a_provider_that_the_environment_names_is_used(kit: Kit) -> None:
    """Nobody has imported OpenTelemetry then; it is loaded at the first use."""
    code = """
import json, sys
from holdfast import Holdfast
app = Holdfast()
with app:
    app.send("good", {})
print(json.dumps("opentelemetry.sdk" in sys.modules))
"""
    env = {
        "HOLDFAST_DATABASE_URL": kit.url,
        "PATH": "/usr/bin",
        "OTEL_PYTHON_TRACER_PROVIDER": "sdk_tracer_provider",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) is True
    assert "traceparent" in kit.jobs("good")[0]["metadata"]


def test_a_provider_that_cannot_be_loaded_costs_no_job(kit: Kit) -> None:
    code = """
import asyncio
from holdfast import Holdfast
app = Holdfast()
@app.task
def good() -> None: ...
good.enqueue()
async def main():
    async with app:
        await good.aenqueue()
        await app.run_worker(until_idle=True)
asyncio.run(main())
"""
    env = {"HOLDFAST_DATABASE_URL": kit.url, "PATH": "/usr/bin", "OTEL_PYTHON_TRACER_PROVIDER": "no_such"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [(row["status"], row["attempts"]) for row in kit.jobs("good")] == [("completed", 1)] * 2


def test_metadata_that_python_cannot_read_costs_the_trace_and_not_the_job(
    app: Holdfast, kit: Kit, spans: Spans
) -> None:
    @app.task
    def good() -> None: ...

    kit.sql("SELECT holdfast.enqueue('good', metadata => ('{\"x\": ' || repeat('9', 5000) || '}')::jsonb)")
    kit.run_worker()
    assert kit.sql("SELECT status, attempts FROM holdfast.archive") == [
        {"status": "completed", "attempts": 1}
    ]


def test_each_job_of_a_batch_has_a_span_in_the_trace_of_its_producer(
    app: Holdfast, kit: Kit, spans: Spans
) -> None:
    @app.batch_task(size=3, wait=30, max_attempts=1)
    async def index(batch: Batch[int]) -> None:
        batch[1].fail("no")
        with spans.tracer.start_as_current_span("bulk"):
            pass

    for n in range(3):
        index.enqueue(n)
    kit.run_worker()
    sent = {s.context.trace_id for s in spans.all("send index") if s.context}
    processed = spans.all("process index")
    assert len(processed) == len(sent) == 3
    assert {s.context.trace_id for s in processed if s.context} == sent
    assert sorted(s.status.status_code.name for s in processed) == ["ERROR", "UNSET", "UNSET"]
    inner = spans.one("bulk")
    assert inner.parent is not None
    assert inner.parent.span_id in {s.context.span_id for s in processed if s.context}
