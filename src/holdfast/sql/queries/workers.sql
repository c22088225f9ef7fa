-- name: masked_names
-- The names that the code of workers masks, as reported at their start: also of those that are gone, whose jobs are still here.
SELECT DISTINCT n.name FROM holdfast.workers v CROSS JOIN LATERAL jsonb_array_elements_text(
    CASE jsonb_typeof(v.metadata -> 'masked') WHEN 'array' THEN v.metadata -> 'masked' ELSE '[]' END) AS n(name) ORDER BY n.name;

-- name: register
-- Enter the registry under an identity that never repeats.
-- $1 id, $2 host, $3 pid, $4 queues, $5 tasks, $6 concurrency, $7 release, $8 signatures (JSON), $9 metadata (JSON)
INSERT INTO holdfast.workers (id, host, pid, status, last_seen_at, started_at, queues, tasks, concurrency, release, signatures, metadata)
VALUES ($1, $2, $3, 'alive', holdfast.now(), holdfast.now(), $4::text[], $5::text[], $6, $7, $8::text::jsonb, $9::text::jsonb);

-- name: report_death
-- The supervisor saw a worker process end. It is fenced when its silence has lasted; this only says what the silence was, also where
-- it was swept already.
-- $1 host, $2 pid, $3 how it ended
WITH died AS (
    UPDATE holdfast.workers w SET death = $3
    WHERE w.id = (SELECT v.id FROM holdfast.workers v WHERE v.host = $1 AND v.pid = $2 ORDER BY v.started_at DESC LIMIT 1)
      AND w.death IS NULL AND w.ended IS DISTINCT FROM 'left'
    RETURNING w.id, w.blamed
)
UPDATE holdfast.errors e SET kind = 'ProcessDied', message = $3
FROM died d WHERE e.job_id = ANY (d.blamed) AND e.worker = d.id AND e.kind = 'WorkerSilent';

-- name: drain
-- alive -> draining. A heartbeat never undoes it.
-- $1 worker
WITH woken AS (DELETE FROM holdfast.sleepers WHERE worker = $1)
UPDATE holdfast.workers SET status = 'draining' WHERE id = $1 AND status = 'alive' RETURNING status;

-- name: find_workers
-- The workers an operator means: by the beginning of an id or of its last part, by host, or all that are not gone.
-- $1 beginnings, $2 host, $3 everyone?, $4 limit
SELECT w.id, w.host, w.status, p.prefix
FROM holdfast.workers w
LEFT JOIN LATERAL unnest($1::text[]) AS p(prefix) ON starts_with(w.id, p.prefix) OR starts_with(substring(w.id FROM '[^:]*$'), p.prefix)
WHERE p.prefix IS NOT NULL OR (w.status <> 'gone' AND ($3::boolean OR w.host = $2::text))
ORDER BY w.id LIMIT $4;

-- name: drain_workers
-- alive -> draining, asked for by an operator; each worker learns it with its next heartbeat.
-- $1 ids
WITH woken AS (DELETE FROM holdfast.sleepers WHERE worker = ANY ($1::text[]))
UPDATE holdfast.workers SET status = 'draining' WHERE id = ANY ($1::text[]) AND status = 'alive' RETURNING id;

-- name: workers_left
-- Those of these workers that are not gone yet.
-- $1 ids
SELECT id FROM holdfast.workers WHERE id = ANY ($1::text[]) AND status <> 'gone' ORDER BY id;

-- name: leave
-- -> gone, after the last job was settled or handed back.
-- $1 worker
WITH woken AS (DELETE FROM holdfast.sleepers WHERE worker = $1)
UPDATE holdfast.workers SET status = 'gone', ended = 'left', last_seen_at = holdfast.now() WHERE id = $1 AND status <> 'gone' RETURNING status;

-- name: ring_seats
-- The seats of live workers in the rings of these queues. The worker that asks counts, however old its last heartbeat is.
-- $1 queues, $2 seconds after which a worker no longer counts, $3 the worker that asks (NULL: none of them)
SELECT s.queue, s.seat, s.worker, w.host, w.pid
FROM holdfast.seats s JOIN holdfast.workers w ON w.id = s.worker
WHERE s.queue = ANY ($1::text[]) AND w.status = 'alive'
  AND (w.last_seen_at > holdfast.now() - make_interval(secs => $2::float8) OR s.worker = $3::text)
ORDER BY s.queue, s.seat;

-- name: lock_seats
-- Workers take seats one after the other. Readers do not wait.
LOCK TABLE holdfast.seats IN SHARE ROW EXCLUSIVE MODE;

-- name: free_seats
-- The seats of workers that are not alive are free, and so is this worker's own.
-- $1 queue, $2 worker
DELETE FROM holdfast.seats s
WHERE s.queue = $1 AND (s.worker = $2 OR NOT EXISTS (SELECT FROM holdfast.workers w WHERE w.id = s.worker AND w.status = 'alive'));

-- name: take_seat
-- Sit down on the lowest seat that is free. No row: the worker is not alive.
-- $1 queue, $2 worker
INSERT INTO holdfast.seats (queue, seat, worker)
SELECT $1, f.seat, $2
FROM (SELECT n AS seat FROM generate_series(0, (SELECT count(*)::int FROM holdfast.seats s WHERE s.queue = $1)) AS n
      WHERE NOT EXISTS (SELECT FROM holdfast.seats s WHERE s.queue = $1 AND s.seat = n) ORDER BY n LIMIT 1) f
WHERE EXISTS (SELECT FROM holdfast.workers w WHERE w.id = $2 AND w.status = 'alive')
RETURNING seat;
