-- name: stats_window
-- Since when the last minutes count, cut to a whole minute, and how many minutes that is up to now.
-- $1 minutes
SELECT s.since, (extract(epoch FROM holdfast.now() - s.since) / 60)::float8
FROM (SELECT date_trunc('minute', holdfast.now() - make_interval(mins => $1::int))) AS s(since);

-- name: stats
-- What each task of each queue did since then, the busiest first. The workers have summed it up by minute: no job is counted.
-- $1 since, $2 queue, $3 task, $4 limit
SELECT t.queue, t.task, sum(t.completed)::bigint, sum(t.failed)::bigint, sum(t.dead)::bigint, sum(t.cancelled)::bigint,
       (sum(t.run_seconds) / nullif(sum(t.completed + t.failed), 0))::float8, max(t.max_run),
       (sum(t.wait_seconds) / nullif(sum(t.completed + t.failed), 0))::float8, max(t.max_wait)
FROM holdfast.throughput t
WHERE t.minute >= $1 AND ($2::text IS NULL OR t.queue = $2) AND ($3::text IS NULL OR t.task = $3)
GROUP BY t.queue, t.task
ORDER BY sum(t.completed + t.failed) DESC, t.queue, t.task LIMIT $4;

-- name: stats_queues
-- The same by queue.
-- $1 since, $2 queue, $3 task, $4 limit
SELECT t.queue, NULL, sum(t.completed)::bigint, sum(t.failed)::bigint, sum(t.dead)::bigint, sum(t.cancelled)::bigint,
       (sum(t.run_seconds) / nullif(sum(t.completed + t.failed), 0))::float8, max(t.max_run),
       (sum(t.wait_seconds) / nullif(sum(t.completed + t.failed), 0))::float8, max(t.max_wait)
FROM holdfast.throughput t
WHERE t.minute >= $1 AND ($2::text IS NULL OR t.queue = $2) AND ($3::text IS NULL OR t.task = $3)
GROUP BY t.queue
ORDER BY t.queue LIMIT $4;

-- name: storage
-- The largest tables, with about how many rows each has.
-- $1 limit
SELECT s.relation, s.bytes, s.about_rows, s.dead_rows FROM holdfast.storage s ORDER BY s.bytes DESC, s.relation LIMIT $1;

-- name: archive_rows
-- About how many finished jobs are kept, and the bytes they take.
SELECT coalesce(sum(s.about_rows), 0)::bigint, coalesce(sum(s.bytes), 0)::bigint FROM holdfast.storage s WHERE s.relation ~ '^archive_[0-9]+$';
