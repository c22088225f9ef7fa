-- name: receive_many
-- anywhere
-- Messages of one source become jobs, each once. Returns their outcomes, then their jobs.
-- $1 source, $2 ids, $3 digests, $4 task, $5 payloads, $6 queue, $7 keys (NULL: none), $8 faults (NULL: none), $9 version, $10 priority,
-- $11 max attempts, $12 seconds that ids are kept
SELECT array_agg(r.outcome) || array_agg(r.job::text)
FROM holdfast.receive_many($1::text, $2::text[], $3::text[], $4::text, $5::text[], $6::text, $7::text[], $8::text[], $9::int, $10::int,
                           $11::int, make_interval(secs => $12::float8)) r;

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
