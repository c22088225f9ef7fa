-- holdfast: expand
-- What a limited queue runs is counted by its own claims, and what is left of its rate is found at once, however many versions are kept.

ALTER TABLE holdfast.limits ADD COLUMN number bigint NOT NULL DEFAULT 0, DROP CONSTRAINT limits_pkey, ADD PRIMARY KEY (queue, number);

-- A queue is made beside the parent and attached: PARTITION OF would stall inserts into every other queue.
CREATE OR REPLACE FUNCTION holdfast.create_queue(queue_name text, lease_seconds float8 DEFAULT NULL, key_ordering text DEFAULT 'none',
                                      dead_letter_policy text DEFAULT 'skip', by_key boolean DEFAULT false) RETURNS boolean
    LANGUAGE plpgsql
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
    EXECUTE format('CREATE TABLE holdfast.%I (LIKE holdfast.work INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED)
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
    RETURN true;
END $$;

CREATE INDEX claims_queue ON holdfast.claims (queue);   -- what a limited queue runs
