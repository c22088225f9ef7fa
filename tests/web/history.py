# ruff: noqa: E501
"""An hour, and some days, of a shop that works: for the lines and charts in the pictures. Rows as workers write them."""

from holdfast.testing import Kit

# What workers summed up by minute: waits by bucket (model/histogram.py), each up to twice the one before.
THROUGHPUT = """
INSERT INTO holdfast.throughput AS t (minute, queue, task, completed, failed, dead, run_seconds, wait_seconds, max_run, max_wait, runs, waits)
SELECT date_trunc('minute', holdfast.now()) - make_interval(mins => m), q.queue, q.task, n.done, n.failed, CASE WHEN n.failed > 40 THEN 3 ELSE 0 END,
       n.done * 0.04, n.done * 0.1, 0.4, 2.0 ^ (b.bucket - 10),
       array_fill(0::bigint, ARRAY[5]) || n.done::bigint || array_fill(0::bigint, ARRAY[18]),
       array_fill(0::bigint, ARRAY[b.bucket - 1]) || (n.done * 9 / 10)::bigint || (n.done / 10 + 1)::bigint || array_fill(0::bigint, ARRAY[23 - b.bucket])
FROM generate_series(1, 240) AS g(m)
CROSS JOIN (VALUES ('mail', 'mail.send_receipt', 900, 5), ('billing', 'billing.charge', 500, 5), ('parcels', 'parcels.ship', 300, 4),
                   ('inbox', 'search.reindex', 1400, 6)) AS q(queue, task, rate, bucket)
CROSS JOIN LATERAL (SELECT (q.rate * (1 + 0.12 * sin(m / 7.0) + 0.05 * cos(m * 2.1)))::int AS done,
                           CASE WHEN q.queue = 'billing' AND m < 12 THEN 60 + m * 7 ELSE (q.rate / 90 + m % 3) END AS failed) n
CROSS JOIN LATERAL (SELECT CASE WHEN q.queue = 'inbox' AND m < 14 THEN least(q.bucket + 14 - m, 18) ELSE q.bucket + (m % 5 = 0)::int END AS bucket) b
ON CONFLICT (minute, queue, task) DO NOTHING
"""
SAMPLES = """
INSERT INTO holdfast.samples AS s (minute, queue, due, behind, running, held, blocked, oldest, workers)
SELECT date_trunc('minute', holdfast.now()) - make_interval(mins => m), q.name,
       n.due, 0, n.due / 8, 0, 0, n.due / 40.0, 2
FROM generate_series(1, 1440 * 4, 1) AS g(m)
CROSS JOIN holdfast.queues q
CROSS JOIN LATERAL (SELECT (20 + 12 * sin(m / 9.0 + length(q.name)) + CASE WHEN q.name = 'inbox' AND m < 14 THEN (14 - m) ^ 2.2 ELSE 0 END)::int AS due) n
ON CONFLICT (minute, queue) DO NOTHING
"""


def make_history(kit: Kit) -> None:
    kit.sql(THROUGHPUT)
    kit.sql(SAMPLES)
