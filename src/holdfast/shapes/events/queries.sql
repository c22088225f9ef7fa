-- name: publish
-- anywhere
-- One event. Returns its id, its seq, and whether it is new.
-- $1 type, $2 data, $3 key, $4 headers, $5 id, $6 version
SELECT ARRAY[p.id::text, p.seq::text, p.created::text]
FROM holdfast.publish($1::text, $2::text::jsonb, $3::text, $4::text::jsonb, $5::uuid, $6::int) p;

-- name: publish_many
-- anywhere
-- Many events, in their order. Returns their ids, then their seqs, then, where ids are given, whether each is new.
-- $1 types, $2 data, $3 keys, $4 headers, $5 ids, $6 versions; NULL for a column without values
SELECT array_agg(p.id::text) || array_agg(p.seq::text) || CASE WHEN $5::uuid[] IS NULL THEN '{}'::text[] ELSE array_agg(p.created::text) END
FROM holdfast.publish_many($1::text[], $2::text[], $3::text[], $4::text[], $5::uuid[], $6::int[]) p;

-- name: append_events
-- anywhere
-- The next events of a stream. Returns its version, then the ids, then the seqs; a NULL instead of ids: it is at this version, not at the
-- expected one, and nothing was written.
-- $1 stream, $2 expected version (NULL: any), $3 types, $4 data, $5 headers, $6 versions; NULL for a column without values
SELECT array_agg(DISTINCT a.version::text) || array_agg(a.id::text) || array_agg(a.seq::text)
FROM holdfast.append_events($1::text, $2::bigint, $3::text[], $4::text[], $5::text[], $6::int[], true) a;

-- name: stream_version
-- anywhere
-- The version of a stream; no row: nobody has appended to it. $1 stream
SELECT ARRAY[s.version::text] FROM holdfast.event_streams s WHERE s.key = $1::text;

-- name: turn_page
-- Number what was committed since the last page. Returns the last position; NULL: the log is of another server.
SELECT holdfast.turn_page();

-- name: read_events
-- Events after a position, and a last row that says how far was looked.
-- $1 position, $2 seq of the event at it, $3 most events, $4 most bytes, $5 LIKE patterns of types, $6 shard, $7 shards, $8 last position
SELECT * FROM holdfast.read_events($1::bigint, $2::bigint, $3::int, $4::bigint, $5::text[], $6::int, $7::int, $8::bigint);

-- name: log_state
-- The era, where the log begins, its last position, and events that have no position yet (at most).
SELECT l.era, l.start_pos, coalesce(p.last_pos, l.base_pos), greatest(s.last_value - (NOT s.is_called)::int - coalesce(p.top, l.base_top), 0), l.retention_days, l.hold_days, l.hold_bytes
FROM holdfast.event_log l
CROSS JOIN holdfast.event_seq s
LEFT JOIN LATERAL (SELECT g.last_pos, g.top FROM holdfast.event_pages g WHERE g.last_pos > l.base_pos ORDER BY g.last_pos DESC LIMIT 1) p ON true;

-- part: newest_event
-- The last number that was drawn for an event: a service that sees it rise has a page to turn.
(SELECT s.last_value FROM holdfast.event_seq s)

-- part: settled_events
-- The last number that was drawn for an event; NULL while a transaction is open that published: it may commit without a word.
(SELECT CASE WHEN NOT EXISTS (SELECT FROM pg_locks l WHERE l.relation = 'holdfast.events'::regclass AND l.mode = 'RowExclusiveLock'
                                                       AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
             THEN s.last_value END FROM holdfast.event_seq s)

-- name: subscribe
-- A subscription that is not there yet, and the patterns of one that is. Returns whether it is new.
-- $1 name, $2 kind, $3 patterns, $4 start: 'now' or 'start', $5 shards, $6 whether the log is held for it
WITH made AS (
    INSERT INTO holdfast.subscriptions AS s (name, shard, shards, kind, patterns, position, seq, status, hold, created_at, moved_at)
    SELECT $1::text, g.shard, $5::int, $2::text, $3::text[], at.position, holdfast.event_seq_at(at.position), 'active', $6::boolean, holdfast.now(), holdfast.now()
    FROM generate_series(0, $5::int - 1) AS g(shard)
    CROSS JOIN (SELECT CASE WHEN $4::text = 'start' THEN l.start_pos
                            ELSE coalesce((SELECT p.last_pos FROM holdfast.event_pages p ORDER BY p.last_pos DESC LIMIT 1), l.base_pos) END AS position
                FROM holdfast.event_log l) at
    WHERE NOT EXISTS (SELECT FROM holdfast.subscriptions o WHERE o.name = $1::text)
    ON CONFLICT DO NOTHING
    RETURNING s.shard
), changed AS (
    UPDATE holdfast.subscriptions s SET patterns = $3::text[], kind = $2::text, hold = $6::boolean
    WHERE s.name = $1::text AND (s.patterns <> $3::text[] OR s.kind <> $2::text OR s.hold <> $6::boolean)
)
SELECT EXISTS (SELECT FROM made);

-- name: own_subscriptions
-- Renew what this worker owns of these subscriptions and of the replays to them, and take what nobody owns. A new generation: it was taken.
-- $1 names, $2 token, $3 worker, $4 lease in seconds
UPDATE holdfast.subscriptions s
SET token = $2::uuid, owner = $3::text, generation = CASE WHEN s.token = $2::uuid THEN s.generation ELSE s.generation + 1 END,
    lease_expires_at = holdfast.now() + make_interval(secs => $4::float8)
FROM (SELECT f.name, f.shard FROM holdfast.subscriptions f
      WHERE coalesce(f.replay_of, f.name) = ANY ($1::text[]) AND f.status IN ('active', 'building')
        AND (f.token = $2::uuid OR f.lease_expires_at <= holdfast.now())
      ORDER BY f.name, f.shard FOR UPDATE SKIP LOCKED) f
WHERE s.name = f.name AND s.shard = f.shard
RETURNING s.name, s.shard, s.shards, s.kind, s.patterns, s.position, s.seq, s.until, s.replay_of, s.status, s.generation, s.token, s.barrier,
          s.delivered::text, (SELECT l.era FROM holdfast.event_log l);

-- name: locked_subscriptions
-- What this worker owns, whoever holds its row at the moment: a batch that is being applied does. $1 token
SELECT s.name, s.shard, s.generation FROM holdfast.subscriptions s WHERE s.token = $1::uuid AND s.status IN ('active', 'building');

-- name: release_subscriptions
-- The owner lets go of all it has. $1 token
UPDATE holdfast.subscriptions s SET lease_expires_at = '-infinity', owner = NULL, token = NULL WHERE s.token = $1::uuid;

-- name: hold_subscription
-- anywhere
-- Lock the row of an owner for the rest of the transaction; no row: it was fenced, paused or moved.
-- $1 name, $2 shard, $3 generation, $4 token, $5 position
SELECT ARRAY[s.position::text] FROM holdfast.subscriptions s
WHERE s.name = $1::text AND s.shard = $2::int AND s.generation = $3::bigint AND s.token = $4::uuid AND s.position = $5::bigint AND s.status <> 'paused'
FOR UPDATE;

-- name: advance
-- anywhere
-- Move a position, by its owner. Returns one row, or none: it was fenced, paused or moved.
-- $1 name, $2 shard, $3 generation, $4 token, $5 from position, $6 to position, $7 seq, $8 lease in seconds, $9 positions that became jobs (a
-- multirange, NULL: none)
UPDATE holdfast.subscriptions s
-- assignments are written without spaces: they are no operators
SET position=$6::bigint, seq=$7::bigint, moved_at=holdfast.now(), lease_expires_at=holdfast.now() + make_interval(secs => $8::float8), problem=NULL,
    delivered=CASE WHEN $9::pg_catalog.int8multirange IS NULL THEN s.delivered ELSE s.delivered + $9::pg_catalog.int8multirange END
WHERE s.name = $1::text AND s.shard = $2::int AND s.generation = $3::bigint AND s.token = $4::uuid AND s.position = $5::bigint AND s.status <> 'paused'
RETURNING ARRAY[s.position::text];

-- name: end_replay
-- A replay has come to its end.
-- $1 name, $2 token
DELETE FROM holdfast.subscriptions s WHERE s.name = $1::text AND s.token = $2::uuid AND s.until IS NOT NULL;

-- name: list_subscriptions
-- Every subscription, or those of a name, with its lag. $1 name (NULL: all)
SELECT s.name, s.shard, s.shards, s.kind, s.patterns, s.position, s.status, s.hold, s.owner, g.events, g.seconds, s.missed, s.problem, s.paused_by,
       extract(epoch FROM holdfast.now() - s.paused_at)::float8, s.until, s.replay_of, extract(epoch FROM holdfast.now() - s.moved_at)::float8,
       (SELECT count(*) FROM holdfast.event_failures f WHERE f.subscription = s.name AND f.shard = s.shard)
FROM holdfast.subscriptions s JOIN holdfast.subscription_lag g ON g.name = s.name AND g.shard = s.shard
WHERE $1::text IS NULL OR s.name = $1::text ORDER BY s.name, s.shard;

-- name: pause_subscription
-- Stop a subscription. Returns how many shards changed.
-- $1 name, $2 who, $3 why
WITH done AS (
    UPDATE holdfast.subscriptions s
    SET status = 'paused', paused_by = $2::text, paused_at = holdfast.now(), problem = coalesce($3::text, s.problem), generation = s.generation + 1, token = NULL, owner = NULL,
        lease_expires_at = '-infinity'
    WHERE s.name = $1::text AND s.status IN ('active', 'building') RETURNING 1)
SELECT count(*) FROM done;

-- name: stop_shard
-- An owner gives up on an event: its shard is paused, with the reason. No row: it was fenced.
-- $1 name, $2 shard, $3 generation, $4 token, $5 why
UPDATE holdfast.subscriptions s
SET status = 'paused', paused_by = 'poison', paused_at = holdfast.now(), problem = $5::text, generation = s.generation + 1, token = NULL, owner = NULL, lease_expires_at = '-infinity'
WHERE s.name = $1::text AND s.shard = $2::int AND s.generation = $3::bigint AND s.token = $4::uuid
RETURNING s.position;

-- name: note_trouble
-- What failed last, for people. By the owner.
-- $1 name, $2 shard, $3 token, $4 what
UPDATE holdfast.subscriptions s SET problem = $4::text WHERE s.name = $1::text AND s.shard = $2::int AND s.token = $3::uuid;

-- name: resume_subscription
-- Let a paused one go on. Returns how many shards changed.
-- $1 name
WITH done AS (
    UPDATE holdfast.subscriptions s SET status = 'active', paused_by = NULL, paused_at = NULL, problem = NULL WHERE s.name = $1::text AND s.status = 'paused' RETURNING 1)
SELECT count(*) FROM done;

-- name: reset_subscription
-- Put a subscription to a position; whoever owns it is fenced. Returns how many shards changed; below 0: - the first position that it may be
-- put to - 1.
-- $1 name, $2 position (NULL: by time or word), $3 time (NULL: by word), $4 'start' or 'end'
WITH log AS (
    SELECT l.start_pos, coalesce((SELECT p.last_pos FROM holdfast.event_pages p ORDER BY p.last_pos DESC LIMIT 1), l.base_pos) AS last_pos FROM holdfast.event_log l
), wanted AS (
    SELECT g.start_pos, g.last_pos, CASE WHEN $2::bigint IS NOT NULL THEN $2::bigint
        WHEN $3::timestamptz IS NOT NULL THEN greatest(coalesce((SELECT p.last_pos - p.n FROM holdfast.event_pages p WHERE p.at >= $3::timestamptz ORDER BY p.at, p.last_pos LIMIT 1), g.last_pos), g.start_pos)
        WHEN $4::text = 'start' THEN g.start_pos ELSE g.last_pos END AS position
    FROM log g
), done AS (
    UPDATE holdfast.subscriptions s
    SET position = w.position, seq = holdfast.event_seq_at(w.position), generation = s.generation + 1, token = NULL, owner = NULL, lease_expires_at = '-infinity',
        status = CASE WHEN s.status = 'expired' THEN 'active' ELSE s.status END, missed = NULL, problem = NULL, moved_at = holdfast.now()
    FROM wanted w WHERE s.name = $1::text AND w.position BETWEEN w.start_pos AND w.last_pos RETURNING 1
)
SELECT (SELECT count(*) FROM done), w.position, w.start_pos, w.last_pos FROM wanted w;

-- name: add_replay
-- A temporary subscription that reads a range to the subscriber of another one. Returns whether it was made.
-- $1 its name, $2 of which, $3 from position, $4 to position, $5 whether what was delivered is delivered again
INSERT INTO holdfast.subscriptions (name, shard, shards, kind, patterns, position, seq, until, replay_of, status, hold, created_at, moved_at, delivered)
SELECT $1::text, 0, 1, s.kind, s.patterns, $3::bigint, holdfast.event_seq_at($3::bigint), $4::bigint, s.name, 'active', true, holdfast.now(), holdfast.now(),
       CASE WHEN $5::boolean THEN '{}' ELSE s.delivered END
FROM holdfast.subscriptions s WHERE s.name = $2::text AND s.shard = 0
RETURNING position;

-- name: remove_subscription
-- Forget a subscription, its replays and its failures. Returns how many rows went.
-- $1 name
WITH failures AS (DELETE FROM holdfast.event_failures f WHERE f.subscription = $1::text),
gone AS (DELETE FROM holdfast.subscriptions s WHERE s.name = $1::text OR s.replay_of = $1::text RETURNING 1)
SELECT count(*) FROM gone;

-- name: note_failures
-- anywhere
-- What a projection did not apply, in the transaction that passes it.
-- $1 subscription, $2 shard, $3 positions, $4 seqs, $5 kinds, $6 ids, $7 types, $8 keys, $9 errors
INSERT INTO holdfast.event_failures (subscription, shard, position, seq, kind, event_id, type, key, error, at)
SELECT $1::text, $2::int, u.position, u.seq, u.kind, u.id, u.type, u.key, u.error, holdfast.now()
FROM unnest($3::bigint[], $4::bigint[], $5::text[], $6::uuid[], $7::text[], $8::text[], $9::text[]) AS u(position, seq, kind, id, type, key, error)
ON CONFLICT DO NOTHING
RETURNING ARRAY[position::text];

-- name: parked_event_keys
-- Keys of a subscription that wait behind an event which could not be applied.
-- $1 subscription
SELECT DISTINCT f.key FROM holdfast.event_failures f WHERE f.subscription = $1::text AND f.kind = 'parked' AND f.key IS NOT NULL;

-- name: list_failures
-- What a subscription skipped or parked, in order. $1 subscription, $2 key (NULL: all), $3 most
SELECT f.position, f.seq, f.shard, f.kind, f.event_id, f.type, f.key, f.error, f.at
FROM holdfast.event_failures f WHERE f.subscription = $1::text AND ($2::text IS NULL OR f.key = $2::text) ORDER BY f.position LIMIT $3::int;

-- name: forget_failures
-- anywhere
-- $1 subscription, $2 positions
DELETE FROM holdfast.event_failures f WHERE f.subscription = $1::text AND f.position = ANY ($2::bigint[]) RETURNING ARRAY[f.position::text];

-- name: event_positions
-- Where events are, by seq; NULL: without a position. $1 seqs
SELECT holdfast.event_position(u.seq) FROM unnest($1::bigint[]) WITH ORDINALITY AS u(seq, ord) ORDER BY u.ord;

-- name: event_by_id
-- The seq of an event, by its id. $1 id
SELECT e.seq FROM holdfast.events e WHERE e.id = $1::uuid LIMIT 1;

-- name: projection_positions
-- The lowest position of a subscription over its shards; no row: there is none. $1 name
SELECT min(s.position), min(s.status) FILTER (WHERE s.status <> 'active') FROM holdfast.subscriptions s WHERE s.name = $1::text HAVING count(*) > 0;

-- name: empty_event_slots
-- Remove the days of the log that are past retention. Returns how many pages of them went. $1 most pages
SELECT holdfast.empty_event_slots($1::int);

-- name: prune_event_ids
-- Ids that a caller chose go with the log. $1 days that jobs are kept (not used), $2 most
WITH old AS (
    SELECT i.id FROM holdfast.event_ids i
    WHERE i.at < holdfast.now() - make_interval(days => (SELECT greatest(l.retention_days, l.hold_days) FROM holdfast.event_log l)) ORDER BY i.at LIMIT $2::int
), gone AS (DELETE FROM holdfast.event_ids i USING old WHERE i.id = old.id AND $1::int IS NOT NULL RETURNING 1)
SELECT count(*) FROM gone;

-- name: log_pressure
-- What each subscription makes the log keep: the age of its oldest unread event in seconds, the bytes of the days from there on, and the limits
-- of both. A day counts as a whole.
WITH slots AS MATERIALIZED (
    SELECT t.last_pos, pg_total_relation_size(format('holdfast.events_%s', lpad(d.slot::text, 2, '0'))::regclass) AS bytes
    FROM holdfast.event_log l CROSS JOIN generate_series(0, 31) AS d(slot)
    CROSS JOIN LATERAL (SELECT p.slot, p.last_pos FROM holdfast.event_pages p WHERE (p.slot, p.last_pos) < (d.slot + 1, 0)
                        ORDER BY p.slot DESC, p.last_pos DESC LIMIT 1) t
    WHERE t.slot = d.slot AND t.last_pos > l.start_pos
)
SELECT s.name, coalesce(extract(epoch FROM holdfast.now() - (
           SELECT p.at FROM holdfast.event_pages p WHERE p.last_pos > s.position ORDER BY p.last_pos LIMIT 1)), 0)::float8,
       (SELECT coalesce(sum(x.bytes), 0)::bigint FROM slots x WHERE x.last_pos > s.position), greatest(l.hold_days, l.retention_days), l.hold_bytes
FROM (SELECT h.name, min(h.position) AS position FROM holdfast.subscriptions h WHERE h.hold AND h.status <> 'expired' GROUP BY h.name) s
CROSS JOIN holdfast.event_log l ORDER BY s.name;

-- name: rebase_events
-- Number the log from here on by the transaction ids of this server. Returns how many events had no position.
SELECT holdfast.rebase_events();

-- name: set_event_retention
-- How long the log is kept. $1 days, $2 days that a slow subscriber may hold it, $3 bytes; NULL: as it is
UPDATE holdfast.event_log l SET retention_days = coalesce($1::int, l.retention_days), hold_days = coalesce($2::int, l.hold_days),
    hold_bytes = coalesce($3::bigint, l.hold_bytes)
RETURNING l.retention_days, l.hold_days, l.hold_bytes;

-- name: event_seq_at
-- The seq of the event at a position, for a cursor that is set there. $1 position
SELECT holdfast.event_seq_at($1::bigint);

-- name: position_at
-- The position before the first event that was numbered at a time or later; no row: there is none. $1 time
SELECT greatest(p.last_pos - p.n, l.start_pos) FROM holdfast.event_pages p CROSS JOIN holdfast.event_log l WHERE p.at >= $1::timestamptz
ORDER BY p.at, p.last_pos LIMIT 1;

-- name: skip_event
-- Move a stopped subscription past an event, and note it.
-- $1 name, $2 shard, $3 position, $4 seq, $5 id, $6 type, $7 key, $8 why
WITH moved AS (
    UPDATE holdfast.subscriptions s SET position = $3::bigint, seq = $4::bigint, moved_at = holdfast.now(), generation = s.generation + 1
    WHERE s.name = $1::text AND s.shard = $2::int AND s.status = 'paused' RETURNING 1)
INSERT INTO holdfast.event_failures (subscription, shard, position, seq, kind, event_id, type, key, error, at)
SELECT $1::text, $2::int, $3::bigint, $4::bigint, 'skipped', $5::uuid, $6::text, $7::text, $8::text, holdfast.now() FROM moved
ON CONFLICT DO NOTHING;

-- name: subscription_health
-- Every subscription for the doctor and for metrics: (name, shard, shards, kind, status, position, lag in events, in seconds, owner if it lives, missed,
-- problem, paused by, paused for seconds, failures up to 10,000, what it is a replay of).
-- $1 seconds after which a worker is not heard of
SELECT s.name, s.shard, s.shards, s.kind, s.status, s.position, g.events, g.seconds,
       -- a batch that takes longer than the lease holds the row, so that its living owner cannot renew it
       CASE WHEN s.lease_expires_at > holdfast.now() OR EXISTS (
           SELECT FROM holdfast.workers w WHERE w.id = s.owner AND w.status <> 'gone' AND w.last_seen_at > holdfast.now() - make_interval(secs => $1::float8)) THEN s.owner END,
       s.missed, s.problem, s.paused_by, extract(epoch FROM holdfast.now() - s.paused_at)::float8,
       (SELECT count(*) FROM (SELECT FROM holdfast.event_failures f WHERE f.subscription = s.name AND f.shard = s.shard LIMIT 10000) f), s.replay_of
FROM holdfast.subscriptions s JOIN holdfast.subscription_lag g ON g.name = s.name AND g.shard = s.shard
ORDER BY s.name, s.shard LIMIT 1000;

-- name: log_health
-- Whether the log is of another server, how many events wait for a position for long (up to 1,000), and for how long the oldest of them.
-- $1 seconds
SELECT l.system_id <> (SELECT c.system_identifier FROM pg_control_system() c)
           OR pg_snapshot_xmax(coalesce(p.s_to, l.base_snap)) > pg_snapshot_xmax(pg_current_snapshot()),
       w.n, coalesce(w.seconds, 0)
FROM holdfast.event_log l
LEFT JOIN LATERAL (SELECT g.s_to, g.top FROM holdfast.event_pages g WHERE g.last_pos > l.base_pos ORDER BY g.last_pos DESC LIMIT 1) p ON true
CROSS JOIN LATERAL (
    SELECT count(*) AS n, extract(epoch FROM holdfast.now() - min(e.created_at))::float8 AS seconds
    FROM (SELECT e.created_at FROM holdfast.events e WHERE e.seq > coalesce(p.top, l.base_top) ORDER BY e.seq LIMIT 1000) e
    WHERE e.created_at <= holdfast.now() - make_interval(secs => $1::float8)) w;

-- name: open_publishers
-- Transactions that published and have not ended for long: (pid, prepared name, role, application, seconds). Until they end nobody can publish to their
-- keys, and their days of the log cannot be emptied.
-- $1 seconds
WITH held AS MATERIALIZED (
    SELECT DISTINCT k.pid, k.virtualtransaction FROM pg_locks k JOIN pg_inherits i ON i.inhrelid = k.relation
    WHERE i.inhparent = 'holdfast.events'::regclass AND k.locktype = 'relation' AND k.mode = 'RowExclusiveLock' AND k.granted
      AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
)
SELECT a.pid, NULL::text, coalesce(a.usename, ''), coalesce(a.application_name, ''), extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds
FROM held h JOIN pg_stat_activity a ON a.pid = h.pid
WHERE a.xact_start <= clock_timestamp() - make_interval(secs => $1::float8)
UNION ALL
SELECT NULL, p.gid, p.owner, '', extract(epoch FROM clock_timestamp() - p.prepared)::float8
FROM held h JOIN pg_locks t ON t.virtualtransaction = h.virtualtransaction AND t.pid IS NULL AND t.locktype = 'transactionid'
JOIN pg_prepared_xacts p ON p.transaction = t.transactionid
WHERE p.prepared <= clock_timestamp() - make_interval(secs => $1::float8)
ORDER BY seconds DESC LIMIT 100;

-- name: last_position
-- The last position of the log. Nothing is turned: what was not numbered yet does not count.
SELECT coalesce((SELECT p.last_pos FROM holdfast.event_pages p ORDER BY p.last_pos DESC LIMIT 1), l.base_pos) FROM holdfast.event_log l;
