-- name: schedule_read
-- Schedules as they stand, with the newest firing of each, and the database's time.
-- $1 names (NULL: all)
SELECT s.name, s.origin, s.cron, s.every, s.tz, s.missed, s.overlap, s.task, s.version, s.queue, s.payload::text, s.partition_key, s.priority,
       s.max_attempts, s.tags, s.metadata::text, s.fingerprint, s.retired, s.declared_at, s.created_at, s.paused_at, s.paused_by, s.decided_to,
       s.next_at, s.kept_slot, s.problem, s.forgotten_from, s.forgotten_to, f.slot, f.kind, f.job_id, holdfast.now()
FROM holdfast.schedules s
LEFT JOIN LATERAL (SELECT f.slot, f.kind, f.job_id FROM holdfast.firings f WHERE f.schedule = s.name ORDER BY f.slot DESC LIMIT 1) f ON true
WHERE $1::text[] IS NULL OR s.name = ANY ($1::text[])
ORDER BY s.name;

-- name: schedule_lock
-- Lock one schedule against firing and changes, waiting for another lock; no row: there is none.
-- $1 name
SELECT 1 FROM holdfast.schedules WHERE name = $1 FOR NO KEY UPDATE;

-- name: schedule_take
-- Lock one schedule that is still due; no row: it is not, or another worker is at it.
-- $1 name
SELECT 1 FROM holdfast.schedules
WHERE name = $1 AND paused_at IS NULL AND (next_at <= holdfast.now() OR kept_slot IS NOT NULL)
FOR NO KEY UPDATE SKIP LOCKED;

-- name: schedule_due
-- Due schedules of operators and of this worker's code.
-- $1 names in this worker's code, $2 names to leave out, $3 limit
SELECT name FROM holdfast.schedules
WHERE paused_at IS NULL AND (next_at <= holdfast.now() OR kept_slot IS NOT NULL)
  AND (origin = 'operator' OR name = ANY ($1::text[])) AND name <> ALL ($2::text[])
ORDER BY next_at LIMIT $3;

-- name: schedule_wait
-- Seconds until the next slot that is still ahead; NULL: none is.
-- $1 names in this worker's code
SELECT extract(epoch FROM min(next_at) - holdfast.now())::float8 FROM holdfast.schedules
WHERE paused_at IS NULL AND next_at > holdfast.now() AND (origin = 'operator' OR name = ANY ($1::text[]));

-- name: schedule_put
-- Write a schedule: a new one, or other contents for one that is locked.
-- $1 name, $2 origin, $3 cron, $4 every, $5 tz, $6 missed, $7 overlap, $8 task, $9 version, $10 queue, $11 payload, $12 partition key, $13 priority,
-- $14 attempts, $15 tags, $16 metadata, $17 fingerprint, $18 retired fingerprints, $19 decided up to, $20 next slot
INSERT INTO holdfast.schedules AS s (name, origin, cron, every, tz, missed, overlap, task, version, queue, payload, partition_key, priority, max_attempts,
                                     tags, metadata, fingerprint, retired, decided_to, next_at, created_at, declared_at)
VALUES ($1, $2, $3, $4::int, $5, $6, $7, $8, $9::int, $10, $11::text::jsonb, $12, $13::int, $14::int, $15::text[], $16::text::jsonb, $17, $18::text[],
        $19::timestamptz, $20::timestamptz, holdfast.now(), CASE WHEN $2 = 'code' THEN holdfast.now() END)
ON CONFLICT (name) DO UPDATE
    SET cron = EXCLUDED.cron, every = EXCLUDED.every, tz = EXCLUDED.tz, missed = EXCLUDED.missed, overlap = EXCLUDED.overlap, task = EXCLUDED.task,
        version = EXCLUDED.version, queue = EXCLUDED.queue, payload = EXCLUDED.payload, partition_key = EXCLUDED.partition_key,
        priority = EXCLUDED.priority, max_attempts = EXCLUDED.max_attempts, tags = EXCLUDED.tags, metadata = EXCLUDED.metadata,
        fingerprint = EXCLUDED.fingerprint, retired = EXCLUDED.retired, declared_at = EXCLUDED.declared_at, problem = NULL,
        decided_to = greatest(s.decided_to, EXCLUDED.decided_to), next_at = EXCLUDED.next_at
    WHERE s.origin = EXCLUDED.origin
RETURNING 1;

-- name: schedule_touch
-- Say that this worker's code still has these schedules as they are stored; at most one write in that many seconds.
-- $1 names, $2 fingerprints, $3 seconds
UPDATE holdfast.schedules s SET declared_at = holdfast.now()
FROM unnest($1::text[], $2::text[]) AS d(name, fingerprint)
WHERE s.name = d.name AND s.fingerprint = d.fingerprint AND s.origin = 'code'
  AND (s.declared_at < holdfast.now() - make_interval(secs => $3::float8) OR s.declared_at > holdfast.now());

-- name: schedule_differs
-- Those of this worker's schedules that are not stored like this.
-- $1 names, $2 fingerprints
SELECT d.name FROM unnest($1::text[], $2::text[]) AS d(name, fingerprint)
WHERE NOT EXISTS (SELECT FROM holdfast.schedules s WHERE s.name = d.name AND s.fingerprint = d.fingerprint AND s.origin = 'code')
ORDER BY d.name;

-- name: schedule_move
-- The decisions: slots up to here, the next one, and the one that waits. Nothing moves back.
-- $1 name, $2 decided up to, $3 next slot, $4 kept slot
UPDATE holdfast.schedules
SET decided_to = greatest(decided_to, $2::timestamptz), next_at = $3::timestamptz, kept_slot = $4::timestamptz, problem = NULL
WHERE name = $1;

-- name: schedule_problem
-- Write down why a schedule did not fire.
-- $1 name, $2 problem
UPDATE holdfast.schedules SET problem = $2 WHERE name = $1 AND problem IS DISTINCT FROM $2;

-- name: schedule_live
-- Whether a job of the last hundred firings waits or runs.
-- $1 name
SELECT EXISTS (
    SELECT FROM (SELECT f.queue, f.job_id FROM holdfast.firings f WHERE f.schedule = $1 AND f.job_id IS NOT NULL ORDER BY f.slot DESC LIMIT 100) f
    CROSS JOIN LATERAL (SELECT FROM holdfast.work w WHERE w.queue = f.queue AND w.id = f.job_id OFFSET 0) w);

-- name: claim_slots
-- Decide slots that nobody has decided; returns those. A transaction that decides the same ones at the same time waits for this one.
-- $1 schedule, $2 slots, $3 kind
INSERT INTO holdfast.firings (schedule, slot, kind, at)
SELECT $1, u.slot, $3, holdfast.now() FROM unnest($2::timestamptz[]) AS u(slot) ORDER BY u.slot
ON CONFLICT (schedule, slot) DO NOTHING RETURNING slot;

-- name: firing_jobs
-- The jobs that slots became.
-- $1 schedule, $2 slots, $3 jobs, $4 queue
UPDATE holdfast.firings f SET job_id = u.id, queue = $4
FROM unnest($2::timestamptz[], $3::uuid[]) AS u(slot, id) WHERE f.schedule = $1 AND f.slot = u.slot;

-- name: decided_slots
-- Those of these slots that were decided before.
-- $1 schedule, $2 slots
SELECT slot FROM holdfast.firings WHERE schedule = $1 AND slot = ANY ($2::timestamptz[]) ORDER BY slot;

-- name: last_slots
-- What became of the slots that were decided last, the newest first.
-- $1 schedule, $2 how many
SELECT slot, kind, at, job_id FROM holdfast.firings WHERE schedule = $1 ORDER BY slot DESC LIMIT $2;

-- name: schedule_pause
-- Nothing of it fires from now on; no row: it was paused, or there is none.
-- $1 name, $2 by whom
UPDATE holdfast.schedules SET paused_at = holdfast.now(), paused_by = $2 WHERE name = $1 AND paused_at IS NULL RETURNING 1;

-- name: schedule_resume
-- Fire again, from the next slot on; no row: it was not paused, or there is none.
-- $1 name, $2 decided up to, $3 next slot
UPDATE holdfast.schedules
SET paused_at = NULL, paused_by = NULL, decided_to = greatest(decided_to, $2::timestamptz), next_at = $3::timestamptz
WHERE name = $1 AND paused_at IS NOT NULL RETURNING 1;

-- name: schedule_remove
-- Forget a schedule and its firings; jobs that it enqueued stay.
-- $1 name
DELETE FROM holdfast.schedules WHERE name = $1 RETURNING 1;

-- name: clock
-- What time it is for the engine.
SELECT holdfast.now();

-- name: schedules_overdue
-- Schedules whose slot is long past: (name, queue, origin, seconds, problem, does the queue exist, is it in living code, live workers).
-- $1 seconds, $2 seconds after which a worker is not heard of, $3 seconds after which a declaration is not alive
SELECT s.name, s.queue, s.origin, extract(epoch FROM holdfast.now() - s.next_at)::float8, s.problem,
       EXISTS (SELECT FROM holdfast.queues q WHERE q.name = s.queue),
       s.origin = 'operator' OR s.declared_at > holdfast.now() - make_interval(secs => $3::float8),
       (SELECT count(*) FROM holdfast.workers w WHERE w.status = 'alive' AND w.last_seen_at > holdfast.now() - make_interval(secs => $2::float8))
FROM holdfast.schedules s
WHERE s.paused_at IS NULL AND s.next_at <= holdfast.now() - make_interval(secs => $1::float8)
  -- such slots wait for one another
  AND NOT (s.missed = 'run_all' AND s.overlap = 'queue' AND EXISTS (
        SELECT FROM holdfast.firings f JOIN holdfast.work w ON w.queue = f.queue AND w.id = f.job_id WHERE f.schedule = s.name AND f.job_id IS NOT NULL))
ORDER BY s.next_at;

-- name: schedules_failed
-- Schedules whose last job is a dead letter: (name, task, job, seconds since it died, error). What was redriven or discarded is none.
-- $1 limit
SELECT s.name, d.task, d.id, extract(epoch FROM holdfast.now() - d.died_at)::float8, d.last_error
FROM (SELECT x.name FROM holdfast.schedules x WHERE x.paused_at IS NULL ORDER BY x.name LIMIT 10000) s
CROSS JOIN LATERAL (SELECT f.job_id FROM holdfast.firings f WHERE f.schedule = s.name AND f.job_id IS NOT NULL ORDER BY f.slot DESC LIMIT 1) f
CROSS JOIN LATERAL (SELECT l.id, l.task, l.died_at, l.last_error FROM holdfast.dead_letters l WHERE l.id = f.job_id OFFSET 0) d
ORDER BY d.died_at LIMIT $1;

-- name: prune_firings
-- Forget what schedules fired longer ago than finished jobs are kept, except jobs that are still live, and remember between which slots.
-- $1 retention days, $2 limit
WITH gone AS (
    DELETE FROM holdfast.firings x
    WHERE (x.schedule, x.slot) IN (SELECT f.schedule, f.slot FROM holdfast.firings f
                                   WHERE f.at < holdfast.now() - make_interval(days => $1)
                                     AND (f.job_id IS NULL OR NOT EXISTS (SELECT FROM holdfast.work w WHERE w.queue = f.queue AND w.id = f.job_id))
                                   ORDER BY f.at LIMIT $2 FOR UPDATE SKIP LOCKED)
    RETURNING x.schedule, x.slot
), noted AS (
    UPDATE holdfast.schedules s SET forgotten_from = least(s.forgotten_from, g.low), forgotten_to = greatest(s.forgotten_to, g.high)
    FROM (SELECT schedule, min(slot) AS low, max(slot) AS high FROM gone GROUP BY schedule) g WHERE s.name = g.schedule
)
SELECT count(*) FROM gone;

-- part: schedule_due_in
-- For the pulse: in how many seconds a schedule is due that this worker fires. NULL: there is none.
-- $1 schedules in its code
(SELECT extract(epoch FROM min(CASE WHEN s.kept_slot IS NULL THEN s.next_at ELSE holdfast.now() END) - holdfast.now())::float8
        FROM holdfast.schedules s
        WHERE s.paused_at IS NULL AND (s.origin = 'operator' OR s.name = ANY ($1::text[])))
