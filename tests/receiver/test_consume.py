"""Messages of a broker become jobs, each once: acknowledged after the commit, whatever dies, and poison is set aside."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError
from tests.conftest import await_until, within
from tests.receiver.nats_server import Nats, nats_server

from holdfast import Holdfast, InMessage, ReceivedMessage, TaskDefinitionError, failpoints
from holdfast.contrib.nats_source import nats_source
from holdfast.telemetry import Event
from holdfast.testing import Kit

ROOT = Path(__file__).parents[2]


@dataclass
class Order:
    order_id: int


@pytest.fixture(scope="module")
def broker() -> Iterator[Nats]:
    with nats_server() as server:
        yield server


@pytest.fixture
async def js(broker: Nats, request: pytest.FixtureRequest) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(broker.url)
    js = client.jetstream(timeout=within(5))
    await js.add_stream(name="ORDERS", subjects=["orders.>"])
    yield js
    with contextlib.suppress(Exception):
        await js.delete_stream("ORDERS")
    await client.close()


def source(broker: Nats, **options: Any) -> Any:
    return nats_source(broker.url, stream="ORDERS", durable="shop", **options)


@contextlib.asynccontextmanager
async def working(kit: Kit) -> AsyncIterator[None]:
    worker = asyncio.create_task(kit.arun_worker(until_idle=False))
    try:
        yield
    finally:
        worker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await worker


def ids(kit: Kit) -> Counter[str]:
    return Counter(row["payload"]["message"]["id"] for row in kit.jobs())


async def left(js: JetStreamContext) -> int:
    """Messages that are not acknowledged yet."""
    try:
        info = await js.consumer_info("ORDERS", "shop")
    except NotFoundError:  # nobody has read yet
        return -1
    return (info.num_pending or 0) + (info.num_ack_pending or 0)


async def publish(js: JetStreamContext, *messages: tuple[bytes, dict[str, str]]) -> None:
    for body, headers in messages:
        await js.publish("orders.paid", body, headers=headers)


def order(n: int, **headers: str) -> tuple[bytes, dict[str, str]]:
    return json.dumps({"order_id": n}).encode(), headers


async def test_messages_become_jobs_and_are_acknowledged(
    app: Holdfast, akit: Kit, broker: Nats, js: JetStreamContext
) -> None:
    seen: list[ReceivedMessage[Order]] = []

    @app.consume("orders", source(broker), Order, key="order:{order_id}")
    async def ordered(message: ReceivedMessage[Order]) -> None:
        seen.append(message)

    event = {
        "specversion": "1.0",
        "id": "e3",
        "type": "t",
        "source": "s",
        "subject": "k3",
        "data": {"order_id": 3},
    }
    await publish(
        js,
        order(1, **{"ce-id": "e1"}),
        order(2, **{"Nats-Msg-Id": "n2"}),
        (json.dumps(event).encode(), {"Content-Type": "application/cloudevents+json", "ce-id": "e3"}),
        order(4),
        order(1, **{"ce-id": "e1"}),
    )
    async with working(akit):
        await await_until(lambda: len(seen) >= 4, "the jobs run")
        await all_acknowledged(js, "all are acknowledged")
    assert sorted(m.data.order_id for m in seen) == [1, 2, 3, 4]
    assert sorted(m.id.rpartition(":")[0] or m.id for m in seen) == ["ORDERS:4", "e1", "e3", "n2"]
    assert {m.source for m in seen} == {"orders"}
    assert {row["partition_key"] for row in akit.jobs()} == {f"order:{n}" for n in (1, 2, 3, 4)}


async def all_acknowledged(js: JetStreamContext, what: str, seconds: float = 20.0) -> None:
    async def done() -> bool:
        return await left(js) == 0

    condition: Callable[[], bool | Awaitable[bool]] = done
    await await_until(condition, what, seconds)


POISON: dict[str, tuple[bytes, str]] = {
    "bytes": (b"\xff\x00", "the body is not JSON in UTF-8"),
    "misfit": (b'{"order_id": "x"}', "the message does not fit its type: order_id"),
    "nul": (b'{"order_id": 1, "t": "\\u0000"}', "NUL"),
    "large": (json.dumps({"order_id": 1, "text": "x" * 300_000}).encode(), "larger than a job can be"),
    "empty": (b"", "the body is not JSON in UTF-8"),
}


async def test_poison_becomes_dead_letters_and_stops_nothing(
    app: Holdfast, akit: Kit, broker: Nats, js: JetStreamContext, events: list[Event]
) -> None:
    @app.consume("orders", source(broker), Order)
    async def ordered(message: ReceivedMessage[Order]) -> None: ...

    for n, (name, (body, _)) in enumerate(POISON.items()):
        await publish(js, order(n, **{"ce-id": f"good{n}"}), (body, {"ce-id": name}))
    async with working(akit):
        await all_acknowledged(js, "all are acknowledged")
        await await_until(lambda: len(akit.jobs()) == 2 * len(POISON), "all are jobs")
    for row in akit.jobs():
        name = row["payload"]["message"]["id"]
        if name in POISON:
            assert row["status"] == "dead_letter", name
            assert POISON[name][1] in row["last_error"], name
        else:
            assert row["status"] in ("pending", "processing", "completed"), name
    (raw,) = [r["payload"]["message"] for r in akit.jobs() if r["payload"]["message"]["id"] == "bytes"]
    assert (raw["raw"], raw["bytes"], raw["data"]) == ("/wA=", 2, None)
    assert sum(event.name == "received.parked" for event in events) == len(POISON)


async def test_poison_stops_the_source_where_that_is_wanted(
    app: Holdfast, akit: Kit, broker: Nats, js: JetStreamContext, events: list[Event]
) -> None:
    @app.consume("orders", source(broker), Order, poison="stop")
    async def ordered(message: ReceivedMessage[Order]) -> None: ...

    await publish(js, order(1), (b"junk", {"ce-id": "bad"}), order(2))
    async with working(akit):
        await await_until(lambda: [e for e in events if e.name == "consume.stopped"], "it stops")
    (said,) = [event for event in events if event.name == "consume.stopped"]
    assert said.fields["message"] == "bad"
    assert [found.rpartition(":")[0] for found in ids(akit).elements()] == ["ORDERS:1"]
    assert await left(js) == 2


async def test_a_worker_that_dies_between_commit_and_acknowledgement_makes_no_second_job(
    kit: Kit, broker: Nats, js: JetStreamContext, tmp_path: Path
) -> None:
    script = f"""
import asyncio
from holdfast import Holdfast, ReceivedMessage
from holdfast.contrib.nats_source import nats_source
app = Holdfast()
@app.consume("orders", nats_source({broker.url!r}, stream="ORDERS", durable="shop", ack_wait=1), dict)
async def ordered(message: ReceivedMessage[dict]) -> None: ...
asyncio.run(app.run_worker())
"""
    await publish(js, *(order(n, **{"ce-id": f"e{n}"}) for n in range(20)))
    environment = {
        **os.environ,
        "HOLDFAST_DATABASE_URL": kit.url,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
    }

    def start(failpoint: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", script], env={**environment, "HOLDFAST_FAILPOINTS": failpoint}, cwd=ROOT
        )

    first = start("consume.committed=kill")
    assert await asyncio.to_thread(first.wait, within(60)) == -signal.SIGKILL
    committed = ids(kit)
    assert committed, "the commit came before"
    assert await left(js) == 20, "nothing was acknowledged"
    second = start("")
    try:
        await all_acknowledged(js, "all come again and are acknowledged", 60)
    finally:
        second.kill()
        second.wait()
    assert ids(kit) == {f"e{n}": 1 for n in range(20)}


async def test_a_broker_that_is_killed_is_read_on_when_it_is_back(app: Holdfast, akit: Kit) -> None:
    with nats_server() as server:

        @app.consume("orders", source(server, ack_wait=1), Order)
        async def ordered(message: ReceivedMessage[Order]) -> None: ...

        async def send(*numbers: int) -> None:
            client = await nats.connect(server.url)
            js = client.jetstream(timeout=within(5))
            await js.add_stream(name="ORDERS", subjects=["orders.>"])
            await publish(js, *(order(n, **{"ce-id": f"e{n}"}) for n in numbers))
            await client.close()

        await send(1, 2)
        async with working(akit):
            await await_until(lambda: len(akit.jobs()) == 2, "the first are read")
            server.kill()
            server.start()
            await send(3, 4)
            await await_until(lambda: len(akit.jobs()) == 4, "it reads on", 60)
    assert ids(akit) == {f"e{n}": 1 for n in (1, 2, 3, 4)}


class Listed:
    """A source of one's own: what it has, and what happened to it."""

    def __init__(self, *messages: InMessage) -> None:
        self.messages = list(messages)
        self.log: list[str] = []

    async def open(self) -> None:
        self.log.append("open")

    async def close(self) -> None:
        self.log.append("close")

    async def receive(self, limit: int, *, wait: float) -> Sequence[InMessage]:
        found, self.messages = self.messages[:limit], self.messages[limit:]
        if not found:
            await asyncio.sleep(0.01)
        return found

    async def ack(self, receipts: Sequence[object]) -> None:
        self.log.append(f"ack {receipts}")

    async def release(self, receipts: Sequence[object], *, delay: float) -> None:
        self.log.append(f"release {receipts}")


async def test_a_source_of_ones_own_with_odd_ids_and_keys(app: Holdfast, akit: Kit) -> None:
    odd = ["with space", "é", "x" * 300, "", "a\x00b"]
    messages = [InMessage(i, b'{"order_id": 1}', n, key=f"k{n}") for n, i in enumerate(odd)]
    listed = Listed(*messages, InMessage("keyed", b'{"order_id": 1}', 9, key="k" * 600))

    @app.consume("own", listed, Order)
    async def ordered(message: ReceivedMessage[Order]) -> None: ...

    await akit.arun_worker()
    assert listed.log == ["open", "ack [0, 1, 2, 3, 4, 9]", "close"]
    rows = akit.jobs()
    assert Counter(row["status"] for row in rows) == {"completed": 5, "dead_letter": 1}
    assert {row["partition_key"] for row in rows} == {"k0", "k1", "k2", "k3", "k4", None}
    assert sum(i.startswith("sha256:") for i in ids(akit)) == 5


async def test_nothing_is_acknowledged_when_the_commit_fails(
    app: Holdfast, akit: Kit, events: list[Event]
) -> None:
    listed = Listed(InMessage("m1", b'{"order_id": 1}', 1))

    @app.consume("own", listed, Order, queue="nowhere")
    async def ordered(message: ReceivedMessage[Order]) -> None: ...

    failpoints.arm("consume.committed", lambda: pytest.fail("it was not written"))
    from holdfast.shapes.receiver.consume import services

    reader, _ = services(akit.database, app.tasks)
    from holdfast import UnknownQueue

    with pytest.raises(UnknownQueue):
        await reader.catch_up()
    assert listed.log == ["open", "close"]


async def test_a_message_that_the_database_refuses_is_set_aside(app: Holdfast, akit: Kit) -> None:
    akit.sql("CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no thirteen'; END $$")
    akit.sql(
        "CREATE TRIGGER no BEFORE INSERT ON holdfast.inbox FOR EACH ROW"
        " WHEN (NEW.payload -> 'message' -> 'data' ->> 'order_id' = '13') EXECUTE FUNCTION no()"
    )
    listed = Listed(*(InMessage(f"m{n}", f'{{"order_id": {n}}}'.encode(), n) for n in (12, 13, 14)))

    @app.consume("own", listed, Order)
    async def ordered(message: ReceivedMessage[Order]) -> None: ...

    await akit.arun_worker()
    found = {row["payload"]["message"]["id"]: row["status"] for row in akit.jobs()}
    assert found == {"m12": "completed", "m13": "dead_letter", "m14": "completed"}
    assert [line for line in listed.log if line.startswith("ack")] == ["ack [12]", "ack [13]", "ack [14]"]


def test_what_is_no_source_is_refused(app: Holdfast) -> None:
    broker: Any = "nats://"
    with pytest.raises(TaskDefinitionError, match="is no source of messages: it has no open"):
        app.consume("a", broker, Order)
    with pytest.raises(TaskDefinitionError, match="poison must be one of dead_letter, stop"):
        app.consume("a", Listed(), Order, poison="drop")  # type: ignore[arg-type]


def test_dead_is_short_for_dead_letter_here_too(app: Holdfast) -> None:
    @app.consume("a", Listed(), Order, poison="dead")
    def take(message: ReceivedMessage[Order]) -> None: ...

    assert take.source == "a"
