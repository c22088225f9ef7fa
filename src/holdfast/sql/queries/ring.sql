-- name: ring_queues
-- Every queue, and whether its keys belong to one worker each.
SELECT name, ordering = 'key' OR affinity = 'key' FROM holdfast.queues ORDER BY name;

-- name: affinity
-- How much of each key's work one worker did: (key, jobs, those of the worker that did most of them, how many workers, that worker,
-- jobs, kept jobs and keys of all keys together), the keys first that moved about most. Scans a bounded number of the newest finished jobs.
-- $1 queue, $2 seconds back, $3 how many to look at, $4 limit
WITH recent AS MATERIALIZED (
    SELECT a.partition_key AS key, a.claimed_by AS worker
    FROM (SELECT j.queue, j.status, j.partition_key, j.claimed_by, j.completed_at FROM holdfast.archive j ORDER BY j.id DESC LIMIT $3) a
    WHERE a.queue = $1 AND a.status = 'completed' AND a.partition_key IS NOT NULL AND a.claimed_by IS NOT NULL
      AND a.completed_at >= holdfast.now() - make_interval(secs => $2::float8)
), shared AS (
    SELECT key, worker, count(*) AS jobs FROM recent GROUP BY key, worker
), keys AS (
    SELECT key, sum(jobs)::bigint AS jobs, max(jobs) AS kept, count(*) AS workers, (array_agg(worker ORDER BY jobs DESC, worker))[1] AS worker
    FROM shared GROUP BY key
)
SELECT key, jobs, kept, workers, worker, (sum(jobs) OVER ())::bigint, (sum(kept) OVER ())::bigint, count(*) OVER ()
FROM keys ORDER BY jobs - kept DESC, key LIMIT $4;
