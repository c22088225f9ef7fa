"""A projection's function: how it is called, in whose transaction, and every way in which it may end."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import asyncpg
import psycopg
import pytest
from django.db import connections, transaction
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from tests.conftest import QUICK, await_until, within
from tests.flow import ways
from tests.flow.test_run import working
from tests.guests.async_kinds import asyncpg_address
from tests.guests.django_kind import database as django_database
from tests.guests.kinds import engine_url

from holdfast import (
    AsyncTransaction,
    Backoff,
    DeadLetter,
    Event,
    Holdfast,
    LeaseLost,
    Retry,
    Snooze,
    TaskDefinitionError,
    Transaction,
    failpoints,
    telemetry,
)
from holdfast.shapes.events import store
from holdfast.shapes.events.project import Project
from holdfast.testing import Kit

QUICKLY = Backoff(first=0.01, cap=0.02)
ADD = "INSERT INTO totals AS t VALUES (%s, 1) ON CONFLICT (key) DO UPDATE SET n = t.n + 1"


@pytest.fixture
def kit(app: Holdfast, holdfast_kit: Callable[..., Kit]) -> Kit:
    kit = holdfast_kit(app, replace(QUICK, pool_size=8))
    kit.sql("CREATE TABLE totals (key text PRIMARY KEY, n int NOT NULL CHECK (n < 1000))")
    return kit


def publish(app: Holdfast, *keys: str) -> None:
    app.publish_many([("order.paid", {"n": n}, key) for n, key in enumerate(keys)])


def totals(kit: Kit) -> dict[str, int]:
    return {row["key"]: row["n"] for row in kit.sql("SELECT * FROM totals")}


def standing(kit: Kit, name: str = "totals") -> dict[str, Any]:
    found = kit.sql("SELECT position, status, problem FROM holdfast.subscriptions WHERE name = %s", [name])
    return found[0] if found else {"position": None}


def run_until(kit: Kit, position: int, name: str = "totals") -> None:
    """A worker, until the projection has come so far or stopped."""

    def done() -> bool:
        now = standing(kit, name)
        return now["position"] == position or now.get("status") == "paused"

    async def main() -> None:
        async with working(kit):
            await await_until(done, f"{name} has come to {position}")
        await kit.database.aclose()

    asyncio.run(main())


# Forms ------------------------------------------------------------------------------------------------------------------


class Forms:
    """One function in every form that it may have."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def one(self, tx: Transaction, event: Event[Any]) -> None:
        self.many(tx, [event])

    def many(self, tx: Transaction, events: Sequence[Event[Any]]) -> None:
        self.calls.append([e.position for e in events])
        for e in events:
            tx.execute(ADD, [e.key])

    async def aone(self, tx: AsyncTransaction, event: Event[Any]) -> None:
        await self.amany(tx, [event])

    async def amany(self, tx: AsyncTransaction, events: Sequence[Event[Any]]) -> None:
        self.calls.append([e.position for e in events])
        for e in events:
            await tx.execute(ADD, [e.key])

    async def alist(self, tx: AsyncTransaction, events: list[Event[Any]]) -> None:
        assert isinstance(events, list)
        await self.amany(tx, events)


@pytest.mark.parametrize("form", ["one", "many", "aone", "amany", "alist"])
def test_every_form_of_a_function_is_called(app: Holdfast, kit: Kit, form: str) -> None:
    forms = Forms()
    app.projection("totals", on=["order.*"])(getattr(forms, form))
    publish(app, "a", "b", "a")
    app.publish("other", {})
    kit.run_worker()
    assert totals(kit) == {"a": 2, "b": 1}
    assert forms.calls == ([[1], [2], [3]] if form.endswith("one") else [[1, 2, 3]])
    assert standing(kit)["position"] == 4


def test_each_form_is_typed(app: Holdfast) -> None:
    forms = Forms()
    app.projection("one", on=["*"])(forms.one)
    app.projection("many", on=["*"])(forms.many)
    app.projection("aone", on=["*"])(forms.aone)
    app.projection("amany", on=["*"])(forms.amany)
    found = app.projection("alist", on=["*"])(forms.alist)
    assert found.apply.many


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shards": 9}, "projection 'p': shards must be between 1 and 8, not int 9"),
        ({"batch": 0}, "projection 'p': batch must be between 1 and 10000, not int 0"),
        (
            {"poison": "ignore"},
            "projection 'p': poison must be one of stop, skip, park_key, not str 'ignore'",
        ),
        ({"timeout": 0}, "projection 'p': timeout must be between 1 ms and 1 h, not int 0"),
        ({"timeout": "soon"}, "projection 'p': timeout must be"),
        ({"retry": 3}, "projection 'p': retry must be a Backoff, not int 3"),
        ({"using": 3}, "projection 'p': using must be a function that opens a transaction, not int 3"),
        (
            {"tables": "totals"},
            "projection 'p': tables must be names of tables, such as [\"order_totals\"], not str 'totals'",
        ),
        ({"tables": ["a", "a"]}, "projection 'p': tables names one twice: a, a"),
        ({"table": "a"}, "projection 'p' has no option 'table'. It takes batch, max_attempts,"),
        (
            {"start": "later"},
            'start must be "now", "start", a position or a time with its zone, not str \'later\'',
        ),
    ],
)
def test_a_wrong_option_is_refused(app: Holdfast, options: dict[str, Any], said: str) -> None:
    with pytest.raises(TaskDefinitionError) as refused:

        @app.projection("p", on=["*"], **options)
        def p(tx: Transaction, event: Event[Any]) -> None: ...

    assert str(refused.value).startswith(said)


def test_a_sync_function_that_returns_a_coroutine_fails(app: Holdfast, kit: Kit) -> None:
    async def later(tx: object) -> None: ...

    @app.projection("totals", on=["*"], max_attempts=1)
    def lazy(tx: Transaction, event: Event[Any]) -> Any:
        coroutine = later(tx)
        coroutine.close()
        return coroutine

    publish(app, "a")
    kit.run_worker()
    assert (
        "TypeError: lazy returned a coroutine, which does nothing. Declare it with async def"
        in standing(kit)["problem"]
    )


# Whose transaction ------------------------------------------------------------------------------------------------------


def _sync_kinds(url: str) -> dict[str, Any]:
    engine = create_engine(engine_url("psycopg", url), poolclass=NullPool)
    connections.databases["projected"] = {**connections.databases.get("default", {}), **django_database(url)}
    connections.databases["projected"].setdefault("TIME_ZONE", None)

    @contextlib.contextmanager
    def django() -> Iterator[Any]:
        conn = connections["projected"]
        try:
            with transaction.atomic(using="projected"):
                yield conn
        finally:
            conn.close()

    @contextlib.contextmanager
    def bare() -> Iterator[Any]:
        with psycopg.connect(url) as conn:
            yield conn

    return {
        "psycopg": bare,
        "Session": sessionmaker(engine).begin,
        "Connection": engine.begin,
        "Django": django,
    }


def _write(conn: Any, key: str | None) -> None:
    if isinstance(conn, psycopg.Connection):
        conn.execute(ADD, [key])
    elif isinstance(conn, Session) or hasattr(conn, "exec_driver_sql"):
        conn.execute(text(ADD.replace("%s", ":key")), {"key": key})
    else:
        with conn.cursor() as cursor:
            cursor.execute(ADD, [key])


@pytest.mark.parametrize("kind", ["psycopg", "Session", "Connection", "Django"])
def test_effect_and_position_commit_in_the_users_transaction(
    app: Holdfast, kit: Kit, dsn: str, kind: str
) -> None:
    fail = ["once"]

    @app.projection("totals", on=["*"], using=_sync_kinds(dsn)[kind], retry=QUICKLY)
    def theirs(conn: Any, event: Event[Any]) -> None:
        _write(conn, event.key)
        if event.key == "b" and fail:
            fail.clear()
            raise ValueError("not yet")

    publish(app, "a", "b", "a")
    run_until(kit, 3)
    assert totals(kit) == {"a": 2, "b": 1}
    assert standing(kit)["position"] == 3


@pytest.mark.parametrize("kind", ["psycopg", "asyncpg", "AsyncSession", "AsyncSession on asyncpg"])
async def test_effect_and_position_commit_in_the_users_async_transaction(
    app: Holdfast, akit: Kit, dsn: str, kind: str
) -> None:
    fail = ["once"]

    @contextlib.asynccontextmanager
    async def bare() -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(dsn) as conn:
            yield conn

    @contextlib.asynccontextmanager
    async def with_asyncpg() -> AsyncIterator[Any]:
        conn = await asyncpg.connect(**asyncpg_address(dsn))
        try:
            async with conn.transaction():
                yield conn
        finally:
            await conn.close()

    engine = create_async_engine(engine_url("asyncpg" if "asyncpg" in kind else "psycopg", dsn))
    using: Any = {"psycopg": bare, "asyncpg": with_asyncpg}.get(kind) or async_sessionmaker(engine).begin

    @app.projection("totals", on=["*"], using=using, retry=QUICKLY)
    async def theirs(conn: Any, event: Event[Any]) -> None:
        if isinstance(conn, AsyncSession):
            await conn.execute(text(ADD.replace("%s", ":key")), {"key": event.key})
        elif isinstance(conn, psycopg.AsyncConnection):
            await conn.execute(ADD, [event.key])
        else:
            await conn.execute(ADD.replace("%s", "$1"), event.key)
        if event.key == "b" and fail:
            fail.clear()
            raise ValueError("not yet")

    await app.apublish_many([("order.paid", {}, key) for key in ("a", "b", "a")])
    async with working(akit):
        await theirs.aread_your_writes(3, timeout=60)
    assert totals(akit) == {"a": 2, "b": 1}
    await engine.dispose()


@pytest.mark.parametrize(
    ("using", "said"),
    [
        (
            lambda url: lambda: None,
            "using= returned a NoneType, which theirs cannot open by: with using() as conn",
        ),
        (
            lambda url: lambda: contextlib.closing(psycopg.connect(url, autocommit=True)),
            "using= opened a connection without a transaction; wrap it: with conn.transaction(): ...",
        ),
        (
            lambda url: lambda: contextlib.nullcontext("a name"),
            "WrongConnection: conn= got builtins.str, which Holdfast cannot use",
        ),
    ],
)
def test_a_wrong_transaction_of_the_user_stops_at_once(
    app: Holdfast, kit: Kit, dsn: str, using: Any, said: str
) -> None:
    called: list[object] = []

    @app.projection("totals", on=["*"], using=using(dsn), poison="skip")
    def theirs(conn: Any, event: Event[Any]) -> None:
        called.append(event)

    publish(app, "a")
    kit.run_worker()
    assert (standing(kit)["position"], standing(kit)["status"]) == (0, "paused")
    assert standing(kit)["problem"].startswith(said)
    assert called == []


# What it may not do -----------------------------------------------------------------------------------------------------

ENDED = "ended the transaction that it was called in, so its position was not moved. "
ENDED += "Its writes may be committed: check them."


@pytest.mark.parametrize("way", ["COMMIT", "ROLLBACK", "COMMIT AND CHAIN", "COMMIT; BEGIN"])
def test_a_function_that_ends_its_transaction_stops_the_projection(app: Holdfast, kit: Kit, way: str) -> None:
    called: list[int] = []

    @app.projection("totals", on=["*"], poison="skip", retry=QUICKLY)
    def ending(tx: Transaction, event: Event[Any]) -> None:
        called.append(event.position)
        tx.execute(ADD, [event.key])
        tx.execute(way)

    publish(app, "a", "b")
    kit.run_worker()
    assert called in ([1], [1, 2])  # both in one transaction, and never again
    assert (standing(kit)["position"], standing(kit)["status"]) == (0, "paused")
    assert standing(kit)["problem"].startswith(f"ending {ENDED}")


def test_a_session_that_the_function_commits_stops_the_projection(app: Holdfast, kit: Kit, dsn: str) -> None:
    maker = sessionmaker(create_engine(engine_url("psycopg", dsn), poolclass=NullPool))
    called: list[int] = []

    @app.projection("totals", on=["*"], poison="skip", retry=QUICKLY, using=maker.begin)
    def ending(session: Session, event: Event[Any]) -> None:
        called.append(event.position)
        _write(session, event.key)
        session.commit()

    publish(app, "a")
    kit.run_worker()
    assert called == [1]
    assert standing(kit)["status"] == "paused"
    assert standing(kit)["problem"].startswith(
        "ending left its transaction unusable, so its position was not moved. Its writes may be there: check it"
    )


def test_a_database_error_that_the_function_swallows_fails_the_event(app: Holdfast, kit: Kit) -> None:
    @app.projection("totals", on=["*"], poison="skip", max_attempts=2, retry=QUICKLY)
    def swallowing(tx: Transaction, event: Event[Any]) -> None:
        tx.execute(ADD, [event.key])
        if event.key == "b":
            with contextlib.suppress(psycopg.Error):
                tx.execute("SELECT 1 / 0")

    publish(app, "a", "b", "c")
    run_until(kit, 3)
    assert totals(kit) == {"a": 1, "c": 1}
    (failure,) = swallowing.failures()
    assert failure.error == (
        "RuntimeError: swallowing caught a database error, and its transaction had failed by then. "
        "Let the error out, or run the statement in a savepoint"
    )


def test_a_savepoint_of_the_function_is_its_own(app: Holdfast, kit: Kit) -> None:
    @app.projection("totals", on=["*"])
    def careful(tx: Transaction, event: Event[Any]) -> None:
        with contextlib.suppress(psycopg.Error), tx.connection.transaction():
            tx.execute("SELECT 1 / 0")
        tx.execute(ADD, [event.key])

    publish(app, "a", "b")
    kit.run_worker()
    assert totals(kit) == {"a": 1, "b": 1}


def test_a_deferred_constraint_fails_the_event(app: Holdfast, kit: Kit) -> None:
    kit.sql("CREATE TABLE names (name text UNIQUE DEFERRABLE INITIALLY DEFERRED)")

    @app.projection("totals", on=["*"], poison="skip", max_attempts=2, retry=QUICKLY)
    def deferred(tx: Transaction, event: Event[Any]) -> None:
        tx.execute("INSERT INTO names VALUES (%s)", [event.key])

    publish(app, "a", "b", "a", "c")
    run_until(kit, 4)
    assert [row["name"] for row in kit.sql("SELECT name FROM names ORDER BY name")] == ["a", "b", "c"]
    (failure,) = deferred.failures()
    assert failure.position == 3
    assert "duplicate key value violates unique constraint" in str(failure.error)


# Ways to end ------------------------------------------------------------------------------------------------------------

RAISES = {
    name: way
    for name, way in ways.WAYS.items()
    if name.startswith(("raises", "signals")) and way.end in ("failed", "spent", "dead", "cancelled")
}


@pytest.mark.parametrize("form", ["def", "async"])
def test_every_way_to_raise_is_a_failure_of_its_event(app: Holdfast, kit: Kit, form: str) -> None:
    """Each of them once, one event each; whatever it was, the next event is applied."""
    options: Any = {"on": ["*"], "poison": "skip", "max_attempts": 1, "retry": QUICKLY, "batch": 1}
    declared: Any
    if form == "def":

        @app.projection("totals", **options)
        def ending(tx: Transaction, event: Event[Any]) -> None:
            tx.execute(ADD, [event.data["way"][:100]])
            if way := RAISES.get(event.data["way"]):
                way.do()

        declared = ending
    else:

        @app.projection("totals", **options)
        async def aending(tx: AsyncTransaction, event: Event[Any]) -> None:
            await tx.execute(ADD, [event.data["way"][:100]])
            if way := RAISES.get(event.data["way"]):
                way.do()

        declared = aending
    names = [name for way in RAISES for name in (way, "fine")]
    app.publish_many([("tried", {"way": name.encode("utf-8", "replace").decode()}) for name in names])
    run_until(kit, len(names))
    assert totals(kit) == {"fine": len(RAISES)}
    assert len(declared.failures()) == len(RAISES)
    assert standing(kit)["position"] == len(names)


def test_a_signal_says_when_to_try_again(app: Holdfast, kit: Kit, events: list[telemetry.Event]) -> None:
    """Retry and Snooze say when; Snooze spends no attempt; DeadLetter is the last."""
    tried: list[str] = []

    @app.projection("totals", on=["*"], poison="skip", max_attempts=3, retry=Backoff(first=3000.0), batch=1)
    def signalling(tx: Transaction, event: Event[Any]) -> None:
        tried.append(event.type)
        if event.type == "again":
            raise Retry("busy", after=0.01)
        if event.type == "later" and tried.count("later") < 8:
            raise Snooze(0.01)
        if event.type == "never":
            raise DeadLetter("no use")
        tx.execute(ADD, [event.type])

    for kind in ("again", "later", "never"):
        app.publish(kind, {})
    run_until(kit, 3)
    assert (tried.count("again"), tried.count("later"), tried.count("never")) == (3, 8, 1)
    assert totals(kit) == {"later": 1}
    assert [(f.type, f.error) for f in signalling.failures()] == [
        ("again", "Retry: busy"),
        ("never", "DeadLetter: no use"),
    ]


@pytest.mark.parametrize("form", ["async", "def"])
async def test_a_function_that_does_not_return_fails_after_its_timeout(
    app: Holdfast, akit: Kit, form: str
) -> None:
    """A thread cannot be ended; its transaction is, so the row of the position is free."""
    free = threading.Event()
    options: Any = {"on": ["*"], "timeout": 0.3, "poison": "skip", "max_attempts": 2, "retry": QUICKLY}
    declared: Any
    if form == "async":

        @app.projection("totals", **options)
        async def stuck(tx: AsyncTransaction, event: Event[Any]) -> None:
            await tx.execute(ADD, [event.key])
            if event.key == "b":
                await asyncio.sleep(3600)

        declared = stuck
    else:

        @app.projection("totals", **options)
        def sync_stuck(tx: Transaction, event: Event[Any]) -> None:
            tx.execute(ADD, [event.key])
            if event.key == "b":
                free.wait()

        declared = sync_stuck
    await app.apublish_many([("order.paid", {}, key) for key in ("a", "b", "c")])
    try:
        async with working(akit):
            await declared.aread_your_writes(3, timeout=100)
        assert totals(akit) == {"a": 1, "c": 1}
        (failure,) = await declared.afailures()
        assert (
            str(failure.error)
            == f"TimeoutError: {declared.func.__name__} ran longer than its timeout of 0.3 s"
        )
    finally:
        free.set()


async def test_the_users_transaction_is_ended_too_when_the_function_does_not_return(
    app: Holdfast, akit: Kit, dsn: str
) -> None:
    """Their sessions have no limits of ours, and the row of the position would stay locked as long as the thread runs."""
    maker = sessionmaker(create_engine(engine_url("psycopg", dsn), poolclass=NullPool))
    free = threading.Event()

    @app.projection("totals", on=["*"], timeout=0.5, poison="skip", max_attempts=1, using=maker.begin)
    def stuck(session: Session, event: Event[Any]) -> None:
        _write(session, event.key)
        if event.key == "b":
            free.wait()

    await app.apublish_many([("order.paid", {}, key) for key in ("a", "b", "c")])
    try:
        async with working(akit):
            await stuck.aread_your_writes(3, timeout=within(20))
        assert totals(akit) == {"a": 1, "c": 1}
    finally:
        free.set()


# Crashes ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "point", ["events.read", "projection.commit", "transaction.commit", "events.projected"]
)
async def test_a_crash_at_any_point_applies_each_event_once(app: Holdfast, akit: Kit, point: str) -> None:
    @app.projection("totals", on=["*"], batch=2)
    async def counted(tx: AsyncTransaction, event: Event[Any]) -> None:
        await tx.execute(ADD, [event.key])

    crashes = iter([False, True, False, True, True])

    def crash() -> None:
        if next(crashes, False):
            raise ConnectionError("crashed")

    await app.apublish_many([("order.paid", {}, f"k{n % 3}") for n in range(12)])
    failpoints.arm(point, crash)
    async with working(akit):
        await counted.aread_your_writes(12, timeout=60)
    assert next(crashes, None) is None, "it crashed three times"
    assert totals(akit) == {"k0": 4, "k1": 4, "k2": 4}


@pytest.mark.parametrize("form", ["async", "def"])
async def test_a_commit_whose_answer_is_lost_applies_each_event_once(
    app: Holdfast, akit: Kit, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: Any = {"on": ["*"], "batch": 2}
    if form == "async":

        @app.projection("totals", **options)
        async def counted(tx: AsyncTransaction, event: Event[Any]) -> None:
            await tx.execute(ADD, [event.key])

    else:

        @app.projection("totals", **options)
        def sync_counted(tx: Transaction, event: Event[Any]) -> None:
            tx.execute(ADD, [event.key])

    await app.apublish_many([("order.paid", {}, "k") for n in range(8)])
    lost = iter([True, False, True])
    database = akit.database

    def lose(kind: str) -> None:
        if next(lost, False):
            raise psycopg.OperationalError(f"the answer to the {kind} was lost")

    transact, atransact = database.transact, database.atransact

    def losing(*args: Any) -> Any:
        transact(*args)
        lose("commit")

    async def alosing(*args: Any) -> Any:
        await atransact(*args)
        lose("commit")

    monkeypatch.setattr(database, "transact", losing)
    monkeypatch.setattr(database, "atransact", alosing)
    async with working(akit):
        await await_until(lambda: standing(akit)["position"] == 8, "all are passed")
    assert totals(akit) == {"k": 8}


async def test_a_fenced_owner_writes_nothing(app: Holdfast, akit: Kit) -> None:
    """It waits for the row before it calls the function, and finds that it is not its own."""
    called: list[int] = []

    @app.projection("totals", on=["*"])
    async def counted(tx: AsyncTransaction, event: Event[Any]) -> None:
        called.append(event.position)
        await tx.execute(ADD, [event.key])

    await app.apublish_many([("order.paid", {}, "k")])
    async with working(akit):
        await counted.aread_your_writes(1, timeout=60)
    (owned,) = await akit.database.arun(
        lambda: store.own(store.Owner([("totals", ["*"])], uuid4(), "first", 10.0, 0.0))
    )
    akit.sql("UPDATE holdfast.subscriptions SET generation = generation + 1")
    await app.apublish_many([("order.paid", {}, "k")])
    await app.events.alast_position()
    page = await akit.database.arun(lambda: store.read_events(owned.position, owned.seq, 10))
    with pytest.raises(LeaseLost):
        await Project(akit.database, counted.apply, owned, 10.0).take(page)
    assert called == [1]
    assert totals(akit) == {"k": 1}
