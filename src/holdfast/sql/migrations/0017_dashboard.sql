-- holdfast: expand (needs code >= 1)
-- For the dashboard: a redrive can be undone, views are kept, and a request of a program is done once. The name of a group of dead letters does not tell
-- what their error says.

-- What a redrive put back, as it was when it was dead: what has not started since goes back there when the act is undone. For a day.
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
    parked      boolean     NOT NULL    -- its key was parked for it, and went on
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

-- Requests of programs that have an Idempotency-Key, and what was said to each. For a day.
CREATE TABLE holdfast.web_requests (
    who    text        NOT NULL,
    key    text        NOT NULL,
    digest text        NOT NULL,   -- of the request: another one under the same key is a slip
    at     timestamptz NOT NULL,
    said   text,                   -- the answer, as it was shown, without what is shown once; NULL: it is not known
    PRIMARY KEY (who, key)
);
CREATE INDEX web_requests_at ON holdfast.web_requests (at);

-- Roles that were given rights get those on what is new: who puts dead letters back, and who acts as an operator.
DO $do$
DECLARE
    granted text;
BEGIN
    FOR granted IN
        SELECT format('GRANT %s TO %s', n.rights, CASE had.grantee WHEN 0 THEN 'PUBLIC' ELSE had.grantee::regrole::text END)
        FROM (VALUES
            ('DELETE', 'dead_letters', 'SELECT, INSERT, UPDATE, DELETE ON holdfast.redriven'),
            ('SELECT', 'jobs',         'SELECT ON holdfast.redriven, holdfast.web_views')
        ) AS n(had, before, rights)
        JOIN pg_class c ON c.relnamespace = 'holdfast'::regnamespace AND c.relname = n.before
        CROSS JOIN LATERAL aclexplode(c.relacl) AS had
        WHERE had.privilege_type = n.had AND had.grantee <> c.relowner
      UNION ALL
        SELECT format('GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast.web_views, holdfast.web_requests TO %s', had.grantee::regrole::text)
        FROM pg_proc p CROSS JOIN LATERAL aclexplode(p.proacl) AS had
        WHERE p.pronamespace = 'holdfast'::regnamespace AND p.proname = 'audit_more' AND had.privilege_type = 'EXECUTE'
          AND had.grantee NOT IN (0, p.proowner)
    LOOP
        EXECUTE granted;
    END LOOP;
END $do$;

-- One row, so that a default of its own costs nothing. Workers write it with every sweep: the last to be locked.
ALTER TABLE holdfast.engine ADD COLUMN salt uuid NOT NULL DEFAULT gen_random_uuid();
