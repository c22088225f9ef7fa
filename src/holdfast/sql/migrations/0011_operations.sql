-- holdfast: expand (needs code >= 1)
-- What people who operate the engine see: the audit says by which surface, from where and why, and what was changed; acts over many outlive their starter.

ALTER TABLE holdfast.audit ADD COLUMN surface text, ADD COLUMN address inet, ADD COLUMN reason text, ADD COLUMN before jsonb, ADD COLUMN after jsonb,
    ADD COLUMN operation uuid;

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

-- Roles that were given rights by hand, or by the script of the release before: who runs jobs carries on what operators began, who looks may look at it.
DO $do$
DECLARE
    granted text;
BEGIN
    FOR granted IN
        SELECT format('GRANT %s TO %s', n.rights, CASE had.grantee WHEN 0 THEN 'PUBLIC' ELSE had.grantee::regrole::text END)
        FROM (VALUES
            ('INSERT', 'claims', 'SELECT, UPDATE, DELETE ON holdfast.operations'),
            ('INSERT', 'claims', 'EXECUTE ON FUNCTION holdfast.audit_operation'),
            ('SELECT', 'jobs',   'SELECT ON holdfast.operations')
        ) AS n(had, before, rights)
        JOIN pg_class c ON c.relnamespace = 'holdfast'::regnamespace AND c.relname = n.before
        CROSS JOIN LATERAL aclexplode(c.relacl) AS had
        WHERE had.privilege_type = n.had AND had.grantee <> c.relowner
      UNION ALL
        SELECT format('GRANT %s TO %s', n.rights, had.grantee::regrole::text)
        FROM (VALUES ('SELECT, INSERT, UPDATE ON holdfast.operations'), ('EXECUTE ON FUNCTION holdfast.audit_operation')) AS n(rights)
        CROSS JOIN pg_proc p CROSS JOIN LATERAL aclexplode(p.proacl) AS had
        WHERE p.pronamespace = 'holdfast'::regnamespace AND p.proname = 'audit_more' AND had.privilege_type = 'EXECUTE'
          AND had.grantee NOT IN (0, p.proowner)
    LOOP
        EXECUTE granted;
    END LOOP;
END $do$;
