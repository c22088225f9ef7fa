"""Events over every kind of connection: they are part of the caller's transaction, and a refusal leaves it usable."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from tests.guests.conftest import MORE, Open, orders
from tests.guests.kinds import AsyncKind, Kind, Undo

from holdfast import ConcurrencyConflict, Holdfast, InvalidEvent, WrongConnection
from holdfast.testing import Kit

Write = Callable[[Kind, Holdfast, int], Any]

# The ways to write events, each of one order. The quotes travel as the driver takes them.
TEXT = "ü\\'\"{},NULL"
WRITES: dict[str, Write] = {
    "publish": lambda kind, app, n: kind.publish(app, "paid", {"n": n, "t": TEXT}, key=f"k{n}\\'"),
    "publish_with_id": lambda kind, app, n: kind.publish(
        app, "paid", {"n": n}, id=uuid4(), headers={"a": TEXT}
    ),
    "publish_many": lambda kind, app, n: kind.publish_many(
        app, [("paid", {"n": n, "t": TEXT}, f'k"{n}'), app.events.new("paid", {}, headers={"a": TEXT})]
    ),
    "publish_many_with_ids": lambda kind, app, n: kind.publish_many(
        app, [app.events.new("paid", {"n": n}, id=uuid4()), ("paid", {})]
    ),
    "append": lambda kind, app, n: kind.append(app, f"s{n}", [("paid", {"n": n, "t": TEXT})], 0),
}


def published(kit: Kit) -> list[int]:
    """The orders whose events are there, as anybody else sees them."""
    rows = kit.sql("SELECT (data->>'n')::int AS n FROM holdfast.events WHERE data ? 'n' ORDER BY seq")
    return [row["n"] for row in rows]


def test_an_event_is_there_exactly_when_the_transaction_commits(kind: Kind, app: Holdfast, kit: Kit) -> None:
    for n, (name, write) in enumerate(WRITES.items()):
        with pytest.raises(Undo), kind.block():
            write(kind, app, n)
            raise Undo
        assert published(kit) == list(range(n)), name
        with kind.block():
            kind.write(2 * n)
            write(kind, app, n)
            kind.write(2 * n + 1)
            assert published(kit) == list(range(n)), name
        assert published(kit) == list(range(n + 1)), name
        assert orders(kit) == list(range(2 * n + 2)), name
    texts = kit.sql("SELECT data->>'t' AS t, headers->>'a' AS a FROM holdfast.events")
    assert {value for row in texts for value in row.values()} == {TEXT, None}


def test_an_event_of_a_savepoint_goes_with_it(kind: Kind, app: Holdfast, kit: Kit) -> None:
    with kind.block():
        kind.publish(app, "paid", {"n": 1}, key="k")
        with pytest.raises(Undo), kind.nested():
            for n, write in enumerate(WRITES.values(), 10):
                write(kind, app, n)
            raise Undo
        with kind.nested():
            kind.publish(app, "paid", {"n": 2}, key="k")
        mine = kind.one("SELECT pg_current_xact_id()::text")
    assert published(kit) == [1, 2]
    assert kit.sql("SELECT DISTINCT xid::text AS xid FROM holdfast.events") == [{"xid": mine}]


def test_a_refusal_leaves_the_transaction_usable(kind: Kind, app: Holdfast, kit: Kit) -> None:
    app.events.append("taken", [("a", {})])
    bad: dict[str, tuple[type[Exception], Callable[[], Any]]] = {
        "type": (InvalidEvent, lambda: kind.publish(app, "order paid", {})),
        "too large": (InvalidEvent, lambda: kind.publish(app, "a", {"x": "x" * 230_000})),
        "one too large": (
            InvalidEvent,
            lambda: kind.publish_many(app, [("a", {}), ("a", {"x": "x" * 230_000})]),
        ),
        "not JSON": (InvalidEvent, lambda: kind.publish(app, "a", {"x": object()})),
        "NUL": (InvalidEvent, lambda: kind.publish(app, "a", {"x": "a\0b"})),
        "key": (InvalidEvent, lambda: kind.publish(app, "a", {}, key="x" * 513)),
        "headers": (InvalidEvent, lambda: kind.publish(app, "a", {}, headers={"a": 1})),
        "conflict": (ConcurrencyConflict, lambda: kind.append(app, "taken", [("a", {})], 7)),
        "stream": (InvalidEvent, lambda: kind.append(app, "", [("a", {})], 7)),
    }
    for n, (name, (error, call)) in enumerate(bad.items()):
        with kind.block():
            if n % 2:
                kind.write(2 * n)
            with pytest.raises(error):
                call()
            kind.publish(app, "paid", {"n": n})
            kind.write(2 * n + 1)
        assert published(kit) == list(range(n + 1)), name
        assert orders(kit)[-1] == 2 * n + 1, name
    assert kit.sql("SELECT count(*) AS n FROM holdfast.events WHERE NOT data ? 'n'") == [{"n": 1}]


def test_a_stream_is_read_decided_upon_and_appended_to(kind: Kind, app: Holdfast, kit: Kit) -> None:
    with kind.block():
        assert kind.version(app, "s") == 0
        assert kind.append(app, "s", [("a", {}), ("b", {})], 0) == 2
        assert kind.version(app, "s") == 2
        assert app.events.version("s") == 0
        with pytest.raises(ConcurrencyConflict) as caught:
            kind.append(app, "s", [("a", {})], 0)
        assert (caught.value.expected, caught.value.actual) == (0, 2)
    assert app.events.version("s") == 2


def test_an_id_is_one_event(kind: Kind, app: Holdfast, kit: Kit) -> None:
    number = uuid4()
    with kind.block():
        first, again = (kind.publish(app, "a", {}, id=number) for _ in range(2))
        new = app.events.new
        many = kind.publish_many(app, [new("a", {}, id=number), new("a", {"n": 1})])
    assert (first.created, again.created, [p.created for p in many]) == (True, False, [False, True])
    assert len({first.id, again.id, many[0].id}) == 1
    assert kit.sql("SELECT count(*) AS n FROM holdfast.events") == [{"n": 2}]


def test_in_autocommit_each_commits_by_itself(opened: Open, app: Holdfast, kit: Kit) -> None:
    with opened(autocommit=True) as kind:
        for n, write in enumerate(WRITES.values()):
            write(kind, app, n)
            assert published(kit) == list(range(n + 1))


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_the_callers_isolation_holds(opened: Open, app: Holdfast, kit: Kit, level: str) -> None:
    with opened(isolation=level) as kind:
        for n, write in enumerate(WRITES.values()):
            with kind.block():
                write(kind, app, n)
                assert kind.one("SHOW transaction_isolation") == level.lower()
    assert published(kit) == list(range(len(WRITES)))


CHANGED = {
    "search_path": "hostile, public, pg_catalog",
    "TimeZone": "Asia/Kolkata",
    "DateStyle": "German, DMY",
    "standard_conforming_strings": "off",
    "escape_string_warning": "off",
    "bytea_output": "escape",
}
HOSTILE = """
CREATE SCHEMA hostile;
CREATE TYPE hostile.text AS (a int);
CREATE TYPE hostile.uuid AS (a int);
CREATE TYPE hostile.jsonb AS (a int);
CREATE FUNCTION hostile.array_agg_(text[], pg_catalog.text) RETURNS text[] LANGUAGE sql AS $$ SELECT NULL::text[] $$;
CREATE AGGREGATE hostile.array_agg(pg_catalog.text) (SFUNC = hostile.array_agg_, STYPE = pg_catalog.text[]);
CREATE FUNCTION hostile.glue(anyarray, anyarray) RETURNS anyarray LANGUAGE plpgsql AS $$ BEGIN RAISE 'stolen'; END $$;
CREATE OPERATOR hostile.|| (LEFTARG = anyarray, RIGHTARG = anyarray, PROCEDURE = hostile.glue);
"""


def test_a_changed_session_and_redefined_names_do_not_matter(kind: Kind, app: Holdfast, kit: Kit) -> None:
    kit.sql(HOSTILE)
    shown = "SELECT pg_catalog.concat_ws(' ', " + ", ".join(
        f"pg_catalog.current_setting('{name}')" for name in CHANGED
    )
    with kind.block():
        for name, value in CHANGED.items():
            kind.one(f"SELECT pg_catalog.set_config('{name}', '{value}', true)")
        before = kind.one(f"{shown})")
        for n, write in enumerate(WRITES.values()):
            write(kind, app, n)
        assert kind.version(app, f"s{len(WRITES) - 1}") == 1
        with pytest.raises(ConcurrencyConflict):
            kind.append(app, "s", [("a", {})], 7)
        assert kind.one(f"{shown})") == before
    assert published(kit) == list(range(len(WRITES)))


@pytest.mark.parametrize("kind_class", MORE, indirect=True)
def test_wrappers_and_subclasses_of_sessions(opened: Open, app: Holdfast, kit: Kit) -> None:
    with opened() as kind:
        for end in (Undo, None):
            try:
                with kind.block():
                    for n, write in enumerate(WRITES.values()):
                        write(kind, app, n)
                    if end:
                        raise end
            except Undo:
                pass
            assert len(published(kit)) == (0 if end else len(WRITES))


def test_the_other_kind_of_verb_is_named(kind: Kind, app: Holdfast, kit: Kit) -> None:
    name = type(kind.conn).__name__
    said = []
    if isinstance(kind, AsyncKind):
        calls: list[Callable[[], Any]] = [
            lambda: app.publish("a", {}, conn=kind.conn),
            lambda: app.publish_many([], conn=kind.conn),
            lambda: app.events.append("s", [("a", {})], conn=kind.conn),
            lambda: app.events.version("s", conn=kind.conn),
        ]
        wanted = [
            f"{verb}() got an async connection ({name}); use await a{verb}()"
            for verb in ("publish", "publish_many", "append", "version")
        ]
    else:
        import asyncio

        calls = [
            lambda: asyncio.run(app.apublish("a", {}, conn=kind.conn)),
            lambda: asyncio.run(app.apublish_many([], conn=kind.conn)),
            lambda: asyncio.run(app.events.aappend("s", [("a", {})], conn=kind.conn)),
            lambda: asyncio.run(app.events.aversion("s", conn=kind.conn)),
        ]
        wanted = [
            f"a{verb}() got a sync connection ({name}); use {verb}()"
            for verb in ("publish", "publish_many", "append", "version")
        ]
    for call in calls:
        with pytest.raises(WrongConnection) as caught:
            call()
        said.append(str(caught.value))
    assert [text[: len(start)] for text, start in zip(said, wanted, strict=True)] == wanted
