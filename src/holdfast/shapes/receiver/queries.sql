-- name: receive_many
-- anywhere
-- Messages of one source become jobs, each once. Returns their outcomes, then their jobs.
-- $1 source, $2 ids, $3 digests, $4 task, $5 payloads, $6 queue, $7 keys (NULL: none), $8 faults (NULL: none), $9 version, $10 priority,
-- $11 max attempts, $12 seconds that ids are kept, $13 metadata (NULL: none), all of them texts
SELECT array_agg(r.outcome) || array_agg(r.job::text)
FROM holdfast.receive_many($1::text, $2::text[], $3::text[], $4::text, $5::text[], $6::text, $7::text[], $8::text[], $9::text::int,
                           $10::text::int, $11::text::int, make_interval(secs => $12::text::float8), $13::text[]) r;

-- name: prune_received
-- Forget ids whose time has come. $1 days that jobs are kept (not used), $2 most
WITH old AS (
    SELECT r.source, r.message_id FROM holdfast.received r WHERE r.expires_at < holdfast.now() ORDER BY r.expires_at LIMIT $2::int
), gone AS (
    DELETE FROM holdfast.received r USING old o WHERE r.source = o.source AND r.message_id = o.message_id AND $1::int IS NOT NULL RETURNING 1
)
SELECT count(*) FROM gone;

-- name: list_received
-- Messages that were received: those whose ids are kept longest first, which within a source is the newest first. Scans at most $3 rows.
-- $1 source (NULL: any), $2 limit, $3 most to look at
SELECT r.source, r.message_id, r.job_id, r.received_at, r.expires_at, encode(r.digest, 'hex')
FROM (SELECT * FROM holdfast.received k ORDER BY k.expires_at DESC LIMIT $3::int) r
WHERE $1::text IS NULL OR r.source = $1
ORDER BY r.expires_at DESC LIMIT $2::int;

-- name: show_received
-- One message that was received; no row: its id is not known. $1 source, $2 id
SELECT r.source, r.message_id, r.job_id, r.received_at, r.expires_at, encode(r.digest, 'hex')
FROM holdfast.received r WHERE r.source = $1::text AND r.message_id = $2::text;

-- name: note_sources
-- A worker's report about the sources in its code.
-- $1 names, $2 read from brokers, $3 tasks, $4 seconds that ids are kept, $5 whether the broker has replied since the last note, $6 messages that wait
-- there (-1: not known), $7 problems (empty: none)
INSERT INTO holdfast.sources AS s (name, broker, task, keep, created_at, seen_at, read_at, waiting, problem)
SELECT u.name, u.broker, u.task, make_interval(secs => u.keep), holdfast.now(), holdfast.now(), CASE WHEN u.has_read THEN holdfast.now() END,
       nullif(u.waiting, -1), nullif(u.problem, '')
FROM unnest($1::text[], $2::bool[], $3::text[], $4::float8[], $5::bool[], $6::bigint[], $7::text[])
     AS u(name, broker, task, keep, has_read, waiting, problem)
ORDER BY u.name COLLATE "C"
ON CONFLICT (name) DO UPDATE
SET broker = EXCLUDED.broker, task = EXCLUDED.task, keep = EXCLUDED.keep, seen_at = EXCLUDED.seen_at,
    read_at = coalesce(EXCLUDED.read_at, s.read_at),
    waiting = CASE WHEN EXCLUDED.read_at IS NULL THEN s.waiting ELSE EXCLUDED.waiting END,
    problem = CASE WHEN EXCLUDED.read_at IS NULL THEN coalesce(EXCLUDED.problem, s.problem) ELSE EXCLUDED.problem END;

-- name: prune_sources
-- Forget sources that no worker has had for a week. $1 days that jobs are kept (not used), $2 most
WITH gone AS (
    DELETE FROM holdfast.sources s WHERE s.name IN (
        SELECT o.name FROM holdfast.sources o WHERE o.seen_at < holdfast.now() - interval '7 days' AND $1::int IS NOT NULL LIMIT $2::int) RETURNING 1
)
SELECT count(*) FROM gone;

-- name: source_health
-- Every source, as the doctor and the metrics want it: (name, of a broker, task, seconds that ids are kept, seconds since a worker had it, seconds since
-- its broker replied, messages that wait there, problem, messages of it that are parked: of the newest $1 dead letters).
WITH parked AS (
    SELECT d.task, count(*) AS messages
    FROM (SELECT l.task, l.last_error FROM holdfast.dead_letters l ORDER BY l.died_at DESC LIMIT $1::int) d
    WHERE d.last_error LIKE 'InvalidMessage: %' GROUP BY d.task
)
SELECT s.name, s.broker, s.task, extract(epoch FROM s.keep)::float8, extract(epoch FROM holdfast.now() - s.seen_at)::float8,
       extract(epoch FROM holdfast.now() - coalesce(s.read_at, s.created_at))::float8, s.waiting, s.problem, coalesce(p.messages, 0)
FROM holdfast.sources s LEFT JOIN parked p ON p.task = s.task
ORDER BY s.name;

-- name: queue_depth
-- How many live jobs a queue has, up to a number. $1 queue, $2 most
SELECT count(*) FROM (SELECT FROM holdfast.work w WHERE w.queue = $1::text LIMIT $2::int) w;
