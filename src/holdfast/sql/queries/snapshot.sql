-- name: fleet
-- Workers that have not left, by status: how many, and how many jobs they may run at once. `late` should have been heard of by now.
-- $1 seconds after which a worker is late, $2 cap
SELECT CASE WHEN w.last_seen_at < holdfast.now() - make_interval(secs => $1::float8) THEN 'late' ELSE w.status END, count(*),
       sum(w.concurrency)
FROM (SELECT v.status, v.last_seen_at, v.concurrency FROM holdfast.workers v WHERE v.status <> 'gone' LIMIT $2) w
GROUP BY 1;

-- name: queue_staff
-- Of every queue: is it paused, and how many workers that are alive take jobs from it.
-- $1 seconds after which a worker is late, $2 cap
SELECT q.name, q.paused_at IS NOT NULL, coalesce(s.workers, 0)
FROM holdfast.queues q
LEFT JOIN (SELECT u.queue, count(*) AS workers
           FROM (SELECT v.queues FROM holdfast.workers v
                 WHERE v.status = 'alive' AND v.last_seen_at >= holdfast.now() - make_interval(secs => $1::float8) LIMIT $2) w
           CROSS JOIN LATERAL unnest(w.queues) AS u(queue)
           GROUP BY u.queue) s ON s.queue = q.name;

-- name: count_paused_tasks
-- How many tasks are paused, up to the cap.
-- $1 cap
SELECT count(*) FROM (SELECT DISTINCT task FROM holdfast.paused_tasks LIMIT $1) t;

-- name: count_expired
-- Claims past their lease, or revoked, that still have jobs, up to the cap. A sweep takes them within seconds.
-- $1 cap
SELECT count(*)
FROM (SELECT FROM holdfast.claims c
      WHERE (c.lease_expires_at < holdfast.now() OR c.revoked_at IS NOT NULL)
        AND EXISTS (SELECT FROM unnest(c.job_ids) AS j(id)
                    CROSS JOIN LATERAL (SELECT FROM holdfast.work w
                                        WHERE w.queue = c.queue AND w.id = j.id AND w.claim_token = c.token
                                          AND w.status = 'processing' OFFSET 0) w)
      LIMIT $1) e;
