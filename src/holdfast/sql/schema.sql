-- Holdfast: the whole schema, in reading order. Every migration ends in exactly this.
--
-- The story of one job
--
--   enqueue()   writes a row into `work`, in the caller's transaction. `work` is one logical table, partitioned
--               by queue; it holds live jobs only, so it stays small whatever the history.
--   claim       a worker takes the first due rows of a queue: status `processing`, a new claim_token,
--               lease_generation + 1. One row in `claims` holds the lease of the whole batch.
--   renew       moves lease_expires_at of the claim. It never touches `work`.
--   settle      ends the attempt. Completed and cancelled jobs leave for `archive`, hopeless ones for
--               `dead_letters`, in the statement that settles them; the others go back to `pending`.
--   sweep       takes back the jobs of revoked claims: first claims.revoked_at, then the jobs, then the claim row.
--
-- The story of a stream (the jobs of one partition key in a queue ordered by key)
--
--   enqueue()   takes a lock on the key that is held to the commit, and only then draws the sequence number: so seq is
--               commit order within a key, also when a transaction that began later commits first.
--   claim       is given keys to try. Of each it reads the first jobs by seq, whatever their status, and takes a
--               gapless run of those that are ready. A job that runs, waits for its time, is held, blocked or locked by
--               somebody ends the run: nothing behind it is taken.
--   settle      the next job of the key starts after the one before it left; one that goes back keeps its place.
--
-- The writers of a job
--
--   An owner writes only where id + lease_generation + claim_token + status = 'processing' match. Expiry is not part
--   of that: it only gives others the right to revoke. A late owner that nobody challenged may still finish; a
--   challenged one touches 0 rows. The generation rises at claim and never falls.
--
-- Why it looks like this
--
--   * No index of `work` mentions a column that a claim changes, and claim_token and claimed_at are NOT NULL from
--     the start, so that every claim is a heap-only update. Rows set aside (hold_reason) are outside the claim index.
--   * Claim order is index order: (priority DESC, available_at, seq).
--   * The columns that change carry no statistics: stale ones turn a claim into a sequential scan.
--   * Settle never touches `claims`. "No processing job carries this token" can only become true, never false
--     again, so a claim row may go lazily, and only then.
--   * Status is text with a CHECK: a new value is usable in the transaction that adds it.
--   * A function is resolved when it is made (RETURN), or has a search_path of its own: nobody's schema is looked into when it runs.
--   * Time is holdfast.now(), which tests can move. Only the database's clock decides anything.

DO $do$
BEGIN
    -- IF NOT EXISTS would still ask for CREATE on the database, which a schema made by a DBA should save.
    IF NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'holdfast') THEN
        CREATE SCHEMA holdfast;
        COMMENT ON SCHEMA holdfast IS 'Holdfast: durable work on PostgreSQL';
    END IF;
END $do$;

CREATE TABLE holdfast.migrations (
    number     int PRIMARY KEY,
    name       text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    needs_code int
);
COMMENT ON COLUMN holdfast.migrations.needs_code IS
    'The newest migration that code must know to run on this one; NULL: this one. Older code reads it to decide whether it may run.';

-- Functions everything else needs ---------------------------------------------------------------------------------

-- How far the clock is moved: only in sessions whose login is a member of the schema's owner. Anybody can set a setting, and functions that
-- run with the owner's rights ask this clock.
CREATE FUNCTION holdfast.clock_offset() RETURNS interval
    LANGUAGE sql STABLE PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT CASE WHEN pg_has_role(session_user, n.nspowner, 'MEMBER')
                      THEN least(greatest(current_setting('holdfast.clock_offset')::interval, interval '0'), interval '3650 days')
                      ELSE interval '0' END
          FROM pg_namespace n WHERE n.nspname = 'holdfast' $$;

CREATE FUNCTION holdfast.now() RETURNS timestamptz
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN CASE WHEN coalesce(current_setting('holdfast.clock_offset', true), '') = '' THEN statement_timestamp()
                ELSE statement_timestamp() + holdfast.clock_offset() END;
COMMENT ON FUNCTION holdfast.now() IS 'The clock of the engine. Tests move it forward with the setting holdfast.clock_offset, as a member of the schema''s owner.';

-- The same in every language: first 16 bits of SHA-256 of the UTF-8 key, & 1023. convert_to() is only STABLE.
CREATE FUNCTION holdfast.bucket(key text) RETURNS int
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN ('x' || substr(encode(sha256(decode(replace(key, E'\\', E'\\\\'), 'escape')), 'hex'), 1, 4))::bit(16)::int & 1023;

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

-- uuidv7() is built in from 18 on. Below, milliseconds, then a fraction of one, then random bits.
DO $do$
BEGIN
    IF to_regprocedure('pg_catalog.uuidv7()') IS NOT NULL THEN
        CREATE FUNCTION holdfast.uuid7() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE RETURN uuidv7();
    ELSE
        CREATE FUNCTION holdfast.uuid7() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE RETURN (
            SELECT encode(substr(int8send(floor(t)::bigint), 3)
                       || int2send((28672 + floor((t - floor(t)) * 4096)::int)::int2)
                       || substr(uuid_send(gen_random_uuid()), 9), 'hex')::uuid
            FROM (SELECT extract(epoch FROM clock_timestamp()) * 1000) AS clock(t));
    END IF;
END $do$;

CREATE FUNCTION holdfast.uuid7_time(id uuid) RETURNS timestamptz
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN to_timestamp(('x' || substr(replace(id::text, '-', ''), 1, 12))::bit(48)::bigint / 1000.0);

-- Queues and live work --------------------------------------------------------------------------------------------

CREATE TABLE holdfast.queues (
    name       text PRIMARY KEY CHECK (name ~ '^[a-z][a-z0-9_]{0,39}$'),
    relation   text NOT NULL UNIQUE,          -- the partition's table, in this schema
    lease      float8 CHECK (lease BETWEEN 1 AND 86400),   -- seconds; NULL: the worker's setting
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    paused_at  timestamptz,                   -- set: nothing is claimed from it
    paused_by  text,
    keyed      boolean NOT NULL DEFAULT false,   -- claimed key by key; has the index for it, and every job has a key
    ordering   text NOT NULL DEFAULT 'none' CHECK (ordering IN ('none', 'key')),
    on_dead_letter text NOT NULL DEFAULT 'skip' CHECK (on_dead_letter IN ('skip', 'block', 'park')),   -- what becomes of the rest of its key
    fair       boolean NOT NULL DEFAULT false,   -- every key gets its turn
    weights    jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(weights) = 'object'),   -- turns of a key, where they are not 1
    concurrency     int CHECK (concurrency > 0),       -- jobs that run at once over all workers
    key_concurrency int CHECK (key_concurrency > 0),   -- of one key
    rate       float8 CHECK (rate > 0 AND rate < 'infinity'),   -- starts per second over all workers: a bucket of `burst` tokens
    burst      int CHECK (burst > 0),
    key_rate   float8 CHECK (key_rate > 0 AND key_rate < 'infinity'),
    key_burst  int CHECK (key_burst > 0),
    aging      float8 CHECK (aging > 0 AND aging < 'infinity'),   -- seconds of waiting that count as much as one priority
    limited    int NOT NULL GENERATED ALWAYS AS (   -- 0: by nothing, 1: as a whole, 2: by key too; a claim that knows of less takes nothing
                   CASE WHEN key_concurrency IS NOT NULL OR key_rate IS NOT NULL THEN 2 WHEN concurrency IS NOT NULL OR rate IS NOT NULL THEN 1 ELSE 0 END) STORED,
    keep_completed boolean NOT NULL DEFAULT true,   -- false: nothing stays of a job that completed
    affinity   text NOT NULL DEFAULT 'none' CHECK (affinity IN ('none', 'key')),   -- key: jobs of a key go to one worker while it lives
    CONSTRAINT queues_affinity CHECK (affinity = 'none' OR (ordering = 'none' AND NOT fair AND key_concurrency IS NULL AND key_rate IS NULL
                                                            AND aging IS NULL)),
    CONSTRAINT queues_keyed CHECK (keyed OR (ordering = 'none' AND on_dead_letter = 'skip' AND NOT fair AND key_concurrency IS NULL
                                             AND key_rate IS NULL)),
    CONSTRAINT queues_burst CHECK ((rate IS NULL) = (burst IS NULL) AND (key_rate IS NULL) = (key_burst IS NULL))
);

-- The remaining rate of a limited queue. A claim from such a queue holds its row, so that two cannot both take the last place;
-- the number of running jobs is counted, never stored, so that no crash leaks a place.
-- Spending tokens replaces the row by one with the next number. The newest is found first, so that versions which a long transaction keeps
-- cost a claim nothing: of a row that is updated, an index leads to all of them.
CREATE TABLE holdfast.limits (
    queue       text NOT NULL,
    tokens      float8 NOT NULL,
    refilled_at timestamptz NOT NULL,
    number      bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, number)
) WITH (fillfactor = 50);

-- The same for its keys: the newest number of a key has its remaining tokens. A key that is not here has all of its burst.
CREATE TABLE holdfast.key_tokens (
    queue         text NOT NULL,
    partition_key text NOT NULL,
    number        bigint NOT NULL,
    tokens        float8 NOT NULL,
    refilled_at   timestamptz NOT NULL,
    PRIMARY KEY (queue, partition_key, number)
);
CREATE INDEX key_tokens_refilled ON holdfast.key_tokens (refilled_at);

-- Where the release before counts them. Nobody else makes a row; one that is there is kept up to date while such a worker is there.
CREATE TABLE holdfast.key_limits (
    queue         text NOT NULL,
    partition_key text NOT NULL,
    tokens        float8 NOT NULL,
    refilled_at   timestamptz NOT NULL,
    PRIMARY KEY (queue, partition_key)
) WITH (fillfactor = 50);
CREATE INDEX key_limits_refilled ON holdfast.key_limits (refilled_at);

-- Keys with a number of their own in place of queues.key_concurrency. It counts while the queue has that one.
CREATE TABLE holdfast.key_rules (
    queue         text NOT NULL,
    partition_key text NOT NULL,
    concurrency   int NOT NULL CHECK (concurrency > 0),
    PRIMARY KEY (queue, partition_key)
);

-- Nothing of these tasks is claimed. What waits for one of them is set aside (held), so that it costs no claim anything. An
-- operator and the task's own breaker pause it apart from each other.
CREATE TABLE holdfast.paused_tasks (
    task       text NOT NULL,
    paused_at  timestamptz NOT NULL,
    paused_by  text,
    by_breaker boolean NOT NULL DEFAULT false,
    PRIMARY KEY (task, by_breaker)
);

-- Circuit breakers that have counted a failure. While one is not closed, its task is in paused_tasks. Every change of one locks
-- its row first; a half-open one has one trial, which runs as long as that job is in processing under that token.
CREATE TABLE holdfast.breakers (
    task        text PRIMARY KEY,
    state       text NOT NULL DEFAULT 'closed' CHECK (state IN ('closed', 'open', 'half_open')),
    failed_at   timestamptz[] NOT NULL DEFAULT '{}',   -- while closed: the last failures, none older than a success
    opened_at   timestamptz,
    retry_at    timestamptz,              -- from then on one job may be tried
    trials      int NOT NULL DEFAULT 0,   -- that failed since it opened
    trial_queue text,
    trial_id    uuid,
    trial_token uuid,
    last_error  text,
    put_back    boolean NOT NULL DEFAULT false   -- it closed, and what was set aside is still to be put back
) WITH (fillfactor = 50);

CREATE SEQUENCE holdfast.work_seq;

-- The columns that a claim changes are adjacent: the WAL of an update holds the row from its first changed byte to its last, and columns in
-- between made it 50 bytes longer. No column is generated: the server reads the expressions of such columns again for every statement, and
-- from 17 on for every row of an update, a quarter of an enqueue (docs/adr/065).
CREATE TABLE holdfast.work (
    id                  uuid        NOT NULL,
    seq                 bigint      NOT NULL DEFAULT nextval('holdfast.work_seq'),
    available_at        timestamptz NOT NULL DEFAULT holdfast.now(),
    created_at          timestamptz NOT NULL DEFAULT holdfast.now(),
    attempts            int         NOT NULL DEFAULT 0,   -- spent; a crash, a release and a snooze spend none
    max_attempts        int         NOT NULL DEFAULT 5 CHECK (max_attempts > 0),
    version             int         NOT NULL DEFAULT 1,   -- of the payload
    partition_bucket    int         NOT NULL DEFAULT 0,   -- bucket(partition_key); queues that are claimed key by key see to it. Elsewhere 0 may stand for any
    suspect             int         NOT NULL DEFAULT 0,   -- not 0: was in two processes that died or fell silent; runs apart from others
    crashes             int         NOT NULL DEFAULT 0,   -- processes that died or fell silent with it, since an attempt last ended
    claim_token         uuid        NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    lease_generation    bigint      NOT NULL DEFAULT 0,
    claimed_at          timestamptz NOT NULL DEFAULT holdfast.now(),
    claimed             boolean     NOT NULL DEFAULT false,   -- nobody reads it; it goes with the release after the next
    status              text        NOT NULL DEFAULT 'pending',
    priority            smallint    NOT NULL DEFAULT 0 CHECK (priority BETWEEN -100 AND 100),
    queue               text        NOT NULL,
    task                text        NOT NULL,
    partition_key       text        CHECK (octet_length(partition_key) <= 512),
    payload             jsonb       NOT NULL,
    cancel_requested_at timestamptz,
    hold_reason         text,
    last_error          text,
    tags                text[],
    metadata            jsonb,
    parent_id           uuid,         -- the job that this one came from
    group_id            uuid,         -- the group that waits for this job
    follow_ups          jsonb,        -- jobs to enqueue when this one completes: a list of what enqueue_specs() takes
    first_due           timestamptz,  -- when it was due before it first failed or was snoozed; its deadline counts from there
    gives_up_at         timestamptz,  -- an attempt that fails from then on is the last; written by the failed attempt before
    CONSTRAINT work_status CHECK (status IN ('pending', 'processing', 'held', 'blocked')),   -- blocked: a dead letter that its key waits for
    CONSTRAINT work_held CHECK ((status IN ('held', 'blocked')) = (hold_reason IS NOT NULL))
) PARTITION BY LIST (queue);
COMMENT ON TABLE holdfast.work IS 'Live jobs, one partition per queue';

-- Rows that make a claim or a sweep fail whatever is tried. Left alone and reported.
CREATE TABLE holdfast.quarantine (
    id     uuid PRIMARY KEY,
    queue  text NOT NULL,
    reason text NOT NULL,
    at     timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Which signatures refused the payload of a job that is set aside (held). A worker takes back what its own signature has not refused. A
-- refusal counts for the job as it was: one that was replaced or brought back has another due time. Refusals of finished jobs are pruned.
CREATE TABLE holdfast.misfits (
    job_id       uuid NOT NULL,
    signature    text NOT NULL,   -- a value of workers.signatures
    queue        text NOT NULL,
    available_at timestamptz NOT NULL,
    reason       text NOT NULL,
    at           timestamptz NOT NULL,
    newer        boolean NOT NULL DEFAULT false,   -- only newer code can take it: where all say so, it waits without end
    PRIMARY KEY (job_id, signature)
);
CREATE INDEX misfits_at ON holdfast.misfits (at);
CREATE INDEX misfits_queue ON holdfast.misfits (queue, at, job_id);

-- Keys of ordered queues from which nothing is claimed since one of their jobs became a dead letter.
CREATE TABLE holdfast.parked_keys (
    queue         text NOT NULL,
    partition_key text NOT NULL,
    job_id        uuid NOT NULL,   -- the dead letter
    parked_at     timestamptz NOT NULL,
    PRIMARY KEY (queue, partition_key)
);

-- Keys from which nothing is claimed until a certain time. With `trial` one job is claimed then, and the rest waits until the hold is lifted
-- or renewed. The trial is the job trial_id under the claim trial_token; a decision after it sets `decided`.
CREATE TABLE holdfast.key_holds (
    queue         text NOT NULL,
    partition_key text NOT NULL,
    until         timestamptz NOT NULL,   -- infinity: until it is lifted
    trial         boolean NOT NULL DEFAULT false,
    decided       boolean NOT NULL DEFAULT false,   -- the hold was renewed since its trial was claimed
    held_at       timestamptz NOT NULL,
    reason        text,
    trial_id      uuid,
    trial_token   uuid,
    PRIMARY KEY (queue, partition_key)
) WITH (fillfactor = 50);
CREATE INDEX key_holds_until ON holdfast.key_holds (queue, until);
CREATE INDEX key_holds_trial ON holdfast.key_holds (queue, until, partition_key) WHERE trial;

-- The bucket of a key in a queue that is claimed key by key, for every writer of the row: with a wrong one it would never be found. enqueue() and
-- the others fill it in themselves, and then nothing is to do here.
CREATE FUNCTION holdfast.fill_bucket() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    NEW.partition_bucket := coalesce(holdfast.bucket(NEW.partition_key), 0);   -- a CHECK says what is wrong with a row that has no key
    RETURN NEW;
END $$;

-- A job keeps its key. Checked once for each statement: a trigger for each row, and a CHECK, would cost every claim.
CREATE FUNCTION holdfast.keep_key() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    RAISE EXCEPTION 'partition_key and partition_bucket of a job cannot be changed: workers find it by them' USING ERRCODE = 'generated_always';
END $$;
CREATE TRIGGER keep_key BEFORE UPDATE OF partition_key, partition_bucket ON holdfast.work
    FOR EACH STATEMENT EXECUTE FUNCTION holdfast.keep_key();
REVOKE ALL ON FUNCTION holdfast.fill_bucket FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.keep_key FROM PUBLIC;

-- The triggers of a queue that is claimed key by key, or of one that no longer is.
CREATE FUNCTION holdfast.guard_keys(relation text, keyed boolean) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    IF keyed THEN
        EXECUTE format('CREATE OR REPLACE TRIGGER fill_bucket BEFORE INSERT ON holdfast.%I FOR EACH ROW
                        WHEN (NEW.partition_bucket IS DISTINCT FROM holdfast.bucket(NEW.partition_key)) EXECUTE FUNCTION holdfast.fill_bucket()', relation);
        EXECUTE format('CREATE OR REPLACE TRIGGER keep_key BEFORE UPDATE OF partition_key, partition_bucket ON holdfast.%I
                        FOR EACH STATEMENT EXECUTE FUNCTION holdfast.keep_key()', relation);
    ELSE
        EXECUTE format('DROP TRIGGER IF EXISTS fill_bucket ON holdfast.%I', relation);
        EXECUTE format('DROP TRIGGER IF EXISTS keep_key ON holdfast.%I', relation);
    END IF;
END $$;
REVOKE ALL ON FUNCTION holdfast.guard_keys FROM PUBLIC;

-- A queue is made beside the parent and attached: PARTITION OF would stall inserts into every other queue. With the owner's rights: so that
-- an operator needs none on tables, and every table has the same owner.
CREATE FUNCTION holdfast.create_queue(queue_name text, lease_seconds float8 DEFAULT NULL, key_ordering text DEFAULT 'none',
                                      dead_letter_policy text DEFAULT 'skip', by_key boolean DEFAULT false) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    relation text := CASE WHEN queue_name IN ('inbox', 'outbox') THEN queue_name ELSE 'queue_' || queue_name END;
    changing text;
    may      record;
BEGIN
    IF queue_name !~ '^[a-z][a-z0-9_]{0,39}$' THEN
        RAISE EXCEPTION 'queue name % is not usable: small letters, digits and _, 40 at most, a letter first', quote_literal(queue_name)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM pg_advisory_xact_lock(7236837, hashtext('holdfast.create_queue'));
    IF EXISTS (SELECT FROM holdfast.queues q WHERE q.name = queue_name) THEN
        RETURN false;
    END IF;
    IF (SELECT count(*) FROM holdfast.queues) >= 200 THEN
        RAISE EXCEPTION 'there are 200 queues already; use partition keys or tags instead of more queues'
            USING ERRCODE = 'program_limit_exceeded';
    END IF;
    EXECUTE format('CREATE TABLE holdfast.%I (LIKE holdfast.work INCLUDING DEFAULTS INCLUDING CONSTRAINTS)
        WITH (fillfactor = 50, vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
              autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 50000,
              autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000)', relation);
    EXECUTE format('ALTER TABLE holdfast.%I ADD PRIMARY KEY (id), ADD CONSTRAINT %I CHECK (queue = %L)',
                   relation, relation || '_queue', queue_name);
    EXECUTE format('CREATE INDEX %I ON holdfast.%I (priority DESC, available_at, seq) WHERE hold_reason IS NULL',
                   relation || '_claim', relation);
    EXECUTE format('CREATE INDEX %I ON holdfast.%I (task, version, available_at) WHERE hold_reason IS NOT NULL',
                   relation || '_held', relation);
    EXECUTE format('CREATE INDEX %I ON holdfast.%I (available_at, seq) WHERE suspect > 0',
                   relation || '_suspect', relation);
    IF key_ordering = 'key' THEN
        EXECUTE format('CREATE INDEX %I ON holdfast.%I (partition_bucket, partition_key, seq)', relation || '_stream', relation);
    ELSIF by_key THEN
        EXECUTE format('CREATE INDEX %I ON holdfast.%I (partition_bucket, partition_key, available_at, seq) WHERE hold_reason IS NULL',
                       relation || '_share', relation);
    END IF;
    IF by_key OR key_ordering = 'key' THEN
        EXECUTE format('ALTER TABLE holdfast.%I ADD CONSTRAINT %I CHECK (partition_key IS NOT NULL)', relation, relation || '_keyed');
        PERFORM holdfast.guard_keys(relation, true);
    END IF;
    EXECUTE format('CREATE INDEX %I ON holdfast.%I (parent_id) WHERE parent_id IS NOT NULL', relation || '_parent', relation);
    EXECUTE format('CREATE INDEX %I ON holdfast.%I (group_id) WHERE group_id IS NOT NULL', relation || '_group', relation);
    FOREACH changing IN ARRAY ARRAY['status', 'claim_token', 'lease_generation', 'attempts', 'claimed_at', 'suspect', 'hold_reason'] LOOP
        EXECUTE format('ALTER TABLE holdfast.%I ALTER COLUMN %I SET STATISTICS 0', relation, changing);
    END LOOP;
    -- Who may use the table of all queues may use this one: claims and settles name it directly.
    FOR may IN SELECT a.privilege_type AS privilege, CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END AS grantee
               FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a WHERE c.oid = 'holdfast.work'::regclass AND a.grantee <> c.relowner LOOP
        EXECUTE format('GRANT %s ON holdfast.%I TO %s', may.privilege, relation, may.grantee);
    END LOOP;
    EXECUTE format('ALTER TABLE holdfast.work ATTACH PARTITION holdfast.%I FOR VALUES IN (%L)', relation, queue_name);
    INSERT INTO holdfast.queues (name, relation, lease, keyed, ordering, on_dead_letter)
    VALUES (queue_name, relation, lease_seconds, by_key OR key_ordering = 'key', key_ordering, dead_letter_policy);
    INSERT INTO holdfast.limits (queue, tokens, refilled_at)
    SELECT queue_name, 0, '-infinity' WHERE NOT EXISTS (SELECT FROM holdfast.limits l WHERE l.queue = queue_name);
    INSERT INTO holdfast.asleep (queue, number, sleepers, poll)
    SELECT queue_name, 0, 0, 0 WHERE NOT EXISTS (SELECT FROM holdfast.asleep a WHERE a.queue = queue_name);
    RETURN true;
END $$;

-- Let the task run again. False: its breaker was closed.
CREATE FUNCTION holdfast.close_breaker(task_name text) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    UPDATE holdfast.breakers b
    SET state = 'closed', failed_at = '{}', opened_at = NULL, retry_at = NULL, trials = 0, trial_queue = NULL, trial_id = NULL, trial_token = NULL,
        put_back = true
    WHERE b.task = task_name AND b.state <> 'closed';
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM holdfast.paused_tasks p WHERE p.task = task_name AND p.by_breaker;
    RETURN true;
END $$;

-- How attempts of a task ended, as its breaker counts them: whether one succeeded, how many failed after the last success, and the
-- claims of both. Returns what became of the breaker: opened, reopened, closed, or NULL. A success of a healthy task costs one read.
CREATE FUNCTION holdfast.note_breaker(
    task_name text, succeeded boolean, failed int, good uuid[], bad uuid[], error text,
    failures int, within float8, cooldown float8, cap float8) RETURNS text
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    known holdfast.breakers;
    times timestamptz[];
BEGIN
    IF failed = 0 AND NOT EXISTS (SELECT FROM holdfast.breakers b WHERE b.task = task_name AND (b.state = 'half_open' OR b.failed_at <> '{}')) THEN
        RETURN NULL;
    END IF;
    INSERT INTO holdfast.breakers (task) VALUES (task_name) ON CONFLICT DO NOTHING;
    SELECT * INTO known FROM holdfast.breakers b WHERE b.task = task_name FOR UPDATE;
    IF known.state = 'half_open' AND known.trial_token = ANY (good) THEN
        PERFORM holdfast.close_breaker(task_name);
        RETURN 'closed';
    ELSIF known.state = 'half_open' AND known.trial_token = ANY (bad) THEN
        UPDATE holdfast.breakers b
        SET state = 'open', trials = b.trials + 1, last_error = error, trial_queue = NULL, trial_id = NULL, trial_token = NULL,
            retry_at = holdfast.now() + make_interval(secs => least(cap, cooldown * 2 ^ least(b.trials + 1, 30)))
        WHERE b.task = task_name;
        RETURN 'reopened';
    ELSIF known.state <> 'closed' THEN   -- it was claimed before the breaker opened: the trial alone decides
        RETURN NULL;
    END IF;
    times := ARRAY(SELECT t FROM unnest(known.failed_at) AS t WHERE NOT succeeded AND t > holdfast.now() - make_interval(secs => within) ORDER BY t)
             || array_fill(holdfast.now(), ARRAY[least(failed, failures)]);
    IF cardinality(times) >= failures THEN
        UPDATE holdfast.breakers b
        SET state = 'open', failed_at = '{}', opened_at = holdfast.now(), retry_at = holdfast.now() + make_interval(secs => cooldown),
            trials = 0, last_error = error, put_back = false
        WHERE b.task = task_name;
        INSERT INTO holdfast.paused_tasks (task, paused_at, paused_by, by_breaker) VALUES (task_name, holdfast.now(), 'its breaker', true)
        ON CONFLICT DO NOTHING;
        RETURN 'opened';
    END IF;
    UPDATE holdfast.breakers b SET failed_at = times, last_error = coalesce(error, b.last_error) WHERE b.task = task_name;
    RETURN NULL;
END $$;

-- Order a queue by key, or no longer. Only while it is empty and nobody serves it: workers read the rules when they start, and jobs
-- that were enqueued without a lock on their key have no order to keep. Answers what is in the way: 'queue', 'jobs', 'workers'; NULL: done.
CREATE FUNCTION holdfast.order_queue(queue_name text, key_ordering text, dead_letter_policy text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET lock_timeout = '2s'
    AS $$
DECLARE
    found_relation text;
    has_jobs       boolean;
    by_key         boolean;   -- claimed key by key without order: fair, or limited by key
BEGIN
    PERFORM pg_advisory_xact_lock(7236837, hashtext('holdfast.create_queue'));
    SELECT q.relation, q.fair OR q.key_concurrency IS NOT NULL OR q.key_rate IS NOT NULL INTO found_relation, by_key FROM holdfast.queues q WHERE q.name = queue_name FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'queue';
    END IF;
    EXECUTE format('LOCK TABLE holdfast.%I IN ACCESS EXCLUSIVE MODE', found_relation);
    EXECUTE format('SELECT EXISTS (SELECT FROM holdfast.%I)', found_relation) INTO has_jobs;
    IF has_jobs THEN
        RETURN 'jobs';
    END IF;
    IF EXISTS (SELECT FROM holdfast.workers w WHERE w.status <> 'gone' AND queue_name = ANY (w.queues)) THEN
        RETURN 'workers';
    END IF;
    EXECUTE format('DROP INDEX IF EXISTS holdfast.%I, holdfast.%I', found_relation || '_stream', found_relation || '_share');
    EXECUTE format('ALTER TABLE holdfast.%I DROP CONSTRAINT IF EXISTS %I', found_relation, found_relation || '_keyed');
    IF key_ordering = 'key' THEN
        EXECUTE format('CREATE INDEX %I ON holdfast.%I (partition_bucket, partition_key, seq)', found_relation || '_stream', found_relation);
    ELSIF by_key THEN
        EXECUTE format('CREATE INDEX %I ON holdfast.%I (partition_bucket, partition_key, available_at, seq) WHERE hold_reason IS NULL',
                       found_relation || '_share', found_relation);
    END IF;
    IF by_key OR key_ordering = 'key' THEN
        EXECUTE format('ALTER TABLE holdfast.%I ADD CONSTRAINT %I CHECK (partition_key IS NOT NULL)', found_relation, found_relation || '_keyed');
    END IF;
    PERFORM holdfast.guard_keys(found_relation, by_key OR key_ordering = 'key');
    UPDATE holdfast.queues q SET keyed = by_key OR key_ordering = 'key', ordering = key_ordering, on_dead_letter = dead_letter_policy WHERE q.name = queue_name;
    DELETE FROM holdfast.parked_keys p WHERE p.queue = queue_name;
    RETURN NULL;
END $$;

-- Ownership -------------------------------------------------------------------------------------------------------

-- Heartbeats touch last_seen_at only; status moves alive -> draining -> gone by guarded transitions.
CREATE TABLE holdfast.workers (
    id           text PRIMARY KEY,
    host         text NOT NULL,
    pid          int  NOT NULL,
    status       text NOT NULL DEFAULT 'alive' CHECK (status IN ('alive', 'draining', 'gone')),
    last_seen_at timestamptz NOT NULL,
    started_at   timestamptz NOT NULL,
    queues       text[] NOT NULL,
    tasks        text[] NOT NULL,
    concurrency  int  NOT NULL,
    release      text NOT NULL,   -- of the application
    ended        text CHECK (ended IN ('left', 'lost')),   -- how it left: it reported that, or fell silent
    fenced_at    timestamptz,   -- it was not heard of for too long then; NULL again when it turned out to be alive
    blamed       uuid[],        -- jobs against which its silence was counted as a death
    death        text,          -- how its process ended, as its supervisor saw it
    holds        uuid[],        -- jobs that it has held for more than two heartbeats, as it last reported; NULL: its release does not report
    signatures   jsonb,         -- 'task/version' -> fingerprint of the signature that takes it; NULL: a release that does not say
    subscriptions text[],       -- which its code declares and it runs; NULL: none, or a release that knows of none
    metadata     jsonb NOT NULL DEFAULT '{}',   -- what else it says of itself: labels, and the version of its Holdfast
    vitals       jsonb          -- memory, load, lag of its loop, connections, as last reported (model/vitals.py); NULL: by a release that does not report them
) WITH (fillfactor = 50);

-- Where each worker sits in the ring of a queue that is ordered by key: which worker owns which buckets (model/ring.py). A seat whose
-- worker is not alive is free. Affinity only: no claim reads it.
CREATE TABLE holdfast.seats (
    queue  text NOT NULL,
    seat   int  NOT NULL CHECK (seat >= 0),
    worker text NOT NULL,
    PRIMARY KEY (queue, seat),
    UNIQUE (queue, worker)
);

CREATE TABLE holdfast.claims (
    token            uuid PRIMARY KEY,
    queue            text NOT NULL,
    worker           text NOT NULL,
    claimed_at       timestamptz NOT NULL,
    lease_expires_at timestamptz NOT NULL,
    revoked_at       timestamptz,
    unsettled        int,     -- not written any more
    job_ids          uuid[] NOT NULL
) WITH (fillfactor = 70, vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0,
        autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE holdfast.claims ALTER COLUMN job_ids SET STORAGE EXTERNAL;   -- ids do not compress; trying took 6 % of a claim of 500
CREATE INDEX claims_lease ON holdfast.claims (lease_expires_at);
CREATE INDEX claims_worker ON holdfast.claims (worker);
CREATE INDEX claims_queue ON holdfast.claims (queue);   -- what a limited queue runs
CREATE INDEX claims_revoked ON holdfast.claims (revoked_at) WHERE revoked_at IS NOT NULL;

-- Which worker sleeps in which queue, so that a producer sends a notification only where it wakes somebody. A worker enters when it has found
-- nothing for a while and can be notified, and leaves when it is busy. Rows of a dead one are removed by the next sweep.
CREATE TABLE holdfast.sleepers (
    queue  text NOT NULL,
    worker text NOT NULL,
    poll   float8 NOT NULL,   -- seconds: it looks so often by itself
    PRIMARY KEY (queue, worker)
) WITH (fillfactor = 50, vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100,
        autovacuum_vacuum_cost_delay = 0);

-- How many workers sleep in each queue: producers read it. One row for each queue, also where nobody sleeps. A worker that falls asleep or wakes replaces it
-- by one with the next number, and the newest is found first, so that what a long transaction keeps costs a producer nothing.
CREATE TABLE holdfast.asleep (
    queue    text   NOT NULL,
    number   bigint NOT NULL,
    sleepers int    NOT NULL,
    poll     float8 NOT NULL,   -- the longest of the sleepers since there was none
    PRIMARY KEY (queue, number)
) WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100, autovacuum_vacuum_cost_delay = 0);

-- Counts sleeps and wake-ups, whatever statement made them. One after the other in each queue, and queues in the order of their hashes:
-- the lock comes before the count, which is a separate statement and so sees the others' counts. An impossible number is counted again.
CREATE FUNCTION holdfast.count_sleepers() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    AS $$
DECLARE
    item record;
    last record;
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        UPDATE holdfast.asleep a SET sleepers = 0 WHERE a.sleepers > 0;
        RETURN NULL;
    END IF;
    FOR item IN
        SELECT c.queue, CASE TG_OP WHEN 'INSERT' THEN count(*) ELSE - count(*) END AS change, max(c.poll) AS poll
        FROM changed c GROUP BY c.queue ORDER BY hashtext(c.queue)
    LOOP
        PERFORM pg_advisory_xact_lock(7236841, hashtext(item.queue));
        DELETE FROM holdfast.asleep a
        WHERE a.queue = item.queue AND a.number = (SELECT n.number FROM holdfast.asleep n WHERE n.queue = item.queue ORDER BY n.number DESC LIMIT 1)
        RETURNING a.number, a.sleepers + item.change AS sleepers,
                  CASE WHEN TG_OP = 'INSERT' AND (a.sleepers = 0 OR a.poll < item.poll) THEN item.poll ELSE a.poll END AS poll INTO last;
        IF last.number IS NULL OR last.sleepers < 0 THEN
            SELECT coalesce(last.number, 0) AS number, count(*) AS sleepers, coalesce(max(s.poll), 0) AS poll INTO last
            FROM holdfast.sleepers s WHERE s.queue = item.queue;
        END IF;
        INSERT INTO holdfast.asleep (queue, number, sleepers, poll) VALUES (item.queue, last.number + 1, last.sleepers, last.poll);
    END LOOP;
    RETURN NULL;
END $$;
CREATE TRIGGER fell_asleep AFTER INSERT ON holdfast.sleepers REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION holdfast.count_sleepers();
CREATE TRIGGER got_up AFTER DELETE ON holdfast.sleepers REFERENCING OLD TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION holdfast.count_sleepers();
CREATE TRIGGER emptied AFTER TRUNCATE ON holdfast.sleepers FOR EACH STATEMENT EXECUTE FUNCTION holdfast.count_sleepers();
REVOKE ALL ON FUNCTION holdfast.count_sleepers FROM PUBLIC;

-- Jobs of these queues are due, now or at the time or delay given for each: wake sleeping workers, except those that poll before
-- that. No payload, because anybody may listen; the server makes one of equal ones in a transaction. A notification takes a lock over
-- the whole database at the commit, so none is sent where nobody sleeps, nor while four other transactions are about to send the
-- same. None is sent either where holdfast.notify is off: a transaction that will be PREPAREd may not.
CREATE FUNCTION holdfast.wake(queue_names text[], run_ats timestamptz[] DEFAULT NULL, delays float8[] DEFAULT NULL) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    AS $$
DECLARE
    told text;
BEGIN
    IF current_setting('holdfast.notify', true) = 'off' THEN RETURN; END IF;
    FOR told IN
        SELECT d.queue
        FROM (SELECT DISTINCT u.queue FROM unnest(queue_names) AS u(queue)) d
        CROSS JOIN LATERAL (SELECT a.sleepers, a.poll FROM holdfast.asleep a WHERE a.queue = d.queue ORDER BY a.number DESC LIMIT 1) a
        WHERE a.sleepers > 0
          AND EXISTS (SELECT FROM unnest(queue_names, run_ats, delays) AS u(queue, run_at, delay)
                      WHERE u.queue = d.queue AND coalesce(u.run_at, holdfast.now() + make_interval(secs => u.delay), holdfast.now())
                                                < holdfast.now() + make_interval(secs => a.poll))
          AND NOT EXISTS (SELECT FROM holdfast.queues q WHERE q.name = d.queue AND q.paused_at IS NOT NULL)
    LOOP
        FOR place IN 0..3 LOOP
            IF pg_try_advisory_xact_lock(7236839, hashtext(told) # place) THEN
                PERFORM pg_notify('holdfast_' || told, '');
                EXIT;
            END IF;
        END LOOP;
    END LOOP;
END $$;
REVOKE ALL ON FUNCTION holdfast.wake FROM PUBLIC;

-- One row: what the engine remembers about itself.
CREATE TABLE holdfast.engine (
    only_row         boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    last_sweep_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    grace_until      timestamptz NOT NULL DEFAULT '-infinity',   -- living owners renew before anyone takes their work
    last_tidy_at     timestamptz NOT NULL DEFAULT '-infinity',
    retention_days   int NOT NULL DEFAULT 7 CHECK (retention_days BETWEEN 1 AND 30),
    misfits_at       timestamptz NOT NULL DEFAULT '-infinity',   -- nobody looks for payloads that everybody refused before then
    salt             uuid        NOT NULL DEFAULT gen_random_uuid()   -- in the names of groups of dead letters, so that none tells what an error says
) WITH (fillfactor = 50);
INSERT INTO holdfast.engine DEFAULT VALUES;

-- Finished work ---------------------------------------------------------------------------------------------------

-- A fixed ring of 32 day slots, all made now: a missing partition would fail a settle. A slot is emptied by TRUNCATE
-- when its day is past retention, long before the ring comes round to it again.
CREATE FUNCTION holdfast.archive_slot(at timestamptz) RETURNS int
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN mod(floor(date_part('epoch', at - '1970-01-01 00:00:00+00'::timestamptz) / 86400)::bigint, 32)::int;   -- immutable in all of its parts: else it is called, for 4 us

CREATE TABLE holdfast.archive (
    slot             int         NOT NULL,
    id               uuid        NOT NULL,
    claim_token      uuid        NOT NULL,
    seq              bigint      NOT NULL,
    lease_generation bigint      NOT NULL,
    available_at     timestamptz NOT NULL,
    created_at       timestamptz NOT NULL,
    claimed_at       timestamptz NOT NULL,
    completed_at     timestamptz NOT NULL,
    attempts         int         NOT NULL,
    max_attempts     int         NOT NULL,
    version          int         NOT NULL,
    crashes          int         NOT NULL,
    priority         smallint    NOT NULL,
    queue            text        NOT NULL,
    status           text        NOT NULL CONSTRAINT archive_status CHECK (status IN ('completed', 'cancelled')),
    task             text        NOT NULL,
    partition_key    text,
    payload          jsonb       NOT NULL,
    claimed_by       text,
    result           jsonb,
    last_error       text,
    tags             text[],
    metadata         jsonb,
    parent_id        uuid,
    group_id         uuid,
    follow_ups       jsonb
) PARTITION BY LIST (slot);
CREATE INDEX archive_id ON holdfast.archive (id);
CREATE INDEX archive_parent ON holdfast.archive (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX archive_group ON holdfast.archive (group_id) WHERE group_id IS NOT NULL;

CREATE TABLE holdfast.archive_slots (
    slot int PRIMARY KEY,
    day  date       -- the day whose jobs it holds; NULL: empty
);

DO $do$
BEGIN
    FOR slot IN 0..31 LOOP
        EXECUTE format('CREATE TABLE holdfast.archive_%s PARTITION OF holdfast.archive FOR VALUES IN (%s)', lpad(slot::text, 2, '0'), slot);
        INSERT INTO holdfast.archive_slots VALUES (slot, NULL);
    END LOOP;
END $do$;

-- The slots a job of this id can be in: from the day in its id until today, so that a lookup probes one or two.
CREATE FUNCTION holdfast.archive_slots_of(id uuid) RETURNS int[]
    LANGUAGE sql STABLE STRICT
    SET search_path = pg_catalog, pg_temp   -- no RETURN: nothing may depend on another function of Holdfast, so that each can be repaired by itself
    AS $$ SELECT ARRAY(SELECT DISTINCT mod(day, 32)::int
                       FROM generate_series(greatest(floor(extract(epoch FROM holdfast.uuid7_time(id)) / 86400)::bigint - 1,
                                                     floor(extract(epoch FROM holdfast.now()) / 86400)::bigint - 31),
                                            floor(extract(epoch FROM holdfast.now()) / 86400)::bigint + 1) AS day) $$;

-- Empties a slot whose day is past retention: TRUNCATE locks that leaf alone. If the ring has come round to it before anyone
-- tidied up (nobody worked for a month), it holds fresh rows too, and only the old ones are deleted. With the owner's rights: a worker may
-- neither TRUNCATE nor delete what has finished. So nothing that a worker can write decides what goes: the engine's retention holds, and a
-- caller can only ask for a longer one; the noted day says that there may be something to do, and the ring which day a slot can hold.
CREATE FUNCTION holdfast.empty_archive_slot(slot_number int, retention int) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET lock_timeout = '500ms'
    AS $$
DECLARE
    today date := (holdfast.now() AT TIME ZONE 'UTC')::date;
    kept  int := (SELECT greatest(e.retention_days, retention) FROM holdfast.engine e);
    held  date := (SELECT max(today + n) FROM generate_series(-kept, 1) n
                   WHERE holdfast.archive_slot((today + n)::timestamp AT TIME ZONE 'UTC') = slot_number);   -- NULL: nothing that is to be kept
BEGIN
    PERFORM FROM holdfast.archive_slots s WHERE s.slot = slot_number AND s.day < today - kept FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF held IS NOT NULL THEN
        DELETE FROM holdfast.archive a WHERE a.slot = slot_number AND a.completed_at < (today - kept)::timestamp AT TIME ZONE 'UTC';
    ELSE
        EXECUTE format('TRUNCATE holdfast.archive_%s', lpad(slot_number::text, 2, '0'));
    END IF;
    UPDATE holdfast.archive_slots s SET day = held WHERE s.slot = slot_number;
    RETURN true;
END $$;

-- Empty the slots of another ring of 32 days, tables `<ring>_00` to `<ring>_31` with a time `at`: as above, and with at most `most` rows deleted where a
-- slot is in use again. Returns how many rows or slots went. Called by functions of shapes, with their owner's rights.
CREATE FUNCTION holdfast.empty_day_slots(ring text, kept int, most int) RETURNS int
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET lock_timeout = '200ms'
    AS $$
DECLARE
    today  date := (holdfast.now() AT TIME ZONE 'UTC')::date;
    before timestamptz := (today - kept)::timestamp AT TIME ZONE 'UTC';
    leaf   text;
    oldest timestamptz;
    gone   int := 0;
    n      int;
BEGIN
    FOR slot IN 0..31 LOOP
        leaf := format('holdfast.%I', ring || '_' || lpad(slot::text, 2, '0'));
        EXECUTE format('SELECT t.at FROM %s t LIMIT 1', leaf) INTO oldest;
        CONTINUE WHEN oldest IS NULL OR oldest >= before;
        IF EXISTS (SELECT FROM generate_series(-kept, 1) d WHERE holdfast.archive_slot((today + d)::timestamp AT TIME ZONE 'UTC') = slot) THEN
            EXECUTE format('DELETE FROM %1$s t WHERE t.ctid = ANY (ARRAY(SELECT o.ctid FROM %1$s o WHERE o.at < $1 LIMIT $2))', leaf) USING before, most;
            GET DIAGNOSTICS n = ROW_COUNT;
        ELSE
            EXECUTE format('TRUNCATE %s', leaf);
            n := 1;
        END IF;
        gone := gone + n;
    END LOOP;
    RETURN gone;
END $$;
REVOKE ALL ON FUNCTION holdfast.empty_day_slots FROM PUBLIC;

CREATE TABLE holdfast.dead_letters (
    id               uuid        PRIMARY KEY,
    claim_token      uuid        NOT NULL,
    seq              bigint      NOT NULL,
    lease_generation bigint      NOT NULL,
    available_at     timestamptz NOT NULL,
    created_at       timestamptz NOT NULL,
    claimed_at       timestamptz NOT NULL,
    died_at          timestamptz NOT NULL,
    attempts         int         NOT NULL,
    max_attempts     int         NOT NULL,
    version          int         NOT NULL,
    crashes          int         NOT NULL,
    priority         smallint    NOT NULL,
    queue            text        NOT NULL,
    task             text        NOT NULL,
    partition_key    text,
    payload          jsonb       NOT NULL,
    claimed_by       text,
    last_error       text,
    tags             text[],
    metadata         jsonb,
    parent_id        uuid,
    group_id         uuid,
    follow_ups       jsonb,
    gives_up_at      timestamptz   -- its deadline by age, if it had one
);
CREATE INDEX dead_letters_died ON holdfast.dead_letters (died_at);
CREATE INDEX dead_letters_parent ON holdfast.dead_letters (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX dead_letters_group ON holdfast.dead_letters (group_id) WHERE group_id IS NOT NULL;

-- Beside the job --------------------------------------------------------------------------------------------------

-- Every failed attempt, with its traceback.
CREATE TABLE holdfast.errors (
    job_id     uuid NOT NULL,
    queue      text NOT NULL,
    attempt    int  NOT NULL,
    generation bigint NOT NULL,
    at         timestamptz NOT NULL,
    worker     text,
    kind       text NOT NULL,
    message    text NOT NULL,
    trace      text NOT NULL
);
CREATE INDEX errors_job ON holdfast.errors (job_id, at);
CREATE INDEX errors_at ON holdfast.errors (at);

CREATE TABLE holdfast.idempotency (
    queue      text NOT NULL,
    key        text NOT NULL CHECK (octet_length(key) <= 512),
    job_id     uuid NOT NULL,
    hash       bytea NOT NULL,
    expires_at timestamptz NOT NULL,   -- 'infinity': never
    PRIMARY KEY (queue, key)
);
CREATE INDEX idempotency_expires ON holdfast.idempotency (expires_at);
CREATE INDEX idempotency_job ON holdfast.idempotency (job_id);   -- jobs discard frees the keys of what it deletes

-- The job that was last enqueued under a replace key. While it waits, the next enqueue under the key changes it in place.
CREATE TABLE holdfast.replacements (
    queue  text NOT NULL,
    key    text NOT NULL CHECK (octet_length(key) <= 512),
    job_id uuid NOT NULL,
    at     timestamptz NOT NULL,   -- when it came to be this job
    PRIMARY KEY (queue, key)
) WITH (fillfactor = 50);
CREATE INDEX replacements_at ON holdfast.replacements (at);

-- Jobs that were enqueued together, and what follows them. The transaction that counts the last one enqueues the callback.
CREATE TABLE holdfast.groups (
    id           uuid PRIMARY KEY,
    wanted       text NOT NULL CHECK (wanted IN ('completed', 'finished')),   -- how a member has to end to count
    total        int  NOT NULL,
    open         int  NOT NULL CHECK (open >= 0),   -- members that are still to end, but for those in group_counts; 0 when none is
    discarded    int  NOT NULL DEFAULT 0,   -- members that an operator deleted before they completed
    created_at   timestamptz NOT NULL,
    finished_at  timestamptz,               -- when the callback was enqueued
    callback     jsonb,                     -- a list of what enqueue_specs() takes
    callback_ids uuid[],
    fault        text                       -- why the callback could not be enqueued; tried again every minute
) WITH (fillfactor = 50);
CREATE INDEX groups_created ON holdfast.groups (created_at, id);
CREATE INDEX groups_fault ON holdfast.groups (id) WHERE fault IS NOT NULL;

-- How many members of an open group have ended. The row of the group is only locked; its count is replaced by one with the next number, and the
-- newest is found first, so that what a long transaction keeps costs the next count nothing. It goes with the last member.
CREATE TABLE holdfast.group_counts (
    group_id  uuid NOT NULL,
    number    int  NOT NULL,
    ended     int  NOT NULL,
    discarded int  NOT NULL,
    PRIMARY KEY (group_id, number)
) WITH (vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- Ends of members that the transaction counts when it commits. A row lives no longer than its transaction.
CREATE TABLE holdfast.group_ends (
    tx       xid8 NOT NULL DEFAULT pg_current_xact_id(),
    job_id   uuid NOT NULL,
    state    text NOT NULL,
    group_id uuid NOT NULL,
    PRIMARY KEY (tx, job_id, state)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- What job.once() recorded.
CREATE TABLE holdfast.once (
    job_id uuid NOT NULL,
    queue  text NOT NULL,
    name   text NOT NULL CHECK (octet_length(name) <= 512),
    result jsonb,
    at     timestamptz NOT NULL,
    PRIMARY KEY (job_id, name)
);
CREATE INDEX once_at ON holdfast.once (at);

-- The job's row is never touched by progress: that would cost the next claim its heap-only update.
CREATE TABLE holdfast.progress (
    job_id     uuid PRIMARY KEY,
    queue      text NOT NULL,
    generation bigint NOT NULL,
    fraction   float8 NOT NULL,
    message    text NOT NULL,
    at         timestamptz NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX progress_at ON holdfast.progress (at);

-- The highest fence each guarded resource has seen of a stream (of a job, where the queue has no order).
CREATE TABLE holdfast.fences (
    resource text NOT NULL CHECK (octet_length(resource) <= 512),
    stream   text NOT NULL,
    queue    text NOT NULL,
    job_id   uuid NOT NULL,   -- whose fence it is
    fence    text COLLATE "C" NOT NULL,
    at       timestamptz NOT NULL,
    PRIMARY KEY (resource, stream)
);
CREATE INDEX fences_at ON holdfast.fences (at);

-- Acts of operators: actor, act, jobs, number.
CREATE TABLE holdfast.audit (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor     text   NOT NULL,
    action    text   NOT NULL,   -- noun and verb, as on the command line: 'jobs cancel'
    selection jsonb  NOT NULL,   -- which: ids or filters
    count     bigint NOT NULL,
    role      text   DEFAULT session_user,  -- the role that the server knows; the actor is the caller's own statement
    surface   text,    -- cli, web, api, sql or python; NULL: written by a release that did not say it
    address   inet,    -- of the client, as the surface reported it
    reason    text,
    before    jsonb,   -- what was changed, as it was, without secrets; NULL: it is not kept of this act
    after     jsonb,
    operation uuid     -- of which the act is a part
);

-- An entry of the audit. With the owner's rights, so that its writers need no right on the table: the server notes the time and the role,
-- and nobody changes an entry. A caller by hand acts by SQL.
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

-- The same for the release before.
CREATE FUNCTION holdfast.audit_act(said_actor text, act text, which jsonb, how_many bigint) RETURNS bigint
    LANGUAGE sql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$ INSERT INTO holdfast.audit (at, actor, action, selection, count)
          VALUES (holdfast.now(), said_actor, act, which, greatest(how_many, 0)) RETURNING id $$;

-- An act in several transactions: each adds what it did to the entry that this role has begun. Nothing is ever taken away. NULL: there is
-- no such entry.
CREATE FUNCTION holdfast.audit_more(entry bigint, how_many bigint) RETURNS bigint
    LANGUAGE sql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$ UPDATE holdfast.audit a SET count = a.count + greatest(how_many, 0) WHERE a.id = entry AND a.role = session_user RETURNING a.id $$;
REVOKE ALL ON FUNCTION holdfast.audit_act FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.audit_more FROM PUBLIC;

-- Acts over many jobs that continue without the process that began them. A batch of jobs and the place where the next one begins commit together, under the
-- row's lock and by the token of its runner: so another continues where one stopped, and no job is changed twice.
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
    token       uuid,               -- of its runner; NULL: it has none
    beat_at     timestamptz,
    runs        int     NOT NULL DEFAULT 0,   -- how often it was taken up
    fault       text,               -- why the last runner could not continue, or why it failed
    retry_at    timestamptz
) WITH (fillfactor = 50);
CREATE INDEX operations_created ON holdfast.operations (created_at, id);
CREATE INDEX operations_open ON holdfast.operations (created_at, id) WHERE state IN ('waiting', 'running');

-- The runner of an operation counts its changes in the entry that its starter made. With the owner's rights: a worker has none on the audit.
CREATE FUNCTION holdfast.audit_operation(operation uuid, by_token uuid, how_many bigint) RETURNS bigint
    LANGUAGE sql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$ UPDATE holdfast.audit a SET count = a.count + greatest(how_many, 0) FROM holdfast.operations o
          WHERE o.id = audit_operation.operation AND o.token = by_token AND o.state = 'running' AND a.id = o.audit AND a.operation = o.id RETURNING a.id $$;
REVOKE ALL ON FUNCTION holdfast.audit_operation FROM PUBLIC;

-- Jobs that a redrive put back, as they were as dead letters: an undo puts back those that have not started since. For a day.
CREATE TABLE holdfast.redriven (
    job_id      uuid        PRIMARY KEY,
    act         uuid        NOT NULL,   -- by which it was put back
    at          timestamptz NOT NULL,
    queue       text        NOT NULL,
    generation  bigint      NOT NULL,   -- a higher one in `work`: it has started
    attempts    int         NOT NULL,
    crashes     int         NOT NULL,
    died_at     timestamptz NOT NULL,
    claimed_at  timestamptz NOT NULL,
    claimed_by  text,
    group_id    uuid,
    gives_up_at timestamptz,
    parked      boolean     NOT NULL    -- its key was parked for it, and continued
);
CREATE INDEX redriven_act ON holdfast.redriven (act, job_id);
CREATE INDEX redriven_at ON holdfast.redriven (at);

-- Lists that people of the dashboard keep under a name: a page and its filter.
CREATE TABLE holdfast.web_views (
    id      uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    owner   text        NOT NULL,   -- '': it is everybody's
    name    text        NOT NULL,
    page    text        NOT NULL,
    query   jsonb       NOT NULL,   -- what stands behind the `?`, by name
    made_by text        NOT NULL,
    made_at timestamptz NOT NULL,
    UNIQUE (owner, name)
);

-- Requests of programs that have an Idempotency-Key, and the reply to each. For a day.
CREATE TABLE holdfast.web_requests (
    who    text        NOT NULL,
    key    text        NOT NULL,
    digest text        NOT NULL,   -- of the request: another one under the same key is a slip
    at     timestamptz NOT NULL,
    said   text,                   -- the answer, as it was shown, without what is shown once; NULL: it is not known
    PRIMARY KEY (who, key)
);
CREATE INDEX web_requests_at ON holdfast.web_requests (at);

-- Roles that may enqueue into these queues only (`holdfast roles sql --queue`). A role that gets EXECUTE in another way may enqueue everywhere.
CREATE TABLE holdfast.producers (
    role  regrole NOT NULL,
    queue text    NOT NULL,
    PRIMARY KEY (role, queue)
);

-- The work of each task in each minute, summed up by the workers themselves: reading it never counts jobs. A worker that is killed
-- takes its last few seconds with it.
CREATE TABLE holdfast.throughput (
    minute       timestamptz NOT NULL,
    queue        text   NOT NULL,
    task         text   NOT NULL,
    completed    bigint NOT NULL DEFAULT 0,
    failed       bigint NOT NULL DEFAULT 0,   -- attempts that failed, retried or not
    dead         bigint NOT NULL DEFAULT 0,
    cancelled    bigint NOT NULL DEFAULT 0,
    run_seconds  float8 NOT NULL DEFAULT 0,   -- over all attempts
    wait_seconds float8 NOT NULL DEFAULT 0,   -- from due to started, over all attempts
    max_run      float8 NOT NULL DEFAULT 0,
    max_wait     float8 NOT NULL DEFAULT 0,
    runs         bigint[],   -- attempts by how long they ran: 24 buckets, each up to twice the one before, from a millisecond on
    waits        bigint[],
    PRIMARY KEY (minute, queue, task)
) WITH (fillfactor = 70);

-- The state of each queue in each minute: written once a minute by the first worker, and kept for 30 days. Counts stop at 10,000.
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
CREATE INDEX samples_queue ON holdfast.samples (queue, minute);   -- the history of one queue among many

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

-- with shape: schedules

-- Enqueue ---------------------------------------------------------------------------------------------------------

-- Lock streams of one ordered queue until the commit. Before drawing a sequence number for a stream, a session calls this, in a separate
-- statement: inside the INSERT the number would be drawn before the lock is granted.
--
-- The hash of a key belongs to one of 128 stripes, by its upper bits. Everybody takes stripes and keys in the order of the hashes: a stripe,
-- then its keys. Up to 128 keys: each stripe shared, each key exclusively. More keys: a stripe that nobody uses is taken whole, because the
-- lock table of the server is small. A stripe in use is shared, and its keys are taken singly: waiting for other sessions to leave it would
-- deadlock two transactions that have no key in common. Two keys of one hash only wait for each other.
CREATE FUNCTION holdfast.lock_streams(queue_name text, keys text[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    hashes bigint[] := ARRAY(SELECT DISTINCT hashtextextended(queue_name || E'\x1f' || k, 7236837) FROM unnest(keys) k WHERE k IS NOT NULL ORDER BY 1);
    queue  int := hashtext(queue_name);
    spare  int := 256;   -- keys of stripes in use that a large call still locks one by one
    stripe int;
    hash   bigint;
    item   record;
BEGIN
    IF hashes = '{}' THEN RETURN; END IF;
    IF cardinality(hashes) <= 128 THEN
        FOREACH hash IN ARRAY hashes LOOP
            IF stripe IS DISTINCT FROM (hash >> 57)::int THEN
                stripe := hash >> 57;
                PERFORM pg_advisory_xact_lock_shared(7236840, queue # stripe);
            END IF;
            PERFORM pg_advisory_xact_lock(hash);
        END LOOP;
        -- Last, so that whoever has it without a stripe is known to be of the release before: see below.
        PERFORM pg_advisory_xact_lock_shared(7236838, queue);
        RETURN;
    END IF;
    -- A key that somebody holds is waited for before the stripes are taken: a call that waits holds up nobody else's keys. The lock is let
    -- go again (the subtransaction is undone), because it is not this key's turn yet.
    FOR item IN SELECT h.hash FROM unnest(hashes) AS h(hash)
                WHERE h.hash IN (SELECT (l.classid::bigint << 32) | l.objid::bigint FROM pg_locks l
                                 WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.pid <> pg_backend_pid()
                                   AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
                ORDER BY h.hash LOOP
        BEGIN
            PERFORM pg_advisory_xact_lock(item.hash);
            RAISE EXCEPTION USING ERRCODE = 'HF001', MESSAGE = 'the key is free';
        EXCEPTION WHEN SQLSTATE 'HF001' THEN
            NULL;
        END;
    END LOOP;
    -- One large call at a time, until it commits: else a stripe in use might be another one's as a whole, and waiting for it, with stripes of its
    -- own, would deadlock two that have no key in common. Who waits here holds no stripe.
    PERFORM pg_advisory_xact_lock(7236842, queue);
    FOR item IN SELECT (h.hash >> 57)::int AS stripe, array_agg(h.hash ORDER BY h.hash) AS hashes FROM unnest(hashes) AS h(hash) GROUP BY 1 ORDER BY 1 LOOP
        CONTINUE WHEN pg_try_advisory_xact_lock(7236840, queue # item.stripe);
        IF cardinality(item.hashes) > spare THEN
            PERFORM pg_advisory_xact_lock(7236840, queue # item.stripe);
            CONTINUE;
        END IF;
        spare := spare - cardinality(item.hashes);
        PERFORM pg_advisory_xact_lock_shared(7236840, queue # item.stripe);
        FOREACH hash IN ARRAY item.hashes LOOP
            PERFORM pg_advisory_xact_lock(hash);
        END LOOP;
    END LOOP;
    -- The release before locked the queue (shared) and then keys, and no stripes. While one of its transactions is still open, a large call
    -- takes the whole queue, as it did then.
    IF EXISTS (SELECT FROM pg_locks l
               WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.classid = 7236838 AND l.objid = (queue::bigint & 4294967295)::oid AND l.pid <> pg_backend_pid()
                 AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
                 AND NOT EXISTS (SELECT FROM pg_locks s WHERE s.locktype = 'advisory' AND s.objsubid = 2 AND s.classid = 7236840 AND s.pid = l.pid)) THEN
        PERFORM pg_advisory_xact_lock(7236838, queue);
    ELSE
        PERFORM pg_advisory_xact_lock_shared(7236838, queue);
    END IF;
END $$;

-- Lock streams of one ordered queue until the commit, if that can be done without waiting. Not for many keys: each takes a lock.
CREATE FUNCTION holdfast.try_streams(queue_name text, keys text[]) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    queue int := hashtext(queue_name);
    hash  bigint;
BEGIN
    FOR hash IN SELECT DISTINCT hashtextextended(queue_name || E'\x1f' || k, 7236837) FROM unnest(keys) k WHERE k IS NOT NULL LOOP
        IF NOT (pg_try_advisory_xact_lock_shared(7236840, queue # (hash >> 57)::int) AND pg_try_advisory_xact_lock(hash)) THEN
            RETURN false;
        END IF;
    END LOOP;
    RETURN pg_try_advisory_xact_lock_shared(7236838, queue);
END $$;

-- How many digits the numbers of a value have when they are printed: at least a tenth of this, and no more. Counted by comparison, because
-- jsonb keeps 1e131000 in a few bytes and prints it in 131001.
CREATE FUNCTION holdfast.digits(value jsonb) RETURNS bigint
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT coalesce(sum(scale(n.number) + CASE WHEN abs(n.number) < 1e10 THEN 10 WHEN abs(n.number) < 1e100 THEN 100 WHEN abs(n.number) < 1e1000 THEN 1000
                                                    WHEN abs(n.number) < 1e10000 THEN 10000 ELSE 131072 END), 0)::bigint
          FROM (SELECT v::numeric AS number FROM jsonb_path_query(value, 'strict $.** ? (@.type() == "number")') AS q(v) OFFSET 0) n $$;

-- The bytes of a value as jsonb prints it; where that is more than ten times the limit, a lower bound that is over the limit, and nothing is
-- printed. A small value is printed in any case.
CREATE FUNCTION holdfast.printed_bytes(value jsonb, most int) RETURNS bigint
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    least_bytes bigint;
BEGIN
    IF pg_column_size(value) > 1024 OR pg_column_compression(value) IS NOT NULL THEN
        least_bytes := holdfast.digits(value) / 10;
        IF least_bytes > most THEN RETURN least_bytes; END IF;
    END IF;
    RETURN octet_length(value::text);
END $$;

-- A time, or NULL for what is none, such as 30 February.
CREATE FUNCTION holdfast.moment(given text) RETURNS timestamptz
    LANGUAGE plpgsql STABLE STRICT
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    RETURN given::timestamptz;
EXCEPTION WHEN data_exception THEN
    RETURN NULL;
END $$;

-- Raises where the role that is logged in may not enqueue into one of these queues. Called where `producers` is not empty. It looks at
-- session_user: within enqueue() and the others the current user is their owner.
CREATE FUNCTION holdfast.check_producer(queue_names text[]) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    wrong text;
BEGIN
    IF EXISTS (SELECT FROM pg_proc f CROSS JOIN LATERAL aclexplode(coalesce(f.proacl, acldefault('f', f.proowner))) a
               WHERE f.pronamespace = 'holdfast'::regnamespace AND f.proname IN ('enqueue', 'enqueue_many', 'enqueue_group')
                 AND (a.grantee = 0 OR pg_has_role(session_user, a.grantee, 'USAGE'))
                 AND NOT EXISTS (SELECT FROM holdfast.producers p WHERE p.role = a.grantee)) THEN
        RETURN;
    END IF;
    SELECT q INTO wrong FROM unnest(queue_names) q
    WHERE NOT EXISTS (SELECT FROM holdfast.producers p WHERE p.queue = q AND pg_has_role(session_user, p.role, 'USAGE')) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'role % may not enqueue into queue %. Allow it: holdfast roles sql --queue %', session_user, quote_nullable(wrong), wrong
            USING ERRCODE = 'insufficient_privilege';
    END IF;
END $$;

-- The error of jobs that are given as JSON, or NULL. They are checked when they are written, so that they can be enqueued when
-- their time comes.
CREATE FUNCTION holdfast.spec_fault(specs jsonb, level int DEFAULT 1, most int DEFAULT 100) RETURNS text
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    spec  jsonb;
    wrong text;
BEGIN
    IF level > 20 THEN RETURN 'more than 20 jobs follow one after the other'; END IF;
    IF jsonb_typeof(specs) <> 'array' THEN RETURN 'not a list of jobs'; END IF;
    IF jsonb_array_length(specs) NOT BETWEEN 1 AND most THEN
        RETURN format('%s jobs in one list, 1 to %s are possible', jsonb_array_length(specs), most);
    END IF;
    FOR spec IN SELECT e FROM jsonb_array_elements(specs) AS s(e) LOOP
        wrong := CASE
            WHEN jsonb_typeof(spec) <> 'object' THEN 'a job is no object'
            WHEN EXISTS (SELECT FROM unnest(ARRAY['task', 'queue', 'partition_key', 'idempotency_key', 'replace_key', 'run_at']) AS k(name)
                         WHERE jsonb_typeof(spec->k.name) NOT IN ('string', 'number', 'null')) THEN 'a task, a queue, a key or a run_at is no text'
            WHEN coalesce(spec->>'task', '') !~ '^[A-Za-z0-9_.-]{1,200}$' THEN format('task name %L is not usable', spec->>'task')
            WHEN spec - ARRAY['task', 'payload', 'queue', 'version', 'partition_key', 'priority', 'max_attempts', 'run_at', 'delay', 'idempotency_key',
                              'idempotency_lifetime', 'tags', 'metadata', 'then', 'replace_key'] <> '{}'
                THEN format('%s has no option %L', spec->>'task', (SELECT k FROM jsonb_object_keys(spec - ARRAY['task', 'payload', 'queue', 'version',
                            'partition_key', 'priority', 'max_attempts', 'run_at', 'delay', 'idempotency_key', 'idempotency_lifetime', 'tags', 'metadata',
                            'then', 'replace_key']) AS k ORDER BY k LIMIT 1))
            WHEN coalesce(jsonb_typeof(spec->'payload'), 'object') <> 'object' THEN format('payload of %s is no object', spec->>'task')
            WHEN holdfast.printed_bytes(spec->'payload', 262144) > 262144 THEN format('payload of %s is more than 262144 bytes', spec->>'task')
            WHEN holdfast.printed_bytes(spec->'metadata', 8192) > 8192 OR holdfast.printed_bytes(spec->'tags', 8192) > 8192
                THEN format('metadata or tags of %s are more than 8192 bytes', spec->>'task')
            WHEN coalesce(jsonb_typeof(spec->'tags'), 'array') NOT IN ('array', 'null') THEN format('tags of %s are no list', spec->>'task')
            WHEN greatest(octet_length(spec->>'partition_key'), octet_length(spec->>'idempotency_key'), octet_length(spec->>'replace_key')) > 512
                THEN format('a key of %s is more than 512 bytes', spec->>'task')
            WHEN spec->>'idempotency_key' IS NOT NULL AND spec->>'replace_key' IS NOT NULL
                THEN format('%s has replace_key and idempotency_key: take one of them', spec->>'task')
            WHEN EXISTS (SELECT FROM (VALUES ('priority', -100, 100), ('max_attempts', 1, 1000), ('version', 1, 2147483647),
                                             ('delay', 0, 315360000), ('idempotency_lifetime', 1, 'infinity'::numeric)) AS r(name, low, high)
                         WHERE CASE WHEN spec->>r.name IS NULL OR (r.name = 'idempotency_lifetime' AND spec->>r.name = 'forever') THEN false WHEN jsonb_typeof(spec->r.name) <> 'number' THEN true
                                    ELSE (spec->>r.name)::numeric NOT BETWEEN r.low AND r.high
                                      OR (r.name IN ('priority', 'max_attempts', 'version') AND (spec->>r.name)::numeric % 1 <> 0) END)
                THEN format('a number of %s is out of range', spec->>'task')
            WHEN spec->>'run_at' !~ '^[0-9]{4,5}-[0-9]{2}-[0-9]{2}[T ][0-9:.]{5,15}(Z|[+-][0-9:]{2,8})$' OR (spec->>'run_at' IS NOT NULL AND holdfast.moment(spec->>'run_at') IS NULL)
                THEN format('run_at of %s is no time with a zone', spec->>'task')
            WHEN spec->'then' IS NOT NULL AND jsonb_typeof(spec->'then') <> 'null' THEN holdfast.spec_fault(spec->'then', level + 1)
        END;
        IF wrong IS NOT NULL THEN RETURN wrong; END IF;
    END LOOP;
    RETURN NULL;
END $$;

-- The same jobs as enqueue_specs() reads them: integers without a fraction, times in UTC, texts as texts. spec_fault() has found nothing
-- wrong with them. Whatever could not be converted would else fail when the job before them is finished.
CREATE FUNCTION holdfast.normal_specs(specs jsonb) RETURNS jsonb
    LANGUAGE plpgsql STABLE STRICT
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    RETURN (SELECT jsonb_agg((SELECT jsonb_object_agg(f.key, CASE
                WHEN f.key IN ('priority', 'max_attempts', 'version') THEN to_jsonb(trunc(f.value::numeric)::int)
                WHEN f.key IN ('delay', 'idempotency_lifetime') AND jsonb_typeof(f.value) = 'number' THEN to_jsonb(round(least(f.value::numeric, 10000000000), 6))
                WHEN f.key = 'run_at' THEN to_jsonb(to_char(least(greatest(holdfast.moment(f.value #>> '{}'), 'epoch'), '9999-12-31 00:00Z') AT TIME ZONE 'UTC',
                                                            'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))
                WHEN f.key IN ('task', 'queue', 'partition_key', 'idempotency_key', 'replace_key') THEN to_jsonb(f.value #>> '{}')
                WHEN f.key = 'then' THEN holdfast.normal_specs(f.value)
                ELSE f.value END)
            FROM jsonb_each(s.spec) AS f WHERE f.value <> 'null') ORDER BY s.place)
        FROM jsonb_array_elements(specs) WITH ORDINALITY AS s(spec, place));
END $$;

-- The problem of jobs that are enqueued later, at any level: 'queue', a queue that does not exist; 'key', one that is claimed
-- key by key, and no key; NULL: nothing.
CREATE FUNCTION holdfast.spec_conflict(specs jsonb) RETURNS text
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    spec  jsonb;
    keyed boolean;
    below text;
BEGIN
    FOR spec IN SELECT e FROM jsonb_array_elements(specs) AS s(e) LOOP
        IF EXISTS (SELECT FROM holdfast.producers) THEN PERFORM holdfast.check_producer(ARRAY[coalesce(spec->>'queue', 'inbox')]); END IF;
        SELECT q.keyed INTO keyed FROM holdfast.queues q WHERE q.name = coalesce(spec->>'queue', 'inbox');
        IF NOT FOUND THEN RETURN 'queue'; END IF;
        IF keyed AND spec->>'partition_key' IS NULL THEN RETURN 'key'; END IF;
        IF jsonb_typeof(spec->'then') = 'array' THEN
            below := holdfast.spec_conflict(spec->'then');
            IF below IS NOT NULL THEN RETURN below; END IF;
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

-- For enqueue_many: what a library checks before it calls.
CREATE FUNCTION holdfast.check_links(follow_ups text[], groups uuid[], replace_keys text[], idempotency_keys text[]) RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    wrong text;
BEGIN
    IF array_remove(follow_ups, NULL) <> '{}' THEN
        SELECT w.wrong INTO wrong
        FROM (SELECT CASE WHEN octet_length(f) > 262144 OR holdfast.printed_bytes(f::jsonb, 262144) > 262144 THEN 'more than 262144 bytes'
                          ELSE holdfast.spec_fault(f::jsonb) END AS wrong
              FROM unnest(follow_ups) AS u(f) WHERE f IS NOT NULL OFFSET 0) w
        WHERE w.wrong IS NOT NULL LIMIT 1;
        IF wrong IS NOT NULL THEN
            RAISE EXCEPTION 'the follow-ups of a job cannot be enqueued: %', wrong USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;
    IF array_remove(replace_keys, NULL) <> '{}' OR array_remove(groups, NULL) <> '{}' THEN
        IF EXISTS (SELECT FROM unnest(replace_keys, idempotency_keys, groups) AS u(replace, idempotency, in_group)
                   WHERE octet_length(u.replace) > 512 OR num_nonnulls(u.replace, u.idempotency, u.in_group) > 1) THEN
            RAISE EXCEPTION 'a replace_key is more than 512 bytes, or goes with an idempotency_key or a group'
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;
END $$;

-- Many jobs in one call, in the caller's transaction. Never raises for what a caller can get wrong in one row: it returns
-- with a conflict ('queue': no such queue, 'key': the queue is claimed key by key and the job has none, 'payload': the idempotency key
-- was used with another payload, 'replace': a job of another task or partition key waits under the replace key, 'then_queue' and
-- 'then_key': the first two, of a job that is to follow), and then has written
-- nothing at all. Same key and same payload gives the first job's id, also to a concurrent duplicate, which waits. A job that waits under
-- the same replace key is changed in place.
--
-- This is the inside, without rights for producers: it believes its caller about parents and groups.
CREATE FUNCTION holdfast.write_jobs(
    tasks text[], payloads text[], queues text[], versions int[], partition_keys text[], priorities int[], max_attempts int[],
    run_ats timestamptz[], delays float8[], idempotency_keys text[], idempotency_lifetimes float8[], tags text[], metadatas text[],
    follow_ups text[], parents uuid[], groups uuid[], replace_keys text[])
    RETURNS TABLE (ordinal int, id uuid, created boolean, conflict text)
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    n         int := cardinality(tasks);
    ids       uuid[];
    fresh     boolean[] := array_fill(true, ARRAY[greatest(n, 1)]);
    conflicts text[] := array_fill(NULL::text, ARRAY[greatest(n, 1)]);
    mine      int[] := '{}';
    made      int[] := '{}';   -- replace keys: new ones,
    moved     int[] := '{}';   -- those whose job no longer waits,
    changed   int[] := '{}';   -- and those whose job is changed
    item      record;
    found_id  uuid;
    found_hash bytea;
    found_task text;
    found_partition text;
    i         int;
    at        timestamptz := holdfast.now();
    base      bigint := floor(extract(epoch FROM clock_timestamp()) * 1000);
    noise     bigint;
BEGIN
    IF n IS NULL OR n = 0 THEN RETURN; END IF;
    IF EXISTS (SELECT FROM holdfast.producers) THEN PERFORM holdfast.check_producer(queues); END IF;
    -- What a library checks before it calls, and a caller without one must not get past.
    IF EXISTS (SELECT FROM unnest(tasks, payloads, priorities, max_attempts, versions, idempotency_lifetimes, metadatas, tags)
                        AS u(task, payload, priority, attempts, version, life, metadata, tags)
               WHERE u.task ~ '[^A-Za-z0-9_.-]' OR octet_length(u.task) NOT BETWEEN 1 AND 200 OR octet_length(u.payload) > 262144
                     -- jsonb prints more than was written: a space after each separator, and numbers without exponents
                  OR CASE WHEN octet_length(u.payload) > 131072 OR u.payload ~ '[0-9][eE][+-]?[0-9]' THEN holdfast.printed_bytes(u.payload::jsonb, 262144) > 262144 END
                  OR octet_length(u.metadata) > 8192 OR holdfast.printed_bytes(u.metadata::jsonb, 8192) > 8192 OR octet_length(u.tags) > 8192
                  OR CASE WHEN u.tags ~ '[0-9][eE][+-]?[0-9]' THEN holdfast.printed_bytes(u.tags::jsonb, 16384) > 16384 END
                  OR u.priority NOT BETWEEN -100 AND 100 OR u.attempts NOT BETWEEN 1 AND 1000 OR u.version < 1
                  OR NOT u.life BETWEEN 1 AND 'infinity') THEN
        RAISE EXCEPTION 'a job is out of the limits: task name 1 to 200 letters, digits and _ . -, payload 262144 bytes as jsonb prints it, metadata and tags 8192 bytes, priority -100 to 100, max_attempts 1 to 1000, version 1 or more, idempotency_lifetime 1 second or more'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF array_remove(follow_ups, NULL) <> '{}' OR array_remove(groups, NULL) <> '{}' OR array_remove(replace_keys, NULL) <> '{}' THEN
        PERFORM holdfast.check_links(follow_ups, groups, replace_keys, idempotency_keys);
        follow_ups := ARRAY(SELECT holdfast.normal_specs(u.f::jsonb)::text FROM unnest(follow_ups) WITH ORDINALITY AS u(f, ord) ORDER BY u.ord);
        IF EXISTS (SELECT FROM unnest(follow_ups) AS u(f) WHERE octet_length(u.f) > 262144) THEN
            RAISE EXCEPTION 'the follow-ups of a job cannot be enqueued: more than 262144 bytes' USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;
    FOR item IN SELECT u.ord::int AS ord, CASE WHEN q.name IS NULL THEN 'queue' WHEN q.keyed AND u.key IS NULL THEN 'key'
                                               WHEN u.follow_ups IS NOT NULL THEN 'then_' || holdfast.spec_conflict(u.follow_ups::jsonb) END AS conflict
                FROM unnest(queues, partition_keys, follow_ups) WITH ORDINALITY AS u(name, key, follow_ups, ord)
                LEFT JOIN holdfast.queues q ON q.name = u.name
                WHERE q.name IS NULL OR (q.keyed AND u.key IS NULL) OR u.follow_ups IS NOT NULL LOOP
        CONTINUE WHEN item.conflict IS NULL;
        conflicts[item.ord] := item.conflict;
        fresh[item.ord] := false;
    END LOOP;
    IF n < 16 THEN
        ids := ARRAY(SELECT holdfast.uuid7() FROM generate_series(1, n));
    ELSE   -- of version 7 too, from one random number: the server's own random numbers take 3 us each, as long as an index entry
        noise := hashtextextended(gen_random_uuid()::text, 0);
        ids := ARRAY(SELECT (lpad(to_hex(base + g.o / 4096), 12, '0') || to_hex(28672 + g.o % 4096) || substr('89ab', 1 + (g.h & 3)::int, 1)
                             || lpad(to_hex((g.h >> 2) & 1152921504606846975), 15, '0'))::uuid
                     FROM (SELECT o, hashint8extended(o, noise) AS h FROM generate_series(0, n - 1) AS s(o)) g);
    END IF;

    -- Keys in sorted order, so that two bulk calls cannot deadlock. No EXCEPTION block: subtransactions are dear.
    -- Read first: a duplicate locks nothing, and waits only for a transaction that is about to make the first job of its key. That wait is
    -- the INSERT, which takes no lock on a row that it finds; it also waits for whoever takes over an expired key at this moment.
    IF array_position(fresh, false) IS NULL AND array_remove(idempotency_keys, NULL) <> '{}' THEN
        FOR item IN
            SELECT u.ord::int AS ord, u.queue, u.key,
                   CASE WHEN u.life > 3155760000 THEN 'infinity' ELSE holdfast.now() + make_interval(secs => u.life) END AS expires_at,   -- a century is for ever
                   sha256(convert_to(u.task || E'\x1f' || (u.payload::jsonb)::text, 'UTF8')) AS hash
            FROM unnest(queues, idempotency_keys, idempotency_lifetimes, tasks, payloads) WITH ORDINALITY AS u(queue, key, life, task, payload, ord)
            WHERE u.key IS NOT NULL ORDER BY u.queue, u.key, u.ord
        LOOP
            i := 0;
            LOOP
                SELECT k.job_id, k.hash INTO found_id, found_hash FROM holdfast.idempotency k
                WHERE k.queue = item.queue AND k.key = item.key AND k.expires_at > holdfast.now();
                IF FOUND THEN
                    ids[item.ord] := found_id;
                    fresh[item.ord] := false;
                    IF found_hash <> item.hash THEN conflicts[item.ord] := 'payload'; END IF;
                    EXIT;
                END IF;
                INSERT INTO holdfast.idempotency AS k (queue, key, job_id, hash, expires_at)
                VALUES (item.queue, item.key, ids[item.ord], item.hash, item.expires_at)
                ON CONFLICT (queue, key) DO NOTHING;
                IF FOUND THEN
                    mine := mine || item.ord;
                    EXIT;
                END IF;
                -- It is there: just committed, then it is read in the next round, or expired, then one takes it over.
                PERFORM FROM holdfast.idempotency k
                WHERE k.queue = item.queue AND k.key = item.key AND k.expires_at <= holdfast.now() FOR UPDATE SKIP LOCKED;
                IF FOUND THEN
                    UPDATE holdfast.idempotency k SET job_id = ids[item.ord], hash = item.hash, expires_at = item.expires_at
                    WHERE k.queue = item.queue AND k.key = item.key;
                    mine := mine || item.ord;
                    EXIT;
                END IF;
                i := i + 1;
                IF i > 1 THEN   -- expired, and somebody holds it without changing it: wait for that one
                    PERFORM FROM holdfast.idempotency k
                    WHERE k.queue = item.queue AND k.key = item.key AND k.expires_at <= holdfast.now() FOR UPDATE;
                END IF;
            END LOOP;
        END LOOP;
    END IF;

    -- The key's row is locked first, then the job: whoever comes second sees what the first one made. A job that a claim is about to
    -- take is waited for: it then runs, and a new one is made. Of one key in one call the last wins.
    IF array_remove(conflicts, NULL) = '{}' AND array_remove(replace_keys, NULL) <> '{}' THEN
        FOR item IN
            SELECT x.ord::int AS ord, x.queue, x.key, x.task, x.partition_key, (max(x.ord) OVER (PARTITION BY x.queue, x.key))::int AS last
            FROM unnest(queues, replace_keys, tasks, partition_keys) WITH ORDINALITY AS x(queue, key, task, partition_key, ord)
            WHERE x.key IS NOT NULL ORDER BY x.queue, x.key, x.ord DESC
        LOOP
            IF item.ord <> item.last THEN
                ids[item.ord] := ids[item.last];
                fresh[item.ord] := false;
                IF item.task <> tasks[item.last] OR item.partition_key IS DISTINCT FROM partition_keys[item.last] THEN
                    conflicts[item.ord] := 'replace';
                END IF;
                CONTINUE;
            END IF;
            INSERT INTO holdfast.replacements AS r (queue, key, job_id, at) VALUES (item.queue, item.key, ids[item.ord], holdfast.now())
            ON CONFLICT (queue, key) DO UPDATE SET job_id = r.job_id RETURNING r.job_id INTO found_id;
            IF found_id = ids[item.ord] THEN
                made := made || item.ord;
                CONTINUE;
            END IF;
            SELECT w.task, w.partition_key INTO found_task, found_partition FROM holdfast.work w
            WHERE w.queue = item.queue AND w.id = found_id AND w.status IN ('pending', 'held') AND w.cancel_requested_at IS NULL
              AND w.id NOT IN (SELECT q.id FROM holdfast.quarantine q)
            FOR NO KEY UPDATE;
            IF NOT FOUND THEN
                moved := moved || item.ord;
            ELSE
                ids[item.ord] := found_id;
                fresh[item.ord] := false;
                changed := changed || item.ord;
                IF found_task <> item.task OR found_partition IS DISTINCT FROM item.partition_key THEN conflicts[item.ord] := 'replace'; END IF;
            END IF;
        END LOOP;
    END IF;

    IF array_remove(conflicts, NULL) <> '{}' THEN   -- all or nothing
        FOREACH i IN ARRAY mine LOOP
            DELETE FROM holdfast.idempotency k WHERE k.queue = queues[i] AND k.key = idempotency_keys[i] AND k.job_id = ids[i];
        END LOOP;
        FOREACH i IN ARRAY made LOOP
            DELETE FROM holdfast.replacements r WHERE r.queue = queues[i] AND r.key = replace_keys[i] AND r.job_id = ids[i];
        END LOOP;
        -- A key used twice in this very call has no job behind it.
        RETURN QUERY SELECT o, CASE WHEN conflicts[o] = 'payload' AND NOT EXISTS (SELECT FROM unnest(mine) m WHERE ids[m] = ids[o]) THEN ids[o]
                                    WHEN conflicts[o] = 'replace' AND EXISTS (SELECT FROM unnest(changed) c WHERE ids[c] = ids[o]) THEN ids[o] END,
                            false, conflicts[o] FROM generate_series(1, n) o ORDER BY o;
        RETURN;
    END IF;

    FOREACH i IN ARRAY moved LOOP
        UPDATE holdfast.replacements r SET job_id = ids[i], at = holdfast.now() WHERE r.queue = queues[i] AND r.key = replace_keys[i];
    END LOOP;
    -- As if it were new, but for its id, its place, its history and its group.
    FOREACH i IN ARRAY changed LOOP
        UPDATE holdfast.work w
        SET payload = payloads[i]::jsonb, version = versions[i], priority = priorities[i], max_attempts = write_jobs.max_attempts[i],
            attempts = 0, first_due = NULL, gives_up_at = NULL, status = 'pending', hold_reason = NULL,
            available_at = least(greatest(coalesce(run_ats[i], holdfast.now() + make_interval(secs => delays[i])), 'epoch'), holdfast.now() + interval '10 years'),
            tags = CASE WHEN write_jobs.tags[i] IS NOT NULL THEN ARRAY(SELECT jsonb_array_elements_text(write_jobs.tags[i]::jsonb)) END,
            metadata = metadatas[i]::jsonb, parent_id = parents[i], follow_ups = write_jobs.follow_ups[i]::jsonb
        WHERE w.queue = queues[i] AND w.id = ids[i];
    END LOOP;
    IF EXISTS (SELECT FROM holdfast.queues q WHERE q.ordering = 'key' AND q.name = ANY (queues)) THEN
        PERFORM holdfast.lock_streams(o.queue, o.keys)
        FROM (SELECT u.queue, array_agg(u.key) AS keys FROM unnest(queues, partition_keys, fresh) AS u(queue, key, fresh)
              JOIN holdfast.queues q ON q.name = u.queue AND q.ordering = 'key' WHERE u.fresh GROUP BY u.queue ORDER BY u.queue) o;
    END IF;

    INSERT INTO holdfast.work (id, queue, task, version, payload, partition_key, partition_bucket, priority, max_attempts,
                               available_at, created_at, claimed_at, claim_token, tags, metadata, seq, parent_id, group_id, follow_ups)
    SELECT u.id, u.queue, u.task, u.version, u.payload::jsonb, u.partition_key, coalesce(holdfast.bucket(u.partition_key), 0), u.priority, u.attempts,
           CASE WHEN u.run_at IS NULL AND u.delay = 0 THEN at
                ELSE least(greatest(coalesce(u.run_at, at + make_interval(secs => u.delay)), 'epoch'), at + interval '10 years') END,
           at, at, '00000000-0000-0000-0000-000000000000',
           CASE WHEN u.tags IS NOT NULL THEN ARRAY(SELECT jsonb_array_elements_text(u.tags::jsonb)) END, u.metadata::jsonb,
           nextval('holdfast.work_seq'), u.parent, u.group_id, u.follow_ups::jsonb
    FROM (SELECT * FROM unnest(ids, queues, tasks, versions, payloads, partition_keys, priorities, max_attempts, run_ats, delays, tags,
                               metadatas, fresh, parents, groups, follow_ups) WITH ORDINALITY
                   AS r(id, queue, task, version, payload, partition_key, priority, attempts, run_at, delay, tags, metadata, fresh,
                        parent, group_id, follow_ups, ord)
          WHERE r.fresh ORDER BY r.ord) AS u;
    PERFORM holdfast.wake(queues, run_ats, delays);
    RETURN QUERY SELECT o, ids[o], fresh[o], NULL::text FROM generate_series(1, n) o ORDER BY o;
END $$;

-- Workers name parents and groups, and they may call enqueue_specs(). A mere producer could put jobs into another user's group.
CREATE FUNCTION holdfast.check_may_link() RETURNS void
    LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    caller text := CASE current_setting('role') WHEN 'none' THEN session_user ELSE current_setting('role') END;
BEGIN
    IF NOT has_function_privilege(caller, 'holdfast.enqueue_specs(jsonb[], uuid[], uuid[])', 'EXECUTE') THEN
        RAISE EXCEPTION 'role % may not name the parent or the group of a job', quote_ident(caller)
            USING ERRCODE = 'insufficient_privilege', HINT = 'Leave the parent out, or enqueue as a role that may call holdfast.enqueue_specs().';
    END IF;
END $$;

CREATE FUNCTION holdfast.enqueue_many(
    tasks text[], payloads text[], queues text[], versions int[], partition_keys text[], priorities int[], max_attempts int[],
    run_ats timestamptz[], delays float8[], idempotency_keys text[], idempotency_lifetimes float8[], tags text[], metadatas text[],
    follow_ups text[] DEFAULT NULL, parents uuid[] DEFAULT NULL, groups uuid[] DEFAULT NULL, replace_keys text[] DEFAULT NULL)
    RETURNS TABLE (ordinal int, id uuid, created boolean, conflict text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    IF array_remove(parents, NULL) <> '{}' OR array_remove(groups, NULL) <> '{}' THEN PERFORM holdfast.check_may_link(); END IF;
    RETURN QUERY SELECT w.ordinal, w.id, w.created, w.conflict
    FROM holdfast.write_jobs(tasks, payloads, queues, versions, partition_keys, priorities, max_attempts, run_ats, delays, idempotency_keys,
                             idempotency_lifetimes, tags, metadatas, follow_ups, parents, groups, replace_keys) w;
END $$;

-- One job, for people and for other languages:
--   SELECT * FROM holdfast.enqueue('billing.send_receipt', '{"order_id": 1}');
-- A key used with another payload is answered in `conflict`, so that the caller's transaction stays usable. A queue that does not
-- exist and a value out of range raise, because an answer that nobody reads would be a lost job. A caller that does read it says
-- `quiet`: then it returns what enqueue_many does when there is no such queue, or no key for a queue that is claimed key by key, and a
-- time out of range becomes the nearest one within.
--
-- A job without an idempotency key, a replace key and follow-ups needs three statements: its queue, the row, and whether anybody
-- sleeps. Their plans are kept, also where the session wants custom ones: to plan them took three times as long as to run them.
-- A plan that is kept reads no table from end to end: it may be made while there is one row, and used when there are many versions of it.
CREATE FUNCTION holdfast.enqueue(
    task text, payload jsonb DEFAULT '{}', queue text DEFAULT 'inbox', partition_key text DEFAULT NULL, priority int DEFAULT 0,
    run_at timestamptz DEFAULT NULL, delay interval DEFAULT '0', idempotency_key text DEFAULT NULL,
    idempotency_lifetime interval DEFAULT '7 days', max_attempts int DEFAULT 5, version int DEFAULT 1,
    tags text[] DEFAULT NULL, metadata jsonb DEFAULT NULL, follow_ups jsonb DEFAULT NULL, parent uuid DEFAULT NULL,
    replace_key text DEFAULT NULL, quiet boolean DEFAULT false, OUT id uuid, OUT created boolean, OUT conflict text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    AS $$
DECLARE
    wrong text := CASE   -- no subquery in here: an expression without one costs next to nothing
        WHEN task IS NULL OR task ~ '[^A-Za-z0-9_.-]' OR octet_length(task) NOT BETWEEN 1 AND 200 THEN format('task name %L is not usable: 1 to 200 letters, digits and _ . -', task)
        WHEN payload IS NULL OR jsonb_typeof(payload) <> 'object' THEN 'payload must be a JSON object of the handler''s arguments'
        WHEN CASE WHEN pg_column_size(payload) <= 1024 AND pg_column_compression(payload) IS NULL THEN octet_length(payload::text)
                  ELSE holdfast.printed_bytes(payload, 262144) END > 262144
            THEN format('payload is %s bytes, the limit is 262144: store it elsewhere and pass a reference', holdfast.printed_bytes(payload, 262144))
        WHEN octet_length(partition_key) > 512 THEN format('partition_key is %s bytes, the limit is 512', octet_length(partition_key))
        WHEN octet_length(idempotency_key) > 512 THEN format('idempotency_key is %s bytes, the limit is 512', octet_length(idempotency_key))
        WHEN idempotency_lifetime IS NULL OR idempotency_lifetime < interval '1 second'
            THEN 'idempotency_lifetime must be 1 second or more; more than 100 years is for ever'
        WHEN priority IS NULL OR priority NOT BETWEEN -100 AND 100 THEN format('priority must be between -100 and 100, not %s', priority)
        WHEN max_attempts IS NULL OR max_attempts NOT BETWEEN 1 AND 1000 THEN format('max_attempts must be between 1 and 1000, not %s', max_attempts)
        WHEN version IS NULL OR version < 1 THEN format('version must be 1 or more, not %s', version)
        WHEN NOT quiet AND (NOT isfinite(run_at) OR run_at > now() + interval '10 years') THEN 'run_at must be a time within 10 years'
        WHEN delay IS NULL OR (NOT quiet AND delay NOT BETWEEN interval '0' AND interval '10 years') THEN 'delay must be between 0 and 10 years'
        WHEN holdfast.printed_bytes(metadata, 8192) > 8192 THEN format('metadata is %s bytes, the limit is 8192', holdfast.printed_bytes(metadata, 8192))
        WHEN octet_length(replace_key) > 512 THEN format('replace_key is %s bytes, the limit is 512', octet_length(replace_key))
        WHEN replace_key IS NOT NULL AND idempotency_key IS NOT NULL THEN 'replace_key and idempotency_key do not go together: take one of them'
        WHEN holdfast.printed_bytes(follow_ups, 262144) > 262144 THEN format('follow_ups are %s bytes, the limit is 262144', holdfast.printed_bytes(follow_ups, 262144))
        WHEN follow_ups IS NOT NULL AND holdfast.spec_fault(follow_ups) IS NOT NULL THEN 'follow_ups: ' || holdfast.spec_fault(follow_ups)
    END;
    at         timestamptz;
    due        timestamptz;
    by_key     boolean;
    in_order   boolean;
    paused     boolean;
    restricted boolean;
    sleepers   int;
    poll       float8;
BEGIN
    IF wrong IS NULL THEN
        SELECT q.keyed, q.ordering = 'key', q.paused_at IS NOT NULL, EXISTS (SELECT FROM holdfast.producers) INTO by_key, in_order, paused, restricted
        FROM (SELECT) one LEFT JOIN holdfast.queues q ON q.name = queue;
        IF restricted THEN PERFORM holdfast.check_producer(ARRAY[queue]); END IF;
        IF by_key IS NULL OR (by_key AND partition_key IS NULL) THEN
            conflict := CASE WHEN by_key THEN 'key' ELSE 'queue' END;
            IF quiet THEN
                created := false;
                RETURN;
            END IF;
            wrong := CASE conflict WHEN 'queue' THEN format('queue %L does not exist. Create it: holdfast queue create %s', queue, queue)
                                   ELSE format('queue %L is claimed key by key: pass a partition_key', queue) END;
        ELSIF jsonb_typeof(follow_ups) = 'array' AND holdfast.spec_conflict(follow_ups) IS NOT NULL THEN
            wrong := CASE holdfast.spec_conflict(follow_ups) WHEN 'queue' THEN 'follow_ups: a queue in them does not exist'
                          ELSE 'follow_ups: one goes to a queue that is claimed key by key, and has no partition_key' END;
        END IF;
    END IF;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION USING MESSAGE = wrong, ERRCODE = 'invalid_parameter_value';
    END IF;
    IF parent IS NOT NULL THEN PERFORM holdfast.check_may_link(); END IF;
    IF idempotency_key IS NULL AND replace_key IS NULL AND follow_ups IS NULL AND (tags IS NULL OR (array_ndims(tags) = 1 AND octet_length(to_jsonb(tags)::text) <= 8192)) THEN
        IF in_order THEN PERFORM holdfast.lock_streams(queue, ARRAY[partition_key]); END IF;
        id := holdfast.uuid7();
        at := holdfast.now();
        due := CASE WHEN run_at IS NULL AND delay = '0' THEN at
                    ELSE least(greatest(coalesce(run_at, at + make_interval(secs => extract(epoch FROM delay)::float8)), 'epoch'),
                               at + interval '10 years') END;
        INSERT INTO holdfast.work (id, queue, task, version, payload, partition_key, partition_bucket, priority, max_attempts, available_at, created_at,
                                   claimed_at, claim_token, tags, metadata, seq, parent_id)
        VALUES (id, queue, task, version, payload, partition_key, CASE WHEN partition_key IS NULL THEN 0 ELSE holdfast.bucket(partition_key) END, priority,
                max_attempts, due, at, at, '00000000-0000-0000-0000-000000000000', tags, metadata, nextval('holdfast.work_seq'), parent);
        created := true;
        -- What wake() does, for one queue whose row is read already.
        SELECT a.sleepers, a.poll INTO sleepers, poll FROM holdfast.asleep a WHERE a.queue = enqueue.queue ORDER BY a.number DESC LIMIT 1;
        IF sleepers > 0 AND NOT paused AND due < at + make_interval(secs => poll) AND current_setting('holdfast.notify', true) IS DISTINCT FROM 'off' THEN
            FOR place IN 0..3 LOOP
                IF pg_try_advisory_xact_lock(7236839, hashtext(queue) # place) THEN
                    PERFORM pg_notify('holdfast_' || queue, '');
                    EXIT;
                END IF;
            END LOOP;
        END IF;
        RETURN;
    END IF;
    SELECT r.id, r.created, r.conflict INTO id, created, conflict
    FROM holdfast.write_jobs(ARRAY[task], ARRAY[payload::text], ARRAY[queue], ARRAY[version], ARRAY[partition_key], ARRAY[priority],
                               ARRAY[max_attempts], ARRAY[run_at], ARRAY[extract(epoch FROM delay)::float8], ARRAY[idempotency_key],
                               ARRAY[extract(epoch FROM idempotency_lifetime)::float8],
                               ARRAY[CASE WHEN tags IS NOT NULL THEN to_jsonb(tags)::text END], ARRAY[metadata::text],
                               ARRAY[follow_ups::text], ARRAY[parent], NULL, ARRAY[replace_key]) r;
END $$;

-- Chains ----------------------------------------------------------------------------------------------------------

-- Jobs that are given as JSON, in lists, each list with a parent and a group: what enqueue_many returns, and beside each which list.
--   [{"task": "mail.send", "payload": {"to": 1}, "queue": "mail", "priority": 0, "delay": 60, "then": [...]}, ...]
-- Only the task is needed. A delay counts from the moment at which the job is enqueued.
-- With the owner's rights, so that a worker needs none on what is inside.
CREATE FUNCTION holdfast.enqueue_specs(specs jsonb[], parents uuid[], groups uuid[])
    RETURNS TABLE (list int, task text, queue text, id uuid, created boolean, conflict text)
    LANGUAGE sql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
        WITH s AS MATERIALIZED (
            SELECT row_number() OVER (ORDER BY l.list, f.place) AS ord, l.list::int AS list, l.parent, l.in_group, f.*, coalesce(f.queue, 'inbox') AS into_queue
            FROM unnest(specs, parents, groups) WITH ORDINALITY AS l(spec, parent, in_group, list)
            CROSS JOIN LATERAL ROWS FROM (jsonb_to_recordset(l.spec) AS (
                task text, payload jsonb, queue text, version int, partition_key text, priority int, max_attempts int, run_at timestamptz,
                delay float8, idempotency_key text, idempotency_lifetime text, tags jsonb, metadata jsonb, "then" jsonb, replace_key text))
                WITH ORDINALITY AS f(task, payload, queue, version, partition_key, priority, max_attempts, run_at, delay, idempotency_key,
                                     idempotency_lifetime, tags, metadata, follow_ups, replace_key, place)
        )
        SELECT s.list, s.task, s.into_queue, e.id, e.created, e.conflict
        FROM (SELECT array_agg(s.task ORDER BY s.ord) AS tasks, array_agg(coalesce(s.payload, '{}')::text ORDER BY s.ord) AS payloads,
                     array_agg(s.into_queue ORDER BY s.ord) AS queues, array_agg(coalesce(s.version, 1) ORDER BY s.ord) AS versions,
                     array_agg(s.partition_key ORDER BY s.ord) AS partition_keys, array_agg(coalesce(s.priority, 0) ORDER BY s.ord) AS priorities,
                     array_agg(coalesce(s.max_attempts, 5) ORDER BY s.ord) AS attempts, array_agg(s.run_at ORDER BY s.ord) AS run_ats,
                     array_agg(coalesce(s.delay, 0) ORDER BY s.ord) AS delays, array_agg(s.idempotency_key ORDER BY s.ord) AS keys,
                     array_agg(CASE WHEN s.idempotency_key IS NOT NULL THEN coalesce(replace(s.idempotency_lifetime, 'forever', 'infinity')::float8, 604800) END ORDER BY s.ord) AS lives,
                     array_agg(nullif(s.tags, 'null')::text ORDER BY s.ord) AS tags, array_agg(nullif(s.metadata, 'null')::text ORDER BY s.ord) AS metadatas,
                     array_agg(nullif(s.follow_ups, 'null')::text ORDER BY s.ord) AS follow_ups, array_agg(s.parent ORDER BY s.ord) AS parents,
                     array_agg(s.in_group ORDER BY s.ord) AS groups, array_agg(s.replace_key ORDER BY s.ord) AS replace_keys
              FROM s) a
        CROSS JOIN LATERAL holdfast.write_jobs(a.tasks, a.payloads, a.queues, a.versions, a.partition_keys, a.priorities, a.attempts, a.run_ats,
                                                 a.delays, a.keys, a.lives, a.tags, a.metadatas, a.follow_ups, a.parents, a.groups, a.replace_keys) e
        JOIN s ON s.ord = e.ordinal
        ORDER BY s.ord $$;

-- A conflict in words.
CREATE FUNCTION holdfast.conflict_text(task text, queue text, conflict text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN format('%s cannot be enqueued: ', task) || CASE conflict
              WHEN 'queue' THEN format('queue %L does not exist. Create it: holdfast queue create %s', queue, queue)
              WHEN 'key' THEN format('queue %L is claimed key by key, and it has no partition_key', queue)
              WHEN 'then_queue' THEN 'a queue of what is to follow it does not exist'
              WHEN 'then_key' THEN 'what is to follow it goes to a queue that is claimed key by key, and has no partition_key'
              WHEN 'payload' THEN 'its idempotency key was used with another payload'
              ELSE 'a job of another task or partition key waits under its replace key' END;

-- Every member of the group has ended: enqueue what follows. The caller has locked the group. What cannot be enqueued is no fault of the
-- member that happened to be the last: it is noted at the group, and tried again when a worker tidies up.
CREATE FUNCTION holdfast.close_group(group_id uuid, parent uuid) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    spec  jsonb := (SELECT g.callback FROM holdfast.groups g WHERE g.id = group_id);
    made  uuid[];
    wrong text;
BEGIN
    IF spec IS NOT NULL THEN
        SELECT array_agg(s.id), (array_agg(holdfast.conflict_text(s.task, s.queue, s.conflict)) FILTER (WHERE s.conflict IS NOT NULL))[1]
        INTO made, wrong
        FROM holdfast.enqueue_specs(ARRAY[spec], ARRAY[parent], NULL) s;
    END IF;
    IF wrong IS NOT NULL THEN
        UPDATE holdfast.groups g SET fault = wrong WHERE g.id = group_id;
        RETURN false;
    END IF;
    UPDATE holdfast.groups g SET finished_at = holdfast.now(), callback_ids = made, fault = NULL WHERE g.id = group_id;
    RETURN true;
END $$;

-- Lock the streams that the callback of a group goes to, if nobody holds one, or lets it go within a moment. Everywhere else streams come before
-- groups. Here the group is locked already, so no wait is unlimited: the holder of the stream may wait for the group.
CREATE FUNCTION holdfast.try_callback(of_group uuid, waits boolean DEFAULT false) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    stream   record;
    patience text := current_setting('lock_timeout');
BEGIN
    FOR stream IN
        SELECT q.name AS queue, array_agg(c.spec->>'partition_key') AS keys
        FROM holdfast.groups g CROSS JOIN LATERAL jsonb_array_elements(g.callback) AS c(spec)
        JOIN holdfast.queues q ON q.name = coalesce(c.spec->>'queue', 'inbox') AND q.ordering = 'key'
        WHERE g.id = of_group GROUP BY q.name
    LOOP
        CONTINUE WHEN holdfast.try_streams(stream.queue, stream.keys);
        IF NOT waits THEN RETURN false; END IF;
        PERFORM set_config('lock_timeout', '250ms', true);
        PERFORM holdfast.lock_streams(stream.queue, stream.keys);
        PERFORM set_config('lock_timeout', patience, true);
    END LOOP;
    RETURN true;
EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
    RETURN false;
END $$;

-- Count members of a group that have ended; true: they were the last. The group's row is locked before the newest count is read, and that is a
-- separate statement: so it sees the others' counts. Under an older snapshot (REPEATABLE READ) nothing is counted twice: the row of the count
-- that it sees is gone, which is a serialization failure, and the first count leaves a new version of the group's row for sessions that saw none.
CREATE FUNCTION holdfast.count_group(counted uuid, completed int, otherwise int, deleted int) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    AS $$
DECLARE
    whole record;
    last  record;
BEGIN
    SELECT g.open, completed + CASE g.wanted WHEN 'finished' THEN otherwise ELSE 0 END AS ended INTO whole
    FROM holdfast.groups g
    WHERE g.id = counted AND (g.wanted = 'finished' OR completed + deleted > 0) AND g.finished_at IS NULL AND g.open > 0
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN RETURN false; END IF;
    DELETE FROM holdfast.group_counts c
    WHERE c.group_id = counted AND c.number = (SELECT n.number FROM holdfast.group_counts n WHERE n.group_id = counted ORDER BY n.number DESC LIMIT 1)
    RETURNING c.number, c.ended, c.discarded INTO last;
    whole.ended := whole.ended + coalesce(last.ended, 0);
    deleted := deleted + coalesce(last.discarded, 0);
    IF whole.ended >= whole.open THEN
        UPDATE holdfast.groups g SET open = g.open - whole.ended, discarded = g.discarded + deleted WHERE g.id = counted;
        RETURN true;
    END IF;
    IF last.number IS NULL THEN
        UPDATE holdfast.groups g SET open = g.open WHERE g.id = counted;
    END IF;
    INSERT INTO holdfast.group_counts (group_id, number, ended, discarded) VALUES (counted, coalesce(last.number, 0) + 1, whole.ended, deleted);
    RETURN false;
END $$;

-- What jobs set off that have just ended, in the transaction that ends them: the follow-ups of completed ones, and their groups.
-- Groups are counted in the order of their ids, so that two callers cannot wait for each other in a circle.
-- States: completed, cancelled, dead_letter, parked (a dead letter too); discarded: deleted before it ended; discarded_after: deleted as a dead letter or cancelled.
-- With the owner's rights, so that a worker needs none on what is inside.
CREATE FUNCTION holdfast.jobs_ended(job_ids uuid[], states text[], group_ids uuid[], follow_ups text[]) RETURNS int
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    item  record;
    wrong text;
    made  int := 0;
BEGIN
    IF array_remove(follow_ups, NULL) <> '{}' THEN
        SELECT count(*), (array_agg(format('follow-up %s', holdfast.conflict_text(s.task, s.queue, s.conflict))) FILTER (WHERE s.conflict IS NOT NULL))[1]
        INTO made, wrong
        FROM (SELECT array_agg(u.follow_ups::jsonb) AS specs, array_agg(u.id) AS parents
              FROM unnest(job_ids, states, follow_ups) AS u(id, state, follow_ups)
              WHERE u.state = 'completed' AND u.follow_ups IS NOT NULL) a
        CROSS JOIN LATERAL holdfast.enqueue_specs(a.specs, a.parents, NULL) s;
        IF wrong IS NOT NULL THEN   -- a completion without what follows it must not commit
            RAISE EXCEPTION USING MESSAGE = wrong, ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;
    FOR item IN
        SELECT u.in_group, max(u.id::text)::uuid AS last, count(*) FILTER (WHERE u.state = 'completed')::int AS completed,
               count(*) FILTER (WHERE u.state IN ('cancelled', 'dead_letter', 'parked', 'discarded'))::int AS ended,
               count(*) FILTER (WHERE u.state IN ('discarded', 'discarded_after'))::int AS discarded
        FROM unnest(job_ids, states, group_ids) AS u(id, state, in_group) WHERE u.in_group IS NOT NULL
        GROUP BY u.in_group ORDER BY u.in_group
    LOOP
        IF holdfast.count_group(item.in_group, item.completed, item.ended, item.discarded) THEN
            IF holdfast.try_callback(item.in_group, true) THEN
                PERFORM holdfast.close_group(item.in_group, item.last);
            ELSE
                UPDATE holdfast.groups g SET fault = 'another transaction holds a key that its callback goes to' WHERE g.id = item.in_group;
            END IF;
        END IF;
    END LOOP;
    IF EXISTS (SELECT FROM holdfast.workflow_calls c WHERE c.group_id = ANY (group_ids)) THEN   -- a run waits for some of them
        PERFORM holdfast.members_ended(job_ids, states, group_ids);
    END IF;
    RETURN made;
END $$;

-- The same inside somebody's transaction, which may enqueue more before it commits: groups are counted at the commit, after everything
-- else, all groups of the transaction in the order of their ids. So nobody waits for a group while its holder waits for something else.
CREATE FUNCTION holdfast.jobs_ended_at_commit(job_ids uuid[], states text[], group_ids uuid[], follow_ups text[]) RETURNS int
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    INSERT INTO holdfast.group_ends (job_id, state, group_id)
    SELECT u.id, u.state, u.in_group FROM unnest(job_ids, states, group_ids) AS u(id, state, in_group) WHERE u.in_group IS NOT NULL;
    RETURN holdfast.jobs_ended(job_ids, states, NULL, follow_ups);
END $$;

CREATE FUNCTION holdfast.count_group_ends() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    ended record;
BEGIN
    WITH gone AS (DELETE FROM holdfast.group_ends e WHERE e.tx = pg_current_xact_id() RETURNING e.job_id, e.state, e.group_id)
    SELECT array_agg(g.job_id) AS ids, array_agg(g.state) AS states, array_agg(g.group_id) AS groups INTO ended FROM gone g;
    IF ended.ids IS NOT NULL THEN PERFORM holdfast.jobs_ended(ended.ids, ended.states, ended.groups, NULL); END IF;   -- the first row does it for all
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER counted AFTER INSERT ON holdfast.group_ends DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION holdfast.count_group_ends();

-- The release before counted in the row of the group. A call of it that was in progress when its functions were replaced still does, and checks
-- there whether it was the last: so the rest of the count in group_counts goes into the row then.
CREATE FUNCTION holdfast.counted_in_row() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    AS $$
DECLARE
    last record;
BEGIN
    SELECT c.number, c.ended, c.discarded INTO last FROM holdfast.group_counts c WHERE c.group_id = NEW.id ORDER BY c.number DESC LIMIT 1;
    IF last.ended = NEW.open THEN
        DELETE FROM holdfast.group_counts c WHERE c.group_id = NEW.id AND c.number = last.number;
        NEW.open := 0;
        NEW.discarded := NEW.discarded + last.discarded;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER counted_in_row BEFORE UPDATE OF open ON holdfast.groups
    FOR EACH ROW WHEN (NEW.open < OLD.open AND NEW.open > 0) EXECUTE FUNCTION holdfast.counted_in_row();
REVOKE ALL ON FUNCTION holdfast.count_group FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.counted_in_row FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.write_jobs FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.check_may_link FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.try_callback FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.try_streams FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.jobs_ended_at_commit FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.count_group_ends FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.check_producer FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.spec_fault FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.spec_conflict FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.digits FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.printed_bytes FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.moment FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.normal_specs FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.check_links FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.enqueue_specs FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.conflict_text FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.close_group FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.jobs_ended FROM PUBLIC;

-- A group of jobs and what follows when every one of them has completed, or has ended in any way ('finished'). Answers the group itself
-- (ordinal 0) and its jobs; a conflict as in enqueue_many, and then nothing was written. An empty group is finished at once.
--   SELECT * FROM holdfast.enqueue_group('[{"task": "resize", "payload": {"n": 1}}]', '[{"task": "report"}]');
CREATE FUNCTION holdfast.enqueue_group(members jsonb, callback jsonb DEFAULT NULL, wanted text DEFAULT 'completed')
    RETURNS TABLE (ordinal int, id uuid, created boolean, conflict text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    group_id uuid := holdfast.uuid7();
    n        int := CASE WHEN jsonb_typeof(members) = 'array' THEN jsonb_array_length(members) END;
    wrong    text := CASE
        WHEN n IS NULL THEN 'members must be a list of jobs'
        WHEN n > 100000 THEN format('%s members, the limit is 100000', n)
        WHEN wanted IS NULL OR wanted NOT IN ('completed', 'finished') THEN format('wanted must be ''completed'' or ''finished'', not %L', wanted)
        WHEN holdfast.digits(members) / 10 > 67108864 THEN format('the numbers of the members have %s digits, the limit is 67108864', holdfast.digits(members) / 10)
        WHEN holdfast.printed_bytes(callback, 262144) > 262144 THEN format('the callback is %s bytes, the limit is 262144', holdfast.printed_bytes(callback, 262144))
        WHEN callback IS NOT NULL THEN 'callback: ' || holdfast.spec_fault(callback)
    END;
    answers  record;
BEGIN
    wrong := coalesce(wrong, CASE WHEN n > 0 THEN 'members: ' || holdfast.spec_fault(members, 1, 100000) END);
    IF wrong IS NULL THEN
        members := CASE WHEN n > 0 THEN holdfast.normal_specs(members) ELSE members END;
        callback := holdfast.normal_specs(callback);
        wrong := CASE WHEN octet_length(callback::text) > 262144 THEN format('the callback is %s bytes, the limit is 262144', octet_length(callback::text)) END;
    END IF;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION USING MESSAGE = wrong, ERRCODE = 'invalid_parameter_value';
    END IF;
    IF callback IS NOT NULL AND holdfast.spec_conflict(callback) IS NOT NULL THEN
        RETURN QUERY SELECT o, NULL::uuid, false, CASE WHEN o = 0 THEN holdfast.spec_conflict(callback) END FROM generate_series(0, n) o;
        RETURN;
    END IF;
    SELECT array_agg(s.id) AS ids, array_agg(s.conflict) AS conflicts INTO answers
    FROM holdfast.enqueue_specs(ARRAY[members], NULL, ARRAY[group_id]) s WHERE n > 0;
    IF array_remove(answers.conflicts, NULL) <> '{}' THEN
        RETURN QUERY SELECT o, NULL::uuid, false, answers.conflicts[o] FROM generate_series(0, n) o;
        RETURN;
    END IF;
    INSERT INTO holdfast.groups (id, wanted, total, open, created_at, callback) VALUES (group_id, enqueue_group.wanted, n, n, holdfast.now(), enqueue_group.callback);
    IF n = 0 THEN PERFORM holdfast.close_group(group_id, NULL); END IF;
    RETURN QUERY SELECT o, CASE WHEN o = 0 THEN group_id ELSE answers.ids[o] END, true, NULL::text FROM generate_series(0, n) o;
END $$;

-- A producer needs USAGE on the schema and EXECUTE on these two, and nothing else. PUBLIC gets neither.
REVOKE ALL ON FUNCTION holdfast.enqueue_many FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.enqueue FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.enqueue_group FROM PUBLIC;   -- and on this one, to make groups
REVOKE ALL ON FUNCTION holdfast.create_queue FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.order_queue FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.lock_streams FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.note_breaker FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.close_breaker FROM PUBLIC;
REVOKE ALL ON FUNCTION holdfast.empty_archive_slot FROM PUBLIC;

-- with shape: events

-- with shape: receiver

-- with shape: webhooks

-- with shape: workflows

-- For people and tools --------------------------------------------------------------------------------------------

CREATE VIEW holdfast.jobs AS
    SELECT w.id, w.queue, w.task, w.version,
           CASE WHEN q.id IS NOT NULL THEN 'quarantined' WHEN w.status = 'pending' AND w.available_at > holdfast.now() THEN 'scheduled' ELSE w.status END AS status,
           w.priority, w.attempts, w.max_attempts, w.crashes, w.lease_generation, w.partition_key,
           holdfast.bucket(coalesce(w.partition_key, w.id::text)) AS partition_bucket, w.payload, w.created_at,
           w.available_at, CASE WHEN w.status = 'processing' THEN w.claimed_at END AS claimed_at, c.worker AS claimed_by, c.lease_expires_at,
           NULL::timestamptz AS completed_at, NULL::jsonb AS result, w.last_error, coalesce(q.reason, w.hold_reason) AS hold_reason,
           w.cancel_requested_at, w.tags, w.metadata, w.seq, w.parent_id, w.group_id, w.follow_ups
    FROM holdfast.work w
    LEFT JOIN holdfast.claims c ON w.status = 'processing' AND c.token = w.claim_token
    LEFT JOIN holdfast.quarantine q ON q.id = w.id
  UNION ALL
    SELECT a.id, a.queue, a.task, a.version, a.status, a.priority, a.attempts, a.max_attempts, a.crashes, a.lease_generation, a.partition_key,
           holdfast.bucket(coalesce(a.partition_key, a.id::text)), a.payload, a.created_at, a.available_at, CASE WHEN a.claimed_by IS NOT NULL THEN a.claimed_at END, a.claimed_by, NULL,
           a.completed_at, a.result, a.last_error, NULL, NULL, a.tags, a.metadata, a.seq, a.parent_id, a.group_id, a.follow_ups
    FROM holdfast.archive a
  UNION ALL
    SELECT d.id, d.queue, d.task, d.version, 'dead_letter', d.priority, d.attempts, d.max_attempts, d.crashes, d.lease_generation, d.partition_key,
           holdfast.bucket(coalesce(d.partition_key, d.id::text)), d.payload, d.created_at, d.available_at, d.claimed_at, d.claimed_by, NULL,
           d.died_at, NULL, d.last_error, NULL, NULL, d.tags, d.metadata, d.seq, d.parent_id, d.group_id, d.follow_ups
    FROM holdfast.dead_letters d;
COMMENT ON VIEW holdfast.jobs IS 'Every job, live, finished or dead';

-- Support queries: one view per question (`holdfast runbook NAME` prints it; docs/runbook.md says what to do) -------------------
--
-- A role that may SELECT from these views and use the schema needs no more: they read the tables with their owner's rights.
-- oldest_due, expired_claims, worker_jobs, lost_workers, storage and horizon stay quick whatever waits; attempts, keys and
-- stranded_jobs read every live job once, dead_letters_by_task every dead letter. Errors are fetched for the rows shown, never sorted.

-- Since when the oldest due job of each queue waits. One index probe per priority.
CREATE VIEW holdfast.oldest_due AS
    SELECT q.name AS queue, o.id AS job_id, o.task, o.available_at AS due_at,
           extract(epoch FROM holdfast.now() - o.available_at)::float8 AS age_seconds, q.paused_at IS NOT NULL AS paused
    FROM holdfast.queues q
    LEFT JOIN LATERAL (
        WITH RECURSIVE p(priority) AS (
            (SELECT w.priority FROM holdfast.work w WHERE w.queue = q.name AND w.hold_reason IS NULL ORDER BY w.priority DESC LIMIT 1)
            UNION ALL
            SELECT (SELECT w.priority FROM holdfast.work w WHERE w.queue = q.name AND w.hold_reason IS NULL AND w.priority < p.priority
                    ORDER BY w.priority DESC LIMIT 1)
            FROM p WHERE p.priority IS NOT NULL
        )
        SELECT j.* FROM p CROSS JOIN LATERAL (
            SELECT w.id, w.task, w.available_at FROM holdfast.work w
            WHERE w.queue = q.name AND w.hold_reason IS NULL AND w.priority = p.priority AND w.available_at <= holdfast.now()
              AND w.status = 'pending' AND w.id NOT IN (SELECT x.id FROM holdfast.quarantine x)
            ORDER BY w.available_at, w.seq LIMIT 1
        ) j
        ORDER BY j.available_at LIMIT 1
    ) o ON true;
COMMENT ON VIEW holdfast.oldest_due IS 'Lag: since when the oldest due job of each queue waits';

-- Claims past their lease, or revoked, that still have jobs. A sweep takes them within seconds; one that stays is a symptom.
CREATE VIEW holdfast.expired_claims AS
    SELECT c.queue, c.worker, v.status AS worker_status, extract(epoch FROM holdfast.now() - v.last_seen_at)::float8 AS silent_seconds,
           extract(epoch FROM holdfast.now() - c.lease_expires_at)::float8 AS expired_seconds, c.revoked_at, r.jobs, r.job_ids, c.token
    FROM holdfast.claims c
    LEFT JOIN holdfast.workers v ON v.id = c.worker
    CROSS JOIN LATERAL (
        SELECT count(*) AS jobs, array_agg(j.id) AS job_ids FROM unnest(c.job_ids) AS j(id)
        CROSS JOIN LATERAL (SELECT FROM holdfast.work w
                            WHERE w.queue = c.queue AND w.id = j.id AND w.claim_token = c.token AND w.status = 'processing' OFFSET 0) w
    ) r
    WHERE (c.lease_expires_at < holdfast.now() OR c.revoked_at IS NOT NULL) AND r.jobs > 0;
COMMENT ON VIEW holdfast.expired_claims IS 'Jobs in processing whose lease has run out';

-- The error without what differs from job to job: ids, addresses, numbers. What has the same fingerprint has the same cause.
CREATE FUNCTION holdfast.fingerprint(error text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN regexp_replace(regexp_replace(regexp_replace(left(split_part(coalesce(error, ''), E'\n', 1), 300),
                     '[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}', '<id>', 'g'),
                     '0x[0-9a-fA-F]+', '<address>', 'g'), '[0-9]+', '#', 'g');

CREATE VIEW holdfast.dead_letters_by_task AS
    SELECT g.queue, g.task, g.partition_key, g.dead, g.first_died_at, g.last_died_at,
           (SELECT d.last_error FROM holdfast.dead_letters d WHERE d.id = g.latest_job_id) AS latest_error, g.latest_job_id
    FROM (
        SELECT d.queue, d.task, d.partition_key, count(*) AS dead, min(d.died_at) AS first_died_at, max(d.died_at) AS last_died_at,
               (array_agg(d.id ORDER BY d.died_at DESC, d.seq DESC))[1] AS latest_job_id
        FROM holdfast.dead_letters d
        GROUP BY d.queue, d.task, d.partition_key
    ) g;
COMMENT ON VIEW holdfast.dead_letters_by_task IS 'Dead letters by task and key, with the latest error';

-- Live jobs that have failed before or were in a process that died, by how many attempts they have spent.
CREATE VIEW holdfast.attempts AS
    SELECT g.queue, g.task, g.attempts, g.max_attempts, g.jobs, g.processing, g.suspects, g.most_crashes, g.next_at,
           (SELECT w.last_error FROM holdfast.work w WHERE w.queue = g.queue AND w.id = g.latest_job_id) AS latest_error, g.latest_job_id
    FROM (
        SELECT w.queue, w.task, w.attempts, w.max_attempts, count(*) AS jobs, count(*) FILTER (WHERE w.status = 'processing') AS processing,
               count(*) FILTER (WHERE w.suspect > 0) AS suspects, max(w.crashes) AS most_crashes,
               min(w.available_at) FILTER (WHERE w.status = 'pending') AS next_at, (array_agg(w.id ORDER BY w.claimed_at DESC, w.seq DESC))[1] AS latest_job_id
        FROM holdfast.work w
        WHERE w.attempts > 0 OR w.crashes > 0 OR w.suspect > 0
        GROUP BY w.queue, w.task, w.attempts, w.max_attempts
    ) g;
COMMENT ON VIEW holdfast.attempts IS 'Live jobs that failed before, by attempts spent';

CREATE VIEW holdfast.throughput_per_minute AS
    SELECT t.minute, t.queue, sum(t.completed)::bigint AS completed, sum(t.failed)::bigint AS failed, sum(t.dead)::bigint AS dead,
           sum(t.cancelled)::bigint AS cancelled,
           (sum(t.run_seconds) / nullif(sum(t.completed + t.failed), 0))::float8 AS mean_run,
           (sum(t.wait_seconds) / nullif(sum(t.completed + t.failed), 0))::float8 AS mean_wait, max(t.max_wait) AS max_wait
    FROM holdfast.throughput t
    GROUP BY t.minute, t.queue;
COMMENT ON VIEW holdfast.throughput_per_minute IS 'What each queue finished in each minute';

CREATE VIEW holdfast.worker_jobs AS
    SELECT c.worker, v.host, v.pid, v.status AS worker_status, extract(epoch FROM holdfast.now() - v.last_seen_at)::float8 AS silent_seconds,
           c.queue, w.id AS job_id, w.task, w.partition_key, w.attempts, extract(epoch FROM holdfast.now() - w.claimed_at)::float8 AS held_seconds,
           extract(epoch FROM c.lease_expires_at - holdfast.now())::float8 AS lease_left_seconds
    FROM holdfast.claims c
    LEFT JOIN holdfast.workers v ON v.id = c.worker
    CROSS JOIN LATERAL unnest(c.job_ids) AS j(id)
    CROSS JOIN LATERAL (SELECT w.id, w.task, w.partition_key, w.attempts, w.claimed_at FROM holdfast.work w
                        WHERE w.queue = c.queue AND w.id = j.id AND w.claim_token = c.token AND w.status = 'processing' OFFSET 0) w;
COMMENT ON VIEW holdfast.worker_jobs IS 'What each worker holds right now';

-- Workers that vanished without leaving, by host: more than a deploy explains is a crash loop.
CREATE VIEW holdfast.lost_workers AS
    SELECT v.host, v.release, count(*) AS lost, max(v.last_seen_at) AS last_lost_at,
           avg(extract(epoch FROM v.last_seen_at - v.started_at))::float8 AS mean_life_seconds
    FROM holdfast.workers v
    WHERE v.ended = 'lost' AND v.last_seen_at > holdfast.now() - interval '1 hour'
    GROUP BY v.host, v.release;
COMMENT ON VIEW holdfast.lost_workers IS 'Workers that vanished in the last hour, by host';

-- `waiting` has what is due and what is not due yet: scheduled, or backing off after a failure. In a queue ordered by key, `in_the_way` is
-- the job that the key waits for, and `because` says why: parked, blocked, held, quarantined or scheduled.
CREATE VIEW holdfast.keys AS
    SELECT g.queue, g.partition_key, g.waiting, g.due, g.processing, g.held, g.blocked, g.oldest_due_at, g.most_attempts, g.first_job_id,
           (SELECT w.last_error FROM holdfast.work w WHERE w.queue = g.queue AND w.id = g.tried_job_id) AS latest_error,
           CASE o.because WHEN 'parked' THEN o.parked_for ELSE CASE WHEN o.because IS NOT NULL THEN g.first_job_id END END AS in_the_way, o.because
    FROM (
        SELECT w.queue, w.partition_key, count(*) FILTER (WHERE w.status = 'pending') AS waiting,
               count(*) FILTER (WHERE w.status = 'pending' AND w.available_at <= holdfast.now()) AS due,
               count(*) FILTER (WHERE w.status = 'processing') AS processing, count(*) FILTER (WHERE w.status = 'held') AS held,
               count(*) FILTER (WHERE w.status = 'blocked') AS blocked,
               min(w.available_at) FILTER (WHERE w.status = 'pending' AND w.available_at <= holdfast.now()) AS oldest_due_at,
               max(w.attempts) AS most_attempts, (array_agg(w.id ORDER BY w.seq))[1] AS first_job_id,
               (array_agg(w.id ORDER BY w.claimed_at DESC, w.seq DESC) FILTER (WHERE w.attempts > 0))[1] AS tried_job_id
        FROM holdfast.work w
        WHERE w.partition_key IS NOT NULL
        GROUP BY w.queue, w.partition_key
    ) g
    LEFT JOIN LATERAL (
        SELECT p.job_id AS parked_for,
               CASE WHEN p.job_id IS NOT NULL THEN 'parked' WHEN x.id IS NOT NULL THEN 'quarantined' WHEN h.hold_reason IS NOT NULL THEN h.status
                    WHEN h.status = 'pending' AND h.available_at > holdfast.now() THEN 'scheduled' END AS because
        FROM holdfast.queues q
        LEFT JOIN holdfast.parked_keys p ON p.queue = g.queue AND p.partition_key = g.partition_key
        LEFT JOIN LATERAL (SELECT w.status, w.hold_reason, w.available_at FROM holdfast.work w
                           WHERE w.queue = g.queue AND w.id = g.first_job_id OFFSET 0) h ON true
        LEFT JOIN holdfast.quarantine x ON x.id = g.first_job_id
        WHERE q.name = g.queue AND q.ordering = 'key'
    ) o ON true;
COMMENT ON VIEW holdfast.keys IS 'Live jobs by partition key, with the first of each, the latest error, and what an ordered key waits for';

-- Jobs that say they run while no claim holds them. The engine never leaves one; manual changes to the tables may.
CREATE VIEW holdfast.stranded_jobs AS
    SELECT w.id, w.queue, w.task, w.claimed_at, w.claim_token
    FROM holdfast.work w
    WHERE w.status = 'processing' AND NOT EXISTS (SELECT FROM holdfast.claims c WHERE c.token = w.claim_token)
      AND NOT EXISTS (SELECT FROM holdfast.quarantine q WHERE q.id = w.id);
COMMENT ON VIEW holdfast.stranded_jobs IS 'Processing jobs without a claim';

CREATE VIEW holdfast.storage AS
    SELECT c.relname AS relation, pg_total_relation_size(c.oid) AS bytes, greatest(c.reltuples, 0)::bigint AS about_rows, s.n_dead_tup AS dead_rows,
           greatest(s.last_vacuum, s.last_autovacuum) AS vacuumed_at, age(c.relfrozenxid) AS xid_age, a.day AS archive_day
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid
    LEFT JOIN holdfast.archive_slots a ON c.relname = 'archive_' || lpad(a.slot::text, 2, '0')
    WHERE n.nspname = 'holdfast' AND c.relkind = 'r';
COMMENT ON VIEW holdfast.storage IS 'What takes the space';

-- Vacuum removes no row that one of these may still see, and a slot keeps all WAL since it was last read. What sessions of other roles
-- do is shown to members of pg_monitor only.
CREATE VIEW holdfast.horizon AS
    SELECT 'session' AS kind, a.pid::text AS name, a.usename AS owner, a.application_name AS application, a.state, a.xact_start AS since,
           extract(epoch FROM clock_timestamp() - a.xact_start)::float8 AS seconds,
           greatest(age(a.backend_xmin), age(a.backend_xid))::bigint AS xid_age, NULL::bigint AS wal_bytes
    FROM pg_stat_activity a
    WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL) AND a.pid <> pg_backend_pid()
      AND (a.datname = current_database() OR a.datname IS NULL)
  UNION ALL
    SELECT 'prepared transaction', p.gid, p.owner, NULL, NULL, p.prepared, extract(epoch FROM clock_timestamp() - p.prepared)::float8,
           age(p.transaction)::bigint, NULL
    FROM pg_prepared_xacts p WHERE p.database = current_database()
  UNION ALL
    SELECT 'replication slot', s.slot_name, NULL, s.plugin, CASE WHEN s.active THEN 'active' ELSE 'inactive' END, NULL, NULL,
           greatest(age(s.xmin), age(s.catalog_xmin))::bigint,
           pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, s.restart_lsn)::bigint
    FROM pg_replication_slots s;
COMMENT ON VIEW holdfast.horizon IS 'Who keeps dead rows and old WAL from being removed';

-- One number for an autoscaler: jobs of a queue that are due or running, counted up to the cap. A paused queue wants no workers.
-- Priorities are probed separately, as in every read of a queue: one ordered walk would pass over whatever is scheduled ahead at a
-- higher priority. Due jobs of paused or unknown tasks count until a worker has set them aside; it takes one to do so.
-- EXECUTE is all a scaler needs. The settings are for callers whose own would make it scan or compile.
CREATE FUNCTION holdfast.scaler_backlog(queue_name text DEFAULT 'inbox', cap int DEFAULT 10000) RETURNS bigint
    LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_custom_plan
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    SET jit = off
    AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM holdfast.queues q WHERE q.name = queue_name) THEN
        RAISE EXCEPTION 'queue % does not exist', quote_nullable(queue_name) USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF EXISTS (SELECT FROM holdfast.queues q WHERE q.name = queue_name AND q.paused_at IS NOT NULL) THEN
        RETURN 0;
    END IF;
    RETURN (
        WITH RECURSIVE p(priority) AS (
            (SELECT w.priority FROM holdfast.work w WHERE w.queue = queue_name AND w.hold_reason IS NULL ORDER BY w.priority DESC LIMIT 1)
            UNION ALL
            SELECT (SELECT w.priority FROM holdfast.work w WHERE w.queue = queue_name AND w.hold_reason IS NULL AND w.priority < p.priority
                    ORDER BY w.priority DESC LIMIT 1)
            FROM p WHERE p.priority IS NOT NULL
        ), due AS MATERIALIZED (
            SELECT FROM p CROSS JOIN LATERAL (
                SELECT j.id FROM holdfast.work j
                WHERE j.queue = queue_name AND j.hold_reason IS NULL AND j.priority = p.priority AND j.available_at <= holdfast.now()
                  AND j.status = 'pending' AND j.id NOT IN (SELECT q.id FROM holdfast.quarantine q)
                ORDER BY j.available_at, j.seq LIMIT cap
            ) w
            LIMIT cap
        ), running AS MATERIALIZED (
            SELECT FROM holdfast.claims c CROSS JOIN LATERAL unnest(c.job_ids) AS j(id)
            CROSS JOIN LATERAL (SELECT FROM holdfast.work w
                                WHERE w.queue = queue_name AND w.id = j.id AND w.claim_token = c.token AND w.status = 'processing' OFFSET 0) w
            WHERE c.queue = queue_name AND j.id NOT IN (SELECT q.id FROM holdfast.quarantine q)
            LIMIT cap
        )
        SELECT least(cap, (SELECT count(*) FROM due) + (SELECT count(*) FROM running)));
END $$;
REVOKE ALL ON FUNCTION holdfast.scaler_backlog FROM PUBLIC;

SELECT holdfast.create_queue('inbox');
