"""Drift of the schema, indexes, queues and plans: each fault made, found, and gone after the printed command."""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from tests.conftest import wait_until
from tests.doctor.case import Case, transaction
from tests.sql.support import load, run

from holdfast.store.catalog import compare, read_catalog
from holdfast.testing import TestServer


@pytest.mark.versions
def test_a_fresh_database_is_what_the_release_makes(case: Case) -> None:
    """If this fails after a change of schema.sql: run scripts/catalog.py."""
    case.sql(
        "SELECT holdfast.create_queue('mail', 30), holdfast.create_queue('orders', NULL, 'key', 'block')"
    )
    result = case.doctor(
        "--only", "schema", "--only", "indexes", "--only", "queues", "--only", "plans", "--strict"
    )
    assert result.exit_code == 0, result.output
    assert result.stdout.count("ok: ") == 4


def test_migrations_pending(holdfast_server: TestServer, case: Case) -> None:
    name = f"bare_{uuid4().hex[:8]}"
    with holdfast_server._admin() as admin:
        admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
    try:
        case.url = holdfast_server.url(name)
        result = case.doctor()
        assert result.exit_code == 1
        assert re.search(r"^schema +not checked: migrations are pending$", result.stdout, re.MULTILINE)
        finding = case.cure("migrations_pending")
        assert (finding["level"], finding["details"][0]) == ("error", "0001_initial")
    finally:
        holdfast_server.drop(name)


@pytest.mark.versions
def test_schema_drift(case: Case) -> None:
    case.sql(
        """
        CREATE OR REPLACE FUNCTION holdfast.bucket(key text) RETURNS int
            LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS 'SELECT 7';
        CREATE OR REPLACE FUNCTION holdfast.uuid7() RETURNS uuid
            LANGUAGE sql VOLATILE PARALLEL SAFE AS 'SELECT gen_random_uuid()';
        GRANT EXECUTE ON FUNCTION holdfast.create_queue TO PUBLIC;
        DROP FUNCTION holdfast.uuid7_time(uuid);
        DROP VIEW holdfast.keys;
        DROP VIEW holdfast.storage;
        CREATE VIEW holdfast.storage AS SELECT 1 AS nonsense;
        DROP TABLE holdfast.progress;
        DROP TABLE holdfast.archive_07;
        DELETE FROM holdfast.engine;
        DELETE FROM holdfast.archive_slots WHERE slot = 3;
        ALTER SEQUENCE holdfast.work_seq CACHE 100;
        ALTER TABLE holdfast.work DROP CONSTRAINT work_status;
        ALTER TABLE holdfast.claims ALTER COLUMN queue SET DEFAULT 'inbox';
        ALTER TABLE holdfast.queues DROP CONSTRAINT queues_lease_check;
        ALTER TABLE holdfast.queues ADD CONSTRAINT queues_lease_check CHECK (lease > 0);
        """
    )
    finding = case.found("schema_drift")
    assert finding is not None
    assert (finding["level"], finding["fix"]) == ("error", ["holdfast migrate sql"])
    lease = (
        "constraint holdfast.queues.queues_lease_check: definition is CHECK ((lease > (0)::double precision)), "
        "should be CHECK (((lease >= (1)::double precision) AND (lease <= (86400)::double precision)))"
    )
    assert set(finding["details"]) == {
        "column holdfast.claims.queue: default is 'inbox'::text, should be not set",
        "constraint holdfast.inbox.work_status is missing",
        lease,
        "constraint holdfast.work.work_status is missing",
        "function holdfast.bucket(text): its text differs",
        "function holdfast.create_queue(text, double precision, text, text, boolean): public is on, should be off",
        "function holdfast.uuid7(): its text differs",
        "function holdfast.uuid7_time(uuid) is missing",
        "rows holdfast.archive_slots is missing",
        "rows holdfast.engine is missing",
        "sequence holdfast.work_seq: cache is 100, should be 1",
        "table holdfast.archive_07 is missing",
        "table holdfast.progress is missing",
        "view holdfast.keys is missing",
        "view holdfast.storage: its text differs",
    }


def test_a_function_with_fewer_rights_than_ours_is_no_drift(case: Case) -> None:
    case.sql("REVOKE ALL ON ALL FUNCTIONS IN SCHEMA holdfast FROM PUBLIC")
    assert case.found("schema_drift") is None


def test_what_a_server_prints_its_own_way_is_compared_on_known_versions_only(case: Case) -> None:
    with psycopg.connect(case.url, autocommit=True) as conn:
        real = run(conn, read_catalog())
    strange = {k: {**facts, "text": "?"} if k.kind == "view" else facts for k, facts in real.objects.items()}
    found = compare(replace(real, objects=strange))
    assert {str(d.key) for d in found} >= {"view attempts", "view jobs"}
    unknown = compare(replace(real, objects=strange, major=17))
    assert "view attempts" not in {str(d.key) for d in unknown}
    assert "view jobs" in {str(d.key) for d in unknown}  # printed alike everywhere


def test_a_column_that_is_not_ours_is_drift(case: Case) -> None:
    case.sql(
        """
        ALTER TABLE holdfast.engine ALTER COLUMN retention_days TYPE bigint;
        ALTER TABLE holdfast.errors ALTER COLUMN kind DROP NOT NULL;
        ALTER TABLE holdfast.errors DROP COLUMN worker;
        ALTER TABLE holdfast.fences SET UNLOGGED;
        """
    )
    finding = case.found("schema_drift")
    assert finding is not None
    assert set(finding["details"]) == {
        "column holdfast.engine.retention_days: type is bigint, should be integer",
        "column holdfast.errors.kind: not_null is off, should be on",
        "column holdfast.errors.worker is missing",
        "table holdfast.fences: persistence is u, should be p",
    }


def test_storage_drift(case: Case) -> None:
    case.sql(
        """
        SELECT holdfast.create_queue('mail');
        ALTER TABLE holdfast.inbox SET (fillfactor = 90, toast_tuple_target = 4096);
        ALTER TABLE holdfast.queue_mail ALTER COLUMN status SET STATISTICS 100;
        """
    )
    finding = case.found("storage_drift")
    assert finding is not None
    assert (finding["level"], finding["fix"]) == ("warning", ["holdfast migrate sql"])
    assert sorted(finding["details"]) == [
        "column holdfast.queue_mail.status: statistics is 100, should be 0",
        "table holdfast.inbox: fillfactor is 90, should be 50; toast_tuple_target is 4096, should be not set",
    ]


@pytest.mark.versions
def test_schema_extra(case: Case) -> None:
    """Whatever makes an enqueue fail, or hides its job from a claim."""
    case.sql(
        """
        SELECT holdfast.create_queue('mail');
        ALTER TABLE holdfast.work ADD CONSTRAINT "Only mine" CHECK (task = 'mine');
        ALTER TABLE holdfast.inbox ADD CONSTRAINT once_only UNIQUE (task);
        ALTER TABLE holdfast.archive ADD COLUMN cost int NOT NULL;
        ALTER TABLE holdfast.errors ADD COLUMN note text;
        ALTER TABLE holdfast.inbox ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
        CREATE FUNCTION holdfast.enqueue(task text) RETURNS uuid LANGUAGE sql AS 'SELECT NULL::uuid';
        CREATE FUNCTION holdfast.mine(task text) RETURNS uuid LANGUAGE sql AS 'SELECT NULL::uuid';
        """
    )
    with pytest.raises(psycopg.errors.CheckViolation):
        case.sql("SELECT holdfast.enqueue('work', '{}')")
    assert case.found("index_extra") is None  # it cannot be dropped without its constraint
    finding = case.cure("schema_extra")
    assert finding["level"] == "error"
    assert finding["what"].startswith("5 things in the schema that this release does not make: they may")
    assert sorted(finding["details"]) == [
        "column holdfast.archive.cost: NOT NULL and without a default, so no row can be written",
        "constraint holdfast.inbox.once_only: UNIQUE (task)",
        "constraint holdfast.work.Only mine: CHECK ((task = 'mine'::text))",
        "function holdfast.enqueue(text): another function of the same name, which a call may reach",
        "table holdfast.inbox: row level security is forced",
    ]
    (drop,) = finding["otherwise"]
    assert "DROP COLUMN cost" in drop
    assert drop.endswith("(loses what is in it)")
    assert case.sql("SELECT count(cost) AS n FROM holdfast.archive") == [{"n": 0}]  # the column stays
    case.sql("SELECT holdfast.enqueue('work') FROM generate_series(1, 2)")
    assert case.doctor("--only", "schema", "--only", "indexes", "--strict").exit_code == 0


def test_trigger_extra(case: Case) -> None:
    case.sql(
        """
        CREATE FUNCTION public.noted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
        CREATE TRIGGER noted BEFORE UPDATE ON holdfast.inbox FOR EACH ROW EXECUTE FUNCTION public.noted();
        """
    )
    finding = case.cure("trigger_extra")
    assert finding["level"] == "warning"
    assert "CREATE TRIGGER noted" in finding["details"][0]


# Queues ------------------------------------------------------------------------------------------------------------


def test_queue_without_table(case: Case) -> None:
    case.sql("SELECT holdfast.create_queue('mail', 30), holdfast.create_queue('fax')")
    case.sql("DROP TABLE holdfast.queue_mail")
    case.sql("ALTER TABLE holdfast.work DETACH PARTITION holdfast.queue_fax")
    finding = case.cure("queue_without_table")
    assert finding["level"] == "error"
    assert finding["details"] == [
        "queue fax: holdfast.queue_fax is not attached to holdfast.work",
        "queue mail: holdfast.queue_mail is not there",
    ]
    case.sql("SELECT holdfast.enqueue('work', '{}', 'mail'), holdfast.enqueue('work', '{}', 'fax')")
    assert case.doctor("--only", "schema", "--only", "indexes", "--strict").exit_code == 0


def test_a_queue_that_has_its_table_is_not_forgotten(case: Case) -> None:
    """The printed statement may be run after somebody else has made the table again."""
    case.sql("SELECT holdfast.create_queue('mail')")
    case.sql("DROP TABLE holdfast.queue_mail")
    finding = case.found("queue_without_table")
    assert finding is not None
    for _ in range(2):
        for line in finding["fix"]:
            case.run(line)
        case.sql("SELECT holdfast.enqueue('work', '{}', 'mail')")
    assert case.sql("SELECT count(*) AS n FROM holdfast.work") == [{"n": 2}]


def test_table_without_queue(case: Case) -> None:
    case.sql("SELECT holdfast.create_queue('mail')")
    case.sql("DELETE FROM holdfast.queues WHERE name = 'mail'")
    finding = case.cure("table_without_queue")
    assert (finding["level"], finding["details"]) == ("error", ["holdfast.queue_mail holds queue mail"])
    assert case.sql("SELECT relation FROM holdfast.queues WHERE name = 'mail'") == [
        {"relation": "queue_mail"}
    ]


def test_a_queue_that_is_written_down_again_is_ordered_if_it_was(case: Case) -> None:
    case.sql("SELECT holdfast.create_queue('orders', NULL, 'key', 'park')")
    case.sql("DELETE FROM holdfast.queues WHERE name = 'orders'")
    case.cure("table_without_queue")
    (row,) = case.sql("SELECT keyed, ordering, on_dead_letter FROM holdfast.queues WHERE name = 'orders'")
    assert row == {"keyed": True, "ordering": "key", "on_dead_letter": "skip"}  # nobody knows what it did


def test_what_an_ordered_queue_has_beside_the_others_is_compared(case: Case) -> None:
    case.sql("SELECT holdfast.create_queue('orders', NULL, 'key')")
    case.sql("DROP INDEX holdfast.queue_orders_stream")
    finding = case.found("index_missing")
    assert finding is not None
    assert finding["details"] == ["index holdfast.queue_orders.queue_orders_stream is missing"]
    case.run(finding["fix"][0])
    assert case.found("index_missing") is None
    case.sql("ALTER TABLE holdfast.queue_orders DROP CONSTRAINT queue_orders_keyed")
    drift = case.found("schema_drift")
    assert drift is not None
    assert drift["details"] == ["constraint holdfast.queue_orders.queue_orders_keyed is missing"]


# Indexes -----------------------------------------------------------------------------------------------------------


@pytest.mark.versions
def test_index_missing(case: Case) -> None:
    case.sql(
        """
        SELECT holdfast.create_queue('mail');
        DROP INDEX holdfast.queue_mail_claim;
        ALTER TABLE holdfast.inbox DROP CONSTRAINT inbox_pkey;
        DROP INDEX holdfast.inbox_held;
        CREATE INDEX inbox_held ON holdfast.inbox (task);
        DROP INDEX holdfast.archive_id;
        DROP INDEX holdfast.claims_worker;
        ALTER TABLE holdfast.once DROP CONSTRAINT once_pkey;
        ALTER TABLE holdfast.once ADD CONSTRAINT once_pkey PRIMARY KEY (job_id, at, name);
        """
    )
    finding = case.cure("index_missing")
    assert finding["level"] == "error"
    assert finding["what"] == "38 indexes missing or other than this release makes"
    assert "index holdfast.queue_mail.queue_mail_claim is missing" in finding["details"]
    assert case.doctor("--only", "schema", "--only", "indexes", "--strict").exit_code == 0


def test_index_invalid(case: Case) -> None:
    case.sql("SELECT holdfast.enqueue('work')")
    case.sql("SELECT holdfast.enqueue('work')")
    with pytest.raises(psycopg.errors.UniqueViolation):  # a build that fails leaves its index behind
        case.sql("CREATE UNIQUE INDEX CONCURRENTLY inbox_left ON holdfast.inbox (task)")
    case.sql("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'holdfast.inbox_claim'::regclass")
    finding = case.cure("index_invalid")
    assert finding["level"] == "error"
    assert finding["details"] == [
        "holdfast.inbox_claim on holdfast.inbox",
        "holdfast.inbox_left on holdfast.inbox",
    ]
    assert case.doctor("--only", "indexes", "--strict").exit_code == 0


def test_an_index_that_is_being_built_is_no_leftover(case: Case) -> None:
    building = (
        "SELECT 1 FROM pg_stat_progress_create_index WHERE index_relid = to_regclass('holdfast.inbox_slow')"
    )
    with ThreadPoolExecutor(1) as pool:
        with transaction(case.url, "SELECT holdfast.enqueue('work')"):  # which the build waits for
            build = pool.submit(case.sql, "CREATE INDEX CONCURRENTLY inbox_slow ON holdfast.inbox (status)")
            wait_until(lambda: bool(case.sql(building)), "the index is being built")
            assert case.found("index_invalid") is None
            assert case.found("index_extra") is None
        build.result()
    case.cure("index_extra")


def test_an_index_of_partitions_that_was_not_finished(case: Case) -> None:
    case.sql("DROP INDEX holdfast.archive_id; CREATE INDEX archive_id ON ONLY holdfast.archive (id)")
    case.sql("CREATE INDEX archive_03_id_idx ON holdfast.archive_03 (id)")
    case.cure("index_invalid")
    case.cure("index_missing")
    assert case.doctor("--only", "indexes", "--strict").exit_code == 0


def test_index_extra(case: Case) -> None:
    case.sql('CREATE INDEX "My own" ON holdfast.inbox (status)')
    finding = case.cure("index_extra")
    assert finding["level"] == "warning"
    case.sql("CREATE INDEX mine ON holdfast.dead_letters (task)")  # nobody's trouble
    assert case.found("index_extra") is None


# Plans -------------------------------------------------------------------------------------------------------------


@pytest.mark.versions
def test_planner_off(case: Case) -> None:
    """A switch that somebody turned for the whole database. The engine's own sessions get over it; others do not."""
    with psycopg.connect(case.url, autocommit=True) as conn:
        load(conn, 6000)
        conn.execute("ANALYZE holdfast.inbox")
    assert case.found("slow_plan") is None
    (row,) = case.sql("SELECT quote_ident(current_database()) AS name")
    case.sql(f"ALTER DATABASE {row['name']} SET enable_indexscan = off")
    assert case.found("slow_plan") is None
    finding = case.cure("planner_off")
    assert finding["level"] == "warning"
    assert finding["details"][0].startswith("enable_indexscan is off for database ")


@pytest.mark.versions
def test_slow_plan(case: Case) -> None:
    case.sql("DROP INDEX holdfast.inbox_claim")
    finding = case.cure("slow_plan")
    assert "queue inbox: claim reads all of holdfast.inbox" in finding["details"]
    assert "CREATE INDEX CONCURRENTLY inbox_claim ON holdfast.inbox" in finding["fix"][0]
