"""A random run of the log against an oracle: publishers of every kind, competing owners that crash, servers that stop.

The oracle knows nothing of pages, sequences or snapshots. In the transaction that publishes, and after it published, a
counter of each key is raised in a table, and the id of the event is noted with the key and the count. So the oracle has
exactly what was committed, and its counts are in the order in which a key was written.

Every subscriber notes what it took, in the transaction that moves its position: the positions and the ids of a batch.
"""

import contextlib
import functools
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID, uuid4

import psycopg
from psycopg import pq
from tests.conftest import wait_until, within
from tests.events.log_support import check_log, own, session, turn
from tests.sql.support import Conn, one, run

from holdfast.db.embedded import EmbeddedServer
from holdfast.errors import HoldfastError
from holdfast.shapes.events import store

TABLES = """
CREATE TABLE counters (key text PRIMARY KEY, n bigint NOT NULL) WITH (fillfactor = 50);
CREATE TABLE oracle (id uuid NOT NULL, key text, n bigint);
CREATE TABLE taken (at bigserial, subscription text, positions bigint[], ids uuid[]);
CREATE FUNCTION note(ids uuid[], keys text[]) RETURNS void LANGUAGE sql AS $$
    WITH u AS MATERIALIZED (
        SELECT u.id, u.key, u.ord, count(*) OVER (PARTITION BY u.key) AS many,
               row_number() OVER (PARTITION BY u.key ORDER BY u.ord) AS nth
        FROM unnest(ids, keys) WITH ORDINALITY AS u(id, key, ord)
    ), counted AS (
        INSERT INTO counters AS c SELECT DISTINCT u.key, u.many FROM u WHERE u.key IS NOT NULL ORDER BY u.key
        ON CONFLICT (key) DO UPDATE SET n = c.n + excluded.n RETURNING c.key, c.n
    )
    INSERT INTO oracle
    SELECT u.id, u.key, c.n - u.many + u.nth FROM u LEFT JOIN counted c ON c.key = u.key ORDER BY u.ord $$;
"""


@dataclass(frozen=True)
class Size:
    events: int
    bulk: int  # events of the largest statement
    keys: int = 120
    publishers: int = 6
    stops: int = 2  # of the server
    lease: float = 0.8
    seconds: float = 300.0  # after which it has failed


@dataclass
class Run:
    """What all threads of one run share."""

    server: EmbeddedServer
    size: Size
    seed: int
    done: threading.Event = field(default_factory=threading.Event)  # no more is published
    stopped: threading.Event = field(default_factory=threading.Event)  # no more is read
    published: int = 0
    seen: dict[str, int] = field(default_factory=dict)
    faults: list[BaseException] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: str, n: int = 1) -> None:
        with self.lock:
            self.seen[what] = self.seen.get(what, 0) + n

    def reached(self, count: int) -> bool:
        return self.published >= count or self.done.is_set()

    def connect(self) -> Conn:
        """As soon as the server is there again."""
        deadline = time.monotonic() + within(60)
        while True:
            try:
                conn = session(self.server.dsn())
                conn.execute("SET lock_timeout = '3s'; SET deadlock_timeout = '50ms'")
                return conn
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


class Crash(Exception):
    """A process that ends here."""


def quietly_close(conn: Conn) -> None:
    with contextlib.suppress(psycopg.Error):
        conn.close()


def events(conn: Conn, rng: random.Random, run_: Run, count: int, *, cold: bool = False) -> int:
    """Publish so many in this transaction, one by one or in one statement, and note them."""
    few = [f"cold:{uuid4().hex}" if cold else f"k{rng.randrange(run_.size.keys)}" for _ in range(3)]
    keys = [None if rng.random() < 0.1 else rng.choice(few) for _ in range(count)]
    data = [json.dumps({"n": n}) for n in range(count)]
    if count > 1 and rng.random() < 0.7:
        cursor = conn.execute(
            "SELECT id FROM holdfast.publish_many(%s::text[], %s::text[], %s::text[])",
            [["base.bulk"] * count, data, keys],
        )
        ids = [row[0] for row in cursor]
        if any(keys) or ids:
            conn.execute("SELECT note(%s::uuid[], %s::text[])", [ids, keys])
        return count
    for key, text in zip(keys, data, strict=True):
        event = one(conn, "SELECT id FROM holdfast.publish('base.one', %s::jsonb, %s)", text, key)
        conn.execute("SELECT note(ARRAY[%s::uuid], ARRAY[%s::text])", [event, key])
    return count


class Publisher(threading.Thread):
    """One transaction after the other, each of a kind drawn by lot."""

    def __init__(self, run_: Run, number: int) -> None:
        super().__init__(name=f"publisher {number}")
        self._run = run_
        self._rng = random.Random(run_.seed * 1000 + number)
        self._number = number
        self._conn = run_.connect()

    def run(self) -> None:
        kinds: list[tuple[Callable[[], int], int]] = [
            (self.short, 30),
            (self.several, 15),
            (self.long_open, 4),
            (self.rolled_back, 4),
            (self.savepoints, 8),
            (self.prepared, 5),
            (self.repeatable_read, 6),
            (self.serializable, 4),
            (self.killed, 2),
            (self.bulk, 7),
            (self.appended, 8),
        ]
        try:
            while not self._run.done.is_set():
                (kind,) = self._rng.choices([k for k, _ in kinds], [w for _, w in kinds])
                try:
                    n = kind()
                except (psycopg.Error, HoldfastError) as error:  # a deadlock, a lost server, a conflict
                    self._run.count(f"failed: {type(error).__name__}")
                    self._again()
                    continue
                self._run.count(kind.__name__)
                with self._run.lock:
                    self._run.published += n
                    if self._run.published >= self._run.size.events:
                        self._run.done.set()
        except BaseException as error:
            self._run.faults.append(error)
            self._run.done.set()
        finally:
            quietly_close(self._conn)

    def _again(self) -> None:
        if self._conn.info.status == pq.ConnStatus.OK:
            try:
                self._conn.execute("ROLLBACK")
                return
            except psycopg.Error:
                pass
        quietly_close(self._conn)
        self._conn = self._run.connect()

    def _begin(self, isolation: str = "READ COMMITTED") -> None:
        self._conn.execute(f"BEGIN ISOLATION LEVEL {isolation}".encode())
        if self._rng.random() < 0.5:
            self._conn.execute("SELECT pg_current_xact_id()")  # the order of ids is not that of commits

    def _publish(self, count: int, *, cold: bool = False) -> int:
        return events(self._conn, self._rng, self._run, count, cold=cold)

    def _commit(self, n: int) -> int:
        self._conn.execute("COMMIT")
        return n

    def short(self) -> int:
        self._begin()
        return self._commit(self._publish(1))

    def several(self) -> int:
        self._begin()
        return self._commit(sum(self._publish(self._rng.randint(1, 8)) for _ in range(3)))

    def long_open(self) -> int:
        self._begin()
        n = self._publish(self._rng.randint(1, 5), cold=True)
        self._run.done.wait(self._rng.uniform(0.1, 1.5))
        return self._commit(n + self._publish(2))

    def rolled_back(self) -> int:
        self._begin()
        self._publish(self._rng.randint(1, 50))
        self._conn.execute("ROLLBACK")
        return 0

    def savepoints(self) -> int:
        self._begin()
        n = self._publish(1)
        for name in ("a", "b"):
            self._conn.execute(f"SAVEPOINT {name}".encode())
            inside = self._publish(self._rng.randint(1, 5))
            if self._rng.random() < 0.5:
                self._conn.execute(f"ROLLBACK TO {name}".encode())
            else:
                n += inside
        return self._commit(n + self._publish(1))

    def prepared(self) -> int:
        """Somebody else ends it, also after a crash of the server."""
        self._begin()
        n = self._publish(self._rng.randint(1, 5))
        name = f"{self._run.seed}:{self._number}:{uuid4().hex}"
        self._conn.execute(f"PREPARE TRANSACTION '{name}'".encode())
        if self._rng.random() < 0.3:
            self._run.done.wait(self._rng.uniform(0.0, 0.5))
        end = "ROLLBACK" if self._rng.random() < 0.2 else "COMMIT"
        other = self._run.connect()
        try:
            other.execute(f"{end} PREPARED '{name}'".encode())
        finally:
            quietly_close(other)
        return n if end == "COMMIT" else 0

    def repeatable_read(self) -> int:
        self._begin("REPEATABLE READ")
        return self._commit(self._publish(self._rng.randint(1, 5), cold=self._rng.random() < 0.5))

    def serializable(self) -> int:
        self._begin("SERIALIZABLE")
        return self._commit(self._publish(self._rng.randint(1, 5), cold=self._rng.random() < 0.5))

    def killed(self) -> int:
        self._begin()
        self._publish(self._rng.randint(1, 20))
        other = self._run.connect()
        try:
            other.execute("SELECT pg_terminate_backend(%s)", [self._conn.info.backend_pid])
        finally:
            quietly_close(other)
        self._conn.execute("COMMIT")
        return 0

    def bulk(self) -> int:
        self._begin()
        return self._commit(self._publish(self._rng.randint(2, self._run.size.bulk)))

    def appended(self) -> int:
        """With the version that it expects; a conflict is somebody else's append."""
        key = f"k{self._rng.randrange(5)}"
        found = self._conn.execute(
            "SELECT version FROM holdfast.event_streams WHERE key = %s", [key]
        ).fetchone()
        self._begin()
        cursor = self._conn.execute(
            "SELECT id FROM holdfast.append_events(%s, %s, %s::text[], %s::text[]) ORDER BY seq",
            [key, found[0] if found else 0, ["base.appended"] * 3, ['{"n": 1}'] * 3],
        )
        ids = [row[0] for row in cursor]
        self._conn.execute("SELECT note(%s::uuid[], %s::text[])", [ids, [key] * len(ids)])
        return self._commit(len(ids))


class Owner(threading.Thread):
    """One of two that want the same subscription. Now and then it crashes, or stalls for longer than its lease."""

    def __init__(self, run_: Run, name: str, number: int, batch: int) -> None:
        super().__init__(name=f"{name} {number}")
        self._run = run_
        self._rng = random.Random(f"{run_.seed} {name} {number}")
        self._of = name
        self._batch = batch
        self._odds = min(0.1, 3 * batch / run_.size.events)  # of each kind of crash: a handful in a run
        self._token = uuid4()
        self._conn = run_.connect()

    def run(self) -> None:
        try:
            while not self._run.stopped.is_set():
                try:
                    self._work()
                except Crash:
                    quietly_close(self._conn)
                    self._conn, self._token = self._run.connect(), uuid4()
                except (psycopg.Error, HoldfastError) as error:
                    self._run.count(f"owner: {type(error).__name__}")
                    quietly_close(self._conn)
                    self._conn = self._run.connect()
        except BaseException as error:
            self._run.faults.append(error)
        finally:
            quietly_close(self._conn)

    def _work(self) -> None:
        mine = own(self._conn, self._of, self._token, self._run.size.lease)
        if not mine:
            self._run.stopped.wait(0.02)
            return
        (owned,) = mine
        for _ in range(self._rng.randint(1, 20)):
            turn(self._conn)
            page = run(
                self._conn,
                store.read_events(
                    owned.position, owned.seq, self._rng.randint(1, self._batch), patterns=owned.patterns
                ),
            )
            if page.position == owned.position:
                self._run.stopped.wait(0.02)
                return
            if self._rng.random() < self._odds:
                self._run.count("past the lease")
                self._run.stopped.wait(self._run.size.lease * 1.2)
            if not self._take(owned, page):
                self._run.count("fenced")
                return
            owned.position, owned.seq = page.position, page.seq

    def _take(self, owned: store.Owned, page: store.Page) -> bool:
        conn, ids = self._conn, [row.id for row in page.events]
        conn.execute("BEGIN")
        if not run(conn, store.hold(owned)):
            conn.execute("ROLLBACK")
            return False
        if ids:
            params = (self._of, [row.position for row in page.events], ids)
            conn.execute("INSERT INTO taken (subscription, positions, ids) VALUES (%s, %s, %s)", params)
        if self._of == "chain" and ids and self._rng.random() < 0.3:
            derived = one(
                conn, "SELECT id FROM holdfast.publish('derived', '{}', %s)", f"d{self._rng.randrange(4)}"
            )
            key = one(
                conn, "SELECT key FROM holdfast.events WHERE id = %s AND xid = pg_current_xact_id()", derived
            )
            conn.execute("SELECT note(ARRAY[%s::uuid], ARRAY[%s::text])", [derived, key])
        if not run(conn, store.advance(owned, page.position, page.seq, self._run.size.lease)):
            conn.execute("ROLLBACK")
            return False
        if self._rng.random() < self._odds:
            self._run.count("crash before commit")
            raise Crash
        conn.execute("COMMIT")
        if self._rng.random() < self._odds:
            self._run.count("crash after commit")
            raise Crash
        return True


# Name, patterns, and the largest batch as a share of all events.
SUBSCRIPTIONS = (
    ("every", ["*"], 0.002),
    ("large", ["*"], 0.05),
    ("chain", ["base.*"], 0.01),
    ("bulk", ["base.bulk"], 0.02),
)


def random_run(server: EmbeddedServer, size: Size, seed: int) -> Run:
    """Publish, read and crash until everything is taken; what was counted on the way. The oracle is compared."""
    run_ = Run(server, size, seed)
    conn = run_.connect()
    conn.execute(TABLES.encode())
    for name, patterns, _ in SUBSCRIPTIONS:
        run(conn, store.subscribe(name, "projection", patterns, "start"))
    conn.close()
    owners = [
        Owner(run_, name, number, min(int(share * size.events), 5000))
        for name, _, share in SUBSCRIPTIONS
        for number in (1, 2)
    ]
    publishers = [Publisher(run_, number) for number in range(size.publishers)]
    threads: list[threading.Thread] = [*owners, *publishers]
    for thread in threads:
        thread.start()
    try:
        for stop in range(1, size.stops + 1):
            share = size.events * stop // (size.stops + 1)
            wait_until(functools.partial(run_.reached, share), "events are published", size.seconds)
            stop_at_once(server)
            run_.count("server stopped")
        wait_until(run_.done.is_set, "all events are published", size.seconds)
        for publisher in publishers:
            publisher.join(within(60))
        finish_prepared(run_)
        wait_until(lambda: run_.faults or all_taken(run_), "every subscription is at the end", size.seconds)
    finally:
        run_.done.set()
        run_.stopped.set()
        for thread in threads:
            thread.join(within(60))
    if run_.faults:
        raise run_.faults[0]
    with run_.connect() as conn:
        compare(conn)
    return run_


def stop_at_once(server: EmbeddedServer) -> None:
    """As a power cut does, without the loss of what the kernel has; then start it again."""
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGQUIT)
    wait_until(lambda: server.pid is None, "the server is gone")
    server.ensure_running()


def finish_prepared(run_: Run) -> None:
    """Those whose publisher was interrupted."""
    with run_.connect() as conn:
        for (name,) in conn.execute("SELECT gid FROM pg_prepared_xacts").fetchall():
            conn.execute(f"COMMIT PREPARED '{name}'".encode())


def all_taken(run_: Run) -> bool:
    with run_.connect() as conn:
        last = turn(conn)
        return bool(one(conn, "SELECT min(position) = %s FROM holdfast.subscriptions", last))


def compare(conn: Conn) -> None:
    """The log and every subscriber against the oracle."""
    conn.execute("SET lock_timeout = 0")
    check_log(conn)
    log: dict[int, tuple[UUID, str]] = {}
    after = seq = 0
    while True:
        page = run(conn, store.read_events(after, seq, 5000))
        log.update({row.position: (row.id, row.type) for row in page.events})
        if page.position == after:
            break
        after, seq = page.position, page.seq
    oracle = {row[0]: (row[1], row[2]) for row in conn.execute("SELECT id, key, n FROM oracle")}
    assert {event for event, _ in log.values()} == set(oracle), "the log has exactly what was committed"
    assert len(oracle) == len(log) == after
    counts: dict[str, int] = {}
    for position in range(1, after + 1):
        key, n = oracle[log[position][0]]
        if key is not None:
            assert n == counts.get(key, 0) + 1, (
                f"{key} at position {position}: {n} after {counts.get(key, 0)}"
            )
            counts[key] = n
    for name, patterns, _ in SUBSCRIPTIONS:
        took = [
            pair
            for positions, ids in conn.execute(
                "SELECT positions, ids FROM taken WHERE subscription = %s ORDER BY positions[1], at", [name]
            )
            for pair in zip(positions, ids, strict=True)
        ]
        prefix = patterns[0].removesuffix("*")
        wanted = [(p, log[p][0]) for p in range(1, after + 1) if log[p][1].startswith(prefix)]
        assert took == wanted, f"{name} took each of its events once, in order, at its position"
