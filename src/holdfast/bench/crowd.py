"""A busy system of a given size, written by the server itself: what the dashboard is measured on."""

from typing import Any

import psycopg

CHUNK = 500_000
MONTH = 30 * 24 * 60  # minutes
# An id of a time: its first 48 bits are the milliseconds, the rest is by chance.
HELPERS = """
CREATE OR REPLACE FUNCTION pg_temp.id_at(at timestamptz) RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || substr(r, 2,
        3) || '8' || substr(r, 5, 15))::uuid
    FROM (SELECT replace(gen_random_uuid()::text, '-', '')) AS random(r) $$
"""
QUEUES = """
SELECT holdfast.create_queue('mail'), holdfast.create_queue('reports'), holdfast.create_queue('workflows'),
       holdfast.create_queue('billing', NULL, 'none', 'skip', true), holdfast.create_queue('parcels', NULL, 'key',
           'block')
"""
WORKERS = """
INSERT INTO holdfast.workers (id, host, pid, last_seen_at, started_at, queues, tasks, concurrency, release)
SELECT format('host-%s:%s', n, n), format('host-%s', n), 1000 + n, now() + interval '1 day',
    now() - interval '2 days',
       ARRAY['mail', 'reports', 'workflows', 'billing', 'parcels'], ARRAY['mail.send', 'checkout'], 20, 'shop 4.2'
FROM generate_series(1, 20) AS n
"""
# Over the last five days, the oldest first, so that each slot is written in the order of its ids.
ARCHIVED = """
INSERT INTO holdfast.archive (slot, id, claim_token, seq, lease_generation, available_at, created_at, claimed_at,
    completed_at,
                              attempts, max_attempts, version, crashes, priority, queue, status, task,
                                  partition_key, payload,
                              claimed_by, result, tags)
SELECT holdfast.archive_slot(t), pg_temp.id_at(t), gen_random_uuid(), n, 1, t, t, t, t + interval '1 second', 1, 5,
    1, 0, 0,
       (ARRAY['mail', 'billing', 'parcels', 'reports'])[1 + n %% 4],
           CASE WHEN n %% 1000 = 7 THEN 'cancelled' ELSE 'completed' END,
       (ARRAY['mail.send', 'billing.charge', 'parcels.ship', 'reports.render'])[1 + n %% 4],
           'customer:' || n %% 50000,
       jsonb_build_object('order_id', n, 'to', 'customer' || n || '@example.com'), 'host-1:1', '{"sent": true}',
       CASE WHEN n %% 50 = 0 THEN ARRAY['vip'] END
FROM (SELECT n, now() - interval '5 days' * (1 - n::float8 / %(all)s) AS t FROM generate_series(%(from)s::bigint,
    %(to)s) AS n) s
"""
# Of a hundred: 90 are due, 5 come later, 3 back off after a failure, 1 is held, 1 is blocked by nothing but its place.
WAITING = """
INSERT INTO holdfast.work (id, queue, task, payload, partition_key, available_at, created_at, attempts,
    lease_generation, status,
                           hold_reason, last_error, tags)
SELECT pg_temp.id_at(t), (ARRAY['mail', 'billing', 'parcels', 'reports'])[1 + n %% 4],
       (ARRAY['mail.send', 'billing.charge', 'parcels.ship', 'reports.render'])[1 + n %% 4],
       jsonb_build_object('order_id', n, 'to', 'customer' || n || '@example.com'), 'customer:' || n %% 20000,
       CASE WHEN n / 4 %% 100 < 91 THEN t ELSE now() + make_interval(secs => n %% 86400 + 60) END, t,
       CASE WHEN n / 4 %% 100 BETWEEN 96 AND 98 THEN 2 ELSE 0 END,
           CASE WHEN n / 4 %% 100 BETWEEN 96 AND 98 THEN 2 ELSE 0 END,
       CASE WHEN n / 4 %% 100 = 90 THEN 'held' ELSE 'pending' END,
           CASE WHEN n / 4 %% 100 = 90 THEN 'no worker knows version 3' END,
       CASE WHEN n / 4 %% 100 BETWEEN 96 AND 98 THEN 'TimeoutError: psp.example did not answer' END,
       CASE WHEN n %% 50 = 0 THEN ARRAY['vip'] END
FROM (SELECT n, now() - interval '6 hours' * (1 - n::float8 / %(all)s) AS t FROM generate_series(%(from)s::bigint,
    %(to)s) AS n) s
"""
RUNNING = """
WITH taken AS (
    UPDATE holdfast.work w SET status = 'processing', claim_token = c.token,
        lease_generation = lease_generation + 1, claimed_at = now()
    FROM (SELECT q.queue, n, gen_random_uuid() AS token, p.id
          FROM (VALUES ('mail'), ('billing'), ('reports')) AS q(queue) CROSS JOIN generate_series(1, 20) AS n
          CROSS JOIN LATERAL (SELECT w.id FROM holdfast.work w WHERE w.queue = q.queue AND w.hold_reason IS NULL
                              ORDER BY w.priority DESC, w.available_at, w.seq OFFSET n LIMIT 1) p) c
    WHERE w.queue = c.queue AND w.id = c.id RETURNING w.queue, w.id, w.claim_token, c.n
)
INSERT INTO holdfast.claims (token, queue, worker, claimed_at, lease_expires_at, job_ids)
SELECT t.claim_token, t.queue, format('host-%s:%s', t.n, t.n), now(), now() + interval '1 day',
    ARRAY[t.id] FROM taken t
"""
DEAD = """
WITH dead AS (
    INSERT INTO holdfast.dead_letters (id, claim_token, seq, lease_generation, available_at, created_at,
        claimed_at, died_at, attempts,
                                       max_attempts, version, crashes, priority, queue, task, partition_key,
                                           payload, last_error)
    SELECT pg_temp.id_at(t), gen_random_uuid(), n, 5, t, t, t, t, 5, 5, 1, 0, 0, 'billing', 'billing.charge',
        'customer:' || n %% 9000,
           jsonb_build_object('order_id', n),
           (ARRAY['TimeoutError: psp.example did not answer in 5 s',
               'ValueError: card of order ' || n || ' is declined',
                  'KeyError: ''currency'''])[1 + n %% 3]
    FROM (SELECT n, now() - interval '1 day' * (1 - n::float8 / %(all)s) AS t FROM generate_series(1,
        %(all)s) AS n) s RETURNING id, died_at, last_error
)
INSERT INTO holdfast.errors (job_id, queue, attempt, generation, at, worker, kind, message, trace)
SELECT d.id, 'billing', a, a, d.died_at, 'host-1:1', 'failed', d.last_error,
    E'Traceback (most recent call last):\n' || repeat(E'  File "/srv/shop/billing.py", line 7\n', 20)
FROM dead d CROSS JOIN generate_series(1, 5) AS a
"""
HISTORY = """
WITH minutes AS (SELECT date_trunc('minute', now()) - make_interval(mins => m) AS minute FROM generate_series(0,
    %(minutes)s - 1) AS m),
     queue(queue, task) AS (VALUES ('mail', 'mail.send'), ('billing', 'billing.charge'), ('parcels',
         'parcels.ship'), ('reports', 'reports.render')),
     sampled AS (INSERT INTO holdfast.samples (minute, queue, due, behind, running, held, blocked, oldest, workers)
                 SELECT m.minute, q.queue, 10000, 50, 20, 100, 0, 120, 20 FROM minutes m CROSS JOIN queue q)
INSERT INTO holdfast.throughput (minute, queue, task, completed, failed, run_seconds, wait_seconds, max_run,
    max_wait, runs, waits)
SELECT m.minute, q.queue, q.task, 300, 3, 30, 300, 2, 9, array_fill(12, ARRAY[24]), array_fill(12, ARRAY[24])
FROM minutes m CROSS JOIN queue q WHERE m.minute > now() - interval '7 days'
"""
ENTRIES = """
INSERT INTO holdfast.audit (at, actor, action, selection, count, surface, address, reason)
SELECT now() - make_interval(secs => %(all)s - n), 'mara', (ARRAY['jobs retry', 'queue pause',
    'dead redrive'])[1 + n %% 3],
       jsonb_build_object('queue', 'mail'), 1, 'web', '10.0.0.7', 'ticket ' || n FROM generate_series(1, %(all)s) AS n
"""
# Of a hundred: 2 wait for a signal, 1 has failed. Of a thousand: 1 was cancelled, 1 set aside, 1 compensates. The others
# have completed.
RUNS = """
WITH made AS (
    INSERT INTO holdfast.workflow_runs (id, workflow, key, queue, version, root_id, created_at, era_at, state,
        waits, asleep, ended_at,
                                        cancel_requested_at, result, error)
    SELECT id, 'checkout', 'order:' || n, 'workflows', 1, id, t, t,
           CASE WHEN n %% 1000 = 3 THEN 'cancelled' WHEN n %% 1000 = 4 THEN 'diverged' WHEN n %% 1000 = 5 THEN
               'compensating'
                WHEN n %% 100 = 2 THEN 'failed' WHEN n %% 100 < 3 THEN 'open' ELSE 'completed' END,
           CASE WHEN n %% 100 < 2 THEN ARRAY['shipped'] END, CASE WHEN n %% 100 < 2 THEN 1 END,
           CASE WHEN n %% 100 >= 2 AND n %% 1000 NOT IN (4, 5) THEN t + interval '1 minute' END,
           CASE WHEN n %% 1000 = 3 THEN t END, CASE WHEN n %% 100 > 2 THEN '"shipped"'::jsonb END,
           CASE WHEN n %% 100 = 2 OR n %% 1000 IN (3, 4)
                THEN '{"kind": "ValueError", "message": "the card is declined"}'::jsonb END
    FROM (SELECT n, t, pg_temp.id_at(t) AS id
          FROM (SELECT n, now() - interval '5 days' * (1 - n::float8 / %(all)s) AS t FROM
              generate_series(%(from)s::bigint, %(to)s) AS n) s) s
    RETURNING *
)
INSERT INTO holdfast.work (id, queue, task, payload, partition_key, available_at, created_at, lease_generation,
    status, hold_reason)
SELECT m.id, m.queue, m.workflow, '{}', m.key,
    CASE WHEN m.waits IS NOT NULL THEN '9999-01-01Z' ELSE m.created_at END, m.created_at, 1,
       CASE m.state WHEN 'diverged' THEN 'held' ELSE 'pending' END,
           CASE m.state WHEN 'diverged' THEN 'its code diverged from what was recorded' END
FROM made m WHERE m.ended_at IS NULL
"""
SLOTS = """
UPDATE holdfast.archive_slots s SET day = d.day::date
FROM generate_series(current_date - 5, current_date,
    interval '1 day') AS d(day) WHERE s.slot = holdfast.archive_slot(d.day)
"""


def fill(url: str, *, archived: int, due: int, runs: int) -> None:
    """So many finished jobs, jobs that wait, and runs of workflows, with what comes of them."""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("SET synchronous_commit = off")
        for once in (HELPERS, QUEUES, WORKERS, SLOTS):
            conn.execute(once.encode())
        conn.execute(HISTORY, {"minutes": MONTH if archived >= MONTH else 60})
        _in_parts(conn, ARCHIVED, archived)
        _in_parts(conn, WAITING, due)
        conn.execute(RUNNING)
        _in_parts(conn, RUNS, runs)
        for some in (DEAD, ENTRIES):
            conn.execute(some.encode(), {"all": max(1, due // 50)})
        conn.execute("VACUUM (ANALYZE)")


def _in_parts(conn: psycopg.Connection[Any], query: str, count: int) -> None:
    for first in range(1, count + 1, CHUNK):
        part = {"all": count, "from": first, "to": min(first + CHUNK - 1, count)}
        conn.execute(query.encode(), part)
