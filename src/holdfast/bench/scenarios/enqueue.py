"""`enqueue`: what writing a job costs, beside the same row written with nothing around it.

Each job is the same row of the same table. A transaction is BEGIN, one business row, one job, COMMIT; the bare one
inserts the row itself. In bulk, the function over arrays stands against COPY: with a job made in Python for each (`bulk`,
`copy`), and with nothing but the statement (`bulk-function`, `copy-raw`).
"""

import io
import itertools
import json
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import psycopg

from ...app import Holdfast
from ...model.job import NewRow
from ...store.jobs import enqueue
from ..context import Bench
from ..raw import Engine, repeated

ORDER = "INSERT INTO bench_orders (customer, total) VALUES (%s, %s)"
SQL = "SELECT holdfast.enqueue('nothing', %s)"
BARE = (
    "INSERT INTO holdfast.work (id, queue, task, payload) VALUES (holdfast.uuid7(), 'inbox', 'nothing', %s)"
)
COPY = "COPY holdfast.work (id, queue, task, payload) FROM STDIN"
CHUNK = 5000
BLOCK = 50  # transactions of one kind before the next kind has its turn

Write = Callable[[psycopg.Connection[Any], int], object]


def run(bench: Bench) -> None:
    with bench.database() as url:
        app = Holdfast(url)

        @app.task(name="nothing")
        async def nothing(n: int) -> None:
            return None

        with app:
            one_by_one(bench, url, nothing, bench.sizes.single)
            in_transactions(bench, url, nothing, bench.sizes.single)
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("TRUNCATE holdfast.work, bench_orders")
        with app:
            in_bulk(bench, url, app, nothing)


def one_by_one(bench: Bench, url: str, task: Any, count: int) -> None:
    """Each with a commit of its own, on the app's own connection; and the bare row, in turns."""
    with psycopg.connect(url, autocommit=True) as conn:
        kinds: dict[str, Callable[[int], object]] = {
            "one-by-one": task.enqueue,
            "one-by-one-bare": lambda n: conn.execute(BARE, [f'{{"n": {n}}}']),
        }
        took = dict.fromkeys(kinds, 0.0)
        blocks = max(1, count // BLOCK)
        for _ in range(blocks):
            for kind, write in kinds.items():
                write(0)  # from the first one on everything is prepared
                began = time.perf_counter()
                for n in range(BLOCK):
                    write(n)
                took[kind] += time.perf_counter() - began
    for kind, seconds in took.items():
        rate = blocks * BLOCK / seconds
        bench.add("enqueue", kind, "jobs/s", rate)
        bench.say(f"enqueue {kind}: {rate:,.0f} jobs/s")


def in_transactions(bench: Bench, url: str, task: Any, count: int) -> None:
    """The kinds take turns in small blocks, so that what the disk does meanwhile meets all of them."""
    kinds: dict[str, Write] = {
        "transaction": lambda conn, n: task.using(conn=conn).enqueue(n),
        "transaction-sql": lambda conn, n: conn.execute(SQL, [f'{{"n": {n}}}']),
        "transaction-bare": lambda conn, n: conn.execute(BARE, [f'{{"n": {n}}}']),
    }
    whole, alone = dict.fromkeys(kinds, 0.0), dict.fromkeys(kinds, 0.0)
    with psycopg.connect(url) as conn:
        for write in kinds.values():
            for n in range(10):  # from here on everything is prepared
                _transaction(conn, write, n)
        blocks = max(1, count // BLOCK)
        for turn in range(blocks):
            order = list(kinds)[turn % 3 :] + list(kinds)[: turn % 3]
            for kind in order:
                for n in range(BLOCK):
                    took, job = _transaction(conn, kinds[kind], n)
                    whole[kind] += took
                    alone[kind] += job
    for kind in kinds:
        each, job = whole[kind] / blocks / BLOCK * 1e6, alone[kind] / blocks / BLOCK * 1e6
        bench.add("enqueue", kind, "us/transaction", each)
        bench.add("enqueue", f"{kind} job alone", "us/job", job)
        bench.say(f"enqueue {kind}: {each:,.0f} us per transaction, of that {job:,.0f} us for the job")


def _transaction(conn: psycopg.Connection[Any], write: Write, n: int) -> tuple[float, float]:
    began = time.perf_counter()
    conn.execute(ORDER, [n, 9.5])
    middle = time.perf_counter()
    write(conn, n)
    written = time.perf_counter()
    conn.commit()
    return time.perf_counter() - began, written - middle


def in_bulk(bench: Bench, url: str, app: Holdfast, task: Any) -> None:
    count = max(bench.sizes.jobs // CHUNK, 1) * CHUNK if bench.sizes.jobs >= CHUNK else bench.sizes.jobs
    size = min(count, CHUNK)
    engine, copier = Engine(url), psycopg.connect(url, autocommit=True)
    kinds: dict[str, Callable[[int], object]] = {
        "bulk": lambda size: app.enqueue_many(task.job(n) for n in range(size)),
        "bulk-function": lambda size: by_function(engine, size),
        "bulk-copy": lambda size: app.enqueue_copy(task.job(n) for n in range(size)),
        "copy": lambda size: copy_rows(copier, size),
        "copy-raw": lambda size: copy_text(copier, raw[size]),
    }
    raw = {
        size: "".join(f'{next(ids)}\tinbox\tnothing\t{{"n": {n}}}\n' for n in range(size))
        for size in (10, size)
    }
    took = dict.fromkeys(kinds, 0.0)
    try:
        for write in kinds.values():
            write(10)
        for turn in range(count // size):
            for kind in list(kinds)[turn % len(kinds) :] + list(kinds)[: turn % len(kinds)]:
                if kind == "copy-raw":
                    raw[size] = "".join(f'{next(ids)}\tinbox\tnothing\t{{"n": {n}}}\n' for n in range(size))
                began = time.perf_counter()
                kinds[kind](size)
                took[kind] += time.perf_counter() - began
    finally:
        engine.conn.close()
        copier.close()
    for kind, seconds in took.items():
        bench.add("enqueue", kind, "jobs/s", count / seconds)
        bench.say(f"enqueue {kind}: {count / seconds:,.0f} jobs/s")


def _ids() -> Any:
    """Ids in the order of time, as the function makes them."""
    start = int(time.time() * 1000) << 80 | 0x7 << 76 | 0x2 << 62
    return (UUID(int=start + n) for n in itertools.count())


ids = _ids()


def by_function(engine: Engine, count: int) -> None:
    """What all jobs share goes once, as in enqueue_many; the payloads do not."""
    two = [NewRow(task="nothing", payload=f'{{"n": {n}}}', queue="inbox") for n in (1, 2)]
    what = enqueue(two)
    params = [repeated(p, count // 2) if isinstance(p, str) else p for p in what.params]
    engine.run(what.text, params)


def copy_rows(conn: psycopg.Connection[Any], count: int) -> None:
    with conn.cursor() as cursor, cursor.copy(COPY) as copy:
        for n in range(count):
            copy.write_row((next(ids), "inbox", "nothing", json.dumps({"n": n})))


def copy_text(conn: psycopg.Connection[Any], text: str) -> None:
    with conn.cursor() as cursor, cursor.copy(COPY) as copy:
        source = io.StringIO(text)
        while part := source.read(65536):
            copy.write(part)
