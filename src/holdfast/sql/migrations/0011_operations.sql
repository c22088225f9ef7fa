-- holdfast: expand (needs code >= 1)
-- What people who operate the engine see: the audit says by which surface, from where and why, and what was changed; acts over many outlive their starter;
-- how each queue stood in each minute; and how long attempts ran and waited, as histograms.

ALTER TABLE holdfast.queues ADD COLUMN keep_completed boolean NOT NULL DEFAULT true;

ALTER TABLE holdfast.audit ADD COLUMN surface text, ADD COLUMN address inet, ADD COLUMN reason text, ADD COLUMN before jsonb, ADD COLUMN after jsonb,
    ADD COLUMN operation uuid;

-- One of several keys in place of a hot one, the same in every language: key, '#', and the first 64 bits of SHA-256 of the UTF-8 text of
-- `by`, unsigned, modulo `shards`. Without `by` any shard.
CREATE FUNCTION holdfast.sharded_key(key text, shards int, by text DEFAULT NULL) RETURNS text
    LANGUAGE plpgsql VOLATILE PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    digest text := encode(sha256(convert_to(sharded_key.by, 'UTF8')), 'hex');
    high   bigint := ('x' || substr(digest, 1, 8))::bit(32)::bigint;
    low    bigint := ('x' || substr(digest, 9, 8))::bit(32)::bigint;
BEGIN
    IF shards IS NULL OR shards NOT BETWEEN 1 AND 1024 THEN
        RAISE EXCEPTION 'shards must be between 1 and 1024, not %', coalesce(shards::text, 'NULL') USING ERRCODE = 'invalid_parameter_value';
    ELSIF key IS NULL OR key = '' THEN
        RAISE EXCEPTION 'the key to split must be a text that is not empty' USING ERRCODE = 'invalid_parameter_value';
    ELSIF digest IS NULL THEN
        RETURN key || '#' || floor(random() * shards)::int;
    END IF;
    RETURN key || '#' || (high % shards * (4294967296 % shards) + low) % shards;
END $$;

ALTER TABLE holdfast.workers ADD COLUMN metadata jsonb NOT NULL DEFAULT '{}';

CREATE FUNCTION holdfast.record_act(
    said_actor text, act text, which jsonb, how_many bigint, by_surface text DEFAULT 'sql', from_address text DEFAULT NULL, said_reason text DEFAULT NULL,
    was jsonb DEFAULT NULL, becomes jsonb DEFAULT NULL, part_of uuid DEFAULT NULL)
    RETURNS bigint
    LANGUAGE sql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$ INSERT INTO holdfast.audit (at, actor, action, selection, count, surface, address, reason, before, after, operation)
          VALUES (holdfast.now(), said_actor, act, which, greatest(how_many, 0), by_surface, from_address::inet, said_reason, was, becomes, part_of)
          RETURNING id $$;
REVOKE ALL ON FUNCTION holdfast.record_act FROM PUBLIC;

-- Who could write an entry may write this one.
DO $do$
DECLARE
    granted text;
BEGIN
    FOR granted IN
        SELECT format('GRANT EXECUTE ON FUNCTION holdfast.record_act TO %s', had.grantee::regrole::text)
        FROM pg_proc p CROSS JOIN LATERAL aclexplode(p.proacl) AS had
        WHERE p.pronamespace = 'holdfast'::regnamespace AND p.proname = 'audit_act' AND had.privilege_type = 'EXECUTE'
          AND had.grantee NOT IN (0, p.proowner)
    LOOP
        EXECUTE granted;
    END LOOP;
END $do$;

-- Acts over many that outlive whoever began them. A batch of jobs and the place where the next one begins commit together, under the row's
-- lock and by the token of whoever runs it: so another goes on where one stopped, and nothing is acted on twice.
CREATE TABLE holdfast.operations (
    id          uuid PRIMARY KEY,
    verb        text    NOT NULL,   -- noun and verb, as on the command line: 'jobs retry'
    selection   jsonb   NOT NULL,   -- the filters
    options     jsonb   NOT NULL,   -- of the verb
    bounds      jsonb   NOT NULL,   -- what was there when it began, in the order of the search
    state       text    NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'running', 'done', 'stopped', 'failed')),
    actor       text    NOT NULL,
    surface     text    NOT NULL,
    address     inet,
    reason      text,
    role        text    NOT NULL DEFAULT session_user,
    created_at  timestamptz NOT NULL,
    started_at  timestamptz,
    ended_at    timestamptz,
    stopped_by  text,
    total       bigint  NOT NULL,   -- that fitted when it began, as far as they were counted
    capped      boolean NOT NULL,   -- there were more, or may have been
    done        bigint  NOT NULL DEFAULT 0,   -- jobs changed
    looked_at   bigint  NOT NULL DEFAULT 0,   -- jobs that fitted, changed or not
    results     jsonb   NOT NULL DEFAULT '{}',   -- how, and how many
    left_out    jsonb   NOT NULL DEFAULT '[]',   -- why not, and how many
    place       jsonb,              -- where the next batch begins; NULL: at the beginning
    paced_until timestamptz,        -- at a rate: when the last job that it moved is due
    audit       bigint  NOT NULL,   -- its entry
    runner      text,
    token       uuid,               -- of whoever runs it; NULL: nobody does
    beat_at     timestamptz,
    runs        int     NOT NULL DEFAULT 0,   -- how often somebody took it up
    fault       text,               -- why the last one could not go on, or it failed
    retry_at    timestamptz
) WITH (fillfactor = 50);
CREATE INDEX operations_created ON holdfast.operations (created_at, id);
CREATE INDEX operations_open ON holdfast.operations (created_at, id) WHERE state IN ('waiting', 'running');

-- Whoever runs an operation counts what it did in the entry that its starter made. With the owner's rights: a worker has none on the audit.
CREATE FUNCTION holdfast.audit_operation(operation uuid, by_token uuid, how_many bigint) RETURNS bigint
    LANGUAGE sql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$ UPDATE holdfast.audit a SET count = a.count + greatest(how_many, 0) FROM holdfast.operations o
          WHERE o.id = audit_operation.operation AND o.token = by_token AND o.state = 'running' AND a.id = o.audit AND a.operation = o.id RETURNING a.id $$;
REVOKE ALL ON FUNCTION holdfast.audit_operation FROM PUBLIC;

-- How each queue stood in each minute: written once a minute by whichever worker comes first, and kept for 30 days. Counts stop at 10,000.
CREATE TABLE holdfast.samples (
    minute  timestamptz NOT NULL,
    queue   text   NOT NULL,
    due     int    NOT NULL,
    behind  int    NOT NULL,   -- of those due: behind a job or a key that waits for something else
    running int    NOT NULL,
    held    int    NOT NULL,
    blocked int    NOT NULL,
    oldest  float8,            -- seconds that the oldest job waits that could run; NULL: there is none
    workers int    NOT NULL,   -- alive ones that take jobs from it
    PRIMARY KEY (minute, queue)
);

-- Write down how the queues stand, unless this minute has it or somebody is at it. Each part walks an index and stops at the cap. With the
-- owner's rights: nobody else writes history.
CREATE FUNCTION holdfast.take_sample(late_after float8) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET jit = off
    AS $$
DECLARE
    at   timestamptz := holdfast.now();
    cap  int := 10000;
    q    record;
BEGIN
    IF EXISTS (SELECT FROM holdfast.samples s WHERE s.minute = date_trunc('minute', at)) OR NOT pg_try_advisory_xact_lock(7236843, 0) THEN
        RETURN false;
    END IF;
    FOR q IN SELECT n.name, n.ordering FROM holdfast.queues n ORDER BY n.name LOOP
        INSERT INTO holdfast.samples (minute, queue, due, behind, running, held, blocked, oldest, workers)
        WITH RECURSIVE p(priority) AS (
            (SELECT w.priority FROM holdfast.work w WHERE w.queue = q.name AND w.hold_reason IS NULL ORDER BY w.priority DESC LIMIT 1)
            UNION ALL
            SELECT (SELECT w.priority FROM holdfast.work w WHERE w.queue = q.name AND w.hold_reason IS NULL AND w.priority < p.priority
                    ORDER BY w.priority DESC LIMIT 1)
            FROM p WHERE p.priority IS NOT NULL
        ), due AS MATERIALIZED (   -- the oldest of each priority, up to the cap
            SELECT w.*, row_number() OVER (ORDER BY w.place) <= cap AS counts
            FROM p CROSS JOIN LATERAL (
                SELECT j.available_at, j.partition_bucket, j.partition_key, row_number() OVER (ORDER BY j.available_at, j.seq) AS place
                FROM holdfast.work j
                WHERE j.queue = q.name AND j.hold_reason IS NULL AND j.priority = p.priority AND j.available_at <= at AND j.status = 'pending'
                  AND j.id NOT IN (SELECT x.id FROM holdfast.quarantine x)
                ORDER BY j.available_at, j.seq LIMIT cap
            ) w
            LIMIT 2 * cap
        ), stuck AS MATERIALIZED (
            SELECT k.partition_key FROM (SELECT DISTINCT d.partition_bucket, d.partition_key FROM due d WHERE d.partition_key IS NOT NULL) k
            WHERE EXISTS (SELECT FROM holdfast.key_holds h WHERE h.queue = q.name AND h.partition_key = k.partition_key AND h.until > at)
               OR q.ordering = 'key' AND (
                  EXISTS (SELECT FROM holdfast.parked_keys x WHERE x.queue = q.name AND x.partition_key = k.partition_key)
                  OR (SELECT f.hold_reason IS NOT NULL OR f.status = 'pending' AND f.available_at > at OR f.id IN (SELECT x.id FROM holdfast.quarantine x)
                      FROM holdfast.work f WHERE f.queue = q.name AND f.partition_bucket = k.partition_bucket AND f.partition_key = k.partition_key
                      ORDER BY f.seq LIMIT 1))
        ), aside AS MATERIALIZED (
            SELECT w.status FROM holdfast.work w WHERE w.queue = q.name AND w.hold_reason IS NOT NULL ORDER BY w.task, w.version, w.available_at LIMIT cap
        ), running AS MATERIALIZED (
            SELECT FROM holdfast.claims c CROSS JOIN LATERAL unnest(c.job_ids) AS j(id)
            CROSS JOIN LATERAL (SELECT FROM holdfast.work w WHERE w.queue = c.queue AND w.id = j.id AND w.claim_token = c.token AND w.status = 'processing'
                                OFFSET 0) w
            WHERE c.queue = q.name LIMIT cap
        ), counted AS (
            SELECT count(*) FILTER (WHERE d.counts) AS due,
                   count(*) FILTER (WHERE d.counts AND d.partition_key IN (SELECT s.partition_key FROM stuck s)) AS behind,
                   min(d.available_at) FILTER (WHERE d.partition_key IS NULL OR d.partition_key NOT IN (SELECT s.partition_key FROM stuck s)) AS oldest
            FROM due d
        )
        SELECT date_trunc('minute', at), q.name, c.due, c.behind, (SELECT count(*) FROM running),
               (SELECT count(*) FROM aside a WHERE a.status <> 'blocked'), (SELECT count(*) FROM aside a WHERE a.status = 'blocked'),
               extract(epoch FROM at - c.oldest)::float8,
               (SELECT count(*) FROM holdfast.workers v
                WHERE v.status = 'alive' AND v.last_seen_at >= at - make_interval(secs => late_after) AND q.name = ANY (v.queues))
        FROM counted c
        ON CONFLICT DO NOTHING;
    END LOOP;
    RETURN true;
END $$;
REVOKE ALL ON FUNCTION holdfast.take_sample FROM PUBLIC;

-- Roles that were given rights by hand, or by the script of the release before: who runs jobs carries on what operators began, who looks may look at it.
DO $do$
DECLARE
    granted text;
BEGIN
    FOR granted IN
        SELECT format('GRANT %s TO %s', n.rights, CASE had.grantee WHEN 0 THEN 'PUBLIC' ELSE had.grantee::regrole::text END)
        FROM (VALUES
            ('INSERT', 'claims', 'SELECT, DELETE, UPDATE (state, runner, token, beat_at, started_at, ended_at, stopped_by, runs, place, done, looked_at, results, left_out, paced_until, fault, retry_at) ON holdfast.operations'),
            ('INSERT', 'claims', 'SELECT, DELETE ON holdfast.samples'),
            ('INSERT', 'claims', 'EXECUTE ON FUNCTION holdfast.audit_operation, holdfast.take_sample'),
            ('SELECT', 'jobs',   'SELECT ON holdfast.operations, holdfast.samples')
        ) AS n(had, before, rights)
        JOIN pg_class c ON c.relnamespace = 'holdfast'::regnamespace AND c.relname = n.before
        CROSS JOIN LATERAL aclexplode(c.relacl) AS had
        WHERE had.privilege_type = n.had AND had.grantee <> c.relowner
      UNION ALL
        SELECT format('GRANT %s TO %s', n.rights, had.grantee::regrole::text)
        FROM (VALUES ('SELECT, INSERT (id, verb, selection, options, bounds, actor, surface, address, reason, created_at, total, capped, audit), UPDATE (state, runner, token, beat_at, started_at, ended_at, stopped_by, runs, place, done, looked_at, results, left_out, paced_until, fault, retry_at) ON holdfast.operations'), ('EXECUTE ON FUNCTION holdfast.audit_operation')) AS n(rights)
        CROSS JOIN pg_proc p CROSS JOIN LATERAL aclexplode(p.proacl) AS had
        WHERE p.pronamespace = 'holdfast'::regnamespace AND p.proname = 'audit_more' AND had.privilege_type = 'EXECUTE'
          AND had.grantee NOT IN (0, p.proowner)
    LOOP
        EXECUTE granted;
    END LOOP;
END $do$;

-- Workers write it every few seconds: the last to be locked.
ALTER TABLE holdfast.throughput ADD COLUMN runs bigint[], ADD COLUMN waits bigint[];

-- How the process of a worker is, with its heartbeat.
ALTER TABLE holdfast.workers ADD COLUMN vitals jsonb;
