-- name: take_sample
-- Write down how the queues stand in this minute, unless it is written.
-- $1 seconds after which a worker is late
SELECT holdfast.take_sample($1::float8);

-- part: sample_due
-- Whether this minute has no sample yet.
NOT EXISTS (SELECT FROM holdfast.samples s WHERE s.minute = date_trunc('minute', holdfast.now()))

-- name: samples
-- The state of a queue, step by step: the highest of each count, and the lowest number of workers, in a step.
-- $1 queue (NULL: all), $2 seconds back, $3 minutes of a step, $4 limit
SELECT b.at, s.queue, max(s.due), max(s.behind), max(s.running), max(s.held), max(s.blocked), max(s.oldest), min(s.workers), count(*)::int
FROM (SELECT date_trunc('minute', holdfast.now() - make_interval(secs => $2::float8)) AS since) f
JOIN holdfast.samples s ON s.minute >= f.since AND ($1::text IS NULL OR s.queue = $1)
CROSS JOIN LATERAL (SELECT date_bin(make_interval(mins => $3::int), s.minute, 'epoch') AS at) b
GROUP BY b.at, s.queue ORDER BY b.at, s.queue LIMIT $4;

-- name: usual_load
-- The usual state at this time of day: half an hour before and after it, on each of the last 14 days that have samples. Today is left out.
-- Also each queue's last sample, if it is of the last three minutes.
WITH usual AS (
    SELECT s.queue, percentile_disc(0.5) WITHIN GROUP (ORDER BY s.due) AS due, percentile_disc(0.95) WITHIN GROUP (ORDER BY s.due) AS most_due,
           percentile_cont(0.5) WITHIN GROUP (ORDER BY coalesce(s.oldest, 0)) AS oldest,
           percentile_cont(0.95) WITHIN GROUP (ORDER BY coalesce(s.oldest, 0)) AS most_oldest, count(DISTINCT d.n)::int AS days
    FROM generate_series(1, 14) AS d(n)
    CROSS JOIN LATERAL (SELECT s.* FROM holdfast.samples s
                        WHERE s.minute >= holdfast.now() - make_interval(days => d.n, mins => 30)
                          AND s.minute <= holdfast.now() - make_interval(days => d.n, mins => -30)) s
    GROUP BY s.queue
), last AS (
    SELECT DISTINCT ON (s.queue) s.* FROM holdfast.samples s WHERE s.minute > holdfast.now() - interval '3 minutes' ORDER BY s.queue, s.minute DESC
)
SELECT coalesce(u.queue, l.queue), u.due, u.most_due, u.oldest, u.most_oldest, coalesce(u.days, 0), l.due, l.behind, l.oldest, l.workers
FROM usual u FULL JOIN last l ON l.queue = u.queue ORDER BY 1;

-- name: sample_trend
-- The state of all queues together in each minute, and of each named one: the rows without a queue are of all.
-- $1 queues, $2 seconds back
SELECT s.minute, NULL, sum(s.due)::int, max(s.oldest)
FROM holdfast.samples s WHERE s.minute >= holdfast.now() - make_interval(secs => $2::float8) GROUP BY s.minute
UNION ALL
SELECT s.minute, s.queue, s.due, s.oldest
FROM unnest($1::text[]) AS n(queue)
CROSS JOIN LATERAL (SELECT s.* FROM holdfast.samples s WHERE s.queue = n.queue AND s.minute >= holdfast.now() - make_interval(secs => $2::float8)) s
ORDER BY 1, 2;

-- name: last_samples
-- The newest sample of each queue, of the last three minutes.
SELECT DISTINCT ON (s.queue) s.queue, s.behind, s.oldest FROM holdfast.samples s
WHERE s.minute > holdfast.now() - interval '3 minutes' ORDER BY s.queue, s.minute DESC;

-- name: prune_samples
-- Forget what is older than 30 days.
-- $1 retention days (not used), $2 limit
WITH gone AS (
    DELETE FROM holdfast.samples s
    WHERE (s.minute, s.queue) IN (SELECT o.minute, o.queue FROM holdfast.samples o
                                  WHERE o.minute < holdfast.now() - interval '30 days' AND $1::int IS NOT NULL
                                  ORDER BY o.minute, o.queue LIMIT $2)
    RETURNING 1
)
SELECT count(*) FROM gone;
