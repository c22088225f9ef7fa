-- Roles for Holdfast, each with what it needs and no more. Run it as a superuser, before the first `holdfast migrate up` and again after
-- every one; it may be run at any time. The roles cannot log in: GRANT them to those that do.
--
-- It waits two seconds at most for a lock, so that no producer waits longer behind it. If a table is locked for longer it
-- fails with "canceling statement due to lock timeout" and has changed nothing: run it again.
--
--   {{owner}}: owns the schema. {{migrator}}: may become the owner, for `holdfast migrate up`.
--   {{producer}}: may enqueue and publish, and neither read nor change a job or an event. {{worker}}: runs jobs, and reads the log of events.
--   {{receiver}}: may receive messages, which become jobs, and neither read nor change any.
--   {{portal}}: may look at and change the endpoints of webhooks, tenant by tenant, and read no table.
--   {{operator_ro}}: may look at everything. {{operator_rw}}: may also change jobs, queues, tasks, schedules, subscriptions and workers.

BEGIN;
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL lock_timeout = '2s';

DO $roles$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY[{{names}}] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = name) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', name);
        END IF;
    END LOOP;
END $roles$;
GRANT {{owner}} TO {{migrator}};
GRANT {{operator_ro}} TO {{operator_rw}};

DO $schema$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = 'holdfast') THEN
        CREATE SCHEMA holdfast AUTHORIZATION {{owner}};
    END IF;
END $schema$;
ALTER SCHEMA holdfast OWNER TO {{owner}};
GRANT USAGE ON SCHEMA holdfast TO {{all_users}};

-- Everything in the schema belongs to the owner, whichever role created it. A sequence behind a column goes with its table.
DO $ownership$
DECLARE
    command text;
BEGIN
    FOR command IN
        SELECT format('ALTER %s holdfast.%I OWNER TO {{owner}}', CASE c.relkind WHEN 'v' THEN 'VIEW' WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, c.relname)
        FROM pg_class c
        WHERE c.relnamespace = 'holdfast'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'S') AND c.relowner <> '{{owner}}'::regrole
          AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype IN ('a', 'i')
                          AND d.refobjsubid > 0)
      UNION ALL
        SELECT format('ALTER FUNCTION %s OWNER TO {{owner}}', p.oid::regprocedure)
        FROM pg_proc p WHERE p.pronamespace = 'holdfast'::regnamespace AND p.proowner <> '{{owner}}'::regrole
    LOOP
        EXECUTE command;
    END LOOP;
END $ownership$;

DO $grants$
DECLARE
    queue text;
BEGIN
    IF to_regclass('holdfast.migrations') IS NULL THEN
        RAISE NOTICE 'the schema is empty: run holdfast migrate up as a member of {{migrator}}, and then this once more';
        RETURN;
    END IF;
    REVOKE ALL ON ALL TABLES IN SCHEMA holdfast FROM {{all_users}};
    REVOKE ALL ON ALL SEQUENCES IN SCHEMA holdfast FROM {{all_users}};
    REVOKE ALL ON ALL FUNCTIONS IN SCHEMA holdfast FROM {{all_users}};

    GRANT EXECUTE ON FUNCTION holdfast.enqueue, holdfast.enqueue_many, holdfast.enqueue_group, holdfast.publish, holdfast.publish_many,
        holdfast.append_events TO {{producer}}, {{worker}}, {{operator_rw}};
    GRANT EXECUTE ON FUNCTION holdfast.receive, holdfast.receive_many TO {{receiver}}, {{worker}}, {{operator_rw}};
    GRANT SELECT, DELETE ON holdfast.received TO {{worker}};
    GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast.sources TO {{worker}};

    GRANT EXECUTE ON FUNCTION holdfast.webhook_create, holdfast.webhook_get, holdfast.webhook_list, holdfast.webhook_update, holdfast.webhook_delete,
        holdfast.webhook_rotate, holdfast.webhook_deliveries_of, holdfast.webhook_delivery, holdfast.webhook_details, holdfast.webhook_redeliver, holdfast.webhook_ping,
        holdfast.webhook_range_begin, holdfast.webhook_count TO {{portal}}, {{worker}}, {{operator_rw}};
    GRANT EXECUTE ON FUNCTION holdfast.audit_act, holdfast.record_act TO {{portal}};   -- each change is in the audit: a worker alone cannot make one
    GRANT EXECUTE ON FUNCTION holdfast.webhook_request, holdfast.webhook_replied, holdfast.webhook_write, holdfast.webhook_event_types TO {{portal}}, {{worker}};
    GRANT EXECUTE ON FUNCTION holdfast.webhook_range_step, holdfast.prune_webhook_requests TO {{worker}};
    GRANT SELECT ON holdfast.webhook_ranges, holdfast.webhook_deliveries, holdfast.webhook_attempts TO {{worker}};
    GRANT EXECUTE ON FUNCTION holdfast.webhook_all, holdfast.webhook_get, holdfast.webhook_list, holdfast.webhook_deliveries_of, holdfast.webhook_delivery, holdfast.webhook_details TO {{operator_ro}};
    GRANT EXECUTE ON FUNCTION holdfast.webhook_unsealed, holdfast.webhook_sealed TO {{operator_rw}};
    GRANT EXECUTE ON FUNCTION holdfast.webhook_fan_out, holdfast.webhook_begin, holdfast.webhook_settle, holdfast.webhook_settle_lost, holdfast.webhook_reopen, holdfast.empty_webhook_slots TO {{worker}};
    GRANT SELECT ON holdfast.webhook_health, holdfast.webhook_settings TO {{worker}};
    GRANT UPDATE ON holdfast.webhook_settings TO {{worker}};
    GRANT SELECT (id, tenant, url, events, ordered, rate, concurrency, status, disabled_reason, disabled_at, created_at, version, changed) ON holdfast.webhook_endpoints TO {{worker}};
    GRANT SELECT (id, endpoint_id, scheme, key_id, created_at, expires_at) ON holdfast.webhook_secrets TO {{worker}};   -- what is sealed comes from webhook_begin()

    GRANT EXECUTE ON FUNCTION holdfast.workflow_start, holdfast.workflow_start_many, holdfast.workflow_signal, holdfast.workflow_cancel, holdfast.workflow_result TO {{producer}}, {{worker}}, {{operator_rw}};
    GRANT EXECUTE ON FUNCTION holdfast.workflow_result TO {{operator_ro}};
    GRANT EXECUTE ON FUNCTION holdfast.workflow_pause, holdfast.workflow_resume, holdfast.workflow_terminate TO {{operator_rw}};
    GRANT EXECUTE ON FUNCTION holdfast.workflow_end, holdfast.workflow_put, holdfast.workflow_own, holdfast.workflow_decide, holdfast.workflow_receive, holdfast.workflow_suspend, holdfast.workflow_child,
        holdfast.workflow_call, holdfast.workflow_publish, holdfast.workflow_next_era, holdfast.workflow_begin_era, holdfast.workflow_reopen, holdfast.workflow_settle_lost, holdfast.empty_workflow_slots TO {{worker}};
    GRANT SELECT ON holdfast.workflow_runs, holdfast.workflow_steps, holdfast.workflow_signals, holdfast.workflow_history, holdfast.workflow_types TO {{worker}};
    GRANT INSERT, UPDATE ON holdfast.workflow_steps, holdfast.workflow_types TO {{worker}};
    GRANT UPDATE ON holdfast.workflow_runs TO {{worker}};
    GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast.workflow_at_work TO {{worker}};
    GRANT USAGE ON SEQUENCE holdfast.workflow_seq TO {{worker}};

    -- To lock a row, and to find the one to change, needs more than SELECT: hence UPDATE beside DELETE.
    GRANT SELECT ON holdfast.migrations, holdfast.queues, holdfast.asleep TO {{worker}};
    GRANT SELECT, INSERT ON holdfast.archive, holdfast.parked_keys TO {{worker}};
    GRANT SELECT, UPDATE ON holdfast.archive_slots TO {{worker}};
    GRANT SELECT, UPDATE (last_sweep_at, grace_until, last_tidy_at, misfits_at) ON holdfast.engine TO {{worker}};   -- how long finished jobs are kept is not the worker's
    GRANT SELECT, DELETE ON holdfast.audit, holdfast.group_counts, holdfast.samples TO {{worker}};
    GRANT EXECUTE ON FUNCTION holdfast.take_sample TO {{worker}};
    GRANT SELECT, DELETE ON holdfast.operations TO {{worker}};   -- it runs operations of operators, and begins none
    GRANT UPDATE (state, runner, token, beat_at, started_at, ended_at, stopped_by, runs, place, done, looked_at, results, left_out, paced_until, fault, retry_at)
        ON holdfast.operations TO {{worker}}, {{operator_rw}};   -- who began it, and what it does, stays as it was
    GRANT SELECT, UPDATE, DELETE ON holdfast.groups, holdfast.idempotency, holdfast.replacements TO {{worker}};
    GRANT SELECT, INSERT, DELETE ON holdfast.seats, holdfast.sleepers TO {{worker}};
    GRANT SELECT, INSERT, UPDATE ON holdfast.breakers, holdfast.schedules TO {{worker}};
    -- A worker whose process was only stopped puts back the jobs that became dead letters because of it: hence INSERT on `work` and DELETE on `dead_letters`.
    GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast.work, holdfast.dead_letters, holdfast.errors, holdfast.limits, holdfast.misfits, holdfast.claims, holdfast.workers, holdfast.key_limits, holdfast.key_tokens, holdfast.key_holds, holdfast.paused_tasks, holdfast.quarantine,
        holdfast.once, holdfast.progress, holdfast.fences, holdfast.throughput, holdfast.firings, holdfast.redriven TO {{worker}};
    GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast.subscriptions, holdfast.event_failures, holdfast.projection_builds TO {{worker}};
    GRANT EXECUTE ON FUNCTION holdfast.restart_projection, holdfast.begin_reshard, holdfast.finish_reshard, holdfast.rebuild_obstacle, holdfast.table_parts, holdfast.make_shadow, holdfast.seed_shadow, holdfast.written_beside, holdfast.swap_projection, holdfast.cancel_build,
        holdfast.drop_old_tables TO {{worker}}, {{operator_rw}};   -- they do what their caller may: the tables are the users' own
    GRANT SELECT, DELETE ON holdfast.event_ids TO {{worker}};
    GRANT SELECT ON holdfast.event_log, holdfast.event_pages, holdfast.event_streams, holdfast.event_seq, holdfast.subscription_lag TO {{worker}};
    GRANT EXECUTE ON FUNCTION holdfast.turn_page, holdfast.turn_or_look, holdfast.read_events, holdfast.event_seq_at, holdfast.event_seq_of, holdfast.event_position_at,
        holdfast.event_position, holdfast.empty_event_slots, holdfast.hold_log_start TO {{worker}};
    GRANT SELECT ON holdfast.key_rules TO {{worker}};
    GRANT SELECT ON holdfast.oldest_due, holdfast.storage TO {{worker}};   -- for its metrics
    GRANT EXECUTE ON FUNCTION holdfast.jobs_ended, holdfast.close_group, holdfast.enqueue_specs, holdfast.conflict_text, holdfast.wake,
        holdfast.note_breaker, holdfast.close_breaker, holdfast.empty_archive_slot, holdfast.jobs_ended_at_commit, holdfast.try_callback,
        holdfast.lock_streams, holdfast.try_streams TO {{worker}};
    GRANT USAGE ON SEQUENCE holdfast.work_seq TO {{worker}};

    GRANT SELECT ON ALL TABLES IN SCHEMA holdfast TO {{operator_ro}};
    REVOKE SELECT ON holdfast.webhook_secrets, holdfast.webhook_endpoints, holdfast.webhook_requests, holdfast.web_requests FROM {{operator_ro}};   -- but for secrets and tokens
    GRANT SELECT (id, endpoint_id, scheme, key_id, public_key, created_at, expires_at) ON holdfast.webhook_secrets TO {{operator_ro}};
    GRANT SELECT (id, tenant, url, events, ordered, scheme, rate, burst, concurrency, headers_key_id, description, status, disabled_reason, disabled_at, enabled_at,
                  created_at, updated_at, version, changed) ON holdfast.webhook_endpoints TO {{operator_ro}};
    GRANT SELECT ON SEQUENCE holdfast.event_seq TO {{operator_ro}};
    GRANT EXECUTE ON FUNCTION holdfast.scaler_backlog, holdfast.turn_or_look, holdfast.read_events, holdfast.event_seq_at, holdfast.event_seq_of, holdfast.event_position_at,
        holdfast.event_position TO {{operator_ro}};   -- not turn_page: who holds its transaction open keeps everybody from turning

    GRANT INSERT, UPDATE, DELETE ON holdfast.work, holdfast.archive, holdfast.dead_letters, holdfast.paused_tasks, holdfast.key_holds, holdfast.key_rules, holdfast.schedules,
        holdfast.firings, holdfast.subscriptions, holdfast.event_failures, holdfast.projection_builds, holdfast.redriven, holdfast.web_views,
        holdfast.web_requests TO {{operator_rw}};
    GRANT SELECT ON holdfast.web_requests TO {{operator_rw}};   -- nobody else may read the reply to a program
    GRANT UPDATE (retention_days, hold_days, hold_bytes) ON holdfast.event_log TO {{operator_rw}};
    GRANT INSERT ON holdfast.event_types TO {{operator_rw}};   -- a version never changes: no UPDATE, no DELETE
    GRANT USAGE ON SEQUENCE holdfast.work_seq TO {{operator_rw}};
    GRANT UPDATE ON holdfast.queues, holdfast.limits, holdfast.key_limits, holdfast.breakers, holdfast.groups, holdfast.claims, holdfast.workers
        TO {{operator_rw}};
    GRANT INSERT (id, verb, selection, options, bounds, actor, surface, address, reason, created_at, total, capped, audit)
        ON holdfast.operations TO {{operator_rw}};   -- the role is the server's to note
    GRANT EXECUTE ON FUNCTION holdfast.audit_operation TO {{worker}}, {{operator_rw}};
    GRANT UPDATE (retention_days) ON holdfast.engine TO {{operator_rw}};
    GRANT UPDATE, DELETE ON holdfast.quarantine, holdfast.parked_keys TO {{operator_rw}};
    GRANT DELETE ON holdfast.errors, holdfast.misfits, holdfast.once, holdfast.progress, holdfast.fences, holdfast.idempotency, holdfast.sleepers TO {{operator_rw}};
    GRANT EXECUTE ON FUNCTION holdfast.jobs_ended, holdfast.close_group, holdfast.enqueue_specs, holdfast.conflict_text, holdfast.wake,
        holdfast.lock_streams, holdfast.try_callback, holdfast.jobs_ended_at_commit, holdfast.close_breaker, holdfast.create_queue, holdfast.order_queue,
        holdfast.audit_act, holdfast.record_act, holdfast.audit_more, holdfast.rebase_events, holdfast.turn_page, holdfast.hold_log_start, holdfast.erase_events,
        holdfast.erase_event_key TO {{operator_rw}};   -- no right on the audit itself: time and role are the server's to note

    GRANT EXECUTE ON FUNCTION holdfast.workflow_reopen, holdfast.workflow_fork TO {{operator_rw}};
    -- What was recorded is nobody's to change: a failure that is to be tried again is removed, a record that code no longer asks for loses its place.
    GRANT UPDATE (state, error) ON holdfast.workflow_runs TO {{operator_rw}};
    GRANT UPDATE (ordinal), DELETE ON holdfast.workflow_steps TO {{operator_rw}};
    GRANT UPDATE (taken_by), DELETE ON holdfast.workflow_signals TO {{operator_rw}};   -- one that code cannot take is dropped
    GRANT DELETE ON holdfast.workflow_signal_keys TO {{operator_rw}};

    -- Statements name the table of one queue. A queue that is made later gets the same: create_queue() copies from `work`.
    FOR queue IN SELECT q.relation FROM holdfast.queues q LOOP
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast.%I TO {{worker}}', queue);
        EXECUTE format('GRANT INSERT, UPDATE, DELETE ON holdfast.%I TO {{operator_rw}}', queue);
    END LOOP;
{{limited}}END $grants$;

COMMIT;
