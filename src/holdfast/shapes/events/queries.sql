-- name: publish
-- anywhere
-- One event. Returns its id, its seq, and whether it is new.
-- $1 type, $2 data, $3 key, $4 headers, $5 id, $6 version
SELECT ARRAY[p.id::text, p.seq::text, p.created::text]
FROM holdfast.publish($1::text, $2::text::jsonb, $3::text, $4::text::jsonb, $5::uuid, $6::int) p;

-- name: publish_many
-- anywhere
-- Many events, in their order. Returns their ids, then their seqs, then whether each is new.
-- $1 types, $2 data, $3 keys, $4 headers, $5 ids, $6 versions; NULL for a column without values
SELECT array_agg(p.id::text) || array_agg(p.seq::text) || array_agg(p.created::text)
FROM holdfast.publish_many($1::text[], $2::text[], $3::text[], $4::text[], $5::uuid[], $6::int[]) p;

-- name: append_events
-- anywhere
-- The version that a stream will have after so many events; below 0: - actual - 1, and nothing was changed.
-- $1 stream, $2 expected version (NULL: any), $3 how many events
SELECT ARRAY[holdfast.append_events($1::text, $2::bigint, $3::int)::text];

-- name: turn_page
-- Number what was committed since the last page. Returns the last position; NULL: the log is of another server.
SELECT holdfast.turn_page();

-- name: read_events
-- Events after a position, and a last row that says how far was looked.
-- $1 position, $2 seq of the event at it, $3 most events, $4 most bytes, $5 LIKE patterns of types, $6 shard, $7 shards, $8 last position
SELECT * FROM holdfast.read_events($1::bigint, $2::bigint, $3::int, $4::bigint, $5::text[], $6::int, $7::int, $8::bigint);

-- name: log_state
-- The era, where the log begins, its last position, and events that have no position yet (at most).
SELECT l.era, l.start_pos, coalesce(p.last_pos, l.base_pos), greatest(s.last_value - coalesce(p.top, l.base_top), 0), l.retention_days, l.hold_days, l.hold_bytes
FROM holdfast.event_log l
CROSS JOIN holdfast.event_seq s
LEFT JOIN LATERAL (SELECT g.last_pos, g.top FROM holdfast.event_pages g WHERE g.last_pos > l.base_pos ORDER BY g.last_pos DESC LIMIT 1) p ON true;

-- part: newest_event
-- The last number that was drawn for an event: a service that sees it rise has a page to turn.
(SELECT s.last_value FROM holdfast.event_seq s)

-- name: subscribe
-- A subscription that is not there yet, and the patterns of one that is. Returns whether it is new.
-- $1 name, $2 kind, $3 patterns, $4 start: 'now' or 'start', $5 shards, $6 whether the log is held for it, $7 version of the code
WITH made AS (
    INSERT INTO holdfast.subscriptions AS s (name, shard, shards, kind, patterns, position, seq, status, hold, created_at, moved_at, version)
    SELECT $1::text, g.shard, $5::int, $2::text, $3::text[], at.position, holdfast.event_seq_at(at.position), 'active', $6::boolean, holdfast.now(), holdfast.now(), $7::int
    FROM generate_series(0, $5::int - 1) AS g(shard)
    CROSS JOIN (SELECT CASE WHEN $4::text = 'start' THEN l.start_pos
                            ELSE coalesce((SELECT p.last_pos FROM holdfast.event_pages p ORDER BY p.last_pos DESC LIMIT 1), l.base_pos) END AS position
                FROM holdfast.event_log l) at
    WHERE NOT EXISTS (SELECT FROM holdfast.subscriptions o WHERE o.name = $1::text)
    ON CONFLICT DO NOTHING
    RETURNING s.shard
), changed AS (
    UPDATE holdfast.subscriptions s SET patterns = $3::text[], kind = $2::text, hold = $6::boolean
    WHERE s.name = $1::text AND s.version = $7::int AND (s.patterns <> $3::text[] OR s.kind <> $2::text OR s.hold <> $6::boolean)
)
SELECT EXISTS (SELECT FROM made);

-- name: own_subscriptions
-- Renew what this worker owns of these subscriptions and of the replays to them, and take what nobody owns. A new generation: it was taken.
-- $1 names, $2 token, $3 worker, $4 lease in seconds, $5 versions of the code, one for each name
UPDATE holdfast.subscriptions s
SET token = $2::uuid, owner = $3::text, generation = CASE WHEN s.token = $2::uuid THEN s.generation ELSE s.generation + 1 END,
    lease_expires_at = holdfast.now() + make_interval(secs => $4::float8)
FROM (SELECT f.name, f.shard FROM holdfast.subscriptions f
      WHERE EXISTS (SELECT FROM unnest($1::text[], $5::int[]) AS d(name, version) WHERE d.name = coalesce(f.replay_of, f.name) AND d.version = f.version)
        AND f.status IN ('active', 'building')
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

-- name: hold_position
-- anywhere
-- Lock the row of an owner for the rest of the transaction; no row: it was fenced, paused or moved. Returns also which transaction and which
-- server process have it.
-- $1 name, $2 shard, $3 generation, $4 token, $5 position
SELECT ARRAY[s.position::text, pg_catalog.pg_current_xact_id()::text, pg_catalog.pg_backend_pid()::text] FROM holdfast.subscriptions s
WHERE s.name = $1::text AND s.shard = $2::int AND s.generation = $3::bigint AND s.token = $4::uuid AND s.position = $5::bigint AND s.status <> 'paused'
FOR UPDATE;

-- name: current_xid
-- anywhere
-- The transaction that this statement is in; NULL: it has none that writes.
SELECT ARRAY[pg_catalog.pg_current_xact_id_if_assigned()::text];

-- name: end_backend
-- End a session that is still in a transaction. $1 its process, $2 the transaction
SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a WHERE a.pid = $1::int AND a.backend_xid::text = $2::text::xid8::xid::text;

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
        WHEN $3::timestamptz IS NOT NULL THEN greatest(coalesce((SELECT p.last_pos - p.n FROM holdfast.event_pages p WHERE p.at >= $3::timestamptz ORDER BY p.last_pos LIMIT 1), g.last_pos), g.start_pos)
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
FROM ROWS FROM (unnest($3::bigint[]), unnest($4::bigint[]), unnest($5::text[]), unnest($6::uuid[]), unnest($7::text[]), unnest($8::text[]), unnest($9::text[]))
    AS u(position, seq, kind, id, type, key, error)
ON CONFLICT DO NOTHING
RETURNING ARRAY[position::text];

-- name: parked_event_keys
-- Keys of a subscription with events that wait to be applied in order.
-- $1 subscription
SELECT DISTINCT f.key FROM holdfast.event_failures f WHERE f.subscription = $1::text AND f.kind <> 'skipped' AND f.key IS NOT NULL;

-- name: list_failures
-- What a subscription skipped or parked, in order. $1 subscription, $2 key (NULL: all), $3 most, $4 after this position
SELECT f.position, f.seq, f.shard, f.kind, f.event_id, f.type, f.key, f.error, f.at
FROM holdfast.event_failures f WHERE f.subscription = $1::text AND ($2::text IS NULL OR f.key = $2::text) AND f.position > $4::bigint
ORDER BY f.position LIMIT $3::int;

-- name: lock_failures
-- anywhere
-- $1 subscription, $2 positions
SELECT ARRAY[f.position::text] FROM holdfast.event_failures f WHERE f.subscription = $1::text AND f.position = ANY ($2::bigint[]) FOR UPDATE;

-- name: failed_again
-- An event that was to be applied later has failed once more. $1 subscription, $2 position, $3 error
UPDATE holdfast.event_failures f SET error = $3::text, at = holdfast.now() WHERE f.subscription = $1::text AND f.position = $2::bigint;

-- name: lock_positions
-- anywhere
-- Lock the rows of all shards, for whoever does the owners' work for once. $1 name
SELECT ARRAY[s.position::text, pg_catalog.pg_current_xact_id()::text, pg_catalog.pg_backend_pid()::text] FROM holdfast.subscriptions s
WHERE s.name = $1::text ORDER BY s.shard FOR UPDATE;

-- name: fence_subscription
-- anywhere
-- Its owners begin anew. $1 name
UPDATE holdfast.subscriptions s SET generation=s.generation + 1, token=NULL, owner=NULL, lease_expires_at='-infinity' WHERE s.name = $1::text
RETURNING ARRAY[s.name];

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
-- The lowest position of a subscription over its shards, and whether that one stands still; no row: there is none. $1 name
SELECT min(s.position), (array_agg(s.status ORDER BY s.position) FILTER (WHERE s.status IN ('paused', 'expired')))[1] FROM holdfast.subscriptions s WHERE s.name = $1::text HAVING count(*) > 0;

-- name: empty_event_slots
-- Remove the days of the log that are past retention. $1 and $2 are not used. Returns 0: each call does all there is to do.
SELECT 0 * holdfast.empty_event_slots();

-- name: prune_event_ids
-- Ids that a caller chose go with the log. $1 days that jobs are kept (not used), $2 most
WITH old AS (
    SELECT i.id FROM holdfast.event_ids i
    WHERE i.at < holdfast.now() - make_interval(days => (SELECT greatest(l.retention_days, l.hold_days) FROM holdfast.event_log l)) ORDER BY i.at LIMIT $2::int
), gone AS (DELETE FROM holdfast.event_ids i USING old WHERE i.id = old.id AND $1::int IS NOT NULL RETURNING 1)
SELECT count(*) FROM gone;

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
SELECT greatest(p.last_pos - p.n, l.start_pos) FROM holdfast.event_pages p CROSS JOIN holdfast.event_log l WHERE p.at >= $1::timestamptz ORDER BY p.last_pos LIMIT 1;

-- name: skip_event
-- Move a stopped subscription past an event, and note it.
-- $1 name, $2 shard, $3 position, $4 seq, $5 id, $6 type, $7 key, $8 why
WITH moved AS (
    UPDATE holdfast.subscriptions s SET position = $3::bigint, seq = $4::bigint, moved_at = holdfast.now(), generation = s.generation + 1
    WHERE s.name = $1::text AND s.shard = $2::int AND s.status = 'paused' RETURNING 1)
INSERT INTO holdfast.event_failures (subscription, shard, position, seq, kind, event_id, type, key, error, at)
SELECT $1::text, $2::int, $3::bigint, $4::bigint, 'skipped', $5::uuid, $6::text, $7::text, $8::text, holdfast.now() FROM moved
ON CONFLICT DO NOTHING;


-- name: find_tables
-- anywhere
-- Which tables these names mean for this role; NULL: none. $1 names
SELECT ARRAY[t.name, pg_catalog.to_regclass(t.name)::pg_catalog.oid::text] FROM unnest($1::text[]) AS t(name);

-- name: rebuild_obstacle
-- anywhere
-- $1 tables
SELECT ARRAY[holdfast.rebuild_obstacle($1::pg_catalog.oid[])];

-- name: schema_exists
-- anywhere
-- $1 schema
SELECT ARRAY[(pg_catalog.to_regnamespace(pg_catalog.quote_ident($1::text)) IS NOT NULL)::text];

-- name: make_shadow
-- anywhere
-- $1 tables, $2 schema of the new ones, $3 schema of the old ones
SELECT ARRAY[holdfast.make_shadow($1::pg_catalog.oid[], $2::text, $3::text)];

-- name: seed_shadow
-- anywhere
-- Returns why not. $1 tables, $2 schema of the new ones, $3 schema of the seed
SELECT ARRAY[holdfast.seed_shadow($1::pg_catalog.oid[], $2::text, $3::text)];

-- name: add_build
-- anywhere
-- The subscription that builds, and what it builds. Returns no row where one is there.
-- $1 its name, $2 projection, $3 version, $4 tables, $5 schema of the new ones, $6 of the old ones, $7 position, $8 rate, $9 who, $10 patterns
WITH made AS (
    INSERT INTO holdfast.projection_builds (name, projection, version, tables, shadow, old, since, rate, started_by, started_at)
    VALUES ($1::text, $2::text, $3::int, $4::pg_catalog.oid[], $5::text, $6::text, $7::bigint, $8::float8, $9::text, holdfast.now())
    ON CONFLICT DO NOTHING RETURNING name
)
INSERT INTO holdfast.subscriptions (name, shard, shards, kind, patterns, position, seq, replay_of, status, hold, created_at, moved_at, version)
SELECT m.name, 0, 1, 'projection', $10::text[], $7::bigint, holdfast.event_seq_at($7::bigint), $2::text, 'building', true, holdfast.now(), holdfast.now(), $3::int FROM made m
RETURNING ARRAY[name];

-- name: build_of
-- anywhere
-- What a subscription builds. $1 its name
SELECT ARRAY[b.projection, b.version::text, b.shadow, b.old, b.since::text, b.rate::text] FROM holdfast.projection_builds b WHERE b.name = $1::text;

-- name: build_progress
-- How far the rebuild of a projection is: where it began, where it is, where the live one is, its owner, what fails. $1 projection
SELECT b.name, b.version, b.since, s.position, (SELECT max(l.position) FROM holdfast.subscriptions l WHERE l.name = b.projection), s.owner, s.status, s.problem
FROM holdfast.projection_builds b JOIN holdfast.subscriptions s ON s.name = b.name WHERE b.projection = $1::text;

-- name: enter_shadow
-- anywhere
-- To the end of the transaction, names without a schema mean the tables of the shadow. $1 its schema
SELECT ARRAY[pg_catalog.set_config('search_path', pg_catalog.quote_ident($1::text) || ', ' || pg_catalog.current_setting('search_path'), true)];

-- name: wait_for_locks
-- anywhere
-- $1 for how long, in this transaction
SELECT ARRAY[pg_catalog.set_config('lock_timeout', $1::text, true)];

-- name: written_beside
-- anywhere
-- $1 schema of the shadow
SELECT ARRAY[holdfast.written_beside($1::text)];

-- name: swap_projection
-- anywhere
-- Returns why not. $1 the build, $2 position, $3 seq
SELECT ARRAY[holdfast.swap_projection($1::text, $2::bigint, $3::bigint)];

-- name: live_position
-- The highest position of a projection's shards. $1 name
SELECT max(s.position) FROM holdfast.subscriptions s WHERE s.name = $1::text;

-- name: cancel_build
-- $1 projection
SELECT holdfast.cancel_build($1::text);

-- name: drop_old_tables
-- $1 their schema
SELECT holdfast.drop_old_tables($1::text);

-- name: want_shards
-- How many shards the code of a worker that starts wants. The worker that started last decides. $1 name, $2 shards, $3 version of the code
UPDATE holdfast.subscriptions s SET wanted_shards = CASE WHEN s.shards = $2::int AND s.barrier IS NULL THEN NULL ELSE $2::int END
WHERE s.name = $1::text AND s.version = $3::int AND s.replay_of IS NULL AND (s.shards <> $2::int OR s.wanted_shards IS NOT NULL);

-- name: pending_reshards
-- Projections whose number of shards is to change, and which no barrier holds yet. $1 names
SELECT DISTINCT s.name FROM holdfast.subscriptions s
WHERE s.name = ANY ($1::text[]) AND s.wanted_shards <> s.shards AND s.barrier IS NULL AND s.status = 'active';

-- name: begin_reshard
-- $1 name
SELECT holdfast.begin_reshard($1::text);

-- name: finish_reshard
-- $1 name
SELECT holdfast.finish_reshard($1::text);

-- name: restart_projection
-- anywhere
-- $1 name, $2 tables
SELECT ARRAY[holdfast.restart_projection($1::text, $2::pg_catalog.oid[])::text];

-- name: list_projections
-- Every projection over its shards: version, shards, lowest position, lag, a status that is not active, what fails, what was not applied, the
-- rebuild that is under way, and how many shards it is to have. $1 name (NULL: all)
SELECT s.name, max(s.version), max(s.shards), min(s.position), max(g.events), max(g.seconds),
       coalesce(min(s.status) FILTER (WHERE s.status <> 'active'), 'active'), min(s.problem),
       (SELECT count(*) FROM holdfast.event_failures f WHERE f.subscription = s.name),
       (SELECT b.name FROM holdfast.projection_builds b WHERE b.projection = s.name), max(s.wanted_shards)
FROM holdfast.subscriptions s JOIN holdfast.subscription_lag g ON g.name = s.name AND g.shard = s.shard
WHERE s.kind = 'projection' AND s.replay_of IS NULL AND ($1::text IS NULL OR s.name = $1::text)
GROUP BY s.name ORDER BY s.name;
