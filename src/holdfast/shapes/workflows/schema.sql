-- Workflows -------------------------------------------------------------------------------------------------------
--
-- The story of one run
--
--   workflow_start()    writes a row of workflow_runs and a job with the same id, in the caller's transaction.
--   claim               a worker takes the job, as any other, and calls the code from its top with what was recorded.
--   record              what a step gave goes into workflow_steps, guarded by the claim of the job: id, generation, token.
--   workflow_suspend()  a run that waits is a pending job again, due when its time is over, or never: 9999-01-01, behind the end of every claim's range.
--   workflow_send()     leaves a message for a run, and makes its job due if it waits for that. Children and called jobs end with one too.
--   workflow_end()      the end of the job ends the run, in the same transaction: its steps and messages become one row of workflow_history.
--
-- Which run waits for what
--
--   A sender holds FOR KEY SHARE on the run while it writes. A suspend takes FOR UPDATE SKIP LOCKED, and looks for messages in a statement of its own after
--   that: a snapshot older than the lock would not show what the sender committed. Owners wait for nobody: where a row is locked they try again.

CREATE SEQUENCE holdfast.workflow_seq;

CREATE TABLE holdfast.workflow_runs (
    id         uuid PRIMARY KEY,   -- and of its job
    workflow   text NOT NULL,
    key        text NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 512),   -- what it was started with
    queue      text NOT NULL,
    version    int  NOT NULL,
    parent_id  uuid,               -- the run that started it,
    parent_key text,               -- and with which key there
    root_id    uuid NOT NULL,
    on_cancel  text NOT NULL DEFAULT 'cancel' CHECK (on_cancel IN ('cancel', 'abandon')),   -- when its parent is cancelled or ends
    tags       text[],
    created_at timestamptz NOT NULL,
    deadline   timestamptz,        -- of the whole run: from then on it is cancelled
    replaced_by uuid,              -- the next run of the same key
    forked_from uuid,              -- the run whose records it was begun with,
    forked_key text,               -- up to this key,
    seed       uuid,               -- and whose random numbers it continues with; NULL: its own
    -- What changes; no index but those of their end and of errors mentions it
    era        int NOT NULL DEFAULT 0,
    era_at     timestamptz NOT NULL,   -- when it was to begin, or its era began: what its code takes for now before its first record
    state      text NOT NULL DEFAULT 'open'
               CHECK (state IN ('open', 'compensating', 'diverged', 'completed', 'failed', 'cancelled', 'terminated')),
    waits      text[],             -- the names of messages that wake it,
    wake_at    timestamptz,        -- its time,
    asleep     bigint,             -- and the generation under which it was put away: once it is claimed again, all three are obsolete
    cancel_requested_at timestamptz,
    cancel_reason text,
    paused_at  timestamptz,
    ended_at   timestamptz,
    watchers   jsonb,              -- runs that wait for its end beside its parent: [{"run": ..., "key": ...}]
    shown      jsonb,              -- what its code says of itself
    result     jsonb,
    error      jsonb               -- kind, message
) WITH (fillfactor = 60);
CREATE UNIQUE INDEX workflow_runs_key ON holdfast.workflow_runs (workflow, key) WHERE replaced_by IS NULL;
CREATE INDEX workflow_runs_parent ON holdfast.workflow_runs (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX workflow_runs_ended ON holdfast.workflow_runs USING brin (ended_at);
-- Runs by a state that somebody looks for: whatever did not go well has an error. By state itself it would cost every run that ends well a
-- heap-only update.
CREATE INDEX workflow_runs_wrong ON holdfast.workflow_runs (id) WHERE error IS NOT NULL;

-- What open runs have recorded. A row is written once; only one that is `retrying` or `calling` changes.
CREATE TABLE holdfast.workflow_steps (
    run_id     uuid   NOT NULL,
    n          bigint NOT NULL DEFAULT nextval('holdfast.workflow_seq'),   -- the order in which they were written
    generation bigint NOT NULL,
    ordinal    int,
    attempts   int    NOT NULL DEFAULT 1,
    began_at   timestamptz NOT NULL,
    ended_at   timestamptz NOT NULL,
    key        text   NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 1024),
    kind       text   NOT NULL,
    outcome    text   NOT NULL,
    input_hash bytea,
    result     jsonb,
    error      jsonb,
    linked     uuid,
    PRIMARY KEY (run_id, key)
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);

-- Messages for open runs. Holdfast's own names have a colon: child:<key>, call:<key>, part:<key>.
CREATE TABLE holdfast.workflow_signals (
    run_id   uuid   NOT NULL,
    seq      bigint NOT NULL DEFAULT nextval('holdfast.workflow_seq'),
    name     text   NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 1100),
    payload  jsonb,
    idempotency_key text CHECK (octet_length(idempotency_key) BETWEEN 1 AND 1200),
    sent_at  timestamptz NOT NULL,
    taken_by text,   -- the key of the wait
    PRIMARY KEY (run_id, seq)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
CREATE UNIQUE INDEX workflow_signals_once ON holdfast.workflow_signals (run_id, idempotency_key) WHERE idempotency_key IS NOT NULL;

-- Keys of signals that eras before have received: the same key is not sent again to that run.
CREATE TABLE holdfast.workflow_signal_keys (
    run_id          uuid NOT NULL,
    idempotency_key text NOT NULL,   -- as in workflow_signals
    kept_at         timestamptz NOT NULL,   -- when that era ended: forgotten after the retention
    PRIMARY KEY (run_id, idempotency_key)
);
CREATE INDEX workflow_signal_keys_kept ON holdfast.workflow_signal_keys USING brin (kept_at);

-- What ended runs, and eras that were left, had recorded: a ring of 32 days, as the archive has.
CREATE TABLE holdfast.workflow_history (
    slot    int   NOT NULL,
    run_id  uuid  NOT NULL,
    era     int   NOT NULL,
    at      timestamptz NOT NULL,
    steps   jsonb NOT NULL,
    signals jsonb NOT NULL
) PARTITION BY LIST (slot);
CREATE INDEX workflow_history_run ON holdfast.workflow_history (run_id);
DO $do$
BEGIN
    FOR slot IN 0..31 LOOP
        EXECUTE format('CREATE TABLE holdfast.workflow_history_%s PARTITION OF holdfast.workflow_history FOR VALUES IN (%s)', lpad(slot::text, 2, '0'), slot);
    END LOOP;
END $do$;

-- Jobs of other queues that a run waits for. The row goes with the last of them.
CREATE TABLE holdfast.workflow_calls (
    group_id uuid PRIMARY KEY,
    run_id   uuid   NOT NULL,
    key      text   NOT NULL,   -- of its step
    many     boolean NOT NULL,   -- a list of results, else the one
    queue    text,               -- of those that wait for a place; NULL: none does
    jobs     uuid[] NOT NULL
);

-- Steps of open runs that run for a while, as their owners last reported. It counts as long as the run's job is running under that claim.
CREATE TABLE holdfast.workflow_at_work (
    run_id     uuid PRIMARY KEY,
    generation bigint NOT NULL,
    era        int    NOT NULL,
    steps      jsonb  NOT NULL   -- [{"key": ..., "kind": ..., "began": seconds, "attempts": ..., "ordinal": ...}]
);

-- The workflows that workers have in their code.
CREATE TABLE holdfast.workflow_types (
    workflow text NOT NULL,
    version  int  NOT NULL,
    queue    text NOT NULL,
    input    jsonb,   -- the names and types of its arguments
    seen_at  timestamptz NOT NULL,
    PRIMARY KEY (workflow, version)
);

-- Up to where runs were last looked through for those whose job is gone, and when. One row.
CREATE TABLE holdfast.workflow_upkeep (
    looked_at timestamptz NOT NULL,
    reached   uuid NOT NULL
);
INSERT INTO holdfast.workflow_upkeep VALUES ('2000-01-01Z', '00000000-0000-0000-0000-000000000000');

-- Starting --------------------------------------------------------------------------------------------------------

-- The inside of workflow_start(), which believes its caller about parents.
CREATE FUNCTION holdfast.workflow_begin(
    workflow text, input jsonb, id text, version int, queue text, if_exists text, delay interval, timeout interval, priority int, tags text[],
    metadata jsonb, quiet boolean, parent uuid, parent_key text, on_cancel text, OUT run_id uuid, OUT created boolean, OUT conflict text)
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    AS $$
DECLARE
    known  record;
    old    uuid;
    at     timestamptz := holdfast.now();
    due    timestamptz := holdfast.now() + coalesce(delay, '0');
    until  timestamptz := holdfast.now() + coalesce(delay, '0') + timeout;
    wrong  text;
BEGIN
    IF version IS NULL OR queue IS NULL THEN
        SELECT t.version, t.queue INTO known FROM holdfast.workflow_types t
        WHERE t.workflow = workflow_begin.workflow AND (workflow_begin.version IS NULL OR t.version = workflow_begin.version) ORDER BY t.version DESC LIMIT 1;
        queue := coalesce(queue, known.queue, CASE WHEN version IS NOT NULL THEN 'workflows' END);
        version := coalesce(version, known.version);
    END IF;
    wrong := CASE
        WHEN workflow IS NULL THEN 'workflow is NULL: name the workflow to start'
        WHEN version IS NULL THEN format('no worker has said yet that it knows the workflow %L: start one, or pass version and queue', workflow)
        WHEN id = '' OR octet_length(id) > 512 THEN format('id must have 1 to 512 bytes, not %s', octet_length(id))
        WHEN if_exists IS NULL OR if_exists NOT IN ('same', 'restart_ended', 'refuse') THEN format('if_exists must be same, restart_ended or refuse, not %L', if_exists)
        WHEN NOT isfinite(timeout) OR timeout <= interval '0' OR timeout > interval '10 years' THEN 'timeout must be more than 0 and at most 10 years' END;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION USING MESSAGE = wrong, ERRCODE = 'invalid_parameter_value';
    END IF;
    LOOP
        created := false;
        IF id IS NOT NULL THEN
            SELECT r.id, r.ended_at IS NOT NULL AS ended INTO known FROM holdfast.workflow_runs r
            WHERE r.workflow = workflow_begin.workflow AND r.key = workflow_begin.id AND r.replaced_by IS NULL;
            IF FOUND AND NOT (if_exists = 'restart_ended' AND known.ended) THEN
                run_id := known.id;
                conflict := CASE WHEN if_exists = 'refuse' THEN 'exists' END;
                RETURN;
            ELSIF FOUND THEN   -- the second of two waits for the first, and finds what it made
                UPDATE holdfast.workflow_runs r SET replaced_by = '00000000-0000-0000-0000-000000000000' WHERE r.id = known.id AND r.replaced_by IS NULL;
                CONTINUE WHEN NOT FOUND;
                old := known.id;
            END IF;
        END IF;
        SELECT e.id, e.conflict INTO run_id, conflict
        FROM holdfast.enqueue(workflow, input, queue, NULL, priority, NULL, coalesce(delay, '0'), NULL, '7 days', 1000, version, tags,
                              coalesce(metadata, '{}') || jsonb_build_object('workflow', jsonb_strip_nulls(jsonb_build_object(
                                  'id', workflow_begin.id, 'at', due, 'deadline', until))), NULL, parent, NULL, coalesce(quiet, false)) e;
        IF conflict IS NOT NULL THEN   -- there is no such queue
            UPDATE holdfast.workflow_runs r SET replaced_by = NULL WHERE r.id = old;
            RETURN;
        END IF;
        INSERT INTO holdfast.workflow_runs (id, workflow, key, queue, version, parent_id, parent_key, root_id, on_cancel, tags, created_at, era_at, deadline)
        VALUES (run_id, workflow, coalesce(workflow_begin.id, run_id::text), queue, version, parent, workflow_begin.parent_key,
                coalesce((SELECT p.root_id FROM holdfast.workflow_runs p WHERE p.id = parent), run_id), coalesce(workflow_begin.on_cancel, 'cancel'),
                workflow_begin.tags, at, due, until)
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            IF old IS NOT NULL THEN
                UPDATE holdfast.workflow_runs r SET replaced_by = run_id WHERE r.id = old;
            END IF;
            created := true;
            RETURN;
        END IF;
        DELETE FROM holdfast.work w WHERE w.queue = workflow_begin.queue AND w.id = run_id;   -- another transaction was quicker
    END LOOP;
END $$;

-- Start a run, in the caller's transaction. The same id gives the same run, however often it is started:
--   SELECT * FROM holdfast.workflow_start('checkout', '{"order_id": 9182}', 'checkout:9182');
-- `if_exists`: `same`; `restart_ended`: a new one if the last has ended; `refuse`: `conflict` is 'exists'. Without a version it is the newest that a
-- worker has. A queue that does not exist raises; a caller that reads `conflict` says `quiet`, and finds 'queue' there.
CREATE FUNCTION holdfast.workflow_start(
    workflow text, input jsonb DEFAULT '{}', id text DEFAULT NULL, version int DEFAULT NULL, queue text DEFAULT NULL, if_exists text DEFAULT 'same',
    delay interval DEFAULT '0', timeout interval DEFAULT NULL, priority int DEFAULT 0, tags text[] DEFAULT NULL, metadata jsonb DEFAULT NULL,
    quiet boolean DEFAULT false, OUT run_id uuid, OUT created boolean, OUT conflict text)
    LANGUAGE sql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT b.run_id, b.created, b.conflict
          FROM holdfast.workflow_begin(workflow, input, id, version, queue, if_exists, delay, timeout, priority, tags, metadata, quiet, NULL, NULL, 'cancel') b $$;

-- Start many runs of one workflow with the same options, in one statement: `inputs` and `ids` go together, and a NULL among the ids gives a run its own. What
-- workflow_start() would return for each, in their order. All or nothing: where the queue does not exist, or one of them is refused, none is started.
--   SELECT * FROM holdfast.workflow_start_many('checkout', ARRAY['{"order_id": 1}', '{"order_id": 2}']::jsonb[], ARRAY['checkout:1', 'checkout:2']);
CREATE FUNCTION holdfast.workflow_start_many(
    workflow text, inputs jsonb[], ids text[] DEFAULT NULL, version int DEFAULT NULL, queue text DEFAULT NULL, if_exists text DEFAULT 'same',
    delay interval DEFAULT '0', timeout interval DEFAULT NULL, priority int DEFAULT 0, tags text[] DEFAULT NULL, metadata jsonb DEFAULT NULL,
    quiet boolean DEFAULT false)
    RETURNS TABLE (ordinal int, run_id uuid, created boolean, conflict text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    AS $$
DECLARE
    n       int := coalesce(cardinality(inputs), 0);
    at      timestamptz := holdfast.now();
    due     timestamptz := holdfast.now() + coalesce(delay, '0');
    until   timestamptz := holdfast.now() + coalesce(delay, '0') + timeout;
    places  int[];    -- of those that are new as far as can be seen,
    jobs    uuid[];   -- their jobs,
    mine    uuid[];   -- and those that became runs
    runs    uuid[] := array_fill(NULL::uuid, ARRAY[greatest(n, 1)]);
    fresh   boolean[] := array_fill(false, ARRAY[greatest(n, 1)]);
    refused text[] := array_fill(NULL::text, ARRAY[greatest(n, 1)]);
    wrong   text;
    known   record;
    item    record;
BEGIN
    ids := coalesce(ids, array_fill(NULL::text, ARRAY[greatest(n, 1)]));
    IF version IS NULL OR queue IS NULL THEN
        SELECT t.version, t.queue INTO known FROM holdfast.workflow_types t
        WHERE t.workflow = workflow_start_many.workflow AND (workflow_start_many.version IS NULL OR t.version = workflow_start_many.version)
        ORDER BY t.version DESC LIMIT 1;
        queue := coalesce(queue, known.queue, CASE WHEN version IS NOT NULL THEN 'workflows' END);
        version := coalesce(version, known.version);
    END IF;
    SELECT CASE
        WHEN n > 0 AND cardinality(ids) <> n THEN format('there are %s inputs and %s ids', n, cardinality(ids))
        WHEN workflow IS NULL THEN 'workflow is NULL: name the workflow to start'
        WHEN version IS NULL THEN format('no worker has said yet that it knows the workflow %L: start one, or pass version and queue', workflow)
        WHEN if_exists IS NULL OR if_exists NOT IN ('same', 'restart_ended', 'refuse') THEN format('if_exists must be same, restart_ended or refuse, not %L', if_exists)
        WHEN NOT isfinite(timeout) OR timeout <= interval '0' OR timeout > interval '10 years' THEN 'timeout must be more than 0 and at most 10 years'
        WHEN delay IS NULL OR (NOT quiet AND delay NOT BETWEEN interval '0' AND interval '10 years') THEN 'delay must be between 0 and 10 years'
        ELSE (SELECT CASE WHEN jsonb_typeof(u.input) IS DISTINCT FROM 'object' THEN format('input %s must be a JSON object of the workflow''s arguments', u.ord)
                          ELSE format('id %s must have 1 to 512 bytes, not %s', u.ord, octet_length(u.id)) END
              FROM unnest(inputs, ids) WITH ORDINALITY AS u(input, id, ord)
              WHERE jsonb_typeof(u.input) IS DISTINCT FROM 'object' OR octet_length(u.id) NOT BETWEEN 1 AND 512 ORDER BY u.ord LIMIT 1) END INTO wrong;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION USING MESSAGE = wrong, ERRCODE = 'invalid_parameter_value';
    END IF;
    -- In the order of their ids, so that two calls cannot wait for each other.
    SELECT array_agg(u.ord ORDER BY u.id, u.ord) INTO places
    FROM (SELECT u.id, u.ord::int AS ord, row_number() OVER (PARTITION BY u.id ORDER BY u.ord) AS time FROM unnest(ids) WITH ORDINALITY AS u(id, ord) WHERE u.ord <= n) u
    WHERE u.id IS NULL OR (u.time = 1 AND NOT EXISTS (SELECT FROM holdfast.workflow_runs r
                                                     WHERE r.workflow = workflow_start_many.workflow AND r.key = u.id AND r.replaced_by IS NULL OFFSET 0));
    IF places IS NOT NULL THEN
        SELECT array_agg(w.id ORDER BY w.ordinal), min(w.conflict) INTO jobs, wrong
        FROM (SELECT array_agg(u.input::text ORDER BY p.ord) AS inputs,
                     array_agg((coalesce(metadata, '{}') || jsonb_build_object('workflow', jsonb_strip_nulls(jsonb_build_object(
                                   'id', u.id, 'at', due, 'deadline', until))))::text ORDER BY p.ord) AS metadatas,
                     count(*)::int AS n
              FROM unnest(places) WITH ORDINALITY AS p(place, ord) JOIN unnest(inputs, ids) WITH ORDINALITY AS u(input, id, ord) ON u.ord = p.place) j
        CROSS JOIN LATERAL holdfast.write_jobs(
            array_fill(workflow, ARRAY[j.n]), j.inputs, array_fill(queue, ARRAY[j.n]), array_fill(version, ARRAY[j.n]), array_fill(NULL::text, ARRAY[j.n]),
            array_fill(priority, ARRAY[j.n]), array_fill(1000, ARRAY[j.n]), array_fill(NULL::timestamptz, ARRAY[j.n]),
            array_fill(extract(epoch FROM delay)::float8, ARRAY[j.n]), array_fill(NULL::text, ARRAY[j.n]), array_fill(604800::float8, ARRAY[j.n]),
            array_fill(CASE WHEN tags IS NOT NULL THEN to_jsonb(tags)::text END, ARRAY[j.n]), j.metadatas, array_fill(NULL::text, ARRAY[j.n]),
            array_fill(NULL::uuid, ARRAY[j.n]), NULL, NULL) w;
        IF wrong IS NOT NULL THEN   -- there is no such queue, and no job
            IF NOT quiet THEN
                RAISE EXCEPTION USING MESSAGE = format('queue %L does not exist, or is claimed key by key. Create it: holdfast queue create %s', queue, queue),
                    ERRCODE = 'invalid_parameter_value';
            END IF;
            RETURN QUERY SELECT g.o, NULL::uuid, false, wrong FROM generate_series(1, n) AS g(o) ORDER BY g.o;
            RETURN;
        END IF;
        WITH made AS (
            INSERT INTO holdfast.workflow_runs (id, workflow, key, queue, version, root_id, tags, created_at, era_at, deadline)
            SELECT p.job, workflow_start_many.workflow, coalesce(u.id, p.job::text), workflow_start_many.queue, workflow_start_many.version, p.job,
                   workflow_start_many.tags, at, due, until
            FROM unnest(places, jobs) WITH ORDINALITY AS p(place, job, ord) JOIN unnest(ids) WITH ORDINALITY AS u(id, ord) ON u.ord = p.place ORDER BY p.ord
            ON CONFLICT DO NOTHING RETURNING workflow_runs.id
        )
        SELECT array_agg(m.id) INTO mine FROM made m;
        IF cardinality(mine) = n THEN
            RETURN QUERY SELECT p.place, p.job, true, NULL::text FROM unnest(places, jobs) AS p(place, job) ORDER BY p.place;
            RETURN;
        END IF;
        FOR item IN SELECT p.place, p.job, coalesce(p.job = ANY (mine), false) AS mine FROM unnest(places, jobs) AS p(place, job) LOOP
            IF item.mine THEN
                runs[item.place] := item.job;
                fresh[item.place] := true;
            ELSE   -- another transaction was quicker
                DELETE FROM holdfast.work w WHERE w.queue = workflow_start_many.queue AND w.id = item.job;
            END IF;
        END LOOP;
    END IF;
    FOR item IN SELECT u.ord::int AS place, u.id FROM unnest(ids, inputs) WITH ORDINALITY AS u(id, input, ord) WHERE runs[u.ord] IS NULL ORDER BY u.id, u.ord LOOP
        SELECT b.run_id, b.created, b.conflict INTO known
        FROM holdfast.workflow_begin(workflow, inputs[item.place], item.id, version, queue, if_exists, delay, timeout, priority, tags, metadata, quiet, NULL, NULL, 'cancel') b;
        runs[item.place] := known.run_id;
        fresh[item.place] := known.created;
        refused[item.place] := known.conflict;
    END LOOP;
    IF if_exists = 'refuse' AND array_position(refused, 'exists') IS NOT NULL THEN
        mine := ARRAY(SELECT u.run FROM unnest(runs, fresh) AS u(run, fresh) WHERE u.fresh);
        DELETE FROM holdfast.workflow_runs r WHERE r.id = ANY (mine);
        DELETE FROM holdfast.work w WHERE w.queue = workflow_start_many.queue AND w.id = ANY (mine);
        RETURN QUERY SELECT g.o, CASE WHEN refused[g.o] IS NOT NULL THEN runs[g.o] END, false, refused[g.o] FROM generate_series(1, n) AS g(o) ORDER BY g.o;
        RETURN;
    END IF;
    RETURN QUERY SELECT g.o, runs[g.o], fresh[g.o], refused[g.o] FROM generate_series(1, n) AS g(o) ORDER BY g.o;
END $$;

-- Messages --------------------------------------------------------------------------------------------------------

-- Notify workers of news for a run that is in memory. Its worker may not sleep, so wake() would notify nobody. A worker without it reads a moment later.
CREATE FUNCTION holdfast.workflow_tell() RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    IF current_setting('holdfast.notify', true) = 'off' THEN RETURN; END IF;
    FOR place IN 0..3 LOOP   -- as wake(): of many at once not all
        IF pg_try_advisory_xact_lock(7236839, hashtext('+workflows') # place) THEN
            PERFORM pg_notify('holdfast_+workflows', '');
            RETURN;
        END IF;
    END LOOP;
END $$;

-- Whether an era before has received a signal under this key. Asked after the insert of the new one, which waits for an era that ends. A snapshot of a whole
-- transaction may be older than that end: then the key is written, which is refused with 40001 if it is there.
CREATE FUNCTION holdfast.workflow_received_before(run uuid, once_key text) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('repeatable read', 'serializable') THEN
        RETURN EXISTS (SELECT FROM holdfast.workflow_signal_keys k WHERE k.run_id = run AND k.idempotency_key = once_key);
    END IF;
    INSERT INTO holdfast.workflow_signal_keys (run_id, idempotency_key, kept_at) VALUES (run, once_key, holdfast.now()) ON CONFLICT DO NOTHING;
    RETURN NOT FOUND;
END $$;

-- Leave a message for a run: sent, duplicate, ended or unknown.
CREATE FUNCTION holdfast.workflow_send(run uuid, signal text, body jsonb, once_key text) RETURNS text
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    AS $$
DECLARE
    known record;
    new_seq bigint;
BEGIN
    SELECT r.queue, r.ended_at, r.waits, r.asleep, r.paused_at INTO known FROM holdfast.workflow_runs r WHERE r.id = run FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN 'unknown';
    ELSIF known.ended_at IS NOT NULL THEN
        RETURN 'ended';
    END IF;
    INSERT INTO holdfast.workflow_signals (run_id, name, payload, idempotency_key, sent_at) VALUES (run, signal, body, once_key, holdfast.now())
    ON CONFLICT (run_id, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING RETURNING seq INTO new_seq;
    IF NOT FOUND THEN
        RETURN 'duplicate';
    ELSIF (CASE WHEN starts_with(once_key, 'user:') THEN holdfast.workflow_received_before(run, once_key) END) THEN
        DELETE FROM holdfast.workflow_signals s WHERE s.run_id = run AND s.seq = new_seq;
        RETURN 'duplicate';
    END IF;
    IF known.paused_at IS NULL AND signal = ANY (known.waits) THEN
        UPDATE holdfast.work w SET available_at = holdfast.now()
        WHERE w.queue = known.queue AND w.id = run AND w.status = 'pending' AND w.lease_generation = known.asleep AND w.available_at > holdfast.now();
        IF FOUND THEN
            PERFORM holdfast.wake(ARRAY[known.queue]);
            RETURN 'sent';
        END IF;
    END IF;
    PERFORM holdfast.workflow_tell();
    RETURN 'sent';
END $$;

-- The newest run of an id.
CREATE FUNCTION holdfast.workflow_run(of_workflow text, of_key text) RETURNS uuid
    LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT r.id FROM holdfast.workflow_runs r WHERE r.workflow = of_workflow AND r.key = of_key AND r.replaced_by IS NULL $$;

-- Send a signal to a run, in the caller's transaction: sent, duplicate (of this idempotency key), ended or unknown. It waits until the code asks for it.
--   SELECT holdfast.workflow_signal('checkout', 'checkout:9182', 'cancelled', '{"by": "customer"}', 'click-1');
CREATE FUNCTION holdfast.workflow_signal(workflow text, id text, name text, payload jsonb DEFAULT 'null', idempotency_key text DEFAULT NULL) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    wrong text := CASE
        WHEN name IS NULL OR octet_length(name) NOT BETWEEN 1 AND 200 OR name ~ '[^A-Za-z0-9_.-]' THEN format('the name of a signal has 1 to 200 letters, digits and _ . -, not %L', name)
        WHEN idempotency_key = '' OR octet_length(idempotency_key) > 512 THEN format('idempotency_key must have 1 to 512 bytes, not %s', octet_length(idempotency_key))
        WHEN holdfast.printed_bytes(payload, 262144) > 262144 THEN format('payload is %s bytes, the limit is 262144: store it elsewhere and send a reference', holdfast.printed_bytes(payload, 262144)) END;
    found_run uuid := holdfast.workflow_run(workflow, id);
BEGIN
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION USING MESSAGE = wrong, ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN holdfast.workflow_send(found_run, name, coalesce(payload, 'null'), 'user:' || idempotency_key);   -- ours have other words before the colon
END $$;

-- The state of a run, and its result or error. `shown` is the value that its code set. No row: there is no such run.
CREATE FUNCTION holdfast.workflow_result(workflow text, id text)
    RETURNS TABLE (run_id uuid, state text, result jsonb, error jsonb, shown jsonb, ended_at timestamptz)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
        SELECT r.id, CASE WHEN r.ended_at IS NOT NULL THEN r.state WHEN r.paused_at IS NOT NULL THEN 'paused'
                          WHEN r.state <> 'open' THEN r.state
                          WHEN EXISTS (SELECT FROM holdfast.work w WHERE w.queue = r.queue AND w.id = r.id AND w.status = 'pending' AND w.lease_generation = r.asleep) THEN 'suspended'
                          ELSE 'open' END,
               r.result, r.error, r.shown, r.ended_at
        FROM holdfast.workflow_runs r
        WHERE r.workflow = workflow_result.workflow AND r.key = workflow_result.id AND r.replaced_by IS NULL $$;

-- Cancel, pause, terminate ----------------------------------------------------------------------------------------

-- Make the job of a run due now, whatever it waits for. One that was never claimed has no history: it learns of a cancel by what its claim returns.
CREATE FUNCTION holdfast.workflow_rouse(run uuid, of_queue text, cancels boolean) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    AS $$
BEGIN
    UPDATE holdfast.work w
    SET available_at = least(w.available_at, holdfast.now()),
        metadata = CASE WHEN cancels AND w.lease_generation = 0 THEN jsonb_set(w.metadata, '{workflow,cancel}', 'true') ELSE w.metadata END
    WHERE w.queue = of_queue AND w.id = run AND w.status = 'pending';
    IF FOUND THEN
        PERFORM holdfast.wake(ARRAY[of_queue]);
    ELSE
        PERFORM holdfast.workflow_tell();
    END IF;
END $$;

-- Take the job of a run out of its queue, into the archive. False: it has none, or, with `parked`, none whose code or input does not fit.
CREATE FUNCTION holdfast.workflow_take_out(run uuid, of_queue text, why text, parked boolean) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    AS $$
DECLARE
    at timestamptz := holdfast.now();
BEGIN
    WITH gone AS (
        DELETE FROM holdfast.work w WHERE w.queue = of_queue AND w.id = run
          AND (NOT parked OR w.status = 'held' AND EXISTS (SELECT FROM holdfast.misfits m WHERE m.job_id = run)) RETURNING w.*
    )
    INSERT INTO holdfast.archive (slot, id, claim_token, seq, lease_generation, available_at, created_at, claimed_at, completed_at, attempts, max_attempts,
                                  version, crashes, priority, queue, status, task, partition_key, payload, last_error, tags, metadata, parent_id)
    SELECT holdfast.archive_slot(at), g.id, g.claim_token, g.seq, g.lease_generation, g.available_at, g.created_at, g.claimed_at, at, g.attempts, g.max_attempts,
           g.version, g.crashes, g.priority, g.queue, 'cancelled', g.task, g.partition_key, g.payload, why, g.tags, g.metadata, g.parent_id
    FROM gone g;
    RETURN FOUND;
END $$;

-- Request the end of these runs, and of their open children. A running one learns it when its worker next reads. One that is parked, because
-- no code fits it, ends at once: nothing of it can run, also not what was to compensate.
CREATE FUNCTION holdfast.workflow_ask_cancel(runs uuid[], why text) RETURNS int
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    AS $$
DECLARE
    item  record;
    n     int := 0;
    asked boolean;
BEGIN
    FOR item IN
        WITH RECURSIVE family(id) AS (
            SELECT u.id FROM unnest(runs) AS u(id)
            UNION
            SELECT c.id FROM family f JOIN holdfast.workflow_runs c ON c.parent_id = f.id WHERE c.on_cancel = 'cancel' AND c.ended_at IS NULL
        )
        SELECT r.id, r.queue FROM family f JOIN holdfast.workflow_runs r ON r.id = f.id WHERE r.ended_at IS NULL ORDER BY r.id
    LOOP
        UPDATE holdfast.workflow_runs r SET cancel_requested_at = holdfast.now(), cancel_reason = why, paused_at = NULL
        WHERE r.id = item.id AND r.ended_at IS NULL AND r.cancel_requested_at IS NULL;
        asked := FOUND;
        IF holdfast.workflow_take_out(item.id, item.queue, 'cancelled', true) THEN   -- also one that was parked after it was asked
            PERFORM holdfast.workflow_end(ARRAY[item.id], ARRAY['cancelled'], ARRAY[NULL::text],
                                          ARRAY[jsonb_build_object('kind', 'WorkflowCancelled', 'message', left(coalesce(why, ''), 8192))::text]);
        ELSIF asked THEN
            PERFORM holdfast.workflow_rouse(item.id, item.queue, true);
        ELSE
            CONTINUE;
        END IF;
        n := n + 1;
    END LOOP;
    RETURN n;
END $$;

-- Ask a run to end: requested, already (asked before), ended or unknown. Its code hears of it where it waits or calls next, and may compensate.
CREATE FUNCTION holdfast.workflow_cancel(workflow text, id text, reason text DEFAULT '') RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    known record;
BEGIN
    SELECT r.id, r.ended_at INTO known FROM holdfast.workflow_runs r WHERE r.id = holdfast.workflow_run(workflow_cancel.workflow, workflow_cancel.id);
    IF NOT FOUND THEN
        RETURN 'unknown';
    ELSIF known.ended_at IS NOT NULL THEN
        RETURN 'ended';
    ELSIF holdfast.workflow_ask_cancel(ARRAY[known.id], left(reason, 8192)) > 0 THEN
        RETURN 'requested';
    END IF;
    RETURN CASE WHEN EXISTS (SELECT FROM holdfast.workflow_runs r WHERE r.id = known.id AND r.ended_at IS NULL) THEN 'already' ELSE 'ended' END;
END $$;

-- Pause a run until workflow_resume(): paused, already, ended or unknown. A running one ends its current step, and begins no other.
CREATE FUNCTION holdfast.workflow_pause(workflow text, id text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    known record;
BEGIN
    SELECT r.id, r.queue, r.ended_at, r.paused_at INTO known FROM holdfast.workflow_runs r
    WHERE r.id = holdfast.workflow_run(workflow_pause.workflow, workflow_pause.id) FOR UPDATE;
    IF NOT FOUND OR known.ended_at IS NOT NULL OR known.paused_at IS NOT NULL THEN
        RETURN CASE WHEN NOT FOUND THEN 'unknown' WHEN known.ended_at IS NOT NULL THEN 'ended' ELSE 'already' END;
    END IF;
    WITH was AS (
        SELECT w.id, w.available_at FROM holdfast.work w WHERE w.queue = known.queue AND w.id = known.id AND w.status = 'pending' FOR NO KEY UPDATE
    ), put AS (
        UPDATE holdfast.work w SET available_at = '9999-01-01Z' WHERE w.queue = known.queue AND w.id = (SELECT was.id FROM was)
    )
    UPDATE holdfast.workflow_runs r SET paused_at = holdfast.now(), wake_at = coalesce(r.wake_at, (SELECT was.available_at FROM was)) WHERE r.id = known.id;
    RETURN 'paused';
END $$;

-- resumed, not_paused, ended or unknown. It looks at once whether what it waits for is there.
CREATE FUNCTION holdfast.workflow_resume(workflow text, id text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    known record;
BEGIN
    SELECT r.id, r.queue, r.ended_at, r.paused_at, r.wake_at, r.asleep INTO known FROM holdfast.workflow_runs r
    WHERE r.id = holdfast.workflow_run(workflow_resume.workflow, workflow_resume.id) FOR UPDATE;
    IF NOT FOUND OR known.ended_at IS NOT NULL OR known.paused_at IS NULL THEN
        RETURN CASE WHEN NOT FOUND THEN 'unknown' WHEN known.ended_at IS NOT NULL THEN 'ended' ELSE 'not_paused' END;
    END IF;
    UPDATE holdfast.workflow_runs r SET paused_at = NULL WHERE r.id = known.id;
    UPDATE holdfast.work w SET available_at = CASE WHEN w.lease_generation = 0 THEN greatest(known.wake_at, holdfast.now()) ELSE holdfast.now() END
    WHERE w.queue = known.queue AND w.id = known.id AND w.status = 'pending';
    PERFORM holdfast.wake(ARRAY[known.queue]);
    RETURN 'resumed';
END $$;

-- The end ---------------------------------------------------------------------------------------------------------

-- Runs have ended: their state, result and error. What they recorded becomes one row each, their parents get a message, and open children are cancelled.
-- Locks are waited for briefly: the settle of the job is tried again then. Returns how many were open.
CREATE FUNCTION holdfast.workflow_end(ids uuid[], states text[], results text[], errors text[]) RETURNS int
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET lock_timeout = '250ms'
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    AS $$
DECLARE
    at   timestamptz := holdfast.now();
    gone record;
    item record;
BEGIN
    PERFORM FROM holdfast.workflow_runs r WHERE r.id = ANY (ids) AND r.ended_at IS NULL ORDER BY r.id FOR NO KEY UPDATE;
    WITH ended AS (
        UPDATE holdfast.workflow_runs r
        SET state = u.state, result = u.result::jsonb, error = u.error::jsonb, ended_at = at, waits = NULL, wake_at = NULL, paused_at = NULL
        FROM unnest(ids, states, results, errors) AS u(id, state, result, error)
        WHERE r.id = u.id AND r.ended_at IS NULL
        RETURNING r.id, r.parent_id, r.watchers
    )
    SELECT array_agg(e.id) AS runs, bool_or(e.parent_id IS NOT NULL OR e.watchers IS NOT NULL) AS awaited INTO gone FROM ended e;
    IF gone.runs IS NULL THEN
        RETURN 0;
    END IF;
    PERFORM holdfast.workflow_fold(gone.runs, false);
    IF EXISTS (SELECT FROM holdfast.workflow_runs c WHERE c.parent_id = ANY (gone.runs) AND c.ended_at IS NULL AND c.on_cancel = 'cancel') THEN
        PERFORM holdfast.workflow_ask_cancel(ARRAY(SELECT c.id FROM holdfast.workflow_runs c
                                                   WHERE c.parent_id = ANY (gone.runs) AND c.ended_at IS NULL AND c.on_cancel = 'cancel'), 'its parent has ended');
    END IF;
    IF gone.awaited THEN
        FOR item IN SELECT w.run, 'child:' || w.key AS name, r.id AS child, holdfast.workflow_outcome(r.state, r.result, r.error) AS outcome
                    FROM holdfast.workflow_runs r
                    CROSS JOIN LATERAL (SELECT r.parent_id, r.parent_key WHERE r.parent_id IS NOT NULL
                                        UNION SELECT x.run, x.key FROM jsonb_to_recordset(r.watchers) AS x(run uuid, key text)) AS w(run, key)
                    WHERE r.id = ANY (gone.runs) ORDER BY w.run, r.id LOOP
            PERFORM holdfast.workflow_send_end(item.run, item.name, item.child, item.outcome);
        END LOOP;
    END IF;
    RETURN cardinality(gone.runs);
END $$;

-- The end of a child or of called jobs, as a message. `linked`, as in the record of its start, tells it from another of the same key in a later era.
CREATE FUNCTION holdfast.workflow_send_end(run uuid, name text, linked uuid, outcome jsonb) RETURNS void
    LANGUAGE sql VOLATILE
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT holdfast.workflow_send(run, name, outcome || jsonb_build_object('linked', linked), name || ':' || linked) $$;

-- The end of a run, as the message to the runs that wait for it.
CREATE FUNCTION holdfast.workflow_outcome(state text, result jsonb, error jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT jsonb_build_object('outcome', CASE state WHEN 'completed' THEN 'done' ELSE 'failed' END, 'result', result,
                                    'error', coalesce(error, CASE WHEN state <> 'completed' THEN jsonb_build_object('kind', 'Workflow' || initcap(state), 'message', '') END)) $$;

-- What these runs recorded becomes one row of the history each. `goes_on`: they have another era, signals that were not taken stay, and so do the keys of those
-- that were.
CREATE FUNCTION holdfast.workflow_fold(runs uuid[], goes_on boolean) RETURNS void
    LANGUAGE sql VOLATILE
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    AS $$
        WITH step AS (
            DELETE FROM holdfast.workflow_steps s WHERE s.run_id = ANY (runs) RETURNING s.*
        ), signal AS (
            DELETE FROM holdfast.workflow_signals s WHERE s.run_id = ANY (runs) AND (s.taken_by IS NOT NULL OR s.name ~ ':' OR NOT goes_on) RETURNING s.*
        ), kept AS (
            INSERT INTO holdfast.workflow_signal_keys (run_id, idempotency_key, kept_at)
            SELECT s.run_id, s.idempotency_key, holdfast.now() FROM signal s WHERE goes_on AND starts_with(s.idempotency_key, 'user:')
            ON CONFLICT (run_id, idempotency_key) DO UPDATE SET kept_at = excluded.kept_at
        ), steps AS (
            SELECT s.run_id, jsonb_agg(to_jsonb(s) - 'run_id' ORDER BY s.n) AS of_run FROM step s GROUP BY s.run_id
        ), signals AS (
            SELECT s.run_id, jsonb_agg(to_jsonb(s) - 'run_id' ORDER BY s.seq) AS of_run FROM signal s GROUP BY s.run_id
        )
        INSERT INTO holdfast.workflow_history (slot, run_id, era, at, steps, signals)
        SELECT (SELECT holdfast.archive_slot(holdfast.now())), r.id, r.era, (SELECT holdfast.now()), coalesce(s.of_run, '[]'), coalesce(g.of_run, '[]')
        FROM holdfast.workflow_runs r LEFT JOIN steps s ON s.run_id = r.id LEFT JOIN signals g ON g.run_id = r.id
        WHERE r.id = ANY (runs) $$;

-- End a run without its code: terminated, ended or unknown. Its compensations do not run.
CREATE FUNCTION holdfast.workflow_terminate(workflow text, id text, reason text DEFAULT '') RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    known record;
BEGIN
    SELECT r.id, r.queue, r.ended_at INTO known FROM holdfast.workflow_runs r WHERE r.id = holdfast.workflow_run(workflow_terminate.workflow, workflow_terminate.id) FOR NO KEY UPDATE;
    IF NOT FOUND OR known.ended_at IS NOT NULL THEN
        RETURN CASE WHEN known.ended_at IS NOT NULL THEN 'ended' ELSE 'unknown' END;
    END IF;
    PERFORM holdfast.workflow_take_out(known.id, known.queue, 'terminated', false);
    PERFORM holdfast.workflow_end(ARRAY[known.id], ARRAY['terminated'], ARRAY[NULL::text],
                                  ARRAY[jsonb_build_object('kind', 'Terminated', 'message', left(coalesce(reason, ''), 8192))::text]);
    RETURN 'terminated';
END $$;

-- What owners do --------------------------------------------------------------------------------------------------

-- Write rows of a run, given as JSON, under the lock of its owner. Returns how many were new; one that is `retrying` or `calling` may change.
CREATE FUNCTION holdfast.workflow_put(run uuid, under bigint, made jsonb) RETURNS int
    LANGUAGE sql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
        WITH put AS (
            INSERT INTO holdfast.workflow_steps AS s (run_id, generation, ordinal, attempts, began_at, ended_at, key, kind, outcome, input_hash, result, error, linked)
            SELECT run, under, r.ordinal, coalesce(r.attempts, 1), coalesce(to_timestamp(r.began), holdfast.now()), coalesce(r.ended, holdfast.now()), r.key, r.kind, r.outcome,
                   decode(r.input_hash, 'hex'), r.result, nullif(r.error, 'null'), r.linked
            FROM jsonb_to_recordset(made) AS r(ordinal int, attempts int, began float8, ended timestamptz, key text, kind text, outcome text, input_hash text, result jsonb, error jsonb, linked uuid)
            ON CONFLICT (run_id, key) DO UPDATE
            SET generation = EXCLUDED.generation, attempts = EXCLUDED.attempts, ended_at = EXCLUDED.ended_at, outcome = EXCLUDED.outcome, result = EXCLUDED.result,
                error = EXCLUDED.error, n = EXCLUDED.n, linked = coalesce(EXCLUDED.linked, s.linked)
            WHERE s.outcome IN ('retrying', 'calling')
            RETURNING 1
        )
        SELECT count(*)::int FROM put $$;

-- Whose a run is: ours (and locked until the end of the transaction), busy, suspended (by this very claim) or lost.
CREATE FUNCTION holdfast.workflow_own(of_queue text, run uuid, under bigint, token uuid, waits boolean DEFAULT false) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    AS $$
DECLARE
    now_is text;
BEGIN
    IF waits THEN
        PERFORM FROM holdfast.work w WHERE w.queue = of_queue AND w.id = run AND w.lease_generation = under AND w.claim_token = token AND w.status = 'processing' FOR SHARE;
    ELSE
        PERFORM FROM holdfast.work w WHERE w.queue = of_queue AND w.id = run AND w.lease_generation = under AND w.claim_token = token AND w.status = 'processing'
        FOR SHARE SKIP LOCKED;
    END IF;
    IF FOUND THEN
        RETURN 'ours';
    END IF;
    SELECT w.status INTO now_is FROM holdfast.work w WHERE w.queue = of_queue AND w.id = run AND w.lease_generation = under AND w.claim_token = token;
    RETURN CASE now_is WHEN 'processing' THEN 'busy' WHEN 'pending' THEN 'suspended' ELSE 'lost' END;
END $$;

-- Whether what a run waits for is there: a message of that name (the oldest), else its time, else a cancel. If so it is recorded, with `made`, and returned.
-- `answer`: decided, wait, busy or lost. One that this generation has recorded already (its answer was lost) is returned as it is.
CREATE FUNCTION holdfast.workflow_decide(
    of_queue text, run uuid, under bigint, token uuid, of_key text, of_ordinal int, of_kind text, signal text, until timestamptz, began float8, cancellable boolean,
    made jsonb, OUT answer text, OUT outcome text, OUT result text, OUT error text, OUT attempts int, OUT linked uuid, OUT generation bigint, OUT at timestamptz)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    AS $$
DECLARE
    hit    record;
    said   jsonb;
    failed jsonb;
BEGIN
    answer := holdfast.workflow_own(of_queue, run, under, token);
    IF answer <> 'ours' THEN
        answer := CASE answer WHEN 'busy' THEN 'busy' ELSE 'lost' END;
        RETURN;
    END IF;
    SELECT s.outcome, s.result::text AS result, s.error::text AS error, s.attempts, s.linked, s.generation, s.ended_at INTO hit
    FROM holdfast.workflow_steps s WHERE s.run_id = run AND s.key = of_key AND s.outcome NOT IN ('retrying', 'calling');
    IF FOUND THEN
        answer := CASE WHEN hit.generation = under THEN 'decided' ELSE 'lost' END;
        outcome := hit.outcome; result := hit.result; error := hit.error; attempts := hit.attempts; linked := hit.linked;
        generation := hit.generation; at := hit.ended_at;
        RETURN;
    END IF;
    IF of_kind IN ('child', 'call') THEN   -- the end of another under this key, of an era before, is nobody's
        DELETE FROM holdfast.workflow_signals s
        WHERE s.run_id = run AND s.name = signal AND s.taken_by IS NULL
          AND (s.payload->>'linked')::uuid <> (SELECT o.linked FROM holdfast.workflow_steps o WHERE o.run_id = run AND o.key = substr(signal, strpos(signal, ':') + 1));
    END IF;
    IF signal <> '' THEN
        UPDATE holdfast.workflow_signals s SET taken_by = of_key
        WHERE s.run_id = run AND s.seq = (SELECT o.seq FROM holdfast.workflow_signals o
                                          WHERE o.run_id = run AND o.name = signal AND o.taken_by IS NULL ORDER BY o.seq LIMIT 1)
        RETURNING s.payload, s.sent_at, s.idempotency_key INTO hit;
        IF FOUND AND of_kind = 'signal' THEN
            outcome := 'done';
            said := jsonb_build_object('value', hit.payload, 'sent_at', hit.sent_at, 'key', substr(hit.idempotency_key, 6));
        ELSIF FOUND THEN   -- a child, or jobs that were called
            outcome := hit.payload->>'outcome';
            said := hit.payload->'result';
            failed := nullif(hit.payload->'error', 'null');
        END IF;
    END IF;
    IF outcome IS NULL AND until <= holdfast.now() THEN
        outcome := CASE of_kind WHEN 'sleep' THEN 'done' ELSE 'timed_out' END;
    ELSIF outcome IS NULL AND cancellable AND EXISTS (SELECT FROM holdfast.workflow_runs r WHERE r.id = run AND (r.cancel_requested_at IS NOT NULL OR r.deadline <= holdfast.now())) THEN
        outcome := 'cancelled';
    ELSIF outcome IS NULL THEN
        answer := 'wait';
        RETURN;
    END IF;
    PERFORM holdfast.workflow_put(run, under, coalesce(made, '[]') || jsonb_build_array(jsonb_build_object(
        'key', of_key, 'kind', of_kind, 'outcome', outcome, 'ordinal', of_ordinal, 'began', began, 'result', said, 'error', failed)));
    answer := 'decided';
    SELECT s.result::text, s.error::text, s.attempts, s.linked, s.generation, s.ended_at INTO result, error, attempts, linked, generation, at
    FROM holdfast.workflow_steps s WHERE s.run_id = run AND s.key = of_key;
END $$;

-- All unread messages of a name, taken and recorded together, with `made`: their payloads, the oldest first. Of many large ones those that begin within 16 MiB; the
-- others stay. `answer`: decided, busy or lost. What this generation has recorded already (its answer was lost) is returned as it is.
CREATE FUNCTION holdfast.workflow_receive(
    of_queue text, run uuid, under bigint, token uuid, of_key text, of_ordinal int, signal text, began float8, made jsonb,
    OUT answer text, OUT result text, OUT at timestamptz)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    AS $$
DECLARE
    hit  record;
    said jsonb;
BEGIN
    answer := holdfast.workflow_own(of_queue, run, under, token);
    IF answer <> 'ours' THEN
        answer := CASE answer WHEN 'busy' THEN 'busy' ELSE 'lost' END;
        RETURN;
    END IF;
    SELECT s.generation INTO hit FROM holdfast.workflow_steps s WHERE s.run_id = run AND s.key = of_key;
    IF FOUND AND hit.generation <> under THEN
        answer := 'lost';
        RETURN;
    ELSIF NOT FOUND THEN
        WITH there AS MATERIALIZED (
            SELECT o.seq, sum(coalesce(octet_length(o.payload::text), 0)) OVER (ORDER BY o.seq) - coalesce(octet_length(o.payload::text), 0) AS before
            FROM holdfast.workflow_signals o WHERE o.run_id = run AND o.name = signal AND o.taken_by IS NULL
        ), taken AS (
            UPDATE holdfast.workflow_signals s SET taken_by = of_key FROM there t WHERE s.run_id = run AND s.seq = t.seq AND t.before < 16777216
            RETURNING s.seq, s.payload
        )
        SELECT coalesce(jsonb_agg(t.payload ORDER BY t.seq), '[]') INTO said FROM taken t;
        PERFORM holdfast.workflow_put(run, under, coalesce(made, '[]') || jsonb_build_array(jsonb_build_object(
            'key', of_key, 'kind', 'signal', 'outcome', 'done', 'ordinal', of_ordinal, 'began', began, 'result', said)));
    END IF;
    answer := 'decided';
    SELECT s.result::text, s.ended_at INTO result, at FROM holdfast.workflow_steps s WHERE s.run_id = run AND s.key = of_key;
END $$;

-- Put runs away that wait: each is a pending job again, due at its time, or never. `answer`: suspended, go_on (something is there, nothing was changed),
-- busy or lost. The rows are locked first, and then looked at in a statement of its own: its snapshot is younger than the lock.
CREATE FUNCTION holdfast.workflow_suspend(of_queue text, runs uuid[], generations bigint[], tokens uuid[], names jsonb, untils timestamptz[], cancellable boolean[])
    RETURNS TABLE (ordinal int, answer text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    AS $$
DECLARE
    item   record;
    known  record;
    names_of text[];
    wakes  timestamptz[] := '{}';
    now_is text;
BEGIN
    FOR item IN SELECT u.* FROM unnest(runs, generations, tokens, untils, cancellable) WITH ORDINALITY AS u(run, under, token, until, cancellable, n) ORDER BY u.run LOOP
        ordinal := item.n;
        names_of := ARRAY(SELECT jsonb_array_elements_text(names -> (item.n - 1)::int));
        PERFORM FROM holdfast.work w WHERE w.queue = of_queue AND w.id = item.run AND w.lease_generation = item.under AND w.claim_token = item.token
            AND w.status = 'processing' FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            SELECT w.status INTO now_is FROM holdfast.work w
            WHERE w.queue = of_queue AND w.id = item.run AND w.lease_generation = item.under AND w.claim_token = item.token;
            answer := CASE now_is WHEN 'processing' THEN 'busy' WHEN 'pending' THEN 'suspended' ELSE 'lost' END;
            RETURN NEXT;
            CONTINUE;
        END IF;
        SELECT r.cancel_requested_at IS NOT NULL OR coalesce(r.deadline <= holdfast.now(), false) AS cancelled, r.deadline, r.paused_at IS NOT NULL AS paused, r.cancel_requested_at IS NOT NULL AS asked
        INTO known FROM holdfast.workflow_runs r WHERE r.id = item.run FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN   -- somebody is about to send: stay awake, and look again
            answer := 'busy';
            RETURN NEXT;
            CONTINUE;
        END IF;
        IF NOT known.paused AND (item.until <= holdfast.now() OR (item.cancellable AND known.cancelled)
                OR EXISTS (SELECT FROM holdfast.workflow_signals s WHERE s.run_id = item.run AND s.taken_by IS NULL AND s.name = ANY (names_of))) THEN
            answer := 'go_on';
            RETURN NEXT;
            CONTINUE;
        END IF;
        UPDATE holdfast.workflow_runs r SET waits = names_of, wake_at = item.until, asleep = item.under WHERE r.id = item.run;
        UPDATE holdfast.work w
        SET status = 'pending', attempts = 0, crashes = 0, suspect = 0,
            available_at = CASE WHEN known.paused THEN '9999-01-01Z'
                                ELSE least(coalesce(item.until, '9999-01-01Z'), CASE WHEN item.cancellable AND NOT known.asked THEN known.deadline END) END
        WHERE w.queue = of_queue AND w.id = item.run;
        wakes := wakes || coalesce(item.until, '9999-01-01Z');
        answer := 'suspended';
        RETURN NEXT;
    END LOOP;
    IF wakes <> '{}' THEN
        PERFORM holdfast.wake(array_fill(of_queue, ARRAY[cardinality(wakes)]), wakes);
    END IF;
END $$;

-- A run waits for another that somebody else has started, or it itself under another key or in an era before. If that one has ended, the message comes at once.
CREATE FUNCTION holdfast.workflow_watch(watched uuid, by_run uuid, by_key text) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    known record;
BEGIN
    SELECT r.parent_id, r.parent_key, r.ended_at, r.state, r.result, r.error INTO known FROM holdfast.workflow_runs r WHERE r.id = watched FOR NO KEY UPDATE;
    IF known.ended_at IS NOT NULL THEN
        PERFORM holdfast.workflow_send_end(by_run, 'child:' || by_key, watched, holdfast.workflow_outcome(known.state, known.result, known.error));
    ELSIF known.parent_id IS DISTINCT FROM by_run OR known.parent_key <> by_key THEN
        UPDATE holdfast.workflow_runs r SET watchers = coalesce(r.watchers, '[]') || jsonb_build_array(jsonb_build_object('run', by_run, 'key', by_key)) WHERE r.id = watched;
    END IF;
END $$;

-- A child of a run: its row, its job and the record of its start, together. The same key again returns the same child. An existing id is that run, no
-- matter who started it. `answer`: ours, busy, lost, itself, or why it cannot be enqueued.
CREATE FUNCTION holdfast.workflow_child(
    of_queue text, run uuid, under bigint, token uuid, made jsonb, workflow text, input jsonb, id text, version int, queue text, on_cancel text,
    OUT answer text, OUT child uuid, OUT at timestamptz)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET lock_timeout = '250ms'
    AS $$
DECLARE
    begun record;
BEGIN
    answer := holdfast.workflow_own(of_queue, run, under, token);
    IF answer <> 'ours' THEN
        answer := CASE answer WHEN 'busy' THEN 'busy' ELSE 'lost' END;
        RETURN;
    END IF;
    SELECT s.linked, s.ended_at INTO child, at FROM holdfast.workflow_steps s WHERE s.run_id = run AND s.key = made->>'key' AND s.generation = under;
    IF FOUND THEN   -- its answer was lost
        RETURN;
    END IF;
    SELECT b.run_id, b.created, b.conflict INTO begun
    FROM holdfast.workflow_begin(workflow, input, id, version, queue, 'same', '0', NULL, 0, NULL, NULL, true, run, made->>'key', on_cancel) b;
    child := begun.run_id;
    answer := coalesce(begun.conflict, CASE WHEN child = run THEN 'itself' ELSE 'ours' END);
    IF answer = 'ours' THEN
        IF NOT begun.created THEN
            PERFORM holdfast.workflow_watch(child, run, made->>'key');
        END IF;
        PERFORM holdfast.workflow_put(run, under, jsonb_build_array(made || jsonb_build_object('linked', child)));
        at := holdfast.now();
    END IF;
END $$;

-- Jobs that a run waits for, and the row that says so, together. With a limit, those beyond it wait for the end of another. `answer`: ours, busy, lost, or why
-- they cannot be enqueued.
CREATE FUNCTION holdfast.workflow_call(of_queue text, run uuid, under bigint, token uuid, made jsonb, specs jsonb, many boolean, most int, OUT answer text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    in_group uuid;
    made_ids uuid[];
    into_queue text := coalesce(specs->0->>'queue', 'inbox');
BEGIN
    answer := holdfast.workflow_own(of_queue, run, under, token);
    IF answer <> 'ours' THEN
        answer := CASE answer WHEN 'busy' THEN 'busy' ELSE 'lost' END;
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM holdfast.workflow_steps s WHERE s.run_id = run AND s.key = made->>'key' AND s.generation = under) THEN   -- its answer was lost
        RETURN;
    END IF;
    IF specs = '[]' THEN
        PERFORM holdfast.workflow_put(run, under, jsonb_build_array(made));
        PERFORM holdfast.workflow_send(run, 'call:' || (made->>'key'), '{"outcome": "done", "result": []}', 'call:' || (made->>'key'));
        RETURN;
    END IF;
    SELECT (array_agg(g.id) FILTER (WHERE g.ordinal = 0))[1], array_agg(g.id ORDER BY g.ordinal) FILTER (WHERE g.ordinal > 0),
           coalesce((array_agg(holdfast.conflict_text(specs->(g.ordinal - 1)->>'task', specs->(g.ordinal - 1)->>'queue', g.conflict)) FILTER (WHERE g.conflict IS NOT NULL))[1], 'ours')
    INTO in_group, made_ids, answer FROM holdfast.enqueue_group(specs, NULL, 'finished') g;
    IF answer <> 'ours' THEN
        RETURN;
    END IF;
    INSERT INTO holdfast.workflow_calls (group_id, run_id, key, many, queue, jobs)
    VALUES (in_group, run, made->>'key', many, CASE WHEN most < cardinality(made_ids) THEN into_queue END, made_ids);
    IF most < cardinality(made_ids) THEN
        UPDATE holdfast.work w SET available_at = '9999-01-01Z' WHERE w.queue = into_queue AND w.id = ANY (made_ids[most + 1:]);
    END IF;
    PERFORM holdfast.workflow_put(run, under, jsonb_build_array(made || jsonb_build_object('linked', CASE WHEN many THEN in_group ELSE made_ids[1] END)));
END $$;

-- Members of groups have ended, in this transaction: those that a run waits for leave what they returned in its mailbox, and the last of them wakes it.
-- Called by jobs_ended(), after the groups were counted.
CREATE FUNCTION holdfast.members_ended(job_ids uuid[], states text[], group_ids uuid[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET lock_timeout = '250ms'
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    AS $$
DECLARE
    call   record;
    member record;
    parts  record;
    freed  int;
    given  int;
BEGIN
    FOR call IN SELECT c.* FROM holdfast.workflow_calls c WHERE c.group_id = ANY (group_ids) ORDER BY c.run_id, c.group_id LOOP
        freed := 0;
        FOR member IN
            SELECT u.id, u.state, a.result, coalesce(d.last_error, a.last_error) AS error, coalesce(d.attempts, a.attempts, 0) AS attempts
            FROM unnest(job_ids, states, group_ids) AS u(id, state, in_group)
            LEFT JOIN LATERAL (SELECT a.result, a.last_error, a.attempts FROM holdfast.archive a WHERE a.slot = ANY (holdfast.archive_slots_of(u.id)) AND a.id = u.id OFFSET 0) a ON true
            LEFT JOIN LATERAL (SELECT d.last_error, d.attempts FROM holdfast.dead_letters d WHERE d.id = u.id OFFSET 0) d ON true
            WHERE u.in_group = call.group_id AND u.state IN ('completed', 'cancelled', 'dead_letter', 'parked', 'discarded') ORDER BY u.id
        LOOP
            INSERT INTO holdfast.workflow_signals (run_id, name, payload, idempotency_key, sent_at, taken_by)
            VALUES (call.run_id, 'part:' || call.key,
                    jsonb_build_object('job', member.id, 'outcome', CASE member.state WHEN 'completed' THEN 'done' ELSE 'failed' END, 'result', member.result,
                        'error', CASE WHEN member.state <> 'completed' THEN jsonb_build_object(
                            'kind', CASE member.state WHEN 'cancelled' THEN 'JobCancelled' WHEN 'discarded' THEN 'JobDeleted' ELSE split_part(coalesce(member.error, 'JobFailed'), ': ', 1) END,
                            'message', CASE WHEN member.state IN ('dead_letter', 'parked') THEN substr(member.error, length(split_part(member.error, ': ', 1)) + 3) ELSE coalesce(member.error, '') END,
                            'attempts', member.attempts) END),
                    'part:' || call.key || ':' || member.id, holdfast.now(), call.key)
            ON CONFLICT (run_id, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING;
            freed := freed + 1;
        END LOOP;
        IF call.queue IS NOT NULL AND freed > 0 THEN   -- places for those that wait
            UPDATE holdfast.work w SET available_at = holdfast.now()
            WHERE w.queue = call.queue AND w.id = ANY (ARRAY(
                SELECT n.id FROM holdfast.work n WHERE n.queue = call.queue AND n.group_id = call.group_id AND n.status = 'pending' AND n.available_at = '9999-01-01Z'
                ORDER BY n.seq LIMIT freed FOR NO KEY UPDATE SKIP LOCKED));
            GET DIAGNOSTICS given = ROW_COUNT;
            IF given < freed THEN   -- there are no more, or somebody holds them: nobody else would come for those
                UPDATE holdfast.work w SET available_at = holdfast.now()
                WHERE w.queue = call.queue AND w.id = ANY (ARRAY(
                    SELECT n.id FROM holdfast.work n WHERE n.queue = call.queue AND n.group_id = call.group_id AND n.status = 'pending' AND n.available_at = '9999-01-01Z'
                    ORDER BY n.seq LIMIT freed - given FOR NO KEY UPDATE));
            END IF;
            PERFORM holdfast.wake(ARRAY[call.queue]);
        END IF;
        IF NOT EXISTS (SELECT FROM holdfast.groups g WHERE g.id = call.group_id AND g.finished_at IS NOT NULL) THEN
            CONTINUE;
        END IF;
        SELECT jsonb_agg(s.payload->'result' ORDER BY array_position(call.jobs, (s.payload->>'job')::uuid)) AS results,
               (array_agg(s.payload->'error' ORDER BY array_position(call.jobs, (s.payload->>'job')::uuid)) FILTER (WHERE s.payload->>'outcome' = 'failed'))[1] AS error
        INTO parts
        FROM holdfast.workflow_signals s WHERE s.run_id = call.run_id AND s.name = 'part:' || call.key AND (s.payload->>'job')::uuid = ANY (call.jobs);
        PERFORM holdfast.workflow_send_end(call.run_id, 'call:' || call.key, CASE WHEN call.many THEN call.group_id ELSE call.jobs[1] END,
            jsonb_build_object('outcome', CASE WHEN parts.error IS NULL THEN 'done' ELSE 'failed' END,
                               'result', CASE WHEN parts.error IS NULL THEN CASE WHEN call.many THEN parts.results ELSE parts.results->0 END END, 'error', parts.error));
        DELETE FROM holdfast.workflow_calls c WHERE c.group_id = call.group_id;
    END LOOP;
END $$;

-- Rows of a run and the events that some of them stand for, together. `answer`: ours, busy or lost. Events have their ids: what was written and nobody heard of is
-- not published again. A concurrent publisher under the same key is waited for briefly. `at` is when the rows were first written.
CREATE FUNCTION holdfast.workflow_publish(of_queue text, run uuid, under bigint, token uuid, made jsonb, events jsonb, said jsonb, OUT answer text, OUT at timestamptz)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET lock_timeout = '250ms'
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    AS $$
DECLARE
    keys text[] := ARRAY(SELECT m.row->>'key' FROM jsonb_array_elements(made) AS m(row));
BEGIN
    answer := holdfast.workflow_own(of_queue, run, under, token);
    IF answer <> 'ours' THEN
        answer := CASE answer WHEN 'busy' THEN 'busy' ELSE 'lost' END;
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM holdfast.workflow_steps s
               WHERE s.run_id = run AND s.key = ANY (keys) AND s.generation <> under AND s.outcome NOT IN ('retrying', 'calling')) THEN
        answer := 'lost';
        RETURN;
    END IF;
    PERFORM holdfast.workflow_put(run, under, made);
    PERFORM holdfast.publish_many(array_agg(e.type ORDER BY e.n), array_agg(e.data::text ORDER BY e.n), array_agg(e.key ORDER BY e.n),
                                  array_agg(nullif(e.headers, 'null')::text ORDER BY e.n), array_agg(e.id ORDER BY e.n), array_agg(e.version ORDER BY e.n))
    FROM ROWS FROM (jsonb_to_recordset(events) AS (type text, data jsonb, key text, headers jsonb, id uuid, version int)) WITH ORDINALITY
         AS e(type, data, key, headers, id, version, n);
    IF said IS NOT NULL THEN
        UPDATE holdfast.workflow_runs r SET shown = said WHERE r.id = run;
    END IF;
    SELECT max(s.ended_at) INTO at FROM holdfast.workflow_steps s WHERE s.run_id = run AND s.key = ANY (keys);
END $$;

-- The next era of a run under the same claim: what it recorded is folded, signals that were not taken stay. `answer`: ours, busy, lost, or open: a child is
-- still to end. A call that is still to end has lost: nothing waits for it. `unseen`: the keys of records that took a signal which no code has seen; it is there again.
CREATE FUNCTION holdfast.workflow_begin_era(
    of_queue text, run uuid, under bigint, token uuid, from_era int, input jsonb, unseen text[], OUT answer text, OUT at timestamptz)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET lock_timeout = '250ms'
    AS $$
DECLARE
    known record;
BEGIN
    answer := holdfast.workflow_own(of_queue, run, under, token);
    IF answer <> 'ours' THEN
        answer := CASE answer WHEN 'busy' THEN 'busy' ELSE 'lost' END;
        RETURN;
    END IF;
    SELECT r.era, r.era_at INTO known FROM holdfast.workflow_runs r WHERE r.id = run;
    IF known.era = from_era + 1 THEN   -- its answer was lost
        at := known.era_at;
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM holdfast.workflow_runs c WHERE c.parent_id = run AND c.ended_at IS NULL AND c.on_cancel <> 'abandon') THEN
        answer := 'open';
        RETURN;
    END IF;
    at := holdfast.now();
    UPDATE holdfast.workflow_signals s SET taken_by = NULL WHERE s.run_id = run AND s.taken_by = ANY (unseen);
    PERFORM holdfast.workflow_fold(ARRAY[run], true);
    UPDATE holdfast.workflow_runs r SET era = from_era + 1, era_at = workflow_begin_era.at, seed = NULL, waits = NULL, wake_at = NULL WHERE r.id = run;
    UPDATE holdfast.work w SET payload = input, attempts = 0 WHERE w.queue = of_queue AND w.id = run;
END $$;

-- The same, as code that knows migration 17 calls it.
CREATE FUNCTION holdfast.workflow_next_era(of_queue text, run uuid, under bigint, token uuid, from_era int, input jsonb, OUT answer text, OUT at timestamptz)
    LANGUAGE sql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT e.answer, e.at FROM holdfast.workflow_begin_era(of_queue, run, under, token, from_era, input, '{}') e $$;

-- A run whose job was brought back after its end is open again, with what it had recorded in its last era. False: it is open.
CREATE FUNCTION holdfast.workflow_reopen(run uuid) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET lock_timeout = '250ms'
    AS $$
DECLARE
    known record;
    was   record;
BEGIN
    SELECT r.queue, r.era, r.created_at INTO known FROM holdfast.workflow_runs r
    WHERE r.id = run AND r.ended_at IS NOT NULL AND EXISTS (SELECT FROM holdfast.work w WHERE w.queue = r.queue AND w.id = r.id) FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    SELECT h.tableoid, h.ctid, h.steps, h.signals INTO was FROM holdfast.workflow_history h WHERE h.run_id = run AND h.era = known.era ORDER BY h.at DESC LIMIT 1;
    IF FOUND THEN
        INSERT INTO holdfast.workflow_steps SELECT s.* FROM jsonb_array_elements(was.steps) AS e(row)
            CROSS JOIN LATERAL jsonb_populate_record(NULL::holdfast.workflow_steps, e.row || jsonb_build_object('run_id', run)) s ON CONFLICT DO NOTHING;
        INSERT INTO holdfast.workflow_signals SELECT s.* FROM jsonb_array_elements(was.signals) AS e(row)
            CROSS JOIN LATERAL jsonb_populate_record(NULL::holdfast.workflow_signals, e.row || jsonb_build_object('run_id', run)) s ON CONFLICT DO NOTHING;
        DELETE FROM holdfast.workflow_history h WHERE h.run_id = run AND h.era = known.era;
    END IF;
    UPDATE holdfast.workflow_runs r SET state = 'open', ended_at = NULL, result = NULL, error = NULL, cancel_requested_at = NULL, cancel_reason = NULL WHERE r.id = run;
    RETURN true;
END $$;

-- Another run with the records of this one under `keys` in its last era: its code is replayed up to there, and continues. It has the same input, the signals,
-- whenever they were sent, and the ends of children that those records started. What those records took stays taken. Nobody but the operator is its parent.
-- `conflict`: exists (the id is taken), queue (it is gone), or input (of an ended run it is no longer kept).
CREATE FUNCTION holdfast.workflow_fork(run uuid, keys text[], from_key text, new_id text, new_version int, OUT run_id uuid, OUT conflict text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$
DECLARE
    old   record;
    job   record;
    place text;
BEGIN
    SELECT r.* INTO old FROM holdfast.workflow_runs r WHERE r.id = run;
    SELECT j.* INTO job FROM (
        SELECT w.payload, w.priority, w.metadata FROM holdfast.work w WHERE w.queue = old.queue AND w.id = run
        UNION ALL SELECT d.payload, d.priority, d.metadata FROM holdfast.dead_letters d WHERE d.id = run
        UNION ALL SELECT a.payload, a.priority, a.metadata FROM holdfast.archive a WHERE a.slot = ANY (holdfast.archive_slots_of(run)) AND a.id = run
    ) j LIMIT 1;
    IF NOT FOUND THEN
        conflict := 'input';
        RETURN;
    END IF;
    place := CASE WHEN new_version <> old.version THEN (SELECT t.queue FROM holdfast.workflow_types t WHERE t.workflow = old.workflow AND t.version = new_version) END;
    SELECT b.run_id, b.conflict INTO run_id, conflict
    FROM holdfast.workflow_begin(old.workflow, job.payload, new_id, coalesce(new_version, old.version), coalesce(place, old.queue), 'refuse', '0', NULL, job.priority,
                                 old.tags, job.metadata - 'workflow', true, NULL, NULL, 'cancel') b;
    IF conflict IS NOT NULL THEN
        RETURN;
    END IF;
    -- What began before its first claim has a history: so its first claim is not of generation 1, which has none.
    UPDATE holdfast.work w SET lease_generation = 1 WHERE w.queue = coalesce(place, old.queue) AND w.id = run_id;
    UPDATE holdfast.workflow_runs r SET forked_from = run, forked_key = from_key, seed = coalesce(old.seed, run), era = old.era, era_at = old.era_at WHERE r.id = run_id;
    INSERT INTO holdfast.workflow_steps
    SELECT p.* FROM (
        SELECT to_jsonb(s) AS row FROM holdfast.workflow_steps s WHERE s.run_id = run
        UNION ALL
        SELECT e.row FROM holdfast.workflow_history h CROSS JOIN LATERAL jsonb_array_elements(h.steps) AS e(row) WHERE h.run_id = run AND h.era = old.era
    ) s CROSS JOIN LATERAL jsonb_populate_record(NULL::holdfast.workflow_steps, s.row || jsonb_build_object('run_id', workflow_fork.run_id, 'generation', 0)) p
    WHERE p.key = ANY (keys) AND p.outcome <> 'calling';   -- only the old run would hear of the end of those
    INSERT INTO holdfast.workflow_signals
    SELECT p.* FROM (
        SELECT to_jsonb(s) AS row FROM holdfast.workflow_signals s WHERE s.run_id = run
        UNION ALL
        SELECT e.row FROM holdfast.workflow_history h CROSS JOIN LATERAL jsonb_array_elements(h.signals) AS e(row) WHERE h.run_id = run AND h.era = old.era
    ) s CROSS JOIN LATERAL jsonb_populate_record(NULL::holdfast.workflow_signals, s.row || jsonb_build_object(
        'run_id', workflow_fork.run_id, 'taken_by', CASE WHEN s.row->>'taken_by' = ANY (keys) THEN s.row->>'taken_by' END)) p
    WHERE p.name !~ ':' OR (p.name ~ '^child:' AND substr(p.name, 7) = ANY (keys))
    ON CONFLICT DO NOTHING;
END $$;

-- Keeping ---------------------------------------------------------------------------------------------------------

-- Runs whose job has ended without their code, a dead letter after crashes or deleted, are ended. One search for all workers: the first after `every` seconds since
-- the last one has the turn, and reads `most` rows from where that stopped. The others read nothing and wait for nobody.
CREATE FUNCTION holdfast.workflow_settle_lost(most int, every interval, OUT ended int, OUT looked int)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off
    SET enable_bitmapscan = off
    AS $$
DECLARE
    turn record;
    lost record;
BEGIN
    ended := 0;
    looked := 0;
    SELECT u.reached INTO turn FROM holdfast.workflow_upkeep u WHERE u.looked_at <= holdfast.now() - every FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    WITH looked AS MATERIALIZED (
        SELECT r.id, r.queue, r.ended_at FROM holdfast.workflow_runs r WHERE r.id > turn.reached ORDER BY r.id LIMIT most
    ), buried AS MATERIALIZED (
        SELECT r.id, r.queue, r.ended_at FROM holdfast.dead_letters d JOIN holdfast.workflow_runs r ON r.id = d.id
        WHERE d.died_at > holdfast.now() - interval '10 minutes' AND r.ended_at IS NULL LIMIT most
    )
    SELECT (SELECT count(*) FROM looked) AS number, (SELECT max(s.id::text)::uuid FROM looked s) AS last, array_agg(l.id ORDER BY l.id) AS ids
    INTO lost
    FROM (SELECT s.id, s.queue FROM looked s WHERE s.ended_at IS NULL UNION SELECT b.id, b.queue FROM buried b) l
    WHERE NOT EXISTS (SELECT FROM holdfast.work w WHERE w.queue = l.queue AND w.id = l.id OFFSET 0);
    looked := lost.number;
    UPDATE holdfast.workflow_upkeep u   -- behind the last row it begins again
    SET looked_at = holdfast.now(), reached = CASE WHEN looked < most THEN '00000000-0000-0000-0000-000000000000' ELSE lost.last END;
    IF lost.ids IS NOT NULL THEN   -- in a statement of its own: one that was started a moment ago has its job
        SELECT holdfast.workflow_end(array_agg(l.id ORDER BY l.id), array_agg(CASE WHEN d.id IS NULL THEN 'terminated' ELSE 'failed' END ORDER BY l.id),
                                     array_fill(NULL::text, ARRAY[count(*)::int]),
                                     array_agg(jsonb_build_object('kind', CASE WHEN d.id IS NULL THEN 'JobDeleted' ELSE 'JobDied' END,
                                                                  'message', coalesce(d.last_error, 'its job was deleted'))::text ORDER BY l.id))
        INTO ended
        FROM unnest(lost.ids) AS l(id) JOIN holdfast.workflow_runs r ON r.id = l.id AND r.ended_at IS NULL
        LEFT JOIN holdfast.dead_letters d ON d.id = l.id
        WHERE NOT EXISTS (SELECT FROM holdfast.work w WHERE w.queue = r.queue AND w.id = r.id OFFSET 0);
    END IF;
    ended := coalesce(ended, 0);
END $$;

-- Forget runs that ended before the retention, but for those tagged `forever`, and empty days of the history. Returns how many rows or slots went.
CREATE FUNCTION holdfast.empty_workflow_slots(most int) RETURNS int
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET lock_timeout = '200ms'
    AS $$
DECLARE
    kept int := (SELECT e.retention_days FROM holdfast.engine e);
    gone int;
    n    int;
BEGIN
    gone := holdfast.empty_day_slots('workflow_history', kept, most);
    DELETE FROM holdfast.workflow_runs r
    WHERE r.id = ANY (ARRAY(SELECT o.id FROM holdfast.workflow_runs o
                            WHERE o.ended_at < holdfast.now() - make_interval(days => kept) AND NOT coalesce('forever' = ANY (o.tags), false)
                            LIMIT most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS n = ROW_COUNT;
    gone := gone + n;
    -- What owners that died said of their steps.
    DELETE FROM holdfast.workflow_at_work a
    USING (SELECT o.run_id, o.generation FROM holdfast.workflow_at_work o JOIN holdfast.workflow_runs r ON r.id = o.run_id
           WHERE NOT EXISTS (SELECT FROM holdfast.work w WHERE w.queue = r.queue AND w.id = r.id AND w.status = 'processing'
                               AND w.lease_generation = o.generation OFFSET 0) LIMIT most) d
    WHERE a.run_id = d.run_id AND a.generation = d.generation;   -- the next owner may have spoken since
    GET DIAGNOSTICS n = ROW_COUNT;
    gone := gone + n;
    -- What a sender committed after the end of its run.
    DELETE FROM holdfast.workflow_signals s
    WHERE s.ctid = ANY (ARRAY(SELECT o.ctid FROM holdfast.workflow_signals o
                              WHERE o.sent_at < holdfast.now() - make_interval(days => kept)
                                AND NOT EXISTS (SELECT FROM holdfast.workflow_runs r WHERE r.id = o.run_id AND r.ended_at IS NULL) LIMIT most));
    GET DIAGNOSTICS n = ROW_COUNT;
    gone := gone + n;
    DELETE FROM holdfast.workflow_signal_keys k
    WHERE k.ctid = ANY (ARRAY(SELECT o.ctid FROM holdfast.workflow_signal_keys o WHERE o.kept_at < holdfast.now() - make_interval(days => kept) LIMIT most));
    GET DIAGNOSTICS n = ROW_COUNT;
    RETURN gone + n;
END $$;
REVOKE ALL ON FUNCTION holdfast.workflow_begin, holdfast.workflow_start, holdfast.workflow_start_many, holdfast.workflow_tell, holdfast.workflow_send, holdfast.workflow_run, holdfast.workflow_signal, holdfast.workflow_result,
    holdfast.workflow_rouse, holdfast.workflow_take_out, holdfast.workflow_ask_cancel, holdfast.workflow_cancel, holdfast.workflow_pause, holdfast.workflow_resume, holdfast.workflow_end,
    holdfast.workflow_fold, holdfast.workflow_terminate, holdfast.workflow_put, holdfast.workflow_own, holdfast.workflow_decide, holdfast.workflow_receive, holdfast.workflow_suspend,
    holdfast.workflow_outcome, holdfast.workflow_watch, holdfast.workflow_child, holdfast.workflow_call, holdfast.members_ended, holdfast.workflow_next_era,
    holdfast.workflow_reopen, holdfast.workflow_settle_lost, holdfast.empty_workflow_slots, holdfast.workflow_fork, holdfast.workflow_publish, holdfast.workflow_received_before,
    holdfast.workflow_send_end, holdfast.workflow_begin_era FROM PUBLIC;
