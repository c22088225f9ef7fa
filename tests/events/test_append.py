"""Streams: the version is checked and counted, whoever writes to the key and under whatever isolation."""

import threading
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from tests.conftest import QUICK, wait_until

from holdfast import ConcurrencyConflict, Holdfast
from holdfast.testing import Kit

pytestmark = pytest.mark.versions
PAID = ("order.paid", {"order_id": 1})
SNAPSHOTS = (psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE)


@pytest.fixture
def app() -> Holdfast:
    return Holdfast()


@pytest.fixture
def kit(app: Holdfast, holdfast_kit: Callable[..., Kit]) -> Kit:
    return holdfast_kit(app, QUICK)


def events(kit: Kit, key: str = "order:1") -> int:
    return int(kit.sql("SELECT count(*) AS n FROM holdfast.events WHERE key = %s", [key])[0]["n"])


def blocked(kit: Kit) -> bool:
    return bool(kit.sql("SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'advisory'"))


def test_a_stream_is_appended_to_at_the_version_that_is_expected(app: Holdfast, kit: Kit) -> None:
    assert app.events.version("order:1") == 0
    assert app.events.append("order:1", [PAID, PAID], expected_version=0) == 2
    assert app.events.append("order:1", [PAID], expected_version=2) == 3
    assert app.events.append("order:1", [PAID]) == 4
    for expected in (0, 3, 5):
        with pytest.raises(ConcurrencyConflict) as caught:
            app.events.append("order:1", [PAID], expected_version=expected)
        conflict = caught.value
        assert (conflict.stream, conflict.expected, conflict.actual) == ("order:1", expected, 4)
    assert (
        str(conflict) == "stream 'order:1' is at version 4, not 5: somebody else wrote to it. "
        "Read it again and decide again"
    )
    assert (app.events.version("order:1"), events(kit)) == (4, 4)
    assert app.events.append("order:2", [PAID], expected_version=0) == 1


def test_every_event_of_the_key_counts_from_the_first_append_on(app: Holdfast, kit: Kit) -> None:
    """A key that nobody has appended to is no stream: what was published before does not count."""
    app.publish(*PAID, key="order:1")
    assert app.events.version("order:1") == 0
    assert app.events.append("order:1", [PAID], expected_version=0) == 1
    app.publish(*PAID, key="order:1")
    app.publish_many([(*PAID, "order:1"), (*PAID, "order:2"), (*PAID, "order:1")])
    kit.sql("SELECT holdfast.publish('order.paid', '{}', 'order:1')")
    number = uuid4()
    for _ in range(2):
        app.publish(*PAID, key="order:1", id=number)  # once
    with kit.connect() as conn:
        app.publish(*PAID, key="order:1", conn=conn)
        conn.rollback()
    assert (app.events.version("order:1"), app.events.version("order:2"), events(kit)) == (6, 0, 7)
    with pytest.raises(ConcurrencyConflict):
        app.events.append("order:1", [PAID], expected_version=1)


@pytest.mark.parametrize("first_commits", [True, False])
def test_of_two_at_once_exactly_one_wins(app: Holdfast, kit: Kit, first_commits: bool) -> None:
    for version in (0, 1):
        ended: list[Any] = []

        def second(version: int = version, ended: list[Any] = ended) -> None:
            try:
                ended.append(app.events.append("order:1", [PAID], expected_version=version))
            except ConcurrencyConflict as conflict:
                ended.append(conflict.actual)

        with kit.connect() as conn:
            assert app.events.append("order:1", [PAID], expected_version=version, conn=conn) == version + 1
            thread = threading.Thread(target=second)
            thread.start()
            wait_until(lambda: blocked(kit), "the second waits")
            assert ended == []
            if first_commits:
                conn.commit()
            else:
                conn.rollback()
            thread.join(60)
        assert ended == [version + 1]  # appended as this version, or told of it
        assert (app.events.version("order:1"), events(kit)) == (version + 1, version + 1)


def test_many_at_once_leave_no_gap(app: Holdfast, kit: Kit) -> None:
    won: list[int] = []
    behind: list[bool] = []

    def writer() -> None:
        done = 0
        while done < 10:
            version = app.events.version("order:1")
            try:
                won.append(app.events.append("order:1", [PAID], expected_version=version))
                done += 1
            except ConcurrencyConflict as conflict:
                behind.append(conflict.actual > version)

    threads = [threading.Thread(target=writer) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(won) == list(range(1, 41))
    assert all(behind)
    assert events(kit) == 40


@pytest.mark.parametrize("level", SNAPSHOTS, ids=lambda level: level.name)
@pytest.mark.parametrize("how", ["append", "publish", "publish_many"])
@pytest.mark.parametrize("began", [True, False])
def test_a_snapshot_that_does_not_see_the_stream_fails_and_counts_nothing(
    app: Holdfast, kit: Kit, level: psycopg.IsolationLevel, how: str, began: bool
) -> None:
    """The stream began, or went on, after the snapshot was taken: 40001, as of every row that changed since."""
    if began:
        app.events.append("order:1", [PAID])
    many = [(*PAID, "order:1"), (*PAID, "order:3")]
    with kit.connect() as conn:
        conn.rollback()
        conn.isolation_level = level
        conn.execute("SELECT 1")
        app.events.append("order:1", [PAID])
        with pytest.raises(psycopg.errors.SerializationFailure):
            if how == "append":
                app.events.append("order:1", [PAID], conn=conn)
            elif how == "publish":
                app.publish(*PAID, key="order:1", conn=conn)
            else:
                app.publish_many(many, conn=conn)
        conn.rollback()
        if how == "append":  # the same again in a new transaction
            app.events.append("order:1", [PAID], conn=conn)
        elif how == "publish":
            app.publish(*PAID, key="order:1", conn=conn)
        else:
            app.publish_many(many, conn=conn)
        conn.commit()
    assert app.events.version("order:1") == events(kit) == 2 + began
    assert kit.sql("SELECT key FROM holdfast.event_streams") == [{"key": "order:1"}]


def test_a_key_that_is_no_stream_is_published_to_under_any_isolation(app: Holdfast, kit: Kit) -> None:
    for level in SNAPSHOTS:
        with kit.connect() as conn:
            conn.rollback()
            conn.isolation_level = level
            conn.execute("SELECT 1")
            app.publish(*PAID, key="order:1")
            app.publish(*PAID, key="order:1", conn=conn)
            app.publish_many([(*PAID, "order:1"), (*PAID, "order:2"), PAID], conn=conn)
            conn.commit()
    assert (events(kit), kit.sql("SELECT * FROM holdfast.event_streams")) == (6, [])


# The lock on the key ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["publish", "publish_many", "append"])
def test_a_publisher_waits_for_an_open_one_of_its_key_and_for_no_other(
    app: Holdfast, kit: Kit, how: str
) -> None:
    write: Callable[[str], Any] = {
        "publish": lambda key: app.publish(*PAID, key=key),
        "publish_many": lambda key: app.publish_many([(*PAID, key), (*PAID, "more")]),
        "append": lambda key: app.events.append(key, [PAID]),
    }[how]
    done: list[int] = []
    with kit.connect() as conn:
        first = app.publish(*PAID, key="order:1", conn=conn)
        write("order:2")
        thread = threading.Thread(target=lambda: done.append(bool(write("order:1"))))
        thread.start()
        wait_until(lambda: blocked(kit), "it waits")
        assert done == []
        conn.commit()
        thread.join(60)
    assert done == [True]
    seqs = kit.sql("SELECT seq FROM holdfast.events WHERE key = 'order:1' ORDER BY seq")
    assert seqs[0]["seq"] == first.seq  # the number is drawn under the lock


# Whoever calls it in SQL ------------------------------------------------------------------------------------------

HUGE = '{"a": 1e131000, "b": 1e131000}'
LIMIT = "the limit is 229376: store it elsewhere and publish a reference"
# What publish() is called with, and what it says. JSON is jsonb, and text where there are many.
WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "type": (
        ("'order paid'", "'{}'"),
        "event type 'order paid' is not usable: 1 to 200 letters, digits and _ . -",
    ),
    "no type": (("NULL", "'{}'"), "event type NULL is not usable: 1 to 200 letters, digits and _ . -"),
    "data": (("'a'", "'[]'"), "the data of an event must be a JSON object"),
    "no data": (("'a'", "NULL"), "the data of an event must be a JSON object"),
    "large": (
        ("'a'", """('{"x": "' || repeat('x', 229376) || '"}')::JSON"""),
        f"the data of the event is 229385 bytes, {LIMIT}",
    ),
    "large when it is printed": (("'a'", f"'{HUGE}'"), f"the data of the event is 262016 bytes, {LIMIT}"),
    "key": (("'a'", "'{}'", "''"), "the key of an event must not be empty: leave it out for none"),
    "long key": (("'a'", "'{}'", "repeat('ü', 300)"), "the key is 600 bytes, the limit is 512"),
    "headers": (("'a'", "'{}'", "NULL", """'{"n": 1}'"""), "headers must be a JSON object of strings"),
    "list of headers": (("'a'", "'{}'", "NULL", "'[]'"), "headers must be a JSON object of strings"),
    "large headers": (
        ("'a'", "'{}'", "NULL", """('{"n": "' || repeat('x', 8192) || '"}')::JSON"""),
        "headers are 8201 bytes, the limit is 8192",
    ),
    "version": (("'a'", "'{}'", "NULL", "NULL", "NULL", "0"), "version must be 1 or more, not 0"),
}
COLUMNS = (
    ("'b'", "text"),
    ("'{}'", "text"),
    ("NULL", "text"),
    ("NULL", "text"),
    ("NULL", "uuid"),
    ("1", "int"),
)


def refusal(kit: Kit, statement: str) -> str:
    with kit.connect() as conn, pytest.raises(psycopg.errors.InvalidParameterValue) as caught:
        conn.execute(statement.encode())
    return caught.value.diag.message_primary or ""


def test_callers_of_sql_cannot_get_around_the_checks(kit: Kit) -> None:
    for name, (given, words) in WRONG.items():
        one = ", ".join(given).replace("JSON", "jsonb")
        assert refusal(kit, f"SELECT holdfast.publish({one})") == words, name
        texts = [part.replace("JSON", "text") for part in given]
        alone = [f"ARRAY[{part}]::{kind}[]" for part, (_, kind) in zip(texts, COLUMNS, strict=False)]
        assert refusal(kit, f"SELECT holdfast.publish_many({', '.join(alone)})") == words, name
        second = [
            f"ARRAY[{good}, {part}]::{kind}[]" for part, (good, kind) in zip(texts, COLUMNS, strict=False)
        ]
        assert refusal(kit, f"SELECT holdfast.publish_many({', '.join(second)})") == f"event 2: {words}", name
    assert kit.sql("SELECT 1 FROM holdfast.events") == []


def test_what_is_wrong_with_an_append_in_sql(kit: Kit) -> None:
    assert refusal(kit, "SELECT holdfast.append_events('', 0, '{a}', '{\"{}\"}')") == (
        "a stream is a key of 1 to 512 bytes, not ''"
    )
    assert refusal(kit, "SELECT holdfast.append_events(NULL, 0, '{a}', '{\"{}\"}')") == (
        "a stream is a key of 1 to 512 bytes, not NULL"
    )
    assert refusal(kit, "SELECT holdfast.append_events('s', -1, '{a}', '{\"{}\"}')") == (
        "the expected version must be 0 or more, not -1"
    )
    assert (
        refusal(kit, "SELECT holdfast.append_events('s', 0, '{}', '{}')") == "append needs one event at least"
    )
    assert refusal(kit, "SELECT holdfast.append_events('s', 0, '{a b}', '{\"{}\"}')") == (
        "event type 'a b' is not usable: 1 to 200 letters, digits and _ . -"
    )
    with kit.connect() as conn:
        with pytest.raises(psycopg.Error) as caught:
            conn.execute("SELECT holdfast.append_events('it''s', 7, '{a}', '{\"{}\"}')")
        assert (caught.value.sqlstate, caught.value.diag.message_primary) == (
            "HF002",
            "stream 'it''s' is at version 0, not 7",
        )
    assert kit.sql("SELECT 1 FROM holdfast.events") == kit.sql("SELECT 1 FROM holdfast.event_streams") == []


def test_more_than_a_hundred_thousand_are_refused_in_sql(kit: Kit) -> None:
    many = "array_fill('a'::text, ARRAY[100001]), array_fill('{}'::text, ARRAY[100001])"
    assert refusal(kit, f"SELECT count(*) FROM holdfast.publish_many({many})") == (
        "100001 events at once, the limit is 100000: publish them in several calls"
    )


def test_in_sql_as_any_language_writes_it(kit: Kit) -> None:
    number = uuid4()
    (made,) = kit.sql("SELECT * FROM holdfast.publish('order.paid', '{\"order_id\": 1}', 'order:1')")
    assert made["created"]
    (one,) = kit.sql("SELECT * FROM holdfast.publish('order.paid', event_id => %s, version => 2)", [number])
    (again,) = kit.sql("SELECT * FROM holdfast.publish('order.paid', event_id => %s)", [number])
    assert (one["id"], one["created"], again) == (number, True, {**one, "created": False})
    many = kit.sql("SELECT * FROM holdfast.publish_many('{a,b}', ARRAY['{\"n\": 1}', '  {\"n\": 2}'])")
    assert [m["created"] for m in many] == [True, True]
    appended = kit.sql("SELECT * FROM holdfast.append_events('s', 0, '{a,b}', ARRAY['{}', '{}'])")
    assert [a["version"] for a in appended] == [2, 2]
    rows = kit.sql("SELECT type, version, key, id FROM holdfast.events ORDER BY seq")
    assert [(r["type"], r["version"], r["key"]) for r in rows] == [
        ("order.paid", 1, "order:1"),
        ("order.paid", 2, None),
        ("a", 1, None),
        ("b", 1, None),
        ("a", 1, "s"),
        ("b", 1, "s"),
    ]
    assert [r["id"] for r in rows] == [m["id"] for m in (made, one, *many, *appended)]
