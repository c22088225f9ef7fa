-- holdfast: expand (needs code >= 1)
-- continue_as_new(): the key of a signal that an era before received is a duplicate, a call that lost holds nothing back, and the end of a call or child of an
-- era before is not taken for one of the same key. Operators may drop a signal that code cannot take.

-- Keys of signals that eras before have received: the same key is not sent again to that run.
CREATE TABLE holdfast.workflow_signal_keys (
    run_id          uuid NOT NULL,
    idempotency_key text NOT NULL,   -- as in workflow_signals
    kept_at         timestamptz NOT NULL,   -- when that era ended: forgotten after the retention
    PRIMARY KEY (run_id, idempotency_key)
);
CREATE INDEX workflow_signal_keys_kept ON holdfast.workflow_signal_keys USING brin (kept_at);

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
CREATE OR REPLACE FUNCTION holdfast.workflow_send(run uuid, signal text, body jsonb, once_key text) RETURNS text
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

-- The end of a child or of called jobs, as a message. `linked`, as in the record of its start, tells it from another of the same key in a later era.
CREATE FUNCTION holdfast.workflow_send_end(run uuid, name text, linked uuid, outcome jsonb) RETURNS void
    LANGUAGE sql VOLATILE
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT holdfast.workflow_send(run, name, outcome || jsonb_build_object('linked', linked), name || ':' || linked) $$;

-- Runs have ended: their state, result and error. What they recorded becomes one row each, their parents get a message, and open children are cancelled.
-- Locks are waited for briefly: the settle of the job is tried again then. Returns how many were open.
CREATE OR REPLACE FUNCTION holdfast.workflow_end(ids uuid[], states text[], results text[], errors text[]) RETURNS int
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

-- What these runs recorded becomes one row of the history each. `goes_on`: they have another era, signals that were not taken stay, and so do the keys of those
-- that were.
CREATE OR REPLACE FUNCTION holdfast.workflow_fold(runs uuid[], goes_on boolean) RETURNS void
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

-- Whether what a run waits for is there: a message of that name (the oldest), else its time, else a cancel. If so it is recorded, with `made`, and returned.
-- `answer`: decided, wait, busy or lost. One that this generation has recorded already (its answer was lost) is returned as it is.
CREATE OR REPLACE FUNCTION holdfast.workflow_decide(
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

-- A run waits for another that somebody else has started, or it itself under another key or in an era before. If that one has ended, the message comes at once.
CREATE OR REPLACE FUNCTION holdfast.workflow_watch(watched uuid, by_run uuid, by_key text) RETURNS void
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

-- Members of groups have ended, in this transaction: those that a run waits for leave what they returned in its mailbox, and the last of them wakes it.
-- Called by jobs_ended(), after the groups were counted.
CREATE OR REPLACE FUNCTION holdfast.members_ended(job_ids uuid[], states text[], group_ids uuid[]) RETURNS void
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
CREATE OR REPLACE FUNCTION holdfast.workflow_next_era(of_queue text, run uuid, under bigint, token uuid, from_era int, input jsonb, OUT answer text, OUT at timestamptz)
    LANGUAGE sql VOLATILE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    AS $$ SELECT e.answer, e.at FROM holdfast.workflow_begin_era(of_queue, run, under, token, from_era, input, '{}') e $$;

-- Another run with the records of this one under `keys` in its last era: its code is replayed up to there, and continues. It has the same input, the signals,
-- whenever they were sent, and the ends of children that those records started. What those records took stays taken. Nobody but the operator is its parent.
-- `conflict`: exists (the id is taken), queue (it is gone), or input (of an ended run it is no longer kept).
CREATE OR REPLACE FUNCTION holdfast.workflow_fork(run uuid, keys text[], from_key text, new_id text, new_version int, OUT run_id uuid, OUT conflict text)
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

-- Forget runs that ended before the retention, but for those tagged `forever`, and empty days of the history. Returns how many rows or slots went.
CREATE OR REPLACE FUNCTION holdfast.empty_workflow_slots(most int) RETURNS int
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

REVOKE ALL ON FUNCTION holdfast.workflow_received_before, holdfast.workflow_send_end, holdfast.workflow_begin_era FROM PUBLIC;

-- Roles that were given rights get those on what is new: who reads runs, who acts on them as an operator, and workers.
DO $do$
DECLARE
    granted text;
BEGIN
    FOR granted IN
        SELECT format('GRANT SELECT ON holdfast.workflow_signal_keys TO %s', CASE had.grantee WHEN 0 THEN 'PUBLIC' ELSE had.grantee::regrole::text END)
        FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) AS had
        WHERE c.oid = 'holdfast.workflow_calls'::regclass AND had.privilege_type = 'SELECT' AND had.grantee <> c.relowner
      UNION ALL
        SELECT format('GRANT %s TO %s', n.rights, had.grantee::regrole::text)
        FROM (VALUES ('UPDATE (taken_by), DELETE ON holdfast.workflow_signals'), ('DELETE ON holdfast.workflow_signal_keys')) AS n(rights)
        CROSS JOIN pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) AS had
        WHERE c.oid = 'holdfast.workflow_steps'::regclass AND had.privilege_type = 'DELETE' AND had.grantee NOT IN (0, c.relowner)
      UNION ALL
        SELECT format('GRANT EXECUTE ON FUNCTION holdfast.workflow_begin_era TO %s', had.grantee::regrole::text)
        FROM pg_proc p CROSS JOIN LATERAL aclexplode(p.proacl) AS had
        WHERE p.pronamespace = 'holdfast'::regnamespace AND p.proname = 'workflow_next_era' AND had.privilege_type = 'EXECUTE' AND had.grantee NOT IN (0, p.proowner)
    LOOP
        EXECUTE granted;
    END LOOP;
END $do$;
