-- Schedules -------------------------------------------------------------------------------------------------------

-- When to enqueue which job. A slot is a moment that the expression and the zone alone decide, so that every worker means the same one.
CREATE TABLE holdfast.schedules (
    name          text PRIMARY KEY CHECK (name ~ '^[A-Za-z0-9_.-]{1,200}$'),
    origin        text NOT NULL CHECK (origin IN ('code', 'operator')),   -- workers write those of their code, and fire no others of code
    cron          text,
    every         int CHECK (every > 0),      -- seconds, counted from 1970
    tz            text NOT NULL,
    missed        text NOT NULL CHECK (missed IN ('skip', 'run_once', 'run_all')),
    overlap       text NOT NULL CHECK (overlap IN ('allow', 'skip', 'queue')),
    task          text NOT NULL,
    version       int  NOT NULL,
    queue         text NOT NULL,
    payload       jsonb NOT NULL,
    partition_key text,
    priority      smallint NOT NULL,
    max_attempts  int NOT NULL,
    tags          text[],
    metadata      jsonb,
    fingerprint   text NOT NULL,              -- of all of the above
    retired       text[] NOT NULL DEFAULT '{}',   -- fingerprints it had before, so that a worker of old code does not bring one back
    declared_at   timestamptz,                -- when a worker last reported that its code has it in this form
    created_at    timestamptz NOT NULL,
    paused_at     timestamptz,
    paused_by     text,
    decided_to    timestamptz NOT NULL,       -- no slot up to here fires by itself; never moves back, whatever the clock does
    next_at       timestamptz,                -- the first slot after it; NULL: there is none
    kept_slot     timestamptz,                -- overlap 'queue': waits until the job before it has ended
    problem       text,                       -- why the last try to fire it failed
    forgotten_from timestamptz,               -- between these, firings were removed: what fired there is not known any more
    forgotten_to   timestamptz,
    CHECK ((cron IS NULL) <> (every IS NULL))
) WITH (fillfactor = 50);

-- Every decided slot. The key makes a slot fire once, however many workers see it.
CREATE TABLE holdfast.firings (
    schedule text NOT NULL REFERENCES holdfast.schedules ON DELETE CASCADE,
    slot     timestamptz NOT NULL,
    kind     text NOT NULL CHECK (kind IN ('slot', 'run', 'backfill', 'skipped')),
    at       timestamptz NOT NULL,
    job_id   uuid,
    queue    text,
    PRIMARY KEY (schedule, slot)
);
CREATE INDEX firings_jobs ON holdfast.firings (schedule, slot) WHERE job_id IS NOT NULL;
CREATE INDEX firings_at ON holdfast.firings (at);
