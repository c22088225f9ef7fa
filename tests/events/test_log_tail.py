"""Subscribers at the end of the log: the turn of a page reads what is new once, for all of them."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import uuid4

import pytest
from tests.conftest import await_until

from holdfast import Event, Holdfast, Transaction
from holdfast.shapes.events import log as log_module
from holdfast.shapes.events import store
from holdfast.shapes.events.log import Log
from holdfast.shapes.events.runner import Runner
from holdfast.shapes.events.store import Owned, Owner, Page
from holdfast.testing import Kit


class Recorder:
    """Moves the position, and notes what it was given."""

    stuck = False
    delay = 0.0

    def __init__(self, kit: Kit, owned: Owned, batch: int) -> None:
        self._kit = kit
        self._owned = owned
        self.batch = batch
        self.pages: list[list[tuple[int, str]]] = []

    async def take(self, page: Page) -> bool:
        moved = await self._kit.database.arun(
            lambda: store.advance(self._owned, page.position, page.seq, 60.0)
        )
        assert moved
        self.pages.append([(event.position, event.type) for event in page.events])
        return True

    @property
    def position(self) -> int:
        return self._owned.position


class Worker:
    """A log and its runners, without the rest of a worker: pages are turned when a test says so."""

    def __init__(self, kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
        self._kit = kit
        self._session = kit.database.session("tail")
        self.log = Log(self._session, lambda: "w", 1.0, [], lambda: None)
        self._tasks: list[asyncio.Task[None]] = []
        self.reads: list[int] = []  # after which position each was
        reading = store.read_events

        def read_events(position: int, *args: Any, **kwargs: Any) -> Any:
            self.reads.append(position)
            return reading(position, *args, **kwargs)

        monkeypatch.setattr(store, "read_events", read_events)

    def run(
        self, name: str, patterns: Sequence[str] = ("*",), batch: int = 100, shards: int = 1
    ) -> list[Recorder]:
        run = self._kit.database.run
        run(lambda: store.subscribe(name, "projection", list(patterns), "now", shards))
        owner = Owner([(name, list(patterns))], uuid4(), f"w-{name}", 60.0, 0.0)
        made = []
        for owned in run(lambda: store.own(owner)):
            recorder = Recorder(self._kit, owned, batch)
            runner = Runner(self._kit.database, self.log, recorder, owned)
            self._tasks.append(asyncio.get_running_loop().create_task(runner.run()))
            made.append(recorder)
        return made

    async def at_rest(self) -> None:
        """Everybody waits for what comes next."""
        await await_until(lambda: len(self.log._waiting) == len(self._tasks), what="everybody to wait")

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._session.close()


@pytest.fixture
async def worker(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Worker]:
    made = Worker(kit, monkeypatch)
    await made.log.turn()
    yield made
    await made.close()


def publish(kit: Kit, *types: str) -> None:
    kit.sql("SELECT count(*) FROM holdfast.publish_many(%s, %s)", [list(types), ["{}"] * len(types)])


async def test_what_is_new_is_read_once_for_all_who_wait(kit: Kit, worker: Worker) -> None:
    (paid,) = worker.run("paid", ["order.paid"])
    (orders,) = worker.run("orders", ["order.*", "cart.*"])
    (others,) = worker.run("others", ["nothing.*"])
    await worker.at_rest()
    worker.reads.clear()
    publish(kit, "order.paid", "order.sent", "cart.paid", "order.paid.late")
    assert await worker.log.turn() == 4
    await await_until(
        lambda: paid.position == orders.position == others.position == 4, what="all of it to be read"
    )
    assert worker.reads == []
    assert paid.pages == [[(1, "order.paid")]]
    assert orders.pages == [[(1, "order.paid"), (2, "order.sent"), (3, "cart.paid"), (4, "order.paid.late")]]
    assert others.pages == [[]]
    await worker.at_rest()
    publish(kit, "order.paid")
    await worker.log.turn()
    await await_until(lambda: paid.position == others.position == 5, what="all of it to be read")
    assert worker.reads == []
    assert paid.pages[1:] == [[(5, "order.paid")]]


async def test_who_waits_elsewhere_reads_by_itself(kit: Kit, worker: Worker) -> None:
    """Another worker has turned pages meanwhile, so that one subscription begins farther along than another."""
    (behind,) = worker.run("behind")
    publish(kit, "a", "b")
    kit.database.run(store.turn_page)
    (ahead,) = worker.run("ahead")
    assert (behind.position, ahead.position) == (0, 2)
    await worker.at_rest()
    publish(kit, "c")
    assert await worker.log.turn() == 3
    await await_until(lambda: behind.position == ahead.position == 3, what="all of it to be read")
    assert ahead.pages == [[(3, "c")]]
    assert [event for page in behind.pages for event in page] == [(1, "a"), (2, "b"), (3, "c")]
    assert worker.reads == [0]


async def test_a_shard_reads_its_own(kit: Kit, worker: Worker) -> None:
    shards = worker.run("sharded", shards=3)
    (whole,) = worker.run("whole")
    await worker.at_rest()
    publish(kit, *["t"] * 30)
    await worker.log.turn()
    await await_until(lambda: {r.position for r in (*shards, whole)} == {30}, what="all of it to be read")
    found = sorted(event for shard in shards for page in shard.pages for event in page)
    assert found == whole.pages[0] == [(n, "t") for n in range(1, 31)]


async def test_who_takes_less_at_once_reads_by_itself(kit: Kit, worker: Worker) -> None:
    (one_by_one,) = worker.run("one", batch=1)
    (ending,) = worker.run("ending")
    ending._owned.until = 2
    await worker.at_rest()
    publish(kit, "a", "b", "c")
    await worker.log.turn()
    await await_until(lambda: one_by_one.position == 3 and ending.position == 2, what="all of it to be read")
    assert one_by_one.pages == [[(1, "a")], [(2, "b")], [(3, "c")]]
    assert ending.pages == [[(1, "a"), (2, "b")]]


async def test_a_turn_reads_a_bounded_part(kit: Kit, worker: Worker) -> None:
    """So the lock under which pages are turned is not held for long; the rest is read without it."""
    (all_of_it,) = worker.run("all", batch=1000)
    await worker.at_rest()
    publish(kit, *["t"] * 250)
    assert await worker.log.turn() == 250
    await await_until(lambda: all_of_it.position == 250, what="all of it to be read")
    assert [event for page in all_of_it.pages for event in page] == [(n, "t") for n in range(1, 251)]
    assert len(all_of_it.pages[0]) == 100
    assert worker.reads[0] == 100


def test_a_batch_whose_transaction_is_whole_is_moved_in_one_statement(
    app: Holdfast, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In which transaction it is, is asked only where the position did not move."""
    asked: list[str] = []
    asking = store.current_xid

    def current_xid() -> Any:
        asked.append("xid")
        return asking()

    monkeypatch.setattr(store, "current_xid", current_xid)
    kit.sql("CREATE TABLE seen (position bigint)")

    @app.projection("seen", on=["*"], start="start")
    def seen(tx: Transaction, event: Event[Any]) -> None:
        tx.execute("INSERT INTO seen VALUES (%s)", [event.position])

    publish(kit, "a", "b")
    kit.run_projections()
    assert [row["position"] for row in kit.sql("SELECT position FROM seen ORDER BY 1")] == [1, 2]
    assert asked == []


async def test_pages_are_spaced_while_events_come(
    kit: Kit, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for many events, however they come: turns are at least BUSY apart, so there are no more pages than that."""
    busy = 0.5
    monkeypatch.setattr(log_module, "BUSY", busy)
    (all_of_it,) = worker.run("all", batch=1000)
    await worker.at_rest()
    began = time.monotonic()
    watching = asyncio.get_running_loop().create_task(worker.log.watch())
    try:
        with kit.connect(autocommit=True) as conn:

            def publish_each() -> None:
                for _ in range(100):
                    conn.execute("SELECT holdfast.publish('t')")

            await asyncio.to_thread(publish_each)
        await await_until(lambda: all_of_it.position == 100, what="all of it to be read")
    finally:
        watching.cancel()
    most = 2 + (time.monotonic() - began) / busy
    (found,) = kit.sql("SELECT count(*) AS pages, sum(n)::int AS events FROM holdfast.event_pages")
    assert found["events"] == 100
    assert found["pages"] <= most
    assert len(all_of_it.pages) <= most, "and a batch is a page at least"
