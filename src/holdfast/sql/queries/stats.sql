-- name: stats_window
-- Since when the last minutes count, cut to a whole minute, and how many minutes that is up to now.
-- $1 minutes
SELECT s.since, (extract(epoch FROM holdfast.now() - s.since) / 60)::float8
FROM (SELECT date_trunc('minute', holdfast.now() - make_interval(mins => $1::int))) AS s(since);

-- part: stats_sums
-- What was done since then, as the workers have summed it up by minute: no job is counted. $1 since, $2 queue, $3 task
found AS MATERIALIZED (
    SELECT t.* FROM holdfast.throughput t
    WHERE t.minute >= $1 AND ($2::text IS NULL OR t.queue = $2) AND ($3::text IS NULL OR t.task = $3)
)

-- name: stats
-- What each task of each queue did since then, the busiest first, with how long attempts ran and waited as histograms.
-- $1 since, $2 queue, $3 task, $4 limit
WITH
-- with part: stats_sums
, buckets AS (
    SELECT f.queue, f.task, u.n, sum(u.run)::bigint AS run, sum(u.wait)::bigint AS wait
    FROM found f CROSS JOIN LATERAL unnest(f.runs, f.waits) WITH ORDINALITY AS u(run, wait, n) GROUP BY f.queue, f.task, u.n
), spread AS (
    SELECT b.queue, b.task, array_agg(b.run ORDER BY b.n) AS runs, array_agg(b.wait ORDER BY b.n) AS waits FROM buckets b GROUP BY b.queue, b.task
), summed AS (
    SELECT t.queue, t.task, sum(t.completed)::bigint AS completed, sum(t.failed)::bigint AS failed, sum(t.dead)::bigint AS dead,
           sum(t.cancelled)::bigint AS cancelled,
           (sum(t.run_seconds) / nullif(sum(t.completed + t.failed), 0))::float8 AS mean_run, max(t.max_run) AS max_run,
           (sum(t.wait_seconds) / nullif(sum(t.completed + t.failed), 0))::float8 AS mean_wait, max(t.max_wait) AS max_wait
    FROM found t GROUP BY t.queue, t.task
)
SELECT s.*, p.runs, p.waits FROM summed s LEFT JOIN spread p ON p.queue = s.queue AND p.task = s.task
ORDER BY s.completed + s.failed DESC, s.queue, s.task LIMIT $4;

-- name: stats_minutes
-- What all of them did, minute by minute.
-- $1 since
SELECT t.minute, sum(t.completed)::bigint, sum(t.failed)::bigint, sum(t.dead)::bigint
FROM holdfast.throughput t WHERE t.minute >= $1 GROUP BY t.minute ORDER BY t.minute;

-- name: stats_queues
-- The same by queue.
-- $1 since, $2 queue, $3 task, $4 limit
WITH
-- with part: stats_sums
, buckets AS (
    SELECT f.queue, u.n, sum(u.run)::bigint AS run, sum(u.wait)::bigint AS wait
    FROM found f CROSS JOIN LATERAL unnest(f.runs, f.waits) WITH ORDINALITY AS u(run, wait, n) GROUP BY f.queue, u.n
), spread AS (
    SELECT b.queue, array_agg(b.run ORDER BY b.n) AS runs, array_agg(b.wait ORDER BY b.n) AS waits FROM buckets b GROUP BY b.queue
), summed AS (
    SELECT t.queue, NULL, sum(t.completed)::bigint AS completed, sum(t.failed)::bigint AS failed, sum(t.dead)::bigint AS dead,
           sum(t.cancelled)::bigint AS cancelled,
           (sum(t.run_seconds) / nullif(sum(t.completed + t.failed), 0))::float8 AS mean_run, max(t.max_run) AS max_run,
           (sum(t.wait_seconds) / nullif(sum(t.completed + t.failed), 0))::float8 AS mean_wait, max(t.max_wait) AS max_wait
    FROM found t GROUP BY t.queue
)
SELECT s.*, p.runs, p.waits FROM summed s LEFT JOIN spread p ON p.queue = s.queue
ORDER BY s.queue LIMIT $4;

-- name: storage
-- The largest tables, with about how many rows each has.
-- $1 limit
SELECT s.relation, s.bytes, s.about_rows, s.dead_rows FROM holdfast.storage s ORDER BY s.bytes DESC, s.relation LIMIT $1;

-- name: archive_rows
-- About how many finished jobs are kept, and the bytes they take.
SELECT coalesce(sum(s.about_rows), 0)::bigint, coalesce(sum(s.bytes), 0)::bigint FROM holdfast.storage s WHERE s.relation ~ '^archive_[0-9]+$';
