-- name: stats_window
-- Since when the last minutes count, cut to a whole minute, and how many minutes that is up to now.
-- $1 minutes
SELECT s.since, (extract(epoch FROM holdfast.now() - s.since) / 60)::float8
FROM (SELECT date_trunc('minute', holdfast.now() - make_interval(mins => $1::int))) AS s(since);

-- part: stats_sums
-- The work since then, as the workers have summed it up by minute: no job is counted. $1 since, $2 queue, $3 task
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

-- name: stats_waits
-- How long attempts of each queue had waited, minute by minute: the longest, and how many by bucket. Sums of elements, because a row for each
-- element would be 24 times as many.
-- $1 since
SELECT t.minute, t.queue, max(t.max_wait),
       ARRAY[
             coalesce(sum(t.waits[1]), 0), coalesce(sum(t.waits[2]), 0), coalesce(sum(t.waits[3]), 0), coalesce(sum(t.waits[4]), 0),
             coalesce(sum(t.waits[5]), 0), coalesce(sum(t.waits[6]), 0), coalesce(sum(t.waits[7]), 0), coalesce(sum(t.waits[8]), 0),
             coalesce(sum(t.waits[9]), 0), coalesce(sum(t.waits[10]), 0), coalesce(sum(t.waits[11]), 0), coalesce(sum(t.waits[12]), 0),
             coalesce(sum(t.waits[13]), 0), coalesce(sum(t.waits[14]), 0), coalesce(sum(t.waits[15]), 0), coalesce(sum(t.waits[16]), 0),
             coalesce(sum(t.waits[17]), 0), coalesce(sum(t.waits[18]), 0), coalesce(sum(t.waits[19]), 0), coalesce(sum(t.waits[20]), 0),
             coalesce(sum(t.waits[21]), 0), coalesce(sum(t.waits[22]), 0), coalesce(sum(t.waits[23]), 0), coalesce(sum(t.waits[24]), 0)]::bigint[]
FROM holdfast.throughput t WHERE t.minute >= $1 AND t.waits IS NOT NULL GROUP BY t.minute, t.queue ORDER BY t.minute, t.queue;

-- name: stats_marks
-- What may explain a change: releases that came, and breakers that opened and are not closed. A release is new when no worker of it is known
-- from before.
-- $1 since, $2 limit
SELECT m.at, m.kind, m.name
FROM (SELECT min(v.started_at) AS at, 'release' AS kind, v.release AS name FROM holdfast.workers v WHERE v.release <> '' GROUP BY v.release
      UNION ALL
      SELECT b.opened_at, 'breaker', b.task FROM holdfast.breakers b WHERE b.state <> 'closed') m
WHERE m.at >= $1 ORDER BY m.at DESC LIMIT $2;

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
