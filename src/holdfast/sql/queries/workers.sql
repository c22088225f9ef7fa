-- name: register
-- Enter the registry under an identity that never repeats.
-- $1 id, $2 host, $3 pid, $4 queues, $5 tasks, $6 concurrency, $7 release
INSERT INTO holdfast.workers (id, host, pid, status, last_seen_at, started_at, queues, tasks, concurrency, release)
VALUES ($1, $2, $3, 'alive', holdfast.now(), holdfast.now(), $4::text[], $5::text[], $6, $7);

-- name: drain
-- alive -> draining. A heartbeat never undoes it.
-- $1 worker
UPDATE holdfast.workers SET status = 'draining' WHERE id = $1 AND status = 'alive' RETURNING status;

-- name: leave
-- -> gone, after the last job was settled or handed back.
-- $1 worker
UPDATE holdfast.workers SET status = 'gone', ended = 'left', last_seen_at = holdfast.now() WHERE id = $1 AND status <> 'gone' RETURNING status;
