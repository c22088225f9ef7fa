"""Groups that are partly counted, and workers that sleep, while migration 2 gives both a place beside their rows."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.migration.servers import Database, eventually

from holdfast import sql as files
from holdfast.db import migrate

pytestmark = pytest.mark.versions

ENDED = "SELECT holdfast.jobs_ended(ARRAY[gen_random_uuid()], '{completed}', ARRAY[(SELECT id FROM holdfast.groups)], NULL)"
OPEN = """SELECT g.open - coalesce(c.ended, 0), g.finished_at IS NOT NULL,
                 (SELECT count(*) FROM holdfast.work WHERE task = 'after')
          FROM holdfast.groups g LEFT JOIN holdfast.group_counts c ON c.group_id = g.id"""
ALL_AFTER_1 = list(range(2, migrate.required_version() + 1))
WAITS = """SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
           WHERE NOT l.granted AND l.relation = 'holdfast.{}'::regclass AND a.application_name = '{}'"""


@pytest.fixture
def before(make_database: Callable[[], Database]) -> Database:
    """A database of the release before, with a group of four that is followed by one job."""
    database = make_database()
    migrate.up(database.dsn, migrations=files.migrations()[:1])
    members = ", ".join(['{"task": "work"}'] * 4)
    database.run(f"""SELECT FROM holdfast.enqueue_group('[{members}]', '[{{"task": "after"}}]')""")
    return database


def test_a_group_that_is_partly_counted_goes_on(before: Database) -> None:
    before.run(ENDED)
    migrate.up(before.dsn)
    for left in (2, 1, 0):
        before.run(ENDED)
        assert before.ask(OPEN) == [(left, left == 0, int(left == 0))]
    assert before.ask("SELECT count(*) FROM holdfast.group_counts") == [(0,)]


def test_a_call_that_is_under_way_when_its_function_is_replaced_counts(before: Database) -> None:
    """It waits for the migration at the group's table, and goes on in the old text."""
    with before.connect() as reader, before.connect() as caller, ThreadPoolExecutor(2) as pool:
        reader.execute("BEGIN; LOCK TABLE holdfast.workers IN ACCESS SHARE MODE")
        migrating = pool.submit(migrate.up, before.dsn, lock_timeout=60.0)
        eventually(lambda: before.ask(WAITS.format("workers", "holdfast migrate")))
        caller.execute("SET application_name = 'caller'")
        calling = pool.submit(caller.execute, ENDED.encode())
        eventually(lambda: before.ask(WAITS.format("groups", "caller")))
        reader.execute("COMMIT")
        assert migrating.result(100) == ALL_AFTER_1
        calling.result(100)
    assert before.ask("SELECT open FROM holdfast.groups") == [(3,)], "it counted in the row"
    for left in (2, 1, 0):
        before.run(ENDED)
        assert before.ask(OPEN) == [(left, left == 0, int(left == 0))]


def test_who_sleeps_while_it_is_applied_is_counted(before: Database) -> None:
    before.run(
        "INSERT INTO holdfast.sleepers VALUES ('inbox', 'a', 5), ('inbox', 'b', 7), ('orders', 'a', 5)"
    )
    with before.connect() as late, ThreadPoolExecutor(1) as pool:
        late.execute("BEGIN")
        late.execute("INSERT INTO holdfast.sleepers VALUES ('inbox', 'c', 1), ('mail', 'c', 1)")
        late.execute("DELETE FROM holdfast.sleepers WHERE worker = 'b'")
        migrating = pool.submit(migrate.up, before.dsn)
        eventually(lambda: before.ask(WAITS.format("sleepers", "holdfast migrate")))
        late.execute("COMMIT")
        assert migrating.result(100) == ALL_AFTER_1
    asleep = "SELECT queue, sleepers, poll FROM holdfast.asleep WHERE queue <> '+events' ORDER BY queue"
    assert before.ask(asleep) == [("inbox", 2, 5.0), ("mail", 1, 1.0), ("orders", 1, 5.0)]
    before.run("DELETE FROM holdfast.sleepers WHERE worker = 'a'")
    assert before.ask(asleep) == [("inbox", 1, 5.0), ("mail", 1, 1.0), ("orders", 0, 5.0)]


def test_nobody_who_leaves_is_the_victim_of_a_deadlock(before: Database) -> None:
    """Who leaves has the table of sleepers first and waits for that of workers: the migration gives way."""
    with before.connect() as leaver, before.connect() as reader, ThreadPoolExecutor(2) as pool:
        reader.execute("BEGIN; LOCK TABLE holdfast.workers IN ACCESS SHARE MODE")
        leaver.execute("BEGIN; DELETE FROM holdfast.sleepers WHERE worker = 'a'")
        migrating = pool.submit(migrate.up, before.dsn, lock_timeout=60.0)
        eventually(lambda: before.ask(WAITS.format("workers", "holdfast migrate")))
        leaver.execute("SET application_name = 'leaver'")
        leaving = pool.submit(leaver.execute, "UPDATE holdfast.workers SET status = 'gone' WHERE id = 'a'")
        eventually(lambda: before.ask(WAITS.format("workers", "leaver")))
        reader.execute("COMMIT")
        leaving.result(100)
        leaver.execute("COMMIT")
        assert migrating.result(100) == ALL_AFTER_1


def test_who_may_look_who_sleeps_may_look_how_many(before: Database, role: str) -> None:
    before.run(f"GRANT SELECT, INSERT, DELETE ON holdfast.sleepers TO {role}")
    before.run(f"GRANT SELECT, UPDATE, DELETE ON holdfast.groups TO {role}")
    migrate.up(before.dsn)
    may = f"""SELECT c.relname::text, string_agg(p.name, ' ' ORDER BY p.name) FROM pg_class c
              CROSS JOIN (VALUES ('SELECT'), ('INSERT'), ('UPDATE'), ('DELETE')) AS p(name)
              WHERE c.oid IN ('holdfast.asleep'::regclass, 'holdfast.group_counts'::regclass)
                AND has_table_privilege('{role}', c.oid, p.name)
              GROUP BY 1 ORDER BY 1"""
    assert before.ask(may) == [("asleep", "SELECT"), ("group_counts", "DELETE SELECT")]
