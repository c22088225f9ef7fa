-- Events ----------------------------------------------------------------------------------------------------------
--
-- The story of one event
--
--   publish()     appends a row to `events`, in the caller's transaction. With a key it first takes a lock on the key that is held to the
--                 commit, and only then draws the sequence number: so within a key, seq order is commit order.
--   turn_page()   numbers what was committed since the last page. A page is a window between two snapshots, (s_from, s_to], restricted to
--                 the sequence numbers lo..hi; its events have positions last_pos - n + 1 .. last_pos, in the order of seq. Nothing is
--                 written per event, and an open transaction is not waited for: its events get a page of their own when it commits.
--   read_events() returns the events after a position. A position is one integer without gaps, the same for every subscriber.
--   advance       moves a subscription's position, guarded by its generation, its token and the position it was read at, in the
--                 transaction of the effect.
--
-- Why it looks like this
--
--   * Every committed event is in exactly one page. s_from of a window is s_to of the window before it, or base_snap of the log.
--   * A window is cut into pages where the slot changes, at a gap of more than 256 in seq, and at 10,000 events: always by seq. A cut by
--     transaction would break the order within a key.
--   * A snapshot here never counts its own transaction as finished (event_snapshot()): a publisher that read first would lose an event.
--   * The log is a ring of 32 day slots, as the archive is. A slot goes by TRUNCATE, never by DELETE of single events.

-- CACHE 1: numbers cached by a session would be out of order. A number is drawn in the INSERT itself, that is under the lock on the table:
-- rebase_events() counts on it.
CREATE SEQUENCE holdfast.event_seq;

CREATE TABLE holdfast.events (
    seq        bigint      NOT NULL DEFAULT nextval('holdfast.event_seq'),
    xid        xid8        NOT NULL DEFAULT pg_current_xact_id(),   -- of the whole transaction, also inside a savepoint
    created_at timestamptz NOT NULL DEFAULT holdfast.now(),
    id         uuid        NOT NULL DEFAULT holdfast.uuid7(),       -- not seq: a restored database draws the same seq again
    slot       smallint    NOT NULL,
    version    int         NOT NULL DEFAULT 1,
    type       text        NOT NULL,
    key        text,
    data       jsonb,                                               -- NULL: erased
    headers    jsonb
) PARTITION BY LIST (slot);
COMMENT ON TABLE holdfast.events IS 'The log, one partition per day';

DO $do$
BEGIN
    FOR slot IN 0..31 LOOP
        EXECUTE format('CREATE TABLE holdfast.events_%s PARTITION OF holdfast.events FOR VALUES IN (%s)
            WITH (autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 50000)', lpad(slot::text, 2, '0'), slot);
        EXECUTE format('CREATE UNIQUE INDEX events_%1$s_seq ON holdfast.events_%1$s (seq)', lpad(slot::text, 2, '0'));
        EXECUTE format('CREATE INDEX events_%1$s_xid ON holdfast.events_%1$s (xid)', lpad(slot::text, 2, '0'));
    END LOOP;
END $do$;

-- One row: where the log begins, what it is numbered from, and how long it is kept.
CREATE TABLE holdfast.event_log (
    only_row       boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    system_id      bigint      NOT NULL,             -- of the server whose transaction ids the pages hold
    era            int         NOT NULL DEFAULT 1,   -- rises with every rebase
    base_pos       bigint      NOT NULL DEFAULT 0,   -- at the last rebase
    base_top       bigint      NOT NULL DEFAULT 0,   -- every event up to this seq was numbered before it
    base_snap      pg_snapshot NOT NULL,
    base_at        timestamptz NOT NULL,
    start_pos      bigint      NOT NULL DEFAULT 0,   -- events up to this position are gone
    retention_days int         NOT NULL DEFAULT 7 CHECK (retention_days BETWEEN 1 AND 30),
    hold_days      int         NOT NULL DEFAULT 28 CHECK (hold_days BETWEEN 1 AND 30),   -- a slow subscriber keeps the log so long, and
    hold_bytes     bigint      NOT NULL DEFAULT 10737418240 CHECK (hold_bytes > 0)       -- so large, and then expires
);

CREATE TABLE holdfast.event_pages (
    last_pos bigint      PRIMARY KEY,
    n        int         NOT NULL CHECK (n > 0),
    slot     smallint    NOT NULL,
    setbacks smallint    NOT NULL DEFAULT 0,   -- how often the clock had been set back before it
    lo       bigint      NOT NULL,
    hi       bigint      NOT NULL,
    top      bigint      NOT NULL,   -- the highest hi so far
    s_from   pg_snapshot NOT NULL,
    s_to     pg_snapshot NOT NULL,
    at       timestamptz NOT NULL,   -- by the clock of the server that turned it; after a setback, never before that of the page before it
    bytes    bigint      NOT NULL    -- of its data, at most: whether a reader must count
);
CREATE INDEX event_pages_hi ON holdfast.event_pages (hi);                -- where is an event?
CREATE INDEX event_pages_at ON holdfast.event_pages (setbacks, at, last_pos);   -- where was the log at a time?
CREATE INDEX event_pages_slot ON holdfast.event_pages (slot, last_pos);  -- which positions does a slot have?

-- Ids that a caller chose, so that publishing one twice is one event. They go with the log.
CREATE TABLE holdfast.event_ids (
    id  uuid        PRIMARY KEY,
    seq bigint,
    at  timestamptz NOT NULL
);
CREATE INDEX event_ids_at ON holdfast.event_ids (at);

-- Streams that append_events() wrote to. A stream begins with its first append; from then on every event of its key counts, also one that
-- publish() wrote. Versions stay when the log no longer has the events.
CREATE TABLE holdfast.event_streams (
    key     text   PRIMARY KEY,
    version bigint NOT NULL
) WITH (fillfactor = 50);

-- Subscriptions: the readers of the log, and their positions. One owner at a time, under lease and generation.
CREATE TABLE holdfast.subscriptions (
    name             text        NOT NULL CHECK (name ~ '^[A-Za-z0-9_.@-]{1,200}$'),
    shard            int         NOT NULL DEFAULT 0,
    shards           int         NOT NULL DEFAULT 1 CHECK (shards BETWEEN 1 AND 8),
    kind             text        NOT NULL CHECK (kind IN ('jobs', 'projection', 'relay', 'webhooks')),
    patterns         text[]      NOT NULL,      -- types, where * stands for anything
    position         bigint      NOT NULL,      -- all up to here is done
    seq              bigint      NOT NULL,      -- of the event at it
    until            bigint,                    -- a replay ends here
    replay_of        text,                      -- the subscription that it is a replay to
    status           text        NOT NULL CHECK (status IN ('active', 'paused', 'building', 'expired')),
    hold             boolean     NOT NULL DEFAULT true,   -- the log is kept for it, up to the limits
    generation       bigint      NOT NULL DEFAULT 0,
    token            uuid,
    owner            text,                      -- the worker that has it
    lease_expires_at timestamptz NOT NULL DEFAULT '-infinity',   -- of one without an owner: since when it has none
    delivered        int8multirange NOT NULL DEFAULT '{}',   -- jobs: positions that became jobs, so that a replay makes none twice
    missed           bigint,                    -- expired: how many events it did not get
    problem          text,                      -- why it is paused, or what failed last
    paused_by        text,
    paused_at        timestamptz,
    created_at       timestamptz NOT NULL,
    moved_at         timestamptz NOT NULL,      -- when the position last moved
    barrier          bigint,                    -- nobody reads beyond it while the number of shards changes
    wanted_shards    int,                       -- what that number becomes
    version          int         NOT NULL DEFAULT 1,   -- of the code that runs it; other code lets it be
    rate             float8 CHECK (rate > 0),   -- a replay reads at most this many events in a second; NULL: as fast as it can
    PRIMARY KEY (name, shard),
    CHECK (shard >= 0 AND shard < shards)
) WITH (fillfactor = 30, vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200,
        autovacuum_vacuum_cost_delay = 0);

-- Events that a projection skipped, or that wait behind an event of their key that it could not apply. In order, to be applied later.
CREATE TABLE holdfast.event_failures (
    subscription text        NOT NULL,
    position     bigint      NOT NULL,
    seq          bigint      NOT NULL,
    shard        int         NOT NULL,
    kind         text        NOT NULL CHECK (kind IN ('skipped', 'parked', 'spilled', 'behind')),   -- parked: its key waits; spilled: the same, and it is tried again; behind: waits for one of those
    event_id     uuid        NOT NULL,
    type         text        NOT NULL,
    key          text,
    error        text,
    at           timestamptz NOT NULL,
    PRIMARY KEY (subscription, position)
);
CREATE INDEX event_failures_key ON holdfast.event_failures (subscription, key) WHERE kind <> 'skipped';

-- Rebuilds of projections: which tables are built again, and the schemas of the new ones and the old ones.
CREATE TABLE holdfast.projection_builds (
    name       text        PRIMARY KEY,       -- of the subscription that builds: NAME@VERSION
    projection text        NOT NULL UNIQUE,
    version    int         NOT NULL,
    tables     oid[]       NOT NULL,
    shadow     text        NOT NULL,          -- the schema of the new tables
    old        text        NOT NULL,          -- and of the old ones, from the swap on
    since      bigint      NOT NULL,          -- the position that it began at
    rate       float8,                        -- events per second, at most
    parts      text[],                        -- what the live tables were made of when it began
    started_by text        NOT NULL,
    started_at timestamptz NOT NULL
);

-- The snapshot of this statement, in which the own transaction counts as in progress.
CREATE FUNCTION holdfast.event_snapshot() RETURNS pg_snapshot
    LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT CASE WHEN own IS NULL OR own >= pg_snapshot_xmax(s) THEN s
                      ELSE (pg_snapshot_xmin(s)::text || ':' || pg_snapshot_xmax(s)::text || ':' ||
                            (SELECT string_agg(x::text, ',' ORDER BY x) FROM (SELECT pg_snapshot_xip(s) UNION SELECT own) AS u(x)))::pg_snapshot END
          FROM (SELECT pg_current_snapshot(), pg_current_xact_id_if_assigned()) AS t(s, own) $$;

-- Why an event cannot be stored; NULL: it can. The header `source` is an attribute of CloudEvents: a URI, or a part of one.
CREATE FUNCTION holdfast.event_fault(type text, data jsonb, key text, headers jsonb, version int) RETURNS text
    LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT CASE
        WHEN type IS NULL OR type ~ '[^A-Za-z0-9_.-]' OR octet_length(type) NOT BETWEEN 1 AND 200
            THEN format('event type %L is not usable: 1 to 200 letters, digits and _ . -', left(type, 200))
        WHEN data IS NULL OR jsonb_typeof(data) <> 'object' THEN 'the data of an event must be a JSON object'
        WHEN CASE WHEN pg_column_size(data) <= 1024 AND pg_column_compression(data) IS NULL THEN octet_length(data::text)
                  ELSE holdfast.printed_bytes(data, 229376) END > 229376
            THEN format('the data of the event is %s bytes, the limit is 229376: store it elsewhere and publish a reference', holdfast.printed_bytes(data, 229376))
        WHEN key = '' THEN 'the key of an event must not be empty: leave it out for none'
        WHEN octet_length(key) > 512 THEN format('the key is %s bytes, the limit is 512', octet_length(key))
        WHEN version IS NULL OR version < 1 THEN format('version must be 1 or more, not %s', version)
        WHEN headers IS NOT NULL AND jsonb_typeof(headers) <> 'object' THEN 'headers must be a JSON object of strings'
        WHEN headers IS NOT NULL AND EXISTS (SELECT FROM jsonb_each(headers) h WHERE jsonb_typeof(h.value) <> 'string') THEN 'headers must be a JSON object of strings'
        WHEN headers IS NOT NULL AND holdfast.printed_bytes(headers, 8192) > 8192 THEN format('headers are %s bytes, the limit is 8192', holdfast.printed_bytes(headers, 8192))
        WHEN headers->>'source' !~ '^([A-Za-z0-9:/?#@!$&''()*+,;=._~[\]-]|%[0-9A-Fa-f]{2})+$'
            THEN format('the header source must be a URI or a part of one, not %L', left(headers->>'source', 200))
    END $$;

-- A transaction with a snapshot of its own does not see a stream that began after it. It may not publish to it without counting, so it fails
-- as a write to a row that changed would: 40001. A row that is put in shows it, and is taken out again. The caller holds the locks of the keys.
CREATE FUNCTION holdfast.check_streams(keys text[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    added text[];
BEGIN
    WITH added AS (
        INSERT INTO holdfast.event_streams AS s (key, version) SELECT DISTINCT u.key, 0 FROM unnest(keys) AS u(key) WHERE u.key IS NOT NULL
        ON CONFLICT DO NOTHING RETURNING s.key)
    SELECT array_agg(a.key) INTO added FROM added a;
    DELETE FROM holdfast.event_streams s WHERE s.key = ANY (added);
END $$;

-- One event. `created` is false where the id was published before.
CREATE FUNCTION holdfast.publish(
    type text, data jsonb DEFAULT '{}', key text DEFAULT NULL, headers jsonb DEFAULT NULL, event_id uuid DEFAULT NULL, version int DEFAULT 1,
    OUT id uuid, OUT seq bigint, OUT created boolean)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    AS $$
DECLARE
    wrong text := CASE   -- without a subquery: an expression costs next to nothing
        WHEN type IS NULL OR type ~ '[^A-Za-z0-9_.-]' OR octet_length(type) NOT BETWEEN 1 AND 200 OR data IS NULL OR jsonb_typeof(data) <> 'object'
             OR pg_column_size(data) > 1024 OR pg_column_compression(data) IS NOT NULL OR octet_length(data::text) > 229376
             OR octet_length(key) NOT BETWEEN 1 AND 512 OR version IS NULL OR version < 1 OR headers IS NOT NULL
            THEN holdfast.event_fault(type, data, key, headers, version) END;
    hash  bigint;
    at    timestamptz;
BEGIN
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION USING MESSAGE = wrong, ERRCODE = 'invalid_parameter_value';
    END IF;
    IF event_id IS NOT NULL THEN
        INSERT INTO holdfast.event_ids (id, at) VALUES (event_id, holdfast.now()) ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            id := event_id;
            created := false;
            SELECT i.seq INTO seq FROM holdfast.event_ids i WHERE i.id = event_id;
            RETURN;
        END IF;
    END IF;
    IF key IS NOT NULL THEN   -- as lock_streams() does it, for one key
        hash := hashtextextended(E'+events\x1f' || key, 7236837);
        -- The stripe, then the key. An expression costs a tenth of a statement; neither is ever NULL.
        IF pg_advisory_xact_lock_shared(7236840, hashtext('+events') # (hash >> 57)::int) IS NULL THEN RETURN; END IF;
        IF pg_advisory_xact_lock(hash) IS NULL THEN RETURN; END IF;
        UPDATE holdfast.event_streams s SET version = s.version + 1 WHERE s.key = publish.key;
        IF NOT FOUND AND current_setting('transaction_isolation') <> 'read committed' THEN
            PERFORM holdfast.check_streams(ARRAY[key]);
        END IF;
    END IF;
    at := holdfast.now();
    INSERT INTO holdfast.events AS e (seq, id, created_at, slot, type, key, version, data, headers)
    VALUES (nextval('holdfast.event_seq'), coalesce(event_id, holdfast.uuid7()), at, holdfast.archive_slot(at), type, key, version, data, headers)
    RETURNING e.id, e.seq INTO id, seq;
    created := true;
    IF event_id IS NOT NULL THEN
        UPDATE holdfast.event_ids i SET seq = publish.seq WHERE i.id = event_id;
    END IF;
    IF (SELECT a.sleepers FROM holdfast.asleep a WHERE a.queue = '+events' ORDER BY a.number DESC LIMIT 1) > 0 THEN
        PERFORM holdfast.wake(ARRAY['+events']);
    END IF;
END $$;

-- Many events in one statement, all or none, in the given order.
CREATE FUNCTION holdfast.publish_many(types text[], datas text[], keys text[] DEFAULT NULL, headers text[] DEFAULT NULL, event_ids uuid[] DEFAULT NULL,
                                      versions int[] DEFAULT NULL)
    RETURNS TABLE (id uuid, seq bigint, created boolean)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    AS $$
DECLARE
    wrong   text;
    careful boolean;
    at      timestamptz;
    day     smallint;    -- the slot
    base    text;        -- of the ids
    low     bigint;
    chosen  boolean := coalesce(array_remove(event_ids, NULL) <> '{}', false);
    ids     uuid[];
    fresh   uuid[];
BEGIN
    IF cardinality(types) > 100000 THEN
        RAISE EXCEPTION '% events at once, the limit is 100000: publish them in several calls', cardinality(types) USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Of many texts as one a pattern is looked for in a quarter of the time. jsonb prints more than was written: a space after each separator,
    -- and numbers without exponents.
    careful := pg_column_size(datas) > 16777216 OR array_to_string(types, '') ~ '[^A-Za-z0-9_.-]' OR array_to_string(datas, '') ~ '[0-9][eE][+-]?[0-9]';
    SELECT CASE WHEN cardinality(types) = 1 THEN f.fault ELSE format('event %s: %s', f.ordinal, f.fault) END INTO wrong
    FROM (SELECT u.ordinal, holdfast.event_fault(u.type, u.data::jsonb, u.key, u.header::jsonb, coalesce(u.version, 1)) AS fault
          FROM unnest(types, datas, keys, headers, versions) WITH ORDINALITY AS u(type, data, key, header, version, ordinal)
          WHERE careful OR u.type IS NULL OR octet_length(u.type) NOT BETWEEN 1 AND 200 OR u.data IS NULL OR ascii(u.data) <> 123 OR octet_length(u.data) > 114688
             OR octet_length(u.key) NOT BETWEEN 1 AND 512 OR u.version < 1 OR u.header IS NOT NULL) f
    WHERE f.fault IS NOT NULL ORDER BY f.ordinal LIMIT 1;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION USING MESSAGE = wrong, ERRCODE = 'invalid_parameter_value';
    END IF;
    IF chosen THEN
        WITH taken AS (
            INSERT INTO holdfast.event_ids AS i (id, at)
            SELECT DISTINCT u.id, holdfast.now() FROM unnest(event_ids) AS u(id) WHERE u.id IS NOT NULL ORDER BY u.id
            ON CONFLICT DO NOTHING RETURNING i.id)
        SELECT coalesce(array_agg(t.id), '{}') INTO fresh FROM taken t;
        ids := ARRAY(SELECT coalesce(u.id, holdfast.uuid7()) FROM unnest(event_ids) WITH ORDINALITY AS u(id, ordinal) ORDER BY u.ordinal);
    END IF;
    IF array_remove(keys, NULL) <> '{}' THEN
        PERFORM holdfast.lock_streams('+events', keys);
        IF EXISTS (SELECT FROM holdfast.event_streams) THEN
            UPDATE holdfast.event_streams s SET version = s.version + k.n
            FROM (SELECT g.key, count(*) AS n   -- an id counts where it comes first
                  FROM (SELECT u.key, u.id IS NULL OR (u.id = ANY (fresh) AND row_number() OVER (PARTITION BY u.id ORDER BY u.ordinal) = 1) AS is_new
                        FROM unnest(keys, event_ids) WITH ORDINALITY AS u(key, id, ordinal)) g
                  WHERE g.key IS NOT NULL AND g.is_new GROUP BY g.key) k
            WHERE s.key = k.key;
        END IF;
        IF current_setting('transaction_isolation') <> 'read committed' THEN
            PERFORM holdfast.check_streams(keys);
        END IF;
    END IF;
    at := holdfast.now();
    day := holdfast.archive_slot(at);
    IF NOT chosen THEN
        -- A random id costs 4 us. So the first one is random, and each of the others is the one before plus 1.
        base := holdfast.uuid7()::text;
        low := mod(('x' || right(base, 12))::bit(48)::bigint, 281474976000000);
        base := left(base, 24);
        RETURN QUERY   -- in the order of the arrays
        INSERT INTO holdfast.events AS e (id, created_at, slot, type, key, version, data, headers)
        SELECT (base || lpad(to_hex(low + u.ordinal), 12, '0'))::uuid, at, day, u.type, u.key, coalesce(u.version, 1), u.data::jsonb, u.header::jsonb
        FROM unnest(types, datas, keys, headers, versions) WITH ORDINALITY AS u(type, data, key, header, version, ordinal)
        RETURNING e.id, e.seq, true;
    ELSE
        RETURN QUERY
        WITH given AS MATERIALIZED (
            SELECT u.*, u.chosen IS NULL OR (u.chosen = ANY (fresh) AND row_number() OVER (PARTITION BY u.id ORDER BY u.ordinal) = 1) AS is_new
            FROM unnest(types, datas, keys, headers, versions, ids, event_ids) WITH ORDINALITY AS u(type, data, key, header, version, id, chosen, ordinal)
        ), made AS (
            INSERT INTO holdfast.events AS e (id, created_at, slot, type, key, version, data, headers)
            SELECT g.id, at, day, g.type, g.key, coalesce(g.version, 1), g.data::jsonb, g.header::jsonb
            FROM given g WHERE g.is_new ORDER BY g.ordinal
            RETURNING e.id, e.seq
        ), noted AS (
            UPDATE holdfast.event_ids i SET seq = m.seq FROM made m WHERE i.id = m.id
        )
        SELECT g.id, coalesce(m.seq, i.seq), g.is_new
        FROM given g LEFT JOIN made m ON m.id = g.id LEFT JOIN holdfast.event_ids i ON i.id = g.id ORDER BY g.ordinal;
    END IF;
    IF (SELECT a.sleepers FROM holdfast.asleep a WHERE a.queue = '+events' ORDER BY a.number DESC LIMIT 1) > 0 THEN
        PERFORM holdfast.wake(ARRAY['+events']);
    END IF;
END $$;

-- Events that are the next ones of a stream, whose key is `stream`, if it is at the version that is expected (NULL: at any). Returns a row for
-- each, with the version of the stream after all of them. Where it is at another version: raises HF002, or for a caller that is `quiet` and reads
-- it returns one row without an id, with the version at which the stream is. A stream that nobody has appended to is at version 0.
-- Without ids of the caller's: those are locked before streams, and the expected version makes a second try safe.
CREATE FUNCTION holdfast.append_events(stream text, expected bigint, types text[], datas text[], headers text[] DEFAULT NULL, versions int[] DEFAULT NULL,
                                       quiet boolean DEFAULT false)
    RETURNS TABLE (version bigint, id uuid, seq bigint)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    wrong  text := CASE
        WHEN stream IS NULL OR octet_length(stream) NOT BETWEEN 1 AND 512 THEN format('a stream is a key of 1 to 512 bytes, not %L', left(stream, 100))
        WHEN expected < 0 THEN format('the expected version must be 0 or more, not %s', expected)
        WHEN coalesce(cardinality(types), 0) = 0 THEN 'append needs one event at least' END;
    actual bigint;
BEGIN
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION USING MESSAGE = wrong, ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM holdfast.lock_streams('+events', ARRAY[stream]);
    SELECT coalesce(max(s.version), 0) INTO actual FROM holdfast.event_streams s WHERE s.key = stream;   -- a new statement: after the lock
    IF expected <> actual THEN
        IF NOT quiet THEN
            RAISE EXCEPTION 'stream % is at version %, not %', quote_literal(stream), actual, expected USING ERRCODE = 'HF002',
                HINT = 'Somebody else wrote to it: read it again and decide again.';
        END IF;
        version := actual;
        RETURN NEXT;
        RETURN;
    END IF;
    IF actual = 0 THEN
        INSERT INTO holdfast.event_streams AS s (key, version) VALUES (stream, 0) ON CONFLICT DO NOTHING;   -- publish_many() counts
    END IF;
    RETURN QUERY
    SELECT actual + cardinality(types), p.id, p.seq
    FROM holdfast.publish_many(types, datas, array_fill(stream, ARRAY[cardinality(types)]), headers, NULL, versions) p;
END $$;

-- About how many bytes the data of an event is when it is printed.
CREATE FUNCTION holdfast.data_size(data jsonb) RETURNS int
    LANGUAGE sql STABLE
    RETURN CASE WHEN data IS NULL THEN 0 WHEN pg_column_compression(data) IS NULL THEN pg_column_size(data) ELSE octet_length(data::text) END;

-- Cuts events into pages, in the order of seq, and writes them behind the last position. Returns the new last position. A clock that is a little
-- behind that of the last page is taken for that one; one that is far behind counts as it is, because nobody knows which of the two was wrong.
CREATE FUNCTION holdfast.write_pages(slots smallint[], seqs bigint[], sizes int[], last_pos bigint, top bigint, s_from pg_snapshot, s_to pg_snapshot, at timestamptz)
    RETURNS bigint
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan
    SET jit = off
    AS $$
DECLARE
    result bigint;
    before record;
    clock  timestamptz := at;
BEGIN
    SELECT p.at, p.setbacks INTO before FROM holdfast.event_pages p ORDER BY p.last_pos DESC LIMIT 1;
    IF before.at > clock AND before.at <= clock + interval '1 minute' THEN clock := before.at; END IF;
    WITH breaks AS (
        SELECT f.slot, f.seq, f.size, row_number() OVER w AS k,
               (f.seq - lag(f.seq) OVER w > 256 OR f.slot <> lag(f.slot) OVER w)::int AS is_break
        FROM unnest(slots, seqs, sizes) AS f(slot, seq, size) WINDOW w AS (ORDER BY f.seq)
    ), isles AS (
        SELECT b.slot, b.seq, b.size, b.k, sum(coalesce(b.is_break, 0)) OVER (ORDER BY b.seq) AS isle FROM breaks b
    ), parts AS (
        SELECT i.slot, i.seq, i.size, i.k, i.isle, (row_number() OVER (PARTITION BY i.isle ORDER BY i.seq) - 1) / 10000 AS part FROM isles i
    ), pages AS (
        SELECT max(p.k) AS k, count(*) AS n, min(p.slot) AS slot, min(p.seq) AS lo, max(p.seq) AS hi, sum(p.size) AS bytes FROM parts p GROUP BY p.isle, p.part
    ), written AS (
        INSERT INTO holdfast.event_pages AS w (last_pos, n, slot, setbacks, lo, hi, top, s_from, s_to, at, bytes)
        SELECT write_pages.last_pos + p.k, p.n, p.slot, least(coalesce(before.setbacks + (clock < before.at)::int, 0), 32767), p.lo, p.hi,
               greatest(write_pages.top, max(p.hi) OVER (ORDER BY p.k)), write_pages.s_from, write_pages.s_to, clock, p.bytes
        FROM pages p
        RETURNING w.last_pos
    )
    SELECT max(w.last_pos) INTO result FROM written w;
    RETURN coalesce(result, last_pos);
END $$;

-- Number what was committed since the last page. Returns the last position; NULL: the transaction ids are of another server, see
-- rebase_events(). To be called by itself, at READ COMMITTED, on the primary. One at a time: by a lock that only the owner of the table may take,
-- because its holder keeps everybody from turning. A role that only reads has no right to this function.
CREATE FUNCTION holdfast.turn_page() RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET jit = off
    AS $$
DECLARE
    log     holdfast.event_log;
    last    record;
    s2      pg_snapshot;
    at      timestamptz;
    late    xid8[];      -- in progress at the last page, and committed since
    slots   smallint[];
    new_slots smallint[];
    new_seqs  bigint[];
    new_sizes int[];
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'events are numbered on the primary, and this server is a standby' USING ERRCODE = 'read_only_sql_transaction';
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'turn_page() needs READ COMMITTED, not %', upper(current_setting('transaction_isolation')) USING ERRCODE = 'active_sql_transaction';
    END IF;
    LOCK TABLE holdfast.event_log IN SHARE UPDATE EXCLUSIVE MODE;
    SELECT * INTO log FROM holdfast.event_log;   -- a new statement: it sees what whoever held the lock has written
    SELECT p.last_pos, p.top, p.s_to AS snap, p.at INTO last FROM holdfast.event_pages p ORDER BY p.last_pos DESC LIMIT 1;
    IF last.last_pos IS NULL OR last.last_pos <= log.base_pos THEN
        SELECT log.base_pos AS last_pos, log.base_top AS top, log.base_snap AS snap, log.base_at AS at INTO last;
    END IF;
    s2 := holdfast.event_snapshot();
    IF log.system_id <> (SELECT c.system_identifier FROM pg_control_system() c) OR pg_snapshot_xmax(last.snap) > pg_snapshot_xmax(s2) THEN
        RETURN NULL;
    END IF;
    late := ARRAY(SELECT x FROM pg_snapshot_xip(last.snap) x WHERE pg_visible_in_snapshot(x, s2));
    IF late = '{}' AND pg_snapshot_xmax(s2) = pg_snapshot_xmax(last.snap) THEN RETURN last.last_pos; END IF;   -- nobody has committed since
    at := clock_timestamp() + (holdfast.now() - statement_timestamp());
    -- Transactions that are newer than the last page wrote into the slots of these days, of which the plan opens no others. Whether another slot
    -- has something of them, because a clock was moved or a transaction took days, is one look at each.
    IF last.at > at - interval '1 day' THEN
        slots := ARRAY[holdfast.archive_slot(at - interval '1 day'), holdfast.archive_slot(at), holdfast.archive_slot(at + interval '1 day')];
    END IF;
    IF slots IS NULL OR EXISTS (SELECT FROM generate_series(0, 31) AS d(slot) CROSS JOIN LATERAL (
                                    SELECT FROM holdfast.events e
                                    WHERE e.slot = d.slot AND e.xid >= pg_snapshot_xmax(last.snap) AND e.xid < pg_snapshot_xmax(s2) AND e.seq > log.base_top LIMIT 1) e
                                WHERE d.slot <> ALL (slots)) THEN
        slots := ARRAY(SELECT generate_series(0, 31));
    END IF;
    -- Events up to base_top were numbered before the last rebase. Their transaction ids are of another server, and may be in the range.
    WITH ranges(a, b) AS MATERIALIZED (   -- between the transactions in progress: a bulk in flight is jumped over
        SELECT coalesce(lag(u.x) OVER (ORDER BY u.x), (pg_snapshot_xmax(last.snap)::text::bigint - 1)::text::xid8), u.x
        FROM (SELECT pg_snapshot_xip(s2) UNION SELECT pg_snapshot_xmax(s2)) AS u(x) WHERE u.x >= pg_snapshot_xmax(last.snap)
    )
    SELECT array_agg(f.slot), array_agg(f.seq), array_agg(f.size) INTO new_slots, new_seqs, new_sizes
    FROM ranges r
    CROSS JOIN LATERAL (SELECT e.slot, e.seq, holdfast.data_size(e.data) AS size FROM holdfast.events e WHERE e.slot = ANY (slots) AND e.xid > r.a AND e.xid < r.b AND e.seq > log.base_top OFFSET 0) f
    WHERE r.a::text::bigint + 1 < r.b::text::bigint;   -- of a thousand in progress, most are neighbours
    IF late <> '{}' THEN
        SELECT new_slots || array_agg(f.slot), new_seqs || array_agg(f.seq), new_sizes || array_agg(f.size) INTO new_slots, new_seqs, new_sizes
        FROM unnest(late) AS l(x) CROSS JOIN LATERAL (SELECT e.slot, e.seq, holdfast.data_size(e.data) AS size FROM holdfast.events e WHERE e.xid = l.x AND e.seq > log.base_top OFFSET 0) f;
    END IF;
    IF new_seqs IS NULL THEN RETURN last.last_pos; END IF;
    RETURN holdfast.write_pages(new_slots, new_seqs, new_sizes, last.last_pos, last.top, last.snap, s2, at);
END $$;

-- The last position, for readers: the page is turned first if the role may do that. NULL: as turn_page().
CREATE FUNCTION holdfast.turn_or_look() RETURNS bigint
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    IF has_function_privilege('holdfast.turn_page()', 'EXECUTE') THEN RETURN holdfast.turn_page(); END IF;
    RETURN (SELECT CASE WHEN l.system_id = (SELECT c.system_identifier FROM pg_control_system() c)
                             AND pg_snapshot_xmax(coalesce(p.s_to, l.base_snap)) <= pg_snapshot_xmax(pg_current_snapshot())
                        THEN coalesce(p.last_pos, l.base_pos) END
            FROM holdfast.event_log l
            LEFT JOIN LATERAL (SELECT g.last_pos, g.s_to FROM holdfast.event_pages g WHERE g.last_pos > l.base_pos ORDER BY g.last_pos DESC LIMIT 1) p ON true);
END $$;

-- Up to `most` events after a position, and of those that match at most about `bytes`. `after_seq` is the seq of the event at that position.
-- The last row (id NULL) says how far was looked, how many events were found up to there (as the version), and what the last position of the
-- log is. Raises HF003 where events after the position are gone. A transaction that is older than their removal sees their pages and not their
-- rows: then fewer are found than there are positions, which the caller must take for the same.
CREATE FUNCTION holdfast.read_events(after bigint, after_seq bigint, most int, bytes bigint, patterns text[], shard int DEFAULT 0, shards int DEFAULT 1,
                                     up_to bigint DEFAULT NULL)
    RETURNS TABLE (pos bigint, seq bigint, id uuid, type text, version int, key text, created_at timestamptz, headers text, data text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET jit = off
    SET max_parallel_workers_per_gather = 0
    AS $$
DECLARE
    start bigint;
    day   smallint;   -- one slot at a time: a plan that is given the slot opens one table and not 32
    whole record;
BEGIN
    -- Pages without a gap, one after the other: then position and seq differ by the same number throughout, and every event between is in them.
    SELECT min(g.slot) AS slot, least(max(g.last_pos), after + most, up_to) AS stop, min(g.last_pos - g.hi) AS shift, 0::bigint AS found,
           min(g.slot) = max(g.slot) AND min(g.last_pos - g.hi) = max(g.last_pos - g.hi) AND bool_and(g.hi - g.lo + 1 = g.n) AND sum(g.bytes) <= read_events.bytes AS is_plain
    INTO whole
    FROM (SELECT g.* FROM holdfast.event_pages g
          WHERE g.last_pos > after AND g.last_pos < after + most + 10000 AND g.last_pos - g.n < least(after + most, up_to) ORDER BY g.last_pos LIMIT most) g;
    IF whole.is_plain THEN
        RETURN QUERY
        SELECT e.seq + whole.shift, e.seq, e.id, e.type, e.version, e.key, e.created_at, e.headers::text, e.data::text
        FROM holdfast.events e
        WHERE e.slot = whole.slot AND e.seq > after - whole.shift AND e.seq <= whole.stop - whole.shift
          AND (patterns IS NULL OR e.type LIKE ANY (patterns)) AND (shards = 1 OR holdfast.bucket(coalesce(e.key, e.id::text)) * shards / 1024 = shard)
        ORDER BY e.seq;
        GET DIAGNOSTICS whole.found = ROW_COUNT;
        IF whole.found < whole.stop - after THEN   -- others were passed over, or they are gone
            SELECT count(*) INTO whole.found FROM holdfast.events e WHERE e.slot = whole.slot AND e.seq > after - whole.shift AND e.seq <= whole.stop - whole.shift;
        END IF;
        RETURN QUERY SELECT whole.stop, whole.stop - whole.shift, NULL::uuid, NULL, whole.found::int, NULL, NULL::timestamptz, NULL,
                            (SELECT q.last_pos FROM holdfast.event_pages q ORDER BY q.last_pos DESC LIMIT 1)::text;
    ELSE
        SELECT g.slot INTO day FROM holdfast.event_pages g WHERE g.last_pos > after ORDER BY g.last_pos LIMIT 1;
        -- Nothing is sorted: pages come in their order, events in that of the index, and the last row, which has no id, last.
        RETURN QUERY
        WITH g AS MATERIALIZED (
            SELECT g.*, g.last_pos - g.n AS before FROM holdfast.event_pages g
            WHERE g.last_pos > after AND g.last_pos < after + most + 10000 AND g.last_pos - g.n < least(after + most, up_to)
            ORDER BY g.last_pos LIMIT most
        ), s AS MATERIALIZED (   -- up to the first page of another slot, also where a page was turned since we asked for the slot
            SELECT least(after + most, up_to, min(g.before) FILTER (WHERE g.slot IS DISTINCT FROM day)) AS stop FROM g
        ), p AS MATERIALIZED (
            SELECT g.* FROM g WHERE g.before < (SELECT s.stop FROM s)
        ), w AS MATERIALIZED (   -- numbered as they come: whoever finds fewer than the pages promise takes none of them
            SELECT after + row_number() OVER o AS pos, h.*, sum(CASE WHEN h.hit THEN holdfast.data_size(h.data) ELSE 0 END) OVER o AS bytes_so_far
            FROM (SELECT e.*, (patterns IS NULL OR e.type LIKE ANY (patterns))
                              AND (shards = 1 OR holdfast.bucket(coalesce(e.key, e.id::text)) * shards / 1024 = shard) AS hit
                  FROM p CROSS JOIN LATERAL (
                      SELECT e.seq, e.id, e.type, e.version, e.key, e.created_at, e.headers, e.data
                      FROM holdfast.events e
                      WHERE e.slot = day AND e.seq >= CASE WHEN p.before < after THEN after_seq + 1 ELSE p.lo END AND e.seq <= p.hi
                        AND pg_visible_in_snapshot(e.xid, p.s_to) AND NOT pg_visible_in_snapshot(e.xid, p.s_from)
                      ORDER BY e.seq LIMIT (SELECT s.stop FROM s) - greatest(p.before, after)) e) h
            WINDOW o AS (ROWS UNBOUNDED PRECEDING)
        ), far AS (   -- what the pages promise was found, else that is how far was looked; the limit of bytes comes after it
            SELECT CASE WHEN c.found < d.n THEN after + d.n ELSE c.pos END AS pos, CASE WHEN c.found < d.n THEN c.found ELSE c.pos - after END AS n
            FROM (SELECT CASE WHEN count(*) > 0 THEN least(max(p.last_pos), (SELECT s.stop FROM s)) - after END AS n FROM p) d
            CROSS JOIN (SELECT count(*) AS found, max(c.pos) FILTER (WHERE c.bytes_so_far <= bytes OR c.pos = after + 1) AS pos FROM w c) c
        )
        SELECT c.pos, c.seq, c.id, c.type, c.version, c.key, c.created_at, c.headers::text, c.data::text
        FROM w c WHERE c.hit AND (c.bytes_so_far <= bytes OR c.pos = after + 1)
      UNION ALL
        SELECT f.pos, (SELECT c.seq FROM w c WHERE c.pos = f.pos), NULL, NULL, f.n::int, NULL, NULL, NULL,
               (SELECT q.last_pos FROM holdfast.event_pages q ORDER BY q.last_pos DESC LIMIT 1)::text
        FROM far f;
    END IF;
    SELECT l.start_pos INTO start FROM holdfast.event_log l;   -- asked afterwards: a slot that was emptied in between had its position moved
    IF start > after THEN
        RAISE EXCEPTION 'events after position % are gone: the log begins after position %', after, start USING ERRCODE = 'HF003';
    END IF;
END $$;

-- The seq of the event at a position, for a cursor that is set there; 0: there is none.
CREATE FUNCTION holdfast.event_seq_at(wanted bigint) RETURNS bigint
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET jit = off
    AS $$
BEGIN
    RETURN coalesce((
        SELECT e.seq FROM (SELECT g.*, g.last_pos - g.n AS before FROM holdfast.event_pages g WHERE g.last_pos >= wanted ORDER BY g.last_pos LIMIT 1) p
        CROSS JOIN LATERAL (
            SELECT e.seq FROM holdfast.events e
            WHERE e.slot = p.slot AND e.seq BETWEEN p.lo AND p.hi AND pg_visible_in_snapshot(e.xid, p.s_to) AND NOT pg_visible_in_snapshot(e.xid, p.s_from)
            ORDER BY e.seq OFFSET greatest(wanted - p.before - 1, 0) LIMIT 1) e
        WHERE wanted > p.before), 0);
END $$;

-- The position before the first event that was numbered at a time or later; NULL: none was. Between two setbacks of the clock pages are in the
-- order of their times. Each such stretch is asked, and the lowest position counts: it rises with the time, and nothing is left out. A page that
-- is of the future was turned by a wrong clock.
CREATE FUNCTION holdfast.event_position_at(wanted timestamptz) RETURNS bigint
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET jit = off
    AS $$
DECLARE
    latest  timestamptz := holdfast.now() + interval '1 minute';
    stretch smallint;
    found   bigint;
    result  bigint;
BEGIN
    SELECT p.setbacks INTO stretch FROM holdfast.event_pages p ORDER BY p.setbacks, p.at, p.last_pos LIMIT 1;
    WHILE stretch IS NOT NULL LOOP
        SELECT p.last_pos - p.n INTO found FROM holdfast.event_pages p WHERE p.setbacks = stretch AND p.at >= wanted AND p.at <= latest
        ORDER BY p.setbacks, p.at, p.last_pos LIMIT 1;
        result := least(result, found);
        SELECT p.setbacks INTO stretch FROM holdfast.event_pages p WHERE p.setbacks > stretch ORDER BY p.setbacks, p.at, p.last_pos LIMIT 1;
    END LOOP;
    RETURN CASE WHEN result IS NOT NULL THEN greatest(result, (SELECT l.start_pos FROM holdfast.event_log l)) END;
END $$;

-- The position of an event; NULL: not numbered yet, or gone. Among the pages whose seqs reach so far, one has it.
CREATE FUNCTION holdfast.event_position(wanted bigint) RETURNS bigint
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET jit = off
    AS $$
BEGIN
    RETURN (
        SELECT p.last_pos - p.n + (SELECT count(*) FROM holdfast.events e
                                   WHERE e.slot = p.slot AND e.seq BETWEEN p.lo AND wanted AND pg_visible_in_snapshot(e.xid, p.s_to)
                                     AND NOT pg_visible_in_snapshot(e.xid, p.s_from))
        FROM holdfast.event_log l
        CROSS JOIN LATERAL (SELECT e.slot, e.xid FROM holdfast.events e WHERE e.seq = wanted LIMIT 1) w
        CROSS JOIN LATERAL (SELECT g.last_pos, g.s_to FROM holdfast.event_pages g ORDER BY g.last_pos DESC LIMIT 1) t
        CROSS JOIN LATERAL (
            SELECT g.* FROM holdfast.event_pages g
            WHERE g.hi >= wanted AND g.lo <= wanted AND g.slot + 0 = w.slot   -- + 0: by the index on hi, not by the one on slot
              AND pg_visible_in_snapshot(w.xid, g.s_to) AND NOT pg_visible_in_snapshot(w.xid, g.s_from)
              -- Without a page of its own it would be looked for in all of them.
              AND (wanted <= l.base_top OR (t.last_pos > l.base_pos AND pg_visible_in_snapshot(w.xid, t.s_to)))
            ORDER BY g.hi LIMIT 1) p);
END $$;

-- The seq of an event, by its id; NULL: not found. Ids have no index, which would cost every publish. Those that a caller chose are in event_ids.
-- Holdfast's ids begin with the time, so they rise with seq, apart from concurrent publishers. So an id is searched by halving, in each day that
-- has its time, and then among its neighbours: as many on each side as one call may publish.
CREATE FUNCTION holdfast.event_seq_of(wanted uuid) RETURNS bigint
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET jit = off
    AS $$
DECLARE
    made    timestamptz := holdfast.uuid7_time(wanted);
    result  bigint;
    lo      bigint;
    hi      bigint;
    middle  record;
    days    int[] := '{}';
    spots   bigint[] := '{}';   -- where it would be in each
    near    int;
BEGIN
    SELECT i.seq INTO result FROM holdfast.event_ids i WHERE i.id = wanted;
    IF result IS NOT NULL OR substr(wanted::text, 15, 1) <> '7' THEN RETURN result; END IF;
    FOR day IN 0..31 LOOP
        SELECT e.seq INTO lo FROM holdfast.events e
        WHERE e.slot = day AND made >= CASE WHEN substr(e.id::text, 15, 1) = '7' THEN holdfast.uuid7_time(e.id) ELSE e.created_at END - interval '1 hour'
          AND e.seq = (SELECT f.seq FROM holdfast.events f WHERE f.slot = day ORDER BY f.seq LIMIT 1);
        CONTINUE WHEN lo IS NULL;
        SELECT e.seq INTO hi FROM holdfast.events e
        WHERE e.slot = day AND made <= CASE WHEN substr(e.id::text, 15, 1) = '7' THEN holdfast.uuid7_time(e.id) ELSE e.created_at END + interval '1 hour'
          AND e.seq = (SELECT f.seq FROM holdfast.events f WHERE f.slot = day ORDER BY f.seq DESC LIMIT 1);
        CONTINUE WHEN hi IS NULL;
        WHILE lo < hi LOOP   -- the first that is not before it
            SELECT e.seq, CASE WHEN substr(e.id::text, 15, 1) = '7' THEN e.id < wanted ELSE e.created_at < made END AS earlier INTO middle
            FROM holdfast.events e WHERE e.slot = day AND e.seq >= lo + (hi - lo) / 2 ORDER BY e.seq LIMIT 1;
            IF middle.earlier THEN lo := middle.seq + 1; ELSE hi := lo + (hi - lo) / 2; END IF;
        END LOOP;
        days := days || day;
        spots := spots || lo;
    END LOOP;
    FOREACH near IN ARRAY ARRAY[256, 100000] LOOP
        FOR k IN 1..cardinality(days) LOOP
            SELECT e.seq INTO result FROM holdfast.events e WHERE e.slot = days[k] AND e.seq BETWEEN spots[k] - near AND spots[k] + near AND e.id = wanted;
            IF result IS NOT NULL THEN RETURN result; END IF;
        END LOOP;
    END LOOP;
    RETURN NULL;
END $$;

-- Positions after this are held for somebody: a subscriber that has not read them, a parked key that is to be applied later.
CREATE FUNCTION holdfast.held_log_position() RETURNS bigint
    LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT least((SELECT min(s.position) FROM holdfast.subscriptions s WHERE s.hold AND s.status <> 'expired'),
                       (SELECT min(f.position) - 1 FROM holdfast.event_failures f WHERE f.kind <> 'skipped'),
                       9223372036854775807) $$;
REVOKE ALL ON FUNCTION holdfast.held_log_position FROM PUBLIC;

-- Empties the slots whose last page is past retention, whose events are all numbered and behind every subscriber that the log is held for. The
-- limits of age and bytes end a hold: then the subscription expires, with the number of events that it did not get. Slots go as a prefix of
-- the positions. A slot that somebody writes to or keeps locked is left for the next time. Removes up to `most` pages of events that are gone,
-- and returns how many: a caller continues until it is fewer.
-- A day counts from its last page. Where the clock of that one was ahead, it counts by the days after it; where it was behind, the days before
-- it keep it.
CREATE FUNCTION holdfast.empty_event_slots(most int DEFAULT 5000) RETURNS int
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET lock_timeout = '200ms'
    SET enable_seqscan = off
    SET jit = off
    AS $$
DECLARE
    log      holdfast.event_log;
    today    timestamptz := date_trunc('day', holdfast.now(), 'UTC');
    last     record;
    held     bigint;     -- positions after this are held
    slots    int[];      -- those that have pages, and of each
    befores  bigint[];   -- the position before its first event
    lasts    bigint[];   -- and of its last one
    stays    boolean[];
    cut      bigint;
    next_cut bigint;
    going    int[];
    this_slot int;
    removed  int;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'empty_event_slots() needs READ COMMITTED, not %', upper(current_setting('transaction_isolation')) USING ERRCODE = 'active_sql_transaction';
    END IF;
    SELECT * INTO log FROM holdfast.event_log;
    held := holdfast.held_log_position();
    SELECT array_agg(x.slot), array_agg(x.before), array_agg(x.last_pos),
           array_agg(x.since >= today - make_interval(days => log.retention_days)
                     OR (x.last_pos > held AND x.since >= today - make_interval(days => greatest(log.hold_days, log.retention_days)) AND x.bytes <= log.hold_bytes))
    INTO slots, befores, lasts, stays
    FROM (WITH s AS MATERIALIZED (
          SELECT d.slot, f.before, t.last_pos, CASE WHEN t.at <= holdfast.now() + interval '1 minute' THEN t.at END AS at,   -- else its clock was ahead
                 sum(pg_total_relation_size(format('holdfast.events_%s', lpad(d.slot::text, 2, '0'))::regclass)) OVER (ORDER BY t.last_pos DESC) AS bytes
          FROM generate_series(0, 31) AS d(slot)
          -- Its first and its last page. Compared as rows, so that no statistics make another index look as good.
          CROSS JOIN LATERAL (SELECT p.slot, p.last_pos - p.n AS before FROM holdfast.event_pages p
                              WHERE (p.slot, p.last_pos) > (d.slot, log.start_pos) ORDER BY p.slot, p.last_pos LIMIT 1) f
          CROSS JOIN LATERAL (SELECT p.last_pos, p.at FROM holdfast.event_pages p
                              WHERE (p.slot, p.last_pos) < (d.slot + 1, 0) ORDER BY p.slot DESC, p.last_pos DESC LIMIT 1) t
          WHERE f.slot = d.slot)
          SELECT s.*, coalesce(s.at, (SELECT min(o.at) FROM s o WHERE o.last_pos > s.last_pos), holdfast.now()) AS since FROM s) x;
    IF false = ANY (stays) THEN
        -- An open or prepared publisher, a backup, a vacuum: not waited for, since all that opens the slot afterwards would wait behind us.
        SELECT array_agg(u.stays OR EXISTS (SELECT FROM pg_locks k
                                            WHERE k.relation = format('holdfast.events_%s', lpad(u.slot::text, 2, '0'))::regclass AND k.granted
                                              AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
                                              AND k.mode <> 'AccessShareLock' AND k.pid IS DISTINCT FROM pg_backend_pid()) ORDER BY u.ordinal)
        INTO stays FROM unnest(slots, stays) WITH ORDINALITY AS u(slot, stays, ordinal);
    END IF;
    -- Up to here every page may go, and a slot goes as a whole.
    SELECT coalesce(min(u.before), 9223372036854775807) INTO cut FROM unnest(befores, stays) AS u(before, stays) WHERE u.stays;
    LOOP
        SELECT min(u.before) INTO next_cut FROM unnest(befores, lasts) AS u(before, last_pos) WHERE u.last_pos > cut AND u.before < cut;
        EXIT WHEN next_cut IS NULL;
        cut := next_cut;
    END LOOP;
    SELECT array_agg(u.slot ORDER BY u.slot), max(u.last_pos) INTO going, cut FROM unnest(slots, lasts) AS u(slot, last_pos) WHERE u.last_pos <= cut;
    BEGIN
        IF going IS NOT NULL THEN
            LOCK TABLE holdfast.event_log IN SHARE UPDATE EXCLUSIVE MODE;   -- nobody turns a page meanwhile
            PERFORM FROM holdfast.event_log l WHERE l.start_pos = log.start_pos AND l.era = log.era FOR UPDATE;
            IF NOT FOUND OR EXISTS (SELECT FROM holdfast.subscriptions s WHERE s.hold AND s.status <> 'expired' AND s.position < held) THEN
                RAISE lock_not_available;                -- somebody else did it, or a subscription was put back
            END IF;
            SELECT p.last_pos, p.s_to AS snap INTO last FROM holdfast.event_pages p ORDER BY p.last_pos DESC LIMIT 1;
            IF last.last_pos <= log.base_pos THEN last.snap := log.base_snap; END IF;
            FOREACH this_slot IN ARRAY going LOOP
                EXECUTE format('LOCK TABLE holdfast.events_%s IN ACCESS EXCLUSIVE MODE', lpad(this_slot::text, 2, '0'));
                IF EXISTS (SELECT FROM holdfast.events e WHERE e.slot = this_slot AND e.xid >= pg_snapshot_xmax(last.snap) AND e.seq > log.base_top)
                   OR EXISTS (SELECT FROM pg_snapshot_xip(last.snap) x JOIN holdfast.events e ON e.slot = this_slot AND e.xid = x AND e.seq > log.base_top)
                   OR EXISTS (SELECT FROM holdfast.event_pages p WHERE p.slot = this_slot AND p.last_pos > cut) THEN
                    RAISE lock_not_available;   -- it has events without a position, or later ones
                END IF;
            END LOOP;
            UPDATE holdfast.event_log l SET start_pos = cut;
            FOREACH this_slot IN ARRAY going LOOP
                EXECUTE format('TRUNCATE holdfast.events_%s', lpad(this_slot::text, 2, '0'));
            END LOOP;
        END IF;
        UPDATE holdfast.subscriptions s SET status = 'expired', missed = l.start_pos - s.position, generation = s.generation + 1, token = NULL, owner = NULL,
            lease_expires_at = '-infinity',
            problem = format('%s events after position %s were removed before it read them', l.start_pos - s.position, s.position)
        FROM holdfast.event_log l
        WHERE s.position < l.start_pos AND (s.status <> 'expired' OR s.missed IS DISTINCT FROM l.start_pos - s.position);
    EXCEPTION WHEN lock_not_available THEN
        NULL;   -- the next time
    END;
    SELECT l.start_pos INTO cut FROM holdfast.event_log l;
    DELETE FROM holdfast.event_pages p USING (SELECT q.last_pos FROM holdfast.event_pages q WHERE q.last_pos <= cut ORDER BY q.last_pos LIMIT most) old
    WHERE p.last_pos = old.last_pos AND p.last_pos < (SELECT max(q.last_pos) FROM holdfast.event_pages q);   -- the next one goes on from the last one
    GET DIAGNOSTICS removed = ROW_COUNT;
    RETURN removed;
END $$;

-- After a logical restore the transaction ids in the log are of another server: number it from here on by those of this one. Returns how many
-- events had no position yet. They are stamped with the transaction id 1, which no window of a server has, and get their pages here: one of
-- ours could be in the window of an old page by its number. Whatever has a seq up to base_top is not looked for again.
CREATE FUNCTION holdfast.rebase_events() RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET lock_timeout = '10s'
    AS $$
DECLARE
    log       holdfast.event_log;
    last      record;
    new_slots smallint[];
    new_seqs  bigint[];
    new_sizes int[];
    drawn     bigint;
    now_at    timestamptz;
    final_pos bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'rebase_events() needs READ COMMITTED, not %', upper(current_setting('transaction_isolation')) USING ERRCODE = 'active_sql_transaction';
    END IF;
    BEGIN
        LOCK TABLE holdfast.event_log IN SHARE UPDATE EXCLUSIVE MODE;   -- as turn_page()
        LOCK TABLE holdfast.events IN SHARE ROW EXCLUSIVE MODE;   -- no publisher is in flight from here on
    EXCEPTION WHEN lock_not_available THEN
        RAISE EXCEPTION 'a transaction that published events is open or prepared, and was waited for 10 s: end it, then rebase again' USING ERRCODE = 'lock_not_available';
    END;
    SELECT * INTO log FROM holdfast.event_log FOR UPDATE;
    SELECT p.last_pos, p.top, p.s_to AS snap, p.at INTO last FROM holdfast.event_pages p ORDER BY p.last_pos DESC LIMIT 1;
    IF last.last_pos IS NULL OR last.last_pos <= log.base_pos THEN
        SELECT log.base_pos AS last_pos, log.base_top AS top, log.base_snap AS snap, log.base_at AS at INTO last;
    END IF;
    drawn := greatest((SELECT s.last_value FROM holdfast.event_seq s), (SELECT max(e.seq) FROM holdfast.events e), last.top);
    now_at := clock_timestamp() + (holdfast.now() - statement_timestamp());
    WITH stamped AS (
        UPDATE holdfast.events e SET xid = '1' WHERE e.seq > log.base_top AND (e.seq > last.top OR NOT pg_visible_in_snapshot(e.xid, last.snap))
        RETURNING e.slot, e.seq, holdfast.data_size(e.data) AS size
    )
    SELECT array_agg(s.slot), array_agg(s.seq), array_agg(s.size) INTO new_slots, new_seqs, new_sizes FROM stamped s;
    -- Logical replication does not carry sequences. Who published on the replica before this has drawn numbers again, and looks numbered by the ids of
    -- a younger server: such an event is in no page. It gets a number that nobody has.
    IF (SELECT count(*) FROM holdfast.events) > coalesce(cardinality(new_seqs), 0)
            + coalesce((SELECT sum(p.n) FROM holdfast.event_pages p WHERE p.last_pos > log.start_pos), 0) THEN
        WITH strays AS MATERIALIZED (
            SELECT e.slot, e.seq, row_number() OVER (ORDER BY e.seq) AS k FROM holdfast.events e
            WHERE e.xid <> '1' AND NOT EXISTS (
                SELECT FROM holdfast.event_pages p
                WHERE p.slot = e.slot AND e.seq BETWEEN p.lo AND p.hi AND pg_visible_in_snapshot(e.xid, p.s_to) AND NOT pg_visible_in_snapshot(e.xid, p.s_from))
        ), moved AS (
            UPDATE holdfast.events e SET xid = '1', seq = drawn + s.k FROM strays s WHERE e.slot = s.slot AND e.seq = s.seq
            RETURNING e.slot, e.seq, e.id, holdfast.data_size(e.data) AS size
        ), noted AS (
            UPDATE holdfast.event_ids i SET seq = m.seq FROM moved m WHERE i.id = m.id
        )
        SELECT new_slots || array_agg(m.slot), new_seqs || array_agg(m.seq), new_sizes || array_agg(m.size), greatest(drawn, max(m.seq))
        INTO new_slots, new_seqs, new_sizes, drawn FROM moved m;
    END IF;
    final_pos := holdfast.write_pages(new_slots, new_seqs, new_sizes, last.last_pos, last.top, '1:1:', '2:2:', now_at);
    PERFORM setval('holdfast.event_seq', drawn);
    UPDATE holdfast.event_log l SET base_pos = final_pos, base_top = drawn, base_snap = holdfast.event_snapshot(), base_at = now_at,
        system_id = (SELECT c.system_identifier FROM pg_control_system() c), era = l.era + 1;
    -- Owners begin anew, and learn of the era.
    UPDATE holdfast.subscriptions s SET generation = s.generation + 1, token = NULL, owner = NULL, lease_expires_at = holdfast.now();
    RETURN final_pos - last.last_pos;
END $$;

-- The number of shards of a projection changes: nobody reads beyond the barrier, which is the position of the shard that has come farthest. All
-- owners start again, to learn it. NULL: not now.
CREATE FUNCTION holdfast.begin_reshard(of_projection text) RETURNS bigint
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    found bigint;
BEGIN
    PERFORM FROM holdfast.subscriptions s WHERE s.name = of_projection ORDER BY s.shard FOR UPDATE;   -- each stands at a commit
    SELECT max(s.position) INTO found FROM holdfast.subscriptions s WHERE s.name = of_projection
    HAVING bool_and(s.status = 'active' AND s.barrier IS NULL AND s.wanted_shards <> s.shards);
    UPDATE holdfast.subscriptions s SET barrier = found, generation = s.generation + 1, token = NULL, owner = NULL, lease_expires_at = '-infinity'
    WHERE s.name = of_projection AND found IS NOT NULL;
    RETURN found;
END $$;

-- All shards have reached the barrier: the new ones continue from there. If one was stopped before it, or moved beyond it, the others continue as
-- they were.
CREATE FUNCTION holdfast.finish_reshard(of_projection text) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    s     holdfast.subscriptions;
    ready boolean;
    held  boolean;
    top   bigint;
BEGIN
    PERFORM FROM holdfast.subscriptions o WHERE o.name = of_projection ORDER BY o.shard FOR UPDATE;
    SELECT bool_and(o.position = o.barrier AND o.wanted_shards IS NOT NULL), bool_or((o.status <> 'active' AND o.position < o.barrier) OR o.position > o.barrier), max(o.generation) INTO ready, held, top
    FROM holdfast.subscriptions o WHERE o.name = of_projection;
    IF held THEN
        UPDATE holdfast.subscriptions o SET barrier = NULL, generation = o.generation + 1, token = NULL, owner = NULL, lease_expires_at = '-infinity' WHERE o.name = of_projection;
    END IF;
    IF ready IS NOT TRUE OR held THEN RETURN false; END IF;
    SELECT * INTO s FROM holdfast.subscriptions o WHERE o.name = of_projection ORDER BY o.shard LIMIT 1;
    DELETE FROM holdfast.subscriptions o WHERE o.name = of_projection;
    INSERT INTO holdfast.subscriptions (name, shard, shards, kind, patterns, position, seq, status, hold, generation, created_at, moved_at, version)
    SELECT s.name, g, s.wanted_shards, s.kind, s.patterns, s.position, s.seq, s.status, s.hold, top + 1, s.created_at, s.moved_at, s.version
    FROM generate_series(0, s.wanted_shards - 1) g;
    UPDATE holdfast.event_failures f SET shard = 0 WHERE f.subscription = of_projection;
    RETURN true;
END $$;

-- Where the log begins. It stays so to the end of the transaction: no day goes meanwhile.
CREATE FUNCTION holdfast.hold_log_start() RETURNS bigint
    LANGUAGE sql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT l.start_pos FROM holdfast.event_log l FOR KEY SHARE $$;

-- A projection starts again: its tables are emptied for this version of the code, and it stands before the first event. Returns how many
-- shards it has.
CREATE FUNCTION holdfast.restart_projection(of_projection text, tables oid[], of_version int) RETURNS int
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    found int;
BEGIN
    PERFORM FROM holdfast.subscriptions s WHERE s.name = of_projection ORDER BY s.shard FOR UPDATE;   -- nobody applies an event meanwhile
    EXECUTE 'TRUNCATE ' || (SELECT string_agg(t::regclass::text, ', ') FROM unnest(tables) AS u(t)) || ' RESTART IDENTITY';
    DELETE FROM holdfast.event_failures f WHERE f.subscription = of_projection;
    UPDATE holdfast.subscriptions s SET position = 0, seq = 0, version = of_version, generation = s.generation + 1, token = NULL, owner = NULL, lease_expires_at = '-infinity', barrier = NULL,
        status = CASE WHEN s.status = 'expired' OR s.paused_by = 'poison' THEN 'active' ELSE s.status END, missed = NULL, problem = NULL, moved_at = holdfast.now(),
        paused_by = CASE WHEN s.status = 'paused' THEN nullif(s.paused_by, 'poison') END,
        paused_at = CASE WHEN s.status = 'paused' AND s.paused_by <> 'poison' THEN s.paused_at END
    WHERE s.name = of_projection;
    GET DIAGNOSTICS found = ROW_COUNT;
    RETURN found;
END $$;

-- Why tables cannot be replaced by others; NULL: they can. What depends on a table would stay with the old one.
CREATE FUNCTION holdfast.rebuild_obstacle(tables oid[]) RETURNS text
    LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT format('%s %s', t.oid::regclass, o.why)
          FROM unnest(tables) AS t(oid) LEFT JOIN pg_class c ON c.oid = t.oid
          CROSS JOIN LATERAL (
              SELECT 'is gone' WHERE c.oid IS NULL
            UNION ALL
              SELECT 'is no ordinary table' WHERE c.relkind <> 'r' OR c.relispartition
            UNION ALL
              SELECT CASE WHEN w.ev_class = c.oid THEN format('has the rule %s', w.rulename) ELSE format('is used by the view %s', w.ev_class::regclass) END
              FROM pg_rewrite w WHERE w.ev_class = c.oid OR EXISTS (
                  SELECT FROM pg_depend d WHERE d.classid = 'pg_rewrite'::regclass AND d.objid = w.oid AND d.refclassid = 'pg_class'::regclass AND d.refobjid = c.oid)
            UNION ALL
              SELECT format('has the foreign key %s of %s', k.conname, k.conrelid::regclass) FROM pg_constraint k WHERE k.contype = 'f' AND c.oid IN (k.conrelid, k.confrelid)
            UNION ALL
              SELECT format('has the trigger %s', g.tgname) FROM pg_trigger g WHERE g.tgrelid = c.oid AND NOT g.tgisinternal
            UNION ALL
              SELECT format('has the policy %s', p.polname) FROM pg_policy p WHERE p.polrelid = c.oid
            UNION ALL
              SELECT 'has row level security' WHERE c.relrowsecurity
            UNION ALL
              SELECT 'inherits from another table, or another from it' FROM pg_inherits i WHERE c.oid IN (i.inhrelid, i.inhparent)
            UNION ALL
              SELECT format('is in the publication %s', p.pubname) FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid WHERE r.prrelid = c.oid
            UNION ALL
              SELECT format('is used by the function %s', d.objid::regprocedure) FROM pg_depend d
              WHERE d.classid = 'pg_proc'::regclass AND ((d.refclassid = 'pg_class'::regclass AND d.refobjid = c.oid) OR (d.refclassid = 'pg_type'::regclass AND d.refobjid = c.reltype))
          ) AS o(why) LIMIT 1 $$;

-- The definition of a table, a line for each part, and the rights of others on it: if the live tables have changed since a rebuild began, the rebuild
-- has made something else.
CREATE FUNCTION holdfast.table_parts(tables oid[]) RETURNS text[]
    LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT array_agg(format('%s: %s', t.oid::regclass, p.part) ORDER BY t.oid, p.part)
          FROM unnest(tables) AS t(oid)
          CROSS JOIN LATERAL (
              SELECT concat_ws(' ', 'column', quote_ident(a.attname), format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN 'NOT NULL' END,
                               'DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), nullif(a.attidentity, ''), nullif(a.attgenerated, ''), a.attacl::text)
              FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
              WHERE a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
            UNION ALL
              SELECT pg_get_indexdef(i.indexrelid) FROM pg_index i WHERE i.indrelid = t.oid
            UNION ALL
              SELECT format('constraint %I %s', k.conname, pg_get_constraintdef(k.oid)) FROM pg_constraint k WHERE k.conrelid = t.oid
            UNION ALL
              SELECT concat_ws(' ', 'owner', c.relowner::regrole, 'rights', c.relacl::text, 'options', c.reloptions::text) FROM pg_class c WHERE c.oid = t.oid
          ) AS p(part) $$;

-- Empty tables like these in a schema of their own, with the same indexes, sequences, rights and comments.
CREATE FUNCTION holdfast.make_shadow(tables oid[], shadow text, old text) RETURNS text
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    t    record;
    i    record;
    made text;
BEGIN
    EXECUTE format('CREATE SCHEMA %I', shadow);
    EXECUTE format('CREATE SCHEMA %I', old);
    EXECUTE format('GRANT USAGE ON SCHEMA %I, %I TO PUBLIC', shadow, old);
    FOR t IN SELECT c.oid, c.relname, c.relowner, c.relpersistence, c.relacl, c.reloptions, obj_description(c.oid, 'pg_class') AS comment
             FROM unnest(tables) AS u(oid) JOIN pg_class c ON c.oid = u.oid LOOP
        made := format('%I.%I', shadow, t.relname);
        EXECUTE format('CREATE %s TABLE %s (LIKE %s INCLUDING ALL)', CASE WHEN t.relpersistence = 'u' THEN 'UNLOGGED' END, made, t.oid::regclass);
        FOR i IN WITH x AS (SELECT x.indrelid, x.indexrelid, row_number() OVER (PARTITION BY x.indrelid ORDER BY x.indexrelid) AS k FROM pg_index x
                            WHERE x.indrelid IN (t.oid, made::regclass))   -- LIKE makes them in the order of the originals
                 SELECT format('%I.%I', shadow, m.relname) AS from_name, 'holdfast_' || n.k AS to_name, 1 AS pass
                 FROM x n JOIN pg_class m ON m.oid = n.indexrelid WHERE n.indrelid = made::regclass
               UNION ALL
                 SELECT format('%I.holdfast_%s', shadow, n.k), w.relname, 2
                 FROM x n JOIN x o ON o.k = n.k AND o.indrelid = t.oid JOIN pg_class w ON w.oid = o.indexrelid WHERE n.indrelid = made::regclass
                 ORDER BY pass LOOP
            EXECUTE format('ALTER INDEX %s RENAME TO %I', i.from_name, i.to_name);
        END LOOP;
        -- A sequence that belongs to a column goes with its old table: the new one has its own.
        FOR i IN SELECT a.attname, s.relname, q.*, format_type(q.seqtypid, NULL) AS kind
                 FROM pg_depend d JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S' JOIN pg_sequence q ON q.seqrelid = s.oid
                 JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
                 WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = t.oid AND d.deptype = 'a' LOOP
            EXECUTE format('CREATE SEQUENCE %I.%I AS %s INCREMENT %s MINVALUE %s MAXVALUE %s START %s CACHE %s %s OWNED BY %s.%I', shadow, i.relname, i.kind,
                i.seqincrement, i.seqmin, i.seqmax, i.seqstart, i.seqcache, CASE WHEN i.seqcycle THEN 'CYCLE' END, made, i.attname);
            EXECUTE format('ALTER TABLE %s ALTER COLUMN %I SET DEFAULT nextval(%L)', made, i.attname, format('%I.%I', shadow, i.relname));
        END LOOP;
        IF t.reloptions IS NOT NULL THEN EXECUTE format('ALTER TABLE %s SET (%s)', made, array_to_string(t.reloptions, ', ')); END IF;
        IF t.comment IS NOT NULL THEN EXECUTE format('COMMENT ON TABLE %s IS %L', made, t.comment); END IF;
        FOR i IN SELECT g.privilege_type AS what, NULL AS col, made AS of, 'TABLE' AS kind, g.grantee, g.is_grantable FROM aclexplode(t.relacl) g WHERE g.grantee <> t.relowner
               UNION ALL
                 SELECT g.privilege_type, a.attname, made, 'TABLE', g.grantee, g.is_grantable
                 FROM pg_attribute a CROSS JOIN aclexplode(a.attacl) g WHERE a.attrelid = t.oid AND g.grantee <> t.relowner
               UNION ALL
                 SELECT g.privilege_type, NULL, pg_get_serial_sequence(made, a.attname), 'SEQUENCE', g.grantee, g.is_grantable
                 FROM pg_attribute a JOIN pg_class s ON s.oid = pg_get_serial_sequence(t.oid::regclass::text, a.attname)::regclass CROSS JOIN aclexplode(s.relacl) g
                 WHERE a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped AND g.grantee <> t.relowner LOOP
            EXECUTE format('GRANT %s%s ON %s %s TO %s%s', i.what, ' (' || quote_ident(i.col) || ')', i.kind, i.of,
                CASE WHEN i.grantee = 0 THEN 'PUBLIC' ELSE i.grantee::regrole::text END, CASE WHEN i.is_grantable THEN ' WITH GRANT OPTION' END);
        END LOOP;
        IF t.relowner <> (SELECT r.oid FROM pg_roles r WHERE r.rolname = current_user) THEN
            EXECUTE format('ALTER TABLE %s OWNER TO %s', made, t.relowner::regrole);
        END IF;
    END LOOP;
    RETURN shadow;
END $$;

-- Fill the shadow with what a schema holds in tables of the same names.
CREATE FUNCTION holdfast.seed_shadow(tables oid[], shadow text, seed text) RETURNS text
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    t     record;
    i     record;
    extra text;
    cols  text;
BEGIN
    FOR t IN SELECT c.relname, to_regclass(format('%I.%I', shadow, c.relname)) AS made, to_regclass(format('%I.%I', seed, c.relname)) AS given
             FROM unnest(tables) AS u(oid) JOIN pg_class c ON c.oid = u.oid LOOP
        IF t.given IS NULL THEN RETURN format('there is no table %I.%I', seed, t.relname); END IF;
        SELECT string_agg(quote_ident(g.attname), ', ') FILTER (WHERE m.attname IS NOT NULL AND m.attgenerated = ''),
               string_agg(quote_ident(g.attname), ', ') FILTER (WHERE m.attname IS NULL) INTO cols, extra
        FROM pg_attribute g LEFT JOIN pg_attribute m ON m.attrelid = t.made AND m.attname = g.attname AND NOT m.attisdropped
        WHERE g.attrelid = t.given AND g.attnum > 0 AND NOT g.attisdropped;
        IF extra IS NOT NULL OR cols IS NULL THEN RETURN format('%s has columns that the projection has not: %s', t.given, extra); END IF;
        EXECUTE format('INSERT INTO %s (%s) OVERRIDING SYSTEM VALUE SELECT %s FROM %s', t.made, cols, cols, t.given);
        FOR i IN SELECT a.attname, pg_get_serial_sequence(t.made::text, a.attname) AS seq FROM pg_attribute a
                 WHERE a.attrelid = t.made AND a.attnum > 0 AND NOT a.attisdropped LOOP
            IF i.seq IS NOT NULL THEN
                EXECUTE format('SELECT setval(%L, max(%I)) FROM %s HAVING max(%I) IS NOT NULL', i.seq, i.attname, t.made, i.attname);
            END IF;
        END LOOP;
    END LOOP;
    RETURN NULL;
END $$;

-- A table beside the shadow that this transaction has written to: a rebuild must not, nor publish or enqueue. Asked before the position moves.
CREATE FUNCTION holdfast.written_beside(shadow text) RETURNS text
    LANGUAGE sql VOLATILE
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT c.oid::regclass::text
          FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace
          WHERE l.locktype = 'relation' AND l.pid = pg_backend_pid() AND l.granted AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
            AND l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock') AND c.relkind IN ('r', 'p')
            AND c.relpersistence <> 't' AND n.nspname NOT IN (shadow, 'pg_catalog', 'pg_toast', 'information_schema')
          LIMIT 1 $$;

-- The end of a rebuild, in the transaction that has applied the last events to the shadow: the new tables take the place of the old ones, and
-- the live subscription continues from their position. The owners of both are fenced. Returns why not; NULL: done.
CREATE FUNCTION holdfast.swap_projection(build text, reached bigint, reached_seq bigint) RETURNS text
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    b     holdfast.projection_builds;
    t     record;
    found text;
BEGIN
    SELECT * INTO b FROM holdfast.projection_builds p WHERE p.name = build;
    FOR t IN SELECT c.relname, n.nspname FROM unnest(b.tables) AS u(oid) JOIN pg_class c ON c.oid = u.oid JOIN pg_namespace n ON n.oid = c.relnamespace LOOP
        EXECUTE format('LOCK TABLE %I.%I IN ACCESS EXCLUSIVE MODE', t.nspname, t.relname);
    END LOOP;
    found := holdfast.rebuild_obstacle(b.tables);   -- a new statement: it sees what was made while we waited for the locks
    IF found IS NOT NULL THEN RETURN found; END IF;
    SELECT string_agg(x.part, '; ' ORDER BY x.part) INTO found
    FROM (SELECT unnest(holdfast.table_parts(b.tables)) AS part EXCEPT SELECT unnest(b.parts)
          UNION ALL (SELECT unnest(b.parts) EXCEPT SELECT unnest(holdfast.table_parts(b.tables)))) x;
    IF found IS NOT NULL THEN RETURN format('they have changed since the rebuild began (%s). Give it up, and begin again', left(found, 500)); END IF;
    FOR t IN SELECT c.relname, n.nspname FROM unnest(b.tables) AS u(oid) JOIN pg_class c ON c.oid = u.oid JOIN pg_namespace n ON n.oid = c.relnamespace LOOP
        EXECUTE format('ALTER TABLE %I.%I SET SCHEMA %I', t.nspname, t.relname, b.old);
        EXECUTE format('ALTER TABLE %I.%I SET SCHEMA %I', b.shadow, t.relname, t.nspname);
    END LOOP;
    EXECUTE format('DROP SCHEMA %I', b.shadow);
    UPDATE holdfast.subscriptions s SET position = reached, seq = reached_seq, version = b.version, generation = s.generation + 1, token = NULL, owner = NULL,
        lease_expires_at = '-infinity', moved_at = holdfast.now(), barrier = NULL, missed = NULL,
        status = CASE WHEN s.status = 'expired' OR s.paused_by = 'poison' THEN 'active' ELSE s.status END,
        problem = CASE WHEN s.paused_by = 'poison' OR s.status <> 'paused' THEN NULL ELSE s.problem END,
        paused_by = CASE WHEN s.status = 'paused' THEN nullif(s.paused_by, 'poison') END,
        paused_at = CASE WHEN s.status = 'paused' AND s.paused_by <> 'poison' THEN s.paused_at END
    WHERE s.name = b.projection;
    DELETE FROM holdfast.event_failures f WHERE f.subscription = b.projection;
    UPDATE holdfast.event_failures f SET subscription = b.projection WHERE f.subscription = build;
    DELETE FROM holdfast.subscriptions s WHERE s.name = build;
    DELETE FROM holdfast.projection_builds p WHERE p.name = build;
    RETURN NULL;
END $$;

-- Give up a rebuild: the shadow goes. Returns how many rebuilds there were.
CREATE FUNCTION holdfast.cancel_build(of_projection text) RETURNS int
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    b holdfast.projection_builds;
    t record;
BEGIN
    SELECT * INTO b FROM holdfast.projection_builds p WHERE p.projection = of_projection;
    IF b.name IS NULL THEN RETURN 0; END IF;
    DELETE FROM holdfast.subscriptions s WHERE s.name = b.name;   -- waits for a batch at work, and fences it
    DELETE FROM holdfast.projection_builds p WHERE p.name = b.name;
    IF NOT FOUND THEN RETURN 0; END IF;   -- swapped meanwhile
    DELETE FROM holdfast.event_failures f WHERE f.subscription = b.name;
    FOR t IN SELECT c.relname FROM pg_class c WHERE c.relnamespace = (SELECT n.oid FROM pg_namespace n WHERE n.nspname = b.shadow) AND c.relkind = 'r' LOOP
        EXECUTE format('DROP TABLE %I.%I', b.shadow, t.relname);
    END LOOP;
    EXECUTE format('DROP SCHEMA %I, %I', b.shadow, b.old);
    RETURN 1;
END $$;

-- Drop the tables that a swap has replaced. Returns their names.
CREATE FUNCTION holdfast.drop_old_tables(old text) RETURNS text[]
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    t    record;
    gone text[] := '{}';
BEGIN
    IF EXISTS (SELECT FROM holdfast.projection_builds p WHERE p.old = drop_old_tables.old) OR to_regnamespace(quote_ident(old)) IS NULL THEN RETURN gone; END IF;
    FOR t IN SELECT c.relname FROM pg_class c WHERE c.relnamespace = to_regnamespace(quote_ident(old)) AND c.relkind = 'r' LOOP
        EXECUTE format('DROP TABLE %I.%I', old, t.relname);
        gone := gone || t.relname::text;
    END LOOP;
    EXECUTE format('DROP SCHEMA %I', old);
    RETURN gone;
END $$;

INSERT INTO holdfast.event_log (system_id, base_snap, base_at) SELECT c.system_identifier, holdfast.event_snapshot(), clock_timestamp() FROM pg_control_system() c;
INSERT INTO holdfast.asleep (queue, number, sleepers, poll) VALUES ('+events', 0, 0, 0);

-- The data of an event without what is to be erased: all of it, or these fields, each as [path, blank]. A blank is nothing but empty, so that nobody can
-- write something else into the log. A field that is not there stays away.
CREATE FUNCTION holdfast.blanked(data jsonb, fields jsonb) RETURNS jsonb
    LANGUAGE plpgsql IMMUTABLE
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    field jsonb;
BEGIN
    IF fields IS NULL THEN RETURN NULL; END IF;
    FOR field IN SELECT f.value FROM jsonb_array_elements(fields) f LOOP
        IF (field -> 1) IS NULL OR (field -> 1) NOT IN ('null', '""', '0', 'false', '[]', '{}') THEN
            RAISE EXCEPTION 'holdfast: % is no blank', field -> 1 USING ERRCODE = '22023', HINT = 'A blank is null, "", 0, false, [] or {}.';
        END IF;
        data := jsonb_set(data, ARRAY(SELECT jsonb_array_elements_text(field -> 0)), field -> 1, false);
    END LOOP;
    RETURN data;
END $$;

-- Take the data of events away, for good: all of it, or the fields that `blanks` names for their type, by 'version type'. The rows stay: positions are
-- counted by them. Returns how many had any.
CREATE FUNCTION holdfast.erase_events(ids uuid[], seqs bigint[], blanks jsonb, only_count boolean) RETURNS bigint
    LANGUAGE sql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    AS $$
    WITH changed AS MATERIALIZED (
        SELECT e.slot, e.seq, b.kept FROM holdfast.events e, LATERAL (SELECT holdfast.blanked(e.data, blanks -> (e.version || ' ' || e.type)) AS kept) b
        WHERE e.seq = ANY (seqs) AND e.id = ANY (ids) AND e.data IS NOT NULL AND e.data IS DISTINCT FROM b.kept
    ), gone AS (
        UPDATE holdfast.events e SET data = c.kept FROM changed c WHERE NOT only_count AND e.slot = c.slot AND e.seq = c.seq
        RETURNING 1
    )
    SELECT CASE WHEN only_count THEN (SELECT count(*) FROM changed) ELSE (SELECT count(*) FROM gone) END
    $$;

-- The same for a key, in one day and from a seq on: reads that many events. Returns the seq of the last one (NULL: there are no more), and how many
-- had data.
CREATE FUNCTION holdfast.erase_event_key(in_slot int, after bigint, most int, of_key text, blanks jsonb, only_count boolean) RETURNS TABLE (last bigint, erased bigint)
    LANGUAGE sql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    AS $$
    WITH look AS MATERIALIZED (
        SELECT e.seq, e.key = of_key AND e.data IS NOT NULL AS wanted FROM holdfast.events e WHERE e.slot = in_slot AND e.seq > after ORDER BY e.seq LIMIT most
    ), changed AS MATERIALIZED (
        SELECT e.seq, b.kept FROM holdfast.events e, LATERAL (SELECT holdfast.blanked(e.data, blanks -> (e.version || ' ' || e.type)) AS kept) b
        WHERE e.slot = in_slot AND e.seq = ANY (ARRAY(SELECT l.seq FROM look l WHERE l.wanted)) AND e.data IS NOT NULL AND e.data IS DISTINCT FROM b.kept
    ), gone AS (
        UPDATE holdfast.events e SET data = c.kept FROM changed c WHERE NOT only_count AND e.slot = in_slot AND e.seq = c.seq
        RETURNING 1
    )
    SELECT CASE WHEN (SELECT count(*) FROM look) >= most THEN (SELECT max(l.seq) FROM look l) END,
           CASE WHEN only_count THEN (SELECT count(*) FROM changed) ELSE (SELECT count(*) FROM gone) END
    $$;

REVOKE ALL ON FUNCTION holdfast.event_snapshot, holdfast.event_fault, holdfast.check_streams, holdfast.publish, holdfast.publish_many, holdfast.append_events, holdfast.data_size, holdfast.write_pages,
    holdfast.turn_page,
    holdfast.read_events, holdfast.event_seq_at, holdfast.event_position_at, holdfast.event_position, holdfast.empty_event_slots, holdfast.rebase_events,
    holdfast.turn_or_look, holdfast.event_seq_of, holdfast.hold_log_start, holdfast.erase_events, holdfast.erase_event_key, holdfast.blanked FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.restart_projection, holdfast.begin_reshard, holdfast.finish_reshard, holdfast.rebuild_obstacle, holdfast.table_parts, holdfast.make_shadow, holdfast.seed_shadow, holdfast.written_beside, holdfast.swap_projection, holdfast.cancel_build,
    holdfast.drop_old_tables FROM PUBLIC;

-- Events: to the last position, or to the end of a replay. Seconds: the age of the next event that it has not passed.
CREATE VIEW holdfast.subscription_lag AS
    SELECT s.name, s.shard, s.kind, s.status, s.position, g.events, CASE WHEN g.events > 0 THEN greatest(extract(epoch FROM holdfast.now() - n.created_at)::float8, 0) ELSE 0 END AS seconds,
           s.owner, s.missed, s.problem
    FROM holdfast.subscriptions s
    CROSS JOIN LATERAL (SELECT greatest(least(coalesce((SELECT p.last_pos FROM holdfast.event_pages p ORDER BY p.last_pos DESC LIMIT 1), 0), s.until) - s.position, 0) AS events) g
    LEFT JOIN LATERAL (
        SELECT e.created_at FROM (SELECT p.* FROM holdfast.event_pages p WHERE p.last_pos > s.position ORDER BY p.last_pos LIMIT 1) p
        CROSS JOIN LATERAL (
            SELECT e.created_at FROM holdfast.events e
            WHERE e.slot = p.slot AND e.seq >= CASE WHEN p.last_pos - p.n < s.position THEN s.seq + 1 ELSE p.lo END AND e.seq <= p.hi
              AND pg_visible_in_snapshot(e.xid, p.s_to) AND NOT pg_visible_in_snapshot(e.xid, p.s_from)
            ORDER BY e.seq LIMIT 1) e) n ON true;
COMMENT ON VIEW holdfast.subscription_lag IS 'How far each subscription is behind the log';

-- Contracts: what the data of each event type and version looks like, as `holdfast contracts store` wrote it down. A version never changes.
CREATE TABLE holdfast.event_types (
    name          text COLLATE "C" NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 200),
    version       int NOT NULL CHECK (version > 0),
    reader        jsonb NOT NULL,   -- JSON Schema of what its code takes
    writer        jsonb NOT NULL,   -- of what its code writes: every field, and no other
    digest        bytea NOT NULL CHECK (octet_length(digest) = 32),   -- of both, without their texts
    compatibility text NOT NULL CHECK (compatibility IN ('backward', 'forward', 'full', 'none')),
    stored_at     timestamptz NOT NULL,
    release       text,   -- of the application, if it was set
    PRIMARY KEY (name, version)
);
