"""What statements of webhooks read: as much as they are about, however much waits."""

import json

import psycopg

from holdfast.testing import Kit

WAITING = 2000
FILL = """INSERT INTO holdfast.webhook_deliveries (id, endpoint_id, tenant, event_id, event_type, url, created_at)
SELECT holdfast.uuid7(), holdfast.uuid7(), 'acme', holdfast.uuid7(), 'order.paid', 'https://a.example', now()
FROM generate_series(1, %s) RETURNING id"""
READ = """SELECT pg_stat_get_xact_tuples_fetched(c.oid) + pg_stat_get_xact_tuples_returned(c.oid)
FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid AND i.indrelid = 'holdfast.webhook_deliveries'::regclass
UNION ALL SELECT pg_stat_get_xact_tuples_returned('holdfast.webhook_deliveries'::regclass)"""


def test_what_an_attempt_reads_does_not_depend_on_what_waits(kit: Kit) -> None:
    with psycopg.connect(kit.url) as conn:
        conn.execute(
            "SELECT count(*) FROM holdfast.webhook_begin(ARRAY[holdfast.uuid7()], ARRAY[false], NULL, NULL)"
        )
        conn.execute("SELECT count(*) FROM holdfast.webhook_settle('[]')")  # planned while there is nothing
        ids = [row[0] for row in conn.execute(FILL, [WAITING]).fetchall()]
        conn.commit()
        before = sum(row[0] for row in conn.execute(READ).fetchall())
        found = conn.execute(
            "SELECT delivery FROM holdfast.webhook_begin(%s, %s, NULL, NULL)", [ids[:5], [False] * 5]
        )
        assert {row[0] for row in found.fetchall()} == set(ids[:5])
        assert sum(row[0] for row in conn.execute(READ).fetchall()) - before < WAITING / 10
        ended = {
            "kind": "delivered",
            "outcome": "delivered",
            "queue": "webhooks",
            "key": "k",
            "crashes": 0,
            "url": "u",
        }
        rows = [
            {**ended, "delivery": str(one), "endpoint": str(one), "status": 204, "ms": 1} for one in ids[:5]
        ]
        before = sum(row[0] for row in conn.execute(READ).fetchall())
        conn.execute("SELECT * FROM holdfast.webhook_settle(%s)", [json.dumps(rows)])
        assert sum(row[0] for row in conn.execute(READ).fetchall()) - before < WAITING / 10
        conn.rollback()
