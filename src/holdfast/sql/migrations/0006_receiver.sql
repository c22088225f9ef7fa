-- holdfast: expand (needs code >= 1)
-- Messages that were received, each once. Nothing of it is used by the release before.

-- Received messages -----------------------------------------------------------------------------------------------

-- Every message that was received, so that it becomes one job however often it is sent. An id is kept for longer than its sender retries.
CREATE TABLE holdfast.received (
    source      text COLLATE "C" NOT NULL,
    message_id  text COLLATE "C" NOT NULL,
    digest      bytea NOT NULL,         -- SHA-256 of its body
    job_id      uuid NOT NULL,
    received_at timestamptz NOT NULL,
    expires_at  timestamptz NOT NULL,   -- from then on the id may be forgotten
    PRIMARY KEY (source, message_id)
);
CREATE INDEX received_expires ON holdfast.received (expires_at);

-- Where messages come from, as the workers have it in their code. One that nobody has had for a week is forgotten.
CREATE TABLE holdfast.sources (
    name       text COLLATE "C" PRIMARY KEY,
    broker     boolean NOT NULL,       -- read by workers; else messages come over HTTP
    task       text NOT NULL,
    keep       interval NOT NULL,      -- how long ids are kept
    created_at timestamptz NOT NULL,
    seen_at    timestamptz NOT NULL,   -- when a worker last had it
    read_at    timestamptz,            -- when its broker last replied to one
    waiting    bigint,                 -- messages that the broker had for us then; NULL: it does not say
    problem    text
);

-- Messages of one source become jobs of one task, each once. Returns one row per message, in their order: 'new' with its job, 'parked' with the dead
-- letter of a message that has a fault, 'repeat' with the job of the first delivery, 'differs' likewise where the body is another one. 'queue' for
-- all: there is no such queue, and nothing was written.
--
-- Replays are looked up first and write nothing. A new id is inserted in the order of ids, so that two calls cannot wait for each other in a
-- circle; a twin waits until the first transaction ends. A queue that is claimed key by key takes the id where there is no key.
CREATE FUNCTION holdfast.receive_many(
    source text, message_ids text[], digests text[], task text, payloads text[], queue text DEFAULT 'inbox', partition_keys text[] DEFAULT NULL,
    faults text[] DEFAULT NULL, version int DEFAULT 1, priority int DEFAULT 0, max_attempts int DEFAULT 5, keep interval DEFAULT '30 days', metadatas text[] DEFAULT NULL)
    RETURNS TABLE (ordinal int, outcome text, job uuid)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    AS $$
DECLARE
    at        timestamptz := holdfast.now();
    by_key    boolean;
    in_order  boolean;
    made_ids  text[];
    made_jobs uuid[];
    new_ids   text[] := '{}';
    new_jobs  uuid[] := '{}';
BEGIN
    IF source IS NULL OR source ~ '[^A-Za-z0-9_.-]' OR octet_length(source) NOT BETWEEN 1 AND 200 OR task IS NULL OR task ~ '[^A-Za-z0-9_.-]'
       OR octet_length(task) NOT BETWEEN 1 AND 200 OR version IS NULL OR version < 1 OR priority IS NULL OR priority NOT BETWEEN -100 AND 100
       OR max_attempts IS NULL OR max_attempts NOT BETWEEN 1 AND 1000 OR keep IS NULL OR keep NOT BETWEEN interval '1 hour' AND interval '100 years'
       OR cardinality(digests) <> cardinality(message_ids) OR cardinality(payloads) <> cardinality(message_ids) THEN
        RAISE EXCEPTION 'messages are out of the limits: source and task 1 to 200 letters, digits and _ . -, version 1 or more, priority -100 to 100, max_attempts 1 to 1000, keep 1 hour to 100 years, as many ids as digests and payloads'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF EXISTS (SELECT FROM unnest(message_ids, digests, payloads, partition_keys, metadatas) AS u(id, digest, payload, key, metadata)
               WHERE u.id IS NULL OR u.id ~ '[^!-~]' OR octet_length(u.id) NOT BETWEEN 1 AND 256 OR u.digest IS NULL OR u.digest !~ '^[0-9a-f]{64}$'
                  OR octet_length(u.key) > 512 OR u.payload IS NULL OR octet_length(u.payload) > 262144 OR octet_length(u.metadata) > 8192
                  OR jsonb_typeof(u.metadata::jsonb) <> 'object'
                  OR CASE WHEN octet_length(u.payload) > 131072 OR u.payload ~ '[0-9][eE][+-]?[0-9]' THEN holdfast.printed_bytes(u.payload::jsonb, 262144) > 262144 END) THEN
        RAISE EXCEPTION 'a message is out of the limits: id 1 to 256 printable ASCII characters without spaces, digest 64 hexadecimal digits, key 512 bytes, payload 262144 bytes as jsonb prints it, metadata 8192 bytes'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT q.keyed, q.ordering = 'key' INTO by_key, in_order FROM holdfast.queues q WHERE q.name = queue;
    IF NOT FOUND THEN
        RETURN QUERY SELECT o, 'queue', NULL::uuid FROM generate_series(1, cardinality(message_ids)) o;
        RETURN;
    END IF;
    IF by_key THEN
        partition_keys := ARRAY(SELECT coalesce(u.key, u.id) FROM unnest(message_ids, partition_keys) WITH ORDINALITY AS u(id, key, ord)
                                WHERE u.ord <= cardinality(message_ids) ORDER BY u.ord);
    END IF;

    LOOP   -- more than once only where an id that was there is forgotten in this very moment
        WITH one AS (
            SELECT DISTINCT ON (u.id COLLATE "C") u.id, u.digest FROM unnest(message_ids, digests) WITH ORDINALITY AS u(id, digest, ord)
            ORDER BY u.id COLLATE "C", u.ord
        ), made AS (
            INSERT INTO holdfast.received AS r (source, message_id, digest, job_id, received_at, expires_at)
            SELECT receive_many.source, o.id, decode(o.digest, 'hex'), holdfast.uuid7(), at, at + keep FROM one o
            WHERE NOT EXISTS (SELECT FROM holdfast.received k WHERE k.source = receive_many.source AND k.message_id = o.id)
            ORDER BY o.id COLLATE "C"
            ON CONFLICT DO NOTHING
            RETURNING r.message_id, r.job_id
        )
        SELECT array_agg(m.message_id), array_agg(m.job_id) INTO made_ids, made_jobs FROM made m;
        new_ids := new_ids || coalesce(made_ids, '{}');
        new_jobs := new_jobs || coalesce(made_jobs, '{}');
        EXIT WHEN NOT EXISTS (SELECT FROM unnest(message_ids) AS u(id)
                              WHERE NOT EXISTS (SELECT FROM holdfast.received k WHERE k.source = receive_many.source AND k.message_id = u.id));
    END LOOP;

    IF new_ids <> '{}' THEN
        IF in_order THEN
            PERFORM holdfast.lock_streams(queue, ARRAY(SELECT u.key FROM unnest(message_ids, partition_keys, faults) AS u(id, key, fault)
                                                       WHERE u.id = ANY (new_ids) AND u.fault IS NULL));
        END IF;
        WITH fresh AS MATERIALIZED (
            SELECT DISTINCT ON (u.id COLLATE "C") m.job, u.payload, u.key, u.fault, u.metadata::jsonb AS metadata, u.ord
            FROM unnest(message_ids, payloads, partition_keys, faults, metadatas) WITH ORDINALITY AS u(id, payload, key, fault, metadata, ord)
            JOIN unnest(new_ids, new_jobs) AS m(id, job) ON m.id = u.id
            ORDER BY u.id COLLATE "C", u.ord
        ), parked AS (
            INSERT INTO holdfast.dead_letters (id, claim_token, seq, lease_generation, available_at, created_at, claimed_at, died_at, attempts,
                                               max_attempts, version, crashes, priority, queue, task, partition_key, payload, last_error, metadata)
            SELECT f.job, '00000000-0000-0000-0000-000000000000', nextval('holdfast.work_seq'), 0, at, at, at, at, 0, receive_many.max_attempts,
                   receive_many.version, 0, receive_many.priority, receive_many.queue, receive_many.task, f.key, f.payload::jsonb, left(f.fault, 8192), f.metadata
            FROM fresh f WHERE f.fault IS NOT NULL
        )
        INSERT INTO holdfast.work (id, queue, task, version, payload, partition_key, priority, max_attempts, available_at, created_at, claimed_at,
                                   claim_token, seq, metadata)
        SELECT f.job, receive_many.queue, receive_many.task, receive_many.version, f.payload::jsonb, f.key, receive_many.priority,
               receive_many.max_attempts, at, at, at, '00000000-0000-0000-0000-000000000000', nextval('holdfast.work_seq'), f.metadata
        FROM (SELECT * FROM fresh f WHERE f.fault IS NULL ORDER BY f.ord) f;
        PERFORM holdfast.wake(ARRAY[queue]);
    END IF;
    RETURN QUERY
    SELECT u.ord::int,
           CASE WHEN u.id = ANY (new_ids) AND u.nth = 1 THEN CASE WHEN u.fault IS NULL THEN 'new' ELSE 'parked' END
                WHEN r.digest = decode(u.digest, 'hex') THEN 'repeat' ELSE 'differs' END, r.job_id
    FROM (SELECT v.id, v.digest, v.fault, v.ord, row_number() OVER (PARTITION BY v.id COLLATE "C" ORDER BY v.ord) AS nth
          FROM unnest(message_ids, digests, faults) WITH ORDINALITY AS v(id, digest, fault, ord)) u
    JOIN holdfast.received r ON r.source = receive_many.source AND r.message_id = u.id
    ORDER BY u.ord;
END $$;

-- One message, for people and for other languages. The payload holds the arguments of the task:
--   SELECT * FROM holdfast.receive('stripe', 'evt_1', sha256('...'), 'billing.paid', '{"message": {...}}');
-- A queue that does not exist raises, because an answer that nobody reads would be a lost message.
CREATE FUNCTION holdfast.receive(
    source text, message_id text, digest bytea, task text, payload jsonb, queue text DEFAULT 'inbox', partition_key text DEFAULT NULL,
    keep interval DEFAULT '30 days', OUT outcome text, OUT job uuid)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    SELECT r.outcome, r.job INTO outcome, job
    FROM holdfast.receive_many(source, ARRAY[message_id], ARRAY[encode(digest, 'hex')], task, ARRAY[payload::text], queue, ARRAY[partition_key], keep => keep) r;
    IF outcome = 'queue' THEN
        RAISE EXCEPTION 'queue % does not exist. Create it: holdfast queue create %', quote_nullable(queue), queue USING ERRCODE = 'invalid_parameter_value';
    END IF;
END $$;
REVOKE ALL ON FUNCTION holdfast.receive, holdfast.receive_many FROM PUBLIC;

-- Roles that were given rights by hand, or by the script of the release before: who runs jobs may receive and forget old ids, who looks may look
-- at this too.
DO $do$
DECLARE
    granted text;
BEGIN
    FOR granted IN
        SELECT format('GRANT %s TO %s', n.rights, CASE had.grantee WHEN 0 THEN 'PUBLIC' ELSE had.grantee::regrole::text END)
        FROM (VALUES
            ('INSERT', 'claims', 'SELECT, DELETE ON holdfast.received'),
            ('INSERT', 'claims', 'SELECT, INSERT, UPDATE, DELETE ON holdfast.sources'),
            ('INSERT', 'claims', 'EXECUTE ON FUNCTION holdfast.receive, holdfast.receive_many'),
            ('SELECT', 'jobs',   'SELECT ON holdfast.received, holdfast.sources')
        ) AS n(had, before, rights)
        JOIN pg_class c ON c.relnamespace = 'holdfast'::regnamespace AND c.relname = n.before
        CROSS JOIN LATERAL aclexplode(c.relacl) AS had
        WHERE had.privilege_type = n.had AND had.grantee <> c.relowner
    LOOP
        EXECUTE granted;
    END LOOP;
END $do$;
