"""Relays whose process is killed, stopped or fenced: each key is a prefix-repeat, never a gap, and never two at a time."""

import asyncio
import contextlib
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aio_pika
import nats as nats_client
import pytest
from nats.js.errors import NotFoundError
from tests.brokers import nats_server, rabbit_server
from tests.conftest import QUICK, wait_until
from tests.crash.process import Scene, lines
from tests.crash.relay_app import app

from holdfast.shapes.events.procedures import Subscriptions
from holdfast.testing import Kit

MODULE = "tests.crash.relay_app"
KEYS = 4


@pytest.fixture
def scene(holdfast_kit: Callable[..., Kit], tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(holdfast_kit(app, QUICK), tmp_path)
    yield scene
    scene.end()


def publish(first: int, count: int) -> None:
    app.publish_many([("counted", {"n": n}, f"k{n % KEYS}") for n in range(first, first + count)])


def sent(scene: Scene) -> list[dict[str, Any]]:
    return lines(scene.folder / "sent")


def check(scene: Scene, total: int) -> None:
    """Each key in order; after a crash it may go back, and never leaps ahead."""
    found = sent(scene)
    for k in range(KEYS):
        mine = [line["n"] for line in found if line["key"] == f"k{k}"]
        wanted = list(range(k, total, KEYS))
        assert list(dict.fromkeys(mine)) == wanted[: len(set(mine))]
        assert all(b <= a + KEYS for a, b in itertools.pairwise(mine)), mine
    ids = {(line["key"], line["n"]): line["id"] for line in found}
    assert all(ids[line["key"], line["n"]] == line["id"] for line in found), "the same id on every try"


def position(scene: Scene) -> int:
    rows = scene.kit.sql("SELECT position FROM holdfast.subscriptions WHERE name = 'out'")
    return int(rows[0]["position"]) if rows else 0


def test_kill_9_at_every_step_repeats_and_leaves_no_gap(scene: Scene) -> None:
    total = 0
    for point in ("relay.read", "relay.sent", "relay.confirmed", "relay.before_cursor", "relay.moved"):
        publish(total, 40)
        total += 40
        worker = scene.start(module=MODULE, failpoints=f"{point}=kill", ready=False)
        assert worker.wait(60) == -signal.SIGKILL
        check(scene, total)
        acked = position(scene)
        assert acked <= len({line["id"] for line in sent(scene)}), "the position is behind what was sent"
    scene.start(module=MODULE)
    wait_until(lambda: position(scene) == total, "all are sent", 60)
    check(scene, total)
    assert len({line["id"] for line in sent(scene)}) == total


def test_a_stopped_owner_sends_nothing_more_when_it_goes_on(scene: Scene) -> None:
    publish(0, 40)
    one = {"RELAY_WINDOW": "1"}  # so that the next thing it does is to send
    first = scene.start(module=MODULE, failpoints="relay.confirmed=stop", ready=False, env=one)
    wait_until(lambda: sent(scene), "it sent something", 60)
    wait_until(lambda: _is_stopped(first.pid), "it stopped after its first batch", 60)
    assert len(sent(scene)) < 40
    second = scene.start(module=MODULE)
    wait_until(lambda: position(scene) == 40, "the other took over", 60)
    publish(40, 40)
    first.kill(signal.SIGCONT)
    wait_until(lambda: position(scene) == 80, "all are sent", 60)
    owners = [line["pid"] for line in sent(scene)]
    took_over = owners.index(second.pid)
    assert first.pid not in owners[took_over:], "the stopped one sent after the other had begun"
    check(scene, 80)


class _Stream:
    def __init__(self) -> None:
        self.server = nats_server()
        self.url = f"nats://127.0.0.1:{self.server.port}?stream=S"
        self.begin_anew()

    async def _stream(self, call: Callable[[Any], Any]) -> Any:
        client = await nats_client.connect(f"nats://127.0.0.1:{self.server.port}")
        try:
            return await call(client.jetstream())
        finally:
            await client.close()

    def begin_anew(self) -> None:
        async def made(js: Any) -> None:
            with contextlib.suppress(NotFoundError):
                await js.delete_stream("S")  # it forgets the ids too
            await js.add_stream(name="S", subjects=["file"])

        asyncio.run(self._stream(made))

    def count(self) -> int:
        return int(asyncio.run(self._stream(lambda js: js.stream_info("S"))).state.messages)


class _Queue:
    def __init__(self) -> None:
        self.server = rabbit_server()
        self.url = f"amqp://guest:guest@127.0.0.1:{self.server.port}/"
        self.count()

    async def _queue(self, call: Callable[[Any], Any]) -> Any:
        async with await aio_pika.connect(self.url) as connection:
            return await call(await (await connection.channel()).declare_queue("file", durable=True))

    def begin_anew(self) -> None:
        asyncio.run(self._queue(lambda queue: queue.purge()))

    def count(self) -> int:
        async def counted(queue: Any) -> int:
            return int(queue.declaration_result.message_count)

        found: int = asyncio.run(self._queue(counted))
        return found


@pytest.mark.parametrize(
    ("broker", "stops_at"), [(_Stream, 7), pytest.param(_Queue, 60, marks=pytest.mark.long)]
)
def test_what_an_owner_had_not_written_when_it_was_stopped_is_never_sent(
    scene: Scene, broker: "type[_Stream | _Queue]", stops_at: int
) -> None:
    there = broker()
    try:
        publish(0, 40)
        where = {"RELAY_URL": there.url}
        first = scene.start(module=MODULE, ready=False, env={**where, "RELAY_STOPS_AT": str(stops_at)})
        wait_until(lambda: _is_stopped(first.pid), "it stopped before a write", 60)
        sent_before = there.count()
        assert 0 < sent_before < 40
        scene.start(module=MODULE, env=where)
        wait_until(lambda: position(scene) == 40, "the other took over, and sent the rest", 60)
        known = len(first.every_event())
        there.begin_anew()
        first.kill(signal.SIGCONT)
        wait_until(lambda: len(first.every_event()) > known, "it noticed that it was stopped", 60)
        first.kill(signal.SIGTERM)
        first.wait(60)
        assert there.count() == 0
    finally:
        there.server.end()


def _is_stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"


def test_a_fenced_relay_is_not_taken_up_before_it_has_stopped(scene: Scene) -> None:
    """An operator puts it back while its owner is stopped: nobody sends until the lease of the stopped one is over."""
    publish(0, 20)
    first = scene.start(module=MODULE, dead_after=3.0, lease=5.0)
    wait_until(lambda: position(scene) == 20, "all are sent", 60)
    os.kill(first.pid, signal.SIGSTOP)
    expires = scene.kit.sql("SELECT lease_expires_at AS at FROM holdfast.subscriptions")[0]["at"]
    Subscriptions(scene.kit.database, "test").reset("out", 0)
    (row,) = scene.kit.sql("SELECT lease_expires_at AS at, token, position FROM holdfast.subscriptions")
    assert row["token"] is None
    assert row["position"] == 0
    assert row["at"] >= expires, "the lease of its owner still counts"
    second = scene.start(module=MODULE, dead_after=3.0, lease=5.0)
    wait_until(lambda: position(scene) == 20, "it was sent again", 60)
    first.kill(signal.SIGCONT)
    publish(20, 20)
    wait_until(lambda: position(scene) == 40, "all are sent", 60)
    owners = [line["pid"] for line in sent(scene)]
    assert owners[:20] == [first.pid] * 20
    assert owners[20:40] == [second.pid] * 20
