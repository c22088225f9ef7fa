# ruff: noqa: E501
"""The roles of `holdfast roles sql`: what each may do, object by object, and that it is enough and no more."""

import asyncio
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.rights.commands import (
    ELSEWHERE,
    FIX,
    READS,
    WRITES,
    command_of,
    every_command,
    filled,
    something_of_each,
)
from tests.rights.given import Roles
from tests.rights.life import COMPLETED, Life, count
from tests.surface.running import Cli

from holdfast import ConfigurationError, event
from holdfast.db import migrate
from holdfast.db.faults import Forbidden
from holdfast.model.queue import QueueRules
from holdfast.operate.roles import roles_sql
from holdfast.runtime.tidy import Tidier
from holdfast.shapes.schedules.shape import SHAPE
from holdfast.shapes.webhooks.store import QUEUE, mend_holds
from holdfast.store.queues import create_queue
from holdfast.testing import TestServer

pytestmark = pytest.mark.versions


@event("rights.granted")  # for `holdfast contracts store`
@dataclass
class Granted:
    n: int


# S select, I insert, U update, D delete; lower case: some columns only. A producer may do nothing here.
TABLES = """
                worker  operator_ro  operator_rw
work            SIUD    S            SIUD
inbox           SIUD    S            SIUD
queue_ordered   SIUD    S            SIUD
queue_fair      SIUD    S            SIUD
queue_limited   SIUD    S            SIUD
queue_later     SIUD    S            SIUD
queues          S       S            SU
limits          SIUD    S            SU
key_limits      SIUD    S            SU
key_tokens      SIUD    S            S
key_holds       SIUD    S            SIUD
key_rules       S       S            SIUD
paused_tasks    SIUD    S            SIUD
breakers        SIU     S            SU
quarantine      SIUD    S            SUD
parked_keys     SI      S            SUD
workers         SIUD    S            SU
seats           SID     S            S
claims          SIUD    S            SU
sleepers        SID     S            SD
asleep          S       S            S
engine          Su      S            Su
archive         SI      S            SIUD
archive_slots   SU      S            S
dead_letters    SIUD    S            SIUD
errors          SIUD    S            SD
misfits         SIUD    S            SD
group_ends      -       S            S
idempotency     SUD     S            SD
replacements    SUD     S            S
groups          SUD     S            SU
group_counts    SD      S            S
once            SIUD    S            SD
progress        SIUD    S            SD
fences          SIUD    S            SD
audit           SD      S            S
producers       -       S            S
throughput      SIUD    S            S
operations      SuD     S            Siu
redriven        SIUD    S            SIUD
web_views       -       S            SIUD
web_requests    -       -            SIUD
samples         SD      S            S
schedules       SIU     S            SIUD
firings         SIUD    S            SIUD
events          -       S            S
event_log       S       S            Su
event_pages     S       S            S
event_ids       SD      S            S
event_streams   S       S            S
received        SD      S            S
sources         SIUD    S            S
event_failures  SIUD    S            SIUD
event_types     -       S            SI
subscriptions   SIUD    S            SIUD
projection_builds SIUD  S            SIUD
subscription_lag S      S            S
migrations      S       S            S
jobs            -       S            S
oldest_due      S       S            S
storage         S       S            S
webhook_endpoints s     s            s
webhook_secrets s       s            s
webhook_health  S       S            S
webhook_settings SU     S            S
webhook_deliveries S    S            S
webhook_attempts S      S            S
webhook_ranges  S       S            S
webhook_requests -      -            -
webhook_writes  -       S            S
workflow_runs   SU      S            Su
workflow_steps  SIU     S            SuD
workflow_signals S      S            SuD
workflow_signal_keys -  S            SD
workflow_history S      S            S
workflow_types  SIU     S            S
workflow_calls  -       S            S
workflow_upkeep -       S            S
workflow_at_work SIUD   S            S
"""
OTHERS = {"worker": "", "operator_ro": "S", "operator_rw": "S"}  # archive_00 and so on, and the other views

# Rights on single columns: the lower-case letters above.
WORKER_SEES = "id tenant url events ordered rate concurrency status disabled_reason disabled_at created_at version changed"
BEGUN = "id verb selection options bounds actor surface address reason created_at total capped audit"
CARRIED_ON = "state runner token beat_at started_at ended_at stopped_by runs place done looked_at results left_out paced_until fault retry_at"
COLUMNS = {
    **{(f"operations.{column}", "operator_rw"): "INSERT" for column in BEGUN.split()},
    **{
        (f"operations.{column}", role): "UPDATE"
        for column in CARRIED_ON.split()
        for role in ("worker", "operator_rw")
    },
    ("engine.grace_until", "worker"): "UPDATE",
    ("engine.last_sweep_at", "worker"): "UPDATE",
    ("engine.last_tidy_at", "worker"): "UPDATE",
    ("engine.misfits_at", "worker"): "UPDATE",
    ("engine.retention_days", "operator_rw"): "UPDATE",
    ("event_log.hold_bytes", "operator_rw"): "UPDATE",
    ("event_log.hold_days", "operator_rw"): "UPDATE",
    ("event_log.retention_days", "operator_rw"): "UPDATE",
    ("workflow_runs.error", "operator_rw"): "UPDATE",
    ("workflow_runs.state", "operator_rw"): "UPDATE",
    ("workflow_steps.ordinal", "operator_rw"): "UPDATE",
    ("workflow_signals.taken_by", "operator_rw"): "UPDATE",
    **{
        (f"webhook_{table}.{column}", role): "SELECT"
        for table, role, columns in (
            ("endpoints", "worker", WORKER_SEES),
            (
                "endpoints",
                "operator_ro",
                f"{WORKER_SEES} scheme burst headers_key_id description enabled_at updated_at",
            ),
            ("secrets", "worker", "id endpoint_id scheme key_id created_at expires_at"),
            ("secrets", "operator_ro", "id endpoint_id scheme key_id created_at expires_at public_key"),
        )
        for column in columns.split()
    },  # but for what is sealed
}
SEQUENCES = {
    ("work_seq", "worker"): "USAGE",
    ("work_seq", "operator_rw"): "USAGE",
    ("workflow_seq", "worker"): "USAGE",
    ("event_seq", "worker"): "SELECT",
    ("event_seq", "operator_ro"): "SELECT",
    ("event_seq", "operator_rw"): "SELECT",
}

FUNCTIONS = """
                     producer  receiver  portal  worker  operator_ro  operator_rw
enqueue              X         -         -       X       -            X
enqueue_many         X         -         -       X       -            X
enqueue_group        X         -         -       X       -            X
enqueue_specs        -         -         -       X       -            X
jobs_ended           -         -         -       X       -            X
jobs_ended_at_commit -         -         -       X       -            X
try_callback         -         -         -       X       -            X
count_group_ends     -         -         -       -       -            -
count_group          -         -         -       -       -            -
counted_in_row       -         -         -       -       -            -
count_sleepers       -         -         -       -       -            -
write_jobs           -         -         -       -       -            -
fill_bucket          -         -         -       -       -            -
keep_key             -         -         -       -       -            -
guard_keys           -         -         -       -       -            -
check_may_link       -         -         -       -       -            -
digits               -         -         -       -       -            -
printed_bytes        -         -         -       -       -            -
moment               -         -         -       -       -            -
normal_specs         -         -         -       -       -            -
clock_offset         X         X         X       X       X            X
close_group          -         -         -       X       -            X
conflict_text        -         -         -       X       -            X
wake                 -         -         -       X       -            X
note_breaker         -         -         -       X       -            -
close_breaker        -         -         -       X       -            X
empty_archive_slot   -         -         -       X       -            -
lock_streams         -         -         -       X       -            X
try_streams          -         -         -       X       -            -
audit_act            -         -         X       -       -            X
record_act           -         -         X       -       -            X
audit_operation      -         -         -       X       -            X
take_sample          -         -         -       X       -            -
audit_more           -         -         -       -       -            X
create_queue         -         -         -       -       -            X
order_queue          -         -         -       -       -            X
scaler_backlog       -         -         -       -       X            X
spec_fault           -         -         -       -       -            -
spec_conflict        -         -         -       -       -            -
check_links          -         -         -       -       -            -
check_producer       -         -         -       -       -            -
publish              X         -         -       X       -            X
publish_many         X         -         -       X       -            X
append_events        X         -         -       X       -            X
event_fault          -         -         -       -       -            -
check_streams        -         -         -       -       -            -
event_snapshot       -         -         -       -       -            -
write_pages          -         -         -       -       -            -
turn_page            -         -         -       X       -            X
turn_or_look         -         -         -       X       X            X
read_events          -         -         -       X       X            X
event_seq_at         -         -         -       X       X            X
event_position_at    -         -         -       X       X            X
event_seq_of         -         -         -       X       X            X
hold_log_start       -         -         -       X       -            X
event_position       -         -         -       X       X            X
empty_event_slots    -         -         -       X       -            -
workflow_start       X         -         -       X       -            X
workflow_start_many  X         -         -       X       -            X
workflow_signal      X         -         -       X       -            X
workflow_cancel      X         -         -       X       -            X
workflow_result      X         -         -       X       X            X
workflow_pause       -         -         -       -       -            X
workflow_resume      -         -         -       -       -            X
workflow_terminate   -         -         -       -       -            X
workflow_end         -         -         -       X       -            -
workflow_put         -         -         -       X       -            -
workflow_own         -         -         -       X       -            -
workflow_decide      -         -         -       X       -            -
workflow_receive     -         -         -       X       -            -
workflow_suspend     -         -         -       X       -            -
workflow_child       -         -         -       X       -            -
workflow_publish     -         -         -       X       -            -
workflow_call        -         -         -       X       -            -
workflow_next_era    -         -         -       X       -            -
workflow_begin_era   -         -         -       X       -            -
workflow_reopen      -         -         -       X       -            X
workflow_fork        -         -         -       -       -            X
workflow_settle_lost -         -         -       X       -            -
empty_workflow_slots -         -         -       X       -            -
workflow_begin       -         -         -       -       -            -
workflow_send        -         -         -       -       -            -
workflow_tell        -         -         -       -       -            -
workflow_run         -         -         -       -       -            -
workflow_rouse       -         -         -       -       -            -
workflow_take_out    -         -         -       -       -            -
workflow_ask_cancel  -         -         -       -       -            -
workflow_fold        -         -         -       -       -            -
workflow_outcome     -         -         -       -       -            -
workflow_watch       -         -         -       -       -            -
workflow_send_end    -         -         -       -       -            -
workflow_received_before - - -       -       -            -
members_ended        -         -         -       -       -            -
rebase_events        -         -         -       -       -            X
erase_events         -         -         -       -       -            X
erase_event_key      -         -         -       -       -            X
blanked              -         -         -       -       -            -
restart_projection   -         -         -       X       -            X
begin_reshard        -         -         -       X       -            X
finish_reshard       -         -         -       X       -            X
rebuild_obstacle     -         -         -       X       -            X
table_parts          -         -         -       X       -            X
make_shadow          -         -         -       X       -            X
seed_shadow          -         -         -       X       -            X
written_beside       -         -         -       X       -            X
swap_projection      -         -         -       X       -            X
cancel_build         -         -         -       X       -            X
drop_old_tables      -         -         -       X       -            X
now                  X         X         X       X       X            X
bucket               X         X         X       X       X            X
sharded_key          X         X         X       X       X            X
uuid7                X         X         X       X       X            X
uuid7_time           X         X         X       X       X            X
archive_slot         X         X         X       X       X            X
archive_slots_of     X         X         X       X       X            X
fingerprint          X         X         X       X       X            X
receive              -         X         -       X       -            X
receive_many         -         X         -       X       -            X
data_size            -         -         -       -       -            -
webhook_create       -         -         X       X       -            X
webhook_get          -         -         X       X       X            X
webhook_list         -         -         X       X       X            X
webhook_update       -         -         X       X       -            X
webhook_delete       -         -         X       X       -            X
webhook_deliveries_of -         -         X       X       X            X
webhook_delivery     -         -         X       X       X            X
webhook_details      -         -         X       X       X            X
webhook_redeliver    -         -         X       X       -            X
webhook_ping         -         -         X       X       -            X
webhook_range_begin  -         -         X       X       -            X
webhook_count        -         -         X       X       -            X
webhook_request      -         -         X       X       -            -
webhook_replied      -         -         X       X       -            -
webhook_write        -         -         X       X       -            -
webhook_event_types  -         -         X       X       -            -
webhook_range_step   -         -         -       X       -            -
prune_webhook_requests -         -         -       X       -            -
webhook_all          -         -         -       -       X            X
webhook_unsealed     -         -         -       -       -            X
webhook_sealed       -         -         -       -       -            X
webhook_delivery_shown -         -         -       -       -            -
webhook_waiting      -         -         -       -       -            -
webhook_chosen       -         -         -       -       -            -
webhook_range_count  -         -         -       -       -            -
webhook_rotate       -         -         X       X       -            X
webhook_fan_out      -         -         -       X       -            -
webhook_begin        -         -         -       X       -            -
webhook_settle       -         -         -       X       -            -
webhook_settle_lost  -         -         -       X       -            -
webhook_reopen       -         -         -       X       -            -
webhook_ended        -         -         -       -       -            -
empty_webhook_slots  -         -         -       X       -            -
empty_day_slots      -         -         -       -       -            -
held_log_position    -         -         -       -       -            -
webhook_key          -         -         -       -       -            -
webhook_shown        -         -         -       -       -            -
webhook_limit        -         -         -       -       -            -
note_endpoint_change -         -         -       -       -            -
webhook_lift         -         -         -       -       -            -
webhook_hurry        -         -         -       -       -            -
webhook_disable      -         -         -       -       -            -
webhook_add_secret   -         -         -       -       -            -
"""

EVERYWHERE = {
    "publish",
    "publish_many",
    "append_events",
    "workflow_start",
    "workflow_start_many",
    "workflow_signal",
    "workflow_cancel",
    "workflow_result",
}  # events and runs are of no queue of theirs: not for who has one queue only

_TABLES = """
SELECT c.relname, r.role, string_agg(CASE WHEN has_table_privilege(r.role, c.oid, p.name) THEN p.letter
                                          WHEN p.columns AND has_any_column_privilege(r.role, c.oid, p.name) THEN lower(p.letter) END, '' ORDER BY p.place)
FROM pg_class c CROSS JOIN unnest(%s::text[]) AS r(role)
CROSS JOIN (VALUES (1, 'S', 'SELECT', true), (2, 'I', 'INSERT', true), (3, 'U', 'UPDATE', true), (4, 'D', 'DELETE', false), (5, 'T', 'TRUNCATE', false),
                   (6, 'R', 'REFERENCES', true), (7, 'G', 'TRIGGER', false)) AS p(place, letter, name, columns)
WHERE c.relnamespace = 'holdfast'::regnamespace AND c.relkind IN ('r', 'p', 'v') GROUP BY 1, 2
"""
_COLUMNS = """
SELECT c.relname || '.' || a.attname, r.role, string_agg(x.privilege_type, ' ' ORDER BY x.privilege_type)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid CROSS JOIN unnest(%s::text[]) AS r(role)
CROSS JOIN LATERAL aclexplode(a.attacl) x
WHERE c.relnamespace = 'holdfast'::regnamespace AND x.grantee IN (0, r.role::regrole) GROUP BY 1, 2
"""
_SEQUENCES = """
SELECT c.relname, r.role, string_agg(p.name, ' ' ORDER BY p.name) FILTER (WHERE has_sequence_privilege(r.role, c.oid, p.name))
FROM pg_class c CROSS JOIN unnest(%s::text[]) AS r(role) CROSS JOIN unnest(ARRAY['USAGE', 'SELECT', 'UPDATE']) AS p(name)
WHERE c.relnamespace = 'holdfast'::regnamespace AND c.relkind = 'S' GROUP BY 1, 2
"""
_SCHEMA = """
SELECT 'holdfast', r.role, string_agg(p.name, ' ' ORDER BY p.name) FILTER (WHERE has_schema_privilege(r.role, 'holdfast', p.name))
FROM unnest(%s::text[]) AS r(role) CROSS JOIN unnest(ARRAY['USAGE', 'CREATE']) AS p(name) GROUP BY 2
"""
_FUNCTIONS = """
SELECT p.proname, r.role, CASE WHEN has_function_privilege(r.role, p.oid, 'EXECUTE') THEN 'X' END
FROM pg_proc p CROSS JOIN unnest(%s::text[]) AS r(role) WHERE p.pronamespace = 'holdfast'::regnamespace
"""


def table(text: str) -> dict[tuple[str, str], str]:
    head, *rows = [line.split() for line in text.strip().splitlines()]
    return {
        (row[0], role): may.replace("-", "") for row in rows for role, may in zip(head, row[1:], strict=True)
    }


def found(roles: Roles, query: str, wanted: list[str]) -> dict[tuple[str, str], str]:
    short = {roles.names[name]: name for name in wanted}
    with psycopg.connect(roles.dsn) as conn:
        return {
            (what, short[role]): may or "" for what, role, may in conn.execute(query.encode(), [list(short)])
        }


def test_the_whole_matrix(roles: Roles, life: Life) -> None:
    life.use(roles.url("operator_rw"))
    with psycopg.connect(roles.url("operator_rw"), autocommit=True) as conn:
        conn.execute("SELECT holdfast.create_queue('later')")  # after the grants
    producers, users = (
        ["producer", "producer_limited", "receiver", "portal"],
        ["worker", "operator_ro", "operator_rw"],
    )
    expected, seen = table(TABLES), found(roles, _TABLES, users)
    named = {what for what, _ in expected}
    others = {(what, role): OTHERS[role] for what, role in seen if what not in named}
    assert seen == {**others, **expected}
    assert set(found(roles, _TABLES, producers).values()) == {""}
    assert {pair: may for pair, may in found(roles, _COLUMNS, producers + users).items() if may} == COLUMNS
    sequences = found(roles, _SEQUENCES, producers + users)
    assert {pair: may for pair, may in sequences.items() if may} == SEQUENCES
    assert found(roles, _SCHEMA, producers + users) == {
        ("holdfast", role): "USAGE" for role in producers + users
    }
    functions = table(FUNCTIONS)
    assert found(roles, _FUNCTIONS, ["producer", "receiver", "portal", *users]) == functions
    limited = found(roles, _FUNCTIONS, ["producer_limited"])
    assert limited == {
        (what, "producer_limited"): "" if what in EVERYWHERE else may
        for (what, role), may in functions.items()
        if role == "producer"
    }


def test_everything_belongs_to_the_owner_and_a_second_run_changes_nothing(roles: Roles) -> None:
    users = ["producer", "receiver", "portal", "worker", "operator_ro", "operator_rw"]

    def all_rights() -> list[dict[tuple[str, str], str]]:
        return [found(roles, query, users) for query in (_TABLES, _COLUMNS, _SEQUENCES, _SCHEMA, _FUNCTIONS)]

    before = all_rights()
    roles.run()
    assert all_rights() == before
    owner = roles.names["owner"]
    foreign = "SELECT count(*) FROM pg_class WHERE relnamespace = 'holdfast'::regnamespace AND relowner <> %s::regrole"
    assert count(roles.dsn, foreign, owner) == 0
    foreign = "SELECT count(*) FROM pg_proc WHERE pronamespace = 'holdfast'::regnamespace AND proowner <> %s::regrole"
    assert count(roles.dsn, foreign, owner) == 0


def test_the_security_document_names_every_function_with_the_owners_rights(dsn: str) -> None:
    """Whoever reads it is to know all the places where a caller acts as the owner."""
    text = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8")
    (listed,) = re.findall(
        r"^- \*\*SECURITY DEFINER\*\* are (.*?)\. Each has", text, re.DOTALL | re.MULTILINE
    )
    with psycopg.connect(dsn) as conn:
        rows = conn.execute(
            """SELECT p.proname, p.proconfig::text LIKE '%%search_path=pg_catalog, pg_temp%%', has_function_privilege('public', p.oid, 'EXECUTE')
               FROM pg_proc p WHERE p.pronamespace = 'holdfast'::regnamespace AND p.prosecdef"""
        ).fetchall()
    assert sorted(re.findall(r"`(\w+)\(\)`", listed)) == sorted(name for name, _, _ in rows)
    assert {(pinned, public) for _, pinned, public in rows} == {(True, False)}


# The clock moves for members of the owner only, so what a worker finds is made older.
TEN_DAYS_LATER = [
    "UPDATE holdfast.schedules SET next_at = next_at - interval '10 days', decided_to = decided_to - interval '10 days'",
    """UPDATE holdfast.archive SET completed_at = completed_at - interval '10 days',
                                   slot = holdfast.archive_slot(completed_at - interval '10 days')""",
    """UPDATE holdfast.archive_slots SET day = (now() AT TIME ZONE 'UTC')::date - 10
       WHERE slot = holdfast.archive_slot(now() - interval '10 days')""",
]


@pytest.mark.slow
def test_a_worker_lives_the_whole_life(roles: Roles, life: Life) -> None:
    life.use(roles.url("producer"))
    life.produce()
    life.use(roles.url("worker"))
    life.leave_a_dead_worker()
    life.work()
    assert life.completed(roles.dsn) >= COMPLETED
    assert count(roles.dsn, "SELECT count(*) FROM holdfast.dead_letters") >= 4
    with psycopg.connect(roles.dsn, autocommit=True) as conn:
        for statement in TEN_DAYS_LATER:
            conn.execute(statement.encode())
    life.work()
    assert "tick" in life.completed(roles.dsn), "the schedule fired"
    old = "SELECT count(*) FROM holdfast.archive WHERE completed_at < holdfast.now() - interval '8 days'"

    async def tidy() -> None:
        session = life.app.database.session("tidy")
        await Tidier(session, SHAPE.prunes).tidy_once(7, 20.0)
        await session.close()

    asyncio.run(tidy())
    assert count(roles.dsn, old) == 0, "old slots of the archive are emptied"


def test_a_worker_lifts_holds_of_webhooks_that_nobody_else_lifts(roles: Roles, life: Life) -> None:
    """One of a ping, and one whose trial left no row: the latter is tried again."""
    life.use(roles.dsn)
    life.app.database.run(lambda: create_queue(QUEUE, rules=QueueRules(fair=True, key_concurrency=10)))
    made = "INSERT INTO holdfast.webhook_endpoints (id, tenant, url, events, created_at, updated_at) VALUES (%s, 't', 'u', '{*}', now(), now())"
    hold = """INSERT INTO holdfast.key_holds (queue, partition_key, until, trial, held_at, reason, trial_id, trial_token)
              VALUES (%s, %s, now() - interval '1 hour', true, now(), 'webhook breaker: x', gen_random_uuid(), gen_random_uuid())"""
    endpoint = str(uuid.uuid4())
    with psycopg.connect(roles.dsn, autocommit=True) as conn:
        conn.execute(made.encode(), [endpoint])
        for key in ("ping:1", endpoint):
            conn.execute(hold.encode(), [QUEUE, key])
    life.use(roles.url("worker"))
    assert life.app.database.run(mend_holds) == 2
    with psycopg.connect(roles.dsn) as conn:
        left = conn.execute("SELECT partition_key, decided, trial FROM holdfast.key_holds").fetchall()
    assert left == [(endpoint, True, True)]


def test_a_worker_cannot_remove_what_finished_within_the_retention(roles: Roles, life: Life) -> None:
    life.use(roles.url("worker"))
    life.plain.enqueue(1)
    life.work()
    kept = "SELECT count(*) FROM holdfast.archive"
    assert count(roles.dsn, kept) == 1
    days = """UPDATE holdfast.archive SET completed_at = completed_at - interval '3 days', slot = holdfast.archive_slot(completed_at - interval '3 days')
              RETURNING slot"""
    slots = [count(roles.dsn, "SELECT slot FROM holdfast.archive"), count(roles.dsn, days)]
    with psycopg.connect(roles.url("worker"), autocommit=True) as conn:
        for slot in slots:
            conn.execute("UPDATE holdfast.archive_slots SET day = '2001-01-01' WHERE slot = %s", [slot])
            conn.execute("SELECT holdfast.empty_archive_slot(%s, -40)", [slot])
        for statement in (
            "DELETE FROM holdfast.archive", f"TRUNCATE holdfast.archive_{slots[1]:02d}", "UPDATE holdfast.archive SET completed_at = '2001-01-01'",
            "UPDATE holdfast.engine SET retention_days = 1", f"UPDATE holdfast.archive_{slots[1]:02d} SET completed_at = '2001-01-01'",
        ):  # fmt: skip
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(statement.encode())
    assert count(roles.dsn, kept) == 1
    noted = "SELECT (now() AT TIME ZONE 'UTC')::date - day FROM holdfast.archive_slots WHERE slot = %s"
    assert [count(roles.dsn, noted, slot) for slot in slots] == [0, 3], (
        "each is emptied when its time has come"
    )
    with psycopg.connect(roles.url("operator_rw"), autocommit=True) as conn:
        conn.execute("UPDATE holdfast.engine SET retention_days = 2")
    with psycopg.connect(roles.url("worker"), autocommit=True) as conn:
        conn.execute("UPDATE holdfast.archive_slots SET day = '2001-01-01' WHERE slot = %s", [slots[1]])
        conn.execute("SELECT holdfast.empty_archive_slot(%s, 2)", [slots[1]])
    assert count(roles.dsn, kept) == 0, "the operator said so"


def test_a_producer_can_enqueue_and_nothing_else(roles: Roles, life: Life) -> None:
    life.use(roles.url("producer"))
    made = life.produce()
    handle = life.plain.enqueue(1)
    for forbidden in (handle.cancel, handle.result):
        with pytest.raises(Forbidden):
            forbidden()
    for statement in (
        "SELECT FROM holdfast.work", "SELECT FROM holdfast.jobs", "UPDATE holdfast.work SET priority = 1", "DELETE FROM holdfast.work",
        "SELECT holdfast.enqueue_specs('{}', NULL, NULL)", "SELECT holdfast.jobs_ended('{}', '{}', '{}', '{}')",
        "SELECT holdfast.create_queue('mine')", "SELECT holdfast.empty_archive_slot(1, 0)", "SELECT holdfast.check_producer('{}')",
        "CREATE TABLE holdfast.mine ()", "INSERT INTO holdfast.producers VALUES (1, 'inbox')", "SELECT nextval('holdfast.work_seq')",
        "SELECT FROM holdfast.events", "INSERT INTO holdfast.events (slot, type) VALUES (0, 'a')", "DELETE FROM holdfast.events",
        "SELECT holdfast.turn_page()", "SELECT * FROM holdfast.read_events(0, 0, 1, 1, NULL)", "SELECT holdfast.rebase_events()",
        "SELECT nextval('holdfast.event_seq')", "UPDATE holdfast.subscriptions SET position = 0", "SELECT FROM holdfast.subscription_lag",
    ):  # fmt: skip
        with (
            psycopg.connect(roles.url("producer")) as conn,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            conn.execute(statement.encode())
    assert made


def test_a_receiver_can_receive_and_nothing_else(roles: Roles, life: Life) -> None:
    with psycopg.connect(roles.url("receiver"), autocommit=True) as conn:
        call = "SELECT outcome FROM holdfast.receive('shop', 'm1', sha256(''), 'plain', '{\"n\": 1}')"
        assert [conn.execute(call).fetchone() for _ in range(2)] == [("new",), ("repeat",)]
        for statement in (
            "SELECT FROM holdfast.received", "DELETE FROM holdfast.received", "SELECT FROM holdfast.work", "SELECT FROM holdfast.jobs",
            "SELECT FROM holdfast.enqueue('plain')", "SELECT FROM holdfast.publish('a', '{}')", "SELECT nextval('holdfast.work_seq')",
        ):  # fmt: skip
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(statement.encode())
    assert count(roles.dsn, "SELECT count(*) FROM holdfast.work") == 1


def test_a_producer_of_one_queue_enqueues_there_only(roles: Roles, life: Life) -> None:
    life.use(roles.url("producer_limited"))
    life.within.enqueue(1)
    life.within.using(then=life.within.job(2), idempotency_key="a").enqueue(1)
    life.app.group([life.within.job(1)], then=life.within.job(2))
    before = count(roles.dsn, "SELECT count(*) FROM holdfast.work")
    attempts: list[Any] = [
        lambda: life.plain.enqueue(1),
        lambda: life.plain.using(idempotency_key="b").enqueue(1),
        lambda: life.app.enqueue_many([life.within.job(1), life.plain.job(1)]),
        lambda: life.within.using(then=life.plain.job(2)).enqueue(1),
        lambda: life.within.using(then=life.within.using(then=life.plain.job(3)).job(2)).enqueue(1),
        lambda: life.app.group([life.within.job(1)], then=life.plain.job(2)),
        lambda: life.app.group([life.plain.job(1)]),
    ]
    for attempt in attempts:
        with pytest.raises(
            Forbidden,
            match=f"role {roles.names['producer_limited']}_login may not enqueue into queue 'inbox'",
        ):
            attempt()
    assert count(roles.dsn, "SELECT count(*) FROM holdfast.work") == before
    for unlimited in ("producer", "worker", "operator_rw"):
        life.use(roles.url(unlimited))
        life.plain.enqueue(1)
    with psycopg.connect(roles.dsn, autocommit=True) as conn:  # grants add up
        conn.execute(f"GRANT {roles.names['producer']} TO {roles.names['producer_limited']}_login".encode())
    life.use(roles.url("producer_limited"))
    life.plain.enqueue(1)


def test_every_command_is_listed() -> None:
    known = every_command()
    listed = {command_of(words, known) for words in (*READS, *WRITES, *FIX)}
    assert listed | ELSEWHERE == known
    assert not listed & ELSEWHERE


@pytest.mark.slow
def test_operators(roles: Roles, life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    life.use(roles.url("producer"))
    made: Mapping[str, object] = life.produce()
    life.use(roles.url("worker"))
    life.work()
    made = something_of_each(life, roles.dsn, made)
    ro, rw = (Cli(roles.url(name), monkeypatch) for name in ("operator_ro", "operator_rw"))
    for words in READS:
        ran = ro(*filled(words, made))
        assert ran.code in (0, 1), (words, ran)
        refused = [
            line for line in ran.out.splitlines() + ran.err.splitlines() if "permission denied" in line
        ]
        # Who may not claim cannot ask for the plan of a claim.
        assert [line.split()[0] for line in refused] == (["plans"] if words == "doctor" else []), (words, ran)
    state = [
        f"SELECT count(*) FROM holdfast.{name}"
        for name in ("audit", "work", "archive", "dead_letters", "queues", "paused_tasks", "schedules")
    ]
    audit = [count(roles.dsn, state[0])]
    for words in WRITES:
        before = [count(roles.dsn, query) for query in state]
        ran = ro(*filled(words, made))
        assert "permission denied" in ran.err, (words, ran)
        assert "one of the roles that `holdfast roles sql` makes" in ran.err, (words, ran)
        assert [count(roles.dsn, query) for query in state] == before, words
        ran = rw(*filled(words, made))
        assert (ran.code, "permission denied" in ran.out + ran.err) == (0, False), (words, ran)
        audit.append(count(roles.dsn, state[0]))
        assert audit[-1] > audit[-2], (words, "an entry in the audit")


def test_only_an_operator_takes_over_a_log_of_another_server(
    roles: Roles, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    life.use(roles.url("producer"))
    life.app.publish("order.paid", {"n": 1})
    with psycopg.connect(roles.dsn, autocommit=True) as conn:
        conn.execute("UPDATE holdfast.event_log SET system_id = system_id + 1")
    ran = Cli(roles.url("operator_ro"), monkeypatch)("events", "rebase", "--yes")
    assert (ran.code, "permission denied" in ran.err) == (1, True)
    assert "The log is taken over" in Cli(roles.url("operator_rw"), monkeypatch).text(
        "events", "rebase", "--yes"
    )
    assert count(roles.dsn, "SELECT holdfast.turn_page()") == 1


def test_no_worker_changes_the_log(roles: Roles, life: Life) -> None:
    """It reads through functions, and removes only days that are past retention."""
    life.use(roles.url("worker"))
    life.app.publish("order.paid", {"n": 1})
    life.app.events.last_position()
    with psycopg.connect(roles.url("worker"), autocommit=True) as conn:
        conn.execute("SELECT holdfast.empty_event_slots()")
        for statement in (
            "SELECT FROM holdfast.events", "UPDATE holdfast.events SET data = NULL", "DELETE FROM holdfast.events", "TRUNCATE holdfast.events",
            "INSERT INTO holdfast.event_pages SELECT * FROM holdfast.event_pages", "DELETE FROM holdfast.event_pages",
            "UPDATE holdfast.event_log SET start_pos = 1", "UPDATE holdfast.event_log SET retention_days = 1", "SELECT holdfast.rebase_events()",
            "SELECT nextval('holdfast.event_seq')", "SELECT setval('holdfast.event_seq', 1)",
        ):  # fmt: skip
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(statement.encode())
    assert count(roles.dsn, "SELECT count(*) FROM holdfast.events") == 1


def test_who_only_looks_keeps_nobody_from_turning_a_page(
    roles: Roles, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it does in a transaction that it leaves open. It sees positions as they are."""
    life.use(roles.url("producer"))
    life.app.publish("order.paid", {"n": 1})
    cli = Cli(roles.url("operator_ro"), monkeypatch)
    assert cli.json("events", "lag")["last_position"] == 0
    with psycopg.connect(roles.url("operator_ro")) as looking:
        for statement in (
            "SELECT holdfast.turn_or_look()", "SELECT pg_advisory_xact_lock(7236843, 0)", "SELECT * FROM holdfast.event_pages",
            "LOCK TABLE holdfast.event_log, holdfast.event_pages, holdfast.events IN ACCESS SHARE MODE",
        ):  # fmt: skip
            looking.execute(statement.encode())
        for refused in (
            "SELECT holdfast.turn_page()", "SELECT holdfast.hold_log_start()", "SELECT FROM holdfast.event_log FOR KEY SHARE",
            "LOCK TABLE holdfast.event_log IN ROW SHARE MODE", "LOCK TABLE holdfast.event_log IN SHARE UPDATE EXCLUSIVE MODE",
        ):  # fmt: skip
            with pytest.raises(psycopg.errors.InsufficientPrivilege), looking.transaction():
                looking.execute(refused.encode())
        with psycopg.connect(roles.url("worker"), autocommit=True) as conn:
            conn.execute("SET lock_timeout = '1s'")  # a lock that nobody holds is not waited for
            assert conn.execute("SELECT holdfast.turn_page()").fetchone() == (1,)
    assert cli.json("events", "lag")["last_position"] == 1


def test_the_audit_notes_the_role_that_was_logged_in(
    roles: Roles, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = Cli(roles.url("operator_rw"), monkeypatch)
    monkeypatch.setenv("HOLDFAST_ACTOR", "the boss")
    cli.text("queue", "pause", "inbox")
    (entry,) = cli.json("audit")["audit"]
    assert (entry["actor"], entry["role"]) == ("the boss", f"{roles.names['operator_rw']}_login")
    heads, line = cli.text("audit").splitlines()
    assert re.search(r"\bwho +role\b", heads)
    assert f"{roles.names['operator_rw']}_login" in line
    with psycopg.connect(roles.url("operator_rw"), autocommit=True) as conn:
        for forged in (
            "INSERT INTO holdfast.audit (actor, action, selection, count, role) VALUES ('a', 'b', '{}', 1, 'c')",
            "INSERT INTO holdfast.audit (at, actor, action, selection, count) VALUES ('2001-01-01', 'a', 'b', '{}', 1)",
            "INSERT INTO holdfast.audit (actor, action, selection, count) VALUES ('a', 'b', '{}', 1)",
            "UPDATE holdfast.audit SET role = 'c'",
            "UPDATE holdfast.audit SET actor = 'c'",
            "UPDATE holdfast.audit SET count = 0",
            "UPDATE holdfast.audit SET at = '2001-01-01'",
            "DELETE FROM holdfast.audit",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(forged.encode())


@pytest.mark.parametrize("role", ["operator_rw", "worker"])
def test_who_began_an_operation_is_not_to_be_forged(roles: Roles, role: str) -> None:
    begin = """INSERT INTO holdfast.operations (id, verb, selection, options, bounds, actor, surface, created_at, total, capped, audit{})
               VALUES (gen_random_uuid(), 'jobs cancel', '{{}}', '{{}}', '[]', 'me', 'sql', now(), 0, false, 0{})"""
    with psycopg.connect(roles.dsn, autocommit=True) as conn:
        conn.execute(begin.format("", "").encode())
    with psycopg.connect(roles.url(role), autocommit=True) as conn:
        for forged in (
            begin.format(", role", ", 'boss'"),
            "UPDATE holdfast.operations SET role = 'boss'",
            "UPDATE holdfast.operations SET verb = 'jobs discard'",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(forged.encode())


def test_an_operator_can_only_add_to_the_count_of_an_act_of_its_own(roles: Roles) -> None:
    """The functions that our commands call, called by hand. Whatever they are given, nothing that is written gets less."""

    def call(role: str, text: str, *params: object) -> Any:
        with psycopg.connect(roles.url(role), autocommit=True) as conn:
            conn.execute("SET holdfast.clock_offset = '-30 years'")
            return conn.execute(text.encode(), params).fetchone()[0]  # type: ignore[index]

    def entry() -> tuple[Any, ...]:
        with psycopg.connect(roles.dsn) as conn:
            fields = "count, role, now() - at < interval '1 hour'"
            return conn.execute(
                f"SELECT {fields} FROM holdfast.audit WHERE id = %s".encode(), [mine]
            ).fetchone()  # type: ignore[return-value]

    mine = call("operator_rw", "SELECT holdfast.audit_act('me', 'jobs discard', '{}', 7)")
    login = f"{roles.names['operator_rw']}_login"
    assert entry() == (7, login, True), "the clock and the role are the server's"
    assert call("operator_rw", "SELECT holdfast.audit_more(%s, 3)", mine) == mine
    assert entry() == (10, login, True)
    call("operator_rw", "SELECT holdfast.audit_more(%s, -10)", mine)
    assert entry() == (10, login, True)
    with psycopg.connect(roles.dsn, autocommit=True) as conn:
        conn.execute("UPDATE holdfast.audit SET role = 'another'")
    assert call("operator_rw", "SELECT holdfast.audit_more(%s, 3)", mine) is None
    assert entry() == (10, "another", True)
    for role in ("producer", "worker", "operator_ro"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            call(role, "SELECT holdfast.audit_act('me', 'jobs discard', '{}', 7)")


def test_a_migrator_makes_and_upgrades_the_schema_for_the_owner(holdfast_server: TestServer) -> None:
    name = holdfast_server.clone()
    dsn = holdfast_server.url(name)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("DROP SCHEMA holdfast CASCADE")
    roles = Roles(dsn)
    try:
        known = migrate.plan(roles.url("migrator"))
        assert migrate.up(roles.url("migrator"), migrations=known[:1]) == [1]
        assert migrate.up(roles.url("migrator")) == [number for number, _, _ in known[1:]]
        foreign = "SELECT count(*) FROM pg_class WHERE relnamespace = 'holdfast'::regnamespace AND relowner <> %s::regrole"
        assert count(dsn, foreign, roles.names["owner"]) == 0  # before the script, which would mend it
        roles.run()
        assert count(dsn, foreign, roles.names["owner"]) == 0
        with psycopg.connect(roles.url("producer"), autocommit=True) as conn:
            conn.execute("SELECT holdfast.enqueue('a')")
    finally:
        roles.clear()
        holdfast_server.drop(name)


def test_the_script_gives_way_to_who_holds_a_table_and_can_be_run_again(dsn: str, life: Life) -> None:
    """Whoever enqueues would wait behind it for as long as a report runs."""
    prefix = f"t{uuid.uuid4().hex[:8]}"
    with psycopg.connect(dsn) as report, psycopg.connect(dsn, autocommit=True) as dba:
        report.execute("SELECT count(*) FROM holdfast.work")
        dba.execute("SET statement_timeout = '60s'")  # if it did not give way
        with pytest.raises(psycopg.errors.LockNotAvailable):
            dba.execute(roles_sql(prefix).encode())
    assert count(dsn, "SELECT count(*) FROM pg_roles WHERE rolname LIKE %s", f"{prefix}%") == 0
    roles = Roles(dsn)
    with psycopg.connect(roles.url("producer"), autocommit=True) as conn:
        conn.execute("SELECT holdfast.enqueue('a')")
    roles.clear()


def test_mistakes() -> None:
    for prefix in ("", "Shop", "a-b", "x" * 31, 'a"; DROP'):
        with pytest.raises(
            ConfigurationError, match="the prefix of roles must be 1 to 30 lower-case letters"
        ):
            roles_sql(prefix)
    with pytest.raises(ConfigurationError, match="queue must be a name of 1 to 40"):
        roles_sql(queues=["a'b"])
    with pytest.raises(
        ConfigurationError, match="would have 80 letters, and PostgreSQL takes 63: choose a shorter prefix"
    ):
        roles_sql("x" * 30, ["q" * 40])
