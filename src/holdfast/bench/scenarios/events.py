"""`events`: what publishing, reading and projecting cost, each beside the same SQL with nothing around it.

A transaction is BEGIN, one business row, one event, COMMIT; the bare one inserts the row of the log itself. In bulk,
publish_many stands against COPY into the log. A projection with one upsert for each event stands against the same upserts by
hand over the same batches,
`@app.on` against enqueue_many of the same jobs, 16 subscribers against 16 SELECTs by seq. Statements that are
timed were run before on the same connection, as those of a worker were.
"""

import asyncio
import contextlib
import io
import json
import statistics
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg

from ...app import Holdfast
from ...db.transaction import AsyncTransaction, Transaction
from ...shapes.events import store
from ...shapes.events.event import Event
from ...shapes.events.publish import new_event
from ..context import Bench
from ..raw import Engine

DATA = '{"order_id": %s, "cents": 995}'
ORDER = "INSERT INTO bench_orders (customer, total) VALUES (%s, %s)"
BARE = (
    "INSERT INTO holdfast.events (slot, type, key, version, data) "
    "VALUES (holdfast.archive_slot(now()), 'order.paid', %s, 1, %s)"
)
SQL = "SELECT holdfast.publish('order.paid', %s, %s)"
COPY = "COPY holdfast.events (slot, type, key, version, data) FROM STDIN"
TOTALS = "CREATE TABLE order_totals (order_id int PRIMARY KEY, cents bigint NOT NULL) WITH (fillfactor = 50)"
UPSERT = (
    "INSERT INTO order_totals AS t VALUES (%s, %s) ON CONFLICT (order_id) "
    "DO UPDATE SET cents = t.cents + excluded.cents"
)
BLOCK = 50  # transactions of one kind before the next kind has its turn
CHUNK = 5000
BATCH = 500
KEYS = 1000
READERS = 16
LATE = 5  # transactions that commit late

Write = Callable[[psycopg.Connection[Any], int], object]


def run(bench: Bench) -> None:
    in_transactions(bench)
    in_bulk(bench)
    projecting(bench)
    consuming(bench)
    reading(bench)
    late_commit(bench)
    numbering(bench)
    asyncio.run(waking(bench))


def in_transactions(bench: Bench) -> None:
    with bench.database() as url, Holdfast(url) as app, psycopg.connect(url) as conn:
        kinds: dict[str, Write] = {
            "transaction": lambda conn, n: app.publish(
                "order.paid", {"order_id": n, "cents": 995}, key=f"order:{n}", conn=conn
            ),
            "transaction-sql": lambda conn, n: conn.execute(SQL, [DATA % n, f"order:{n}"]),
            "transaction-bare": lambda conn, n: conn.execute(BARE, [f"order:{n}", DATA % n]),
        }
        took = dict.fromkeys(kinds, 0.0)
        for write in kinds.values():
            for n in range(10):  # from here on everything is prepared
                _transaction(conn, write, n)
        blocks = max(1, bench.sizes.single // BLOCK)
        for turn in range(blocks):
            for kind in list(kinds)[turn % 3 :] + list(kinds)[: turn % 3]:
                for n in range(BLOCK):
                    took[kind] += _transaction(conn, kinds[kind], n)
    for kind, seconds in took.items():
        each = seconds / blocks / BLOCK * 1e6
        bench.add("events", kind, "us/transaction", each)
        bench.say(f"events {kind}: {each:,.0f} us per transaction")


def _transaction(conn: psycopg.Connection[Any], write: Write, n: int) -> float:
    began = time.perf_counter()
    conn.execute(ORDER, [n, 9.5])
    write(conn, n)
    conn.commit()
    return time.perf_counter() - began


def in_bulk(bench: Bench) -> None:
    """With every event made in Python (`publish-many`, `copy`), and with nothing but the statement (`...-raw`)."""
    size = min(bench.sizes.jobs, CHUNK)
    with bench.database() as url, Holdfast(url) as app, psycopg.connect(url, autocommit=True) as conn:
        engine = Engine(url)
        statement = store.publish_many(
            [new_event("order.paid", {"order_id": 1, "cents": 995}, key="order:1")] * size
        )
        slot = int(time.time() // 86400) % 32
        text = f"{slot}\torder.paid\torder:1\t1\t{DATA % 1}\n" * size
        kinds: dict[str, Callable[[], object]] = {
            "publish-many": lambda: publish_chunk(app, size),
            "copy": lambda: copy_rows(conn, slot, size),
            "publish-many-raw": lambda: engine.ask(statement),
            "copy-raw": lambda: copy_text(conn, text),
        }
        took = dict.fromkeys(kinds, 0.0)
        for write in kinds.values():
            write()
        turns = max(bench.sizes.jobs // 4 // size, 1)
        for _ in range(turns):
            for kind, write in kinds.items():
                began = time.perf_counter()
                write()
                took[kind] += time.perf_counter() - began
        engine.conn.close()
    for kind, seconds in took.items():
        bench.add("events", kind, "events/s", turns * size / seconds)
        bench.say(f"events {kind}: {turns * size / seconds:,.0f} events/s")


def publish_chunk(app: Holdfast, size: int) -> None:
    app.publish_many(("order.paid", {"order_id": n, "cents": 995}, f"order:{n % KEYS}") for n in range(size))


def copy_rows(conn: psycopg.Connection[Any], slot: int, size: int) -> None:
    with conn.cursor() as cursor, cursor.copy(COPY) as copy:
        for n in range(size):
            data = json.dumps({"order_id": n, "cents": 995})
            copy.write_row((slot, "order.paid", f"order:{n % KEYS}", 1, data))


def copy_text(conn: psycopg.Connection[Any], text: str) -> None:
    with conn.cursor() as cursor, cursor.copy(COPY) as copy:
        source = io.StringIO(text)
        while part := source.read(65536):
            copy.write(part)


@contextlib.asynccontextmanager
async def working(app: Holdfast, concurrency: int | None = None) -> AsyncIterator[None]:
    """A worker of the app until the block ends."""
    worker = asyncio.get_running_loop().create_task(app.run_worker(concurrency=concurrency))
    try:
        yield
    finally:
        worker.cancel()
        await asyncio.wait([worker])


def projecting(bench: Bench) -> None:
    """As many events as fit the sizes, through a projection, and by hand over the same batches."""
    count = max(bench.sizes.jobs // 4, 1000)
    with bench.database() as url:
        with Holdfast(url) as app, psycopg.connect(url, autocommit=True) as conn:
            conn.execute(TOTALS)
            for _ in range(max(count // 2000, 1)):
                publish_chunk(app, 2000)
            count = app.events.last_position()
            by_hand = _by_hand(conn, count)
            conn.execute("TRUNCATE order_totals")
        projected = asyncio.run(_projected(url, count))
    bench.add("events", "projection", "events/s", projected)
    bench.add("events", "projection-by-hand", "events/s", by_hand)
    bench.say(f"events projection: {projected:,.0f} events/s, by hand {by_hand:,.0f}")


def _by_hand(conn: psycopg.Connection[Any], count: int) -> float:
    """SELECT by seq, one upsert for each event, one transaction for each batch."""
    began = time.perf_counter()
    seq = done = 0
    while done < count:
        with conn.transaction():
            rows = conn.execute(
                "SELECT seq, data FROM holdfast.events WHERE seq > %s ORDER BY seq LIMIT %s", [seq, BATCH]
            ).fetchall()
            for _, data in rows:
                conn.execute(UPSERT, [data["order_id"], data["cents"]])
        seq, done = rows[-1][0], done + len(rows)
    return count / (time.perf_counter() - began)


async def _projected(url: str, count: int) -> float:
    async with Holdfast(url) as app:

        @app.projection("order_totals", on=["order.*"], batch=BATCH)
        def totals(tx: Transaction, event: Event[Any]) -> None:
            tx.execute(UPSERT, [event.data["order_id"], event.data["cents"]])

        began = time.perf_counter()
        async with working(app):
            await totals.aread_your_writes(count, timeout=600)
            took = time.perf_counter() - began
    return count / took


def consuming(bench: Bench) -> None:
    """Events that become jobs, and enqueue_many of the same jobs."""
    count = max(bench.sizes.jobs // 4, 1000)
    with bench.database() as url:
        rate = asyncio.run(_consumed(url, count))
    bench.add("events", "consumer", "jobs/s", rate[0])
    bench.add("events", "consumer-enqueue-many", "jobs/s", rate[1])
    bench.say(f"events consumer: {rate[0]:,.0f} jobs/s, enqueue_many {rate[1]:,.0f}")


async def _consumed(url: str, count: int) -> tuple[float, float]:
    async with Holdfast(url) as app:

        @app.on("order.*", start="start", queue="bench_later", name="receipt")
        async def receipt(event: Event[Any]) -> None:
            return None

        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("SELECT holdfast.create_queue('bench_later')")
        for _ in range(max(count // 2000, 1)):
            await asyncio.to_thread(publish_chunk, app, 2000)
        count = await app.events.alast_position()
        began = time.perf_counter()
        worker = asyncio.get_running_loop().create_task(app.run_worker(queues=["inbox"]))
        try:
            await receipt.aread_your_writes(count, timeout=600)
            took = time.perf_counter() - began
        finally:
            worker.cancel()
            await asyncio.wait([worker])
        events = await app.events.aread(0, 1000)
        began = time.perf_counter()
        for _ in range(max(count // 1000, 1)):
            await app.aenqueue_many(
                receipt.task.using(partition_key=event.key or "").job(event) for event in events
            )
        return count / took, max(count // 1000, 1) * 1000 / (time.perf_counter() - began)


def reading(bench: Bench) -> None:
    """16 subscribers over the same events, and 16 bare SELECTs by seq, both without Python for each event."""
    count = max(bench.sizes.jobs // 10, 1000)
    with bench.database() as url, Holdfast(url) as app, psycopg.connect(url, autocommit=True) as conn:
        for _ in range(max(count // 1000, 1)):
            publish_chunk(app, 1000)
        count = app.events.last_position()
        conn.execute("VACUUM ANALYZE holdfast.events")
        took = {"read-pages": 0.0, "read-bare": 0.0}
        for reader in range(-1, READERS):  # the first one is not counted
            began = time.perf_counter()
            position = seq = 0
            while position < count:
                page = app.database.run(lambda at=position, s=seq: store.read_events(at, s, BATCH))  # type: ignore[misc]
                position, seq = page.position, page.seq
            took["read-pages"] += time.perf_counter() - began if reader >= 0 else 0
            began = time.perf_counter()
            seq = done = 0
            while done < count:
                rows = conn.execute(
                    "SELECT seq, id, type, version, key, created_at, headers::text, data::text FROM holdfast.events "
                    "WHERE seq > %s ORDER BY seq LIMIT %s",
                    [seq, BATCH],
                ).fetchall()
                seq, done = rows[-1][0], done + len(rows)
            took["read-bare"] += time.perf_counter() - began if reader >= 0 else 0
    for kind, seconds in took.items():
        bench.add("events", kind, "us/event", seconds / READERS / count * 1e6)
        bench.say(f"events {kind}: {seconds / READERS / count * 1e6:,.2f} us per event")


def late_commit(bench: Bench) -> None:
    """Transactions that published before all others and commit after them: what the reader of such an event waits for."""
    count = min(max(bench.sizes.jobs * 2, 2000), 200_000)
    turn = "SELECT holdfast.turn_page()"
    read = "SELECT * FROM holdfast.read_events(%s, 0, 500, 1000000, NULL)"
    with bench.database() as url, Holdfast(url) as app, contextlib.ExitStack() as open_ones:
        conn = open_ones.enter_context(psycopg.connect(url, autocommit=True))
        conn.prepare_threshold = 0
        late = [open_ones.enter_context(psycopg.connect(url)) for _ in range(LATE)]
        for n, one in enumerate(late):
            one.execute(SQL, [DATA % n, f"late:{n}"])
        for _ in range(max(count // CHUNK, 1)):
            publish_chunk(app, min(count, CHUNK))
            conn.execute(turn)
            conn.execute(read, [app.events.last_position() - 1])
        took = []
        for one in late:
            last = app.events.last_position()
            one.commit()
            began = time.perf_counter()
            conn.execute(turn)
            rows = conn.execute(read, [last]).fetchall()
            took.append((time.perf_counter() - began) * 1000)
            assert len(rows) == 2  # the event, and how far was looked
    bench.add("events", "late-commit", "ms", statistics.median(took))
    bench.say(f"events late commit, {count:,} events behind: {statistics.median(took):.1f} ms")


def numbering(bench: Bench) -> None:
    """WAL of the pages at 1,000 events a second, a page every 20 ms: what numbering adds to an event. After a hundred pages:
    at first the server writes whole blocks, because the database was just made."""
    size, pages = 20, min(max(bench.sizes.jobs // 4, 50), 1000)
    with bench.database() as url, Holdfast(url) as app, psycopg.connect(url, autocommit=True) as conn:
        total = 0
        for n in range(-min(pages, 100), pages):
            publish_chunk(app, size)
            before = _wal(conn)
            conn.execute("SELECT holdfast.turn_page()")
            total += _wal(conn) - before if n >= 0 else 0
    bench.add("events", "numbering", "WAL bytes/event", total / pages / size)
    bench.say(
        f"events numbering: {total / pages / size:,.0f} bytes of WAL per event, {pages} pages of {size}"
    )


def _wal(conn: psycopg.Connection[Any]) -> int:
    ((found,),) = conn.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchall()
    return int(found)


async def waking(bench: Bench) -> None:
    """From the publish call to the commit of the projection, on an idle worker, as a listener sees it."""
    with bench.database() as url:
        async with (
            await psycopg.AsyncConnection.connect(url, autocommit=True) as listener,
            Holdfast(url) as app,
        ):
            await listener.execute(TOTALS.encode())
            await listener.execute("LISTEN projected")

            @app.projection("order_totals", on=["order.*"], start="now")
            async def totals(tx: AsyncTransaction, event: Event[Any]) -> None:
                order = [event.data["order_id"], event.data["cents"]]
                await tx.execute(f"WITH done AS ({UPSERT}) SELECT pg_notify('projected', '')", order)

            took = []
            async with working(app):
                await asyncio.sleep(2.0)
                for n in range(20 if bench.quick else 50):
                    await asyncio.sleep(0.1)
                    began = time.perf_counter()
                    await app.apublish("order.paid", {"order_id": n, "cents": 1})
                    heard = [note async for note in listener.notifies(timeout=60, stop_after=1)]
                    assert heard, "the projection did not commit within a minute"
                    took.append((time.perf_counter() - began) * 1000)
    bench.add("events", "publish to projection p50", "ms", statistics.median(took))
    bench.say(f"events publish to projection: p50 {statistics.median(took):.1f} ms")
