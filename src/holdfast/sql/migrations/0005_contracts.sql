-- holdfast: expand (needs code >= 1)
-- Contracts of event types. And a job that only newer code can take waits for it without end.

-- Contracts: what the data of each event type and version looks like, as `holdfast contracts store` wrote it down. A version never changes.
CREATE TABLE holdfast.event_types (
    name          text COLLATE "C" NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 200),
    version       int NOT NULL CHECK (version > 0),
    reader        jsonb NOT NULL,   -- JSON Schema of what its code takes
    writer        jsonb NOT NULL,   -- of what its code writes: every field, and no other
    digest        bytea NOT NULL CHECK (octet_length(digest) = 32),   -- of both, without their texts
    compatibility text NOT NULL CHECK (compatibility IN ('backward', 'forward', 'full', 'none')),
    stored_at     timestamptz NOT NULL,
    release       text,   -- of the application, where it was said
    PRIMARY KEY (name, version)
);

ALTER TABLE holdfast.misfits ADD COLUMN newer boolean NOT NULL DEFAULT false;   -- only newer code can take it: where all say so, it waits without end

-- Roles that were given rights by hand, or by the script of the release before: who looks may look at contracts, and who makes queues may store them.
DO $do$
DECLARE
    granted text;
BEGIN
    FOR granted IN
        SELECT format('GRANT %s TO %s', n.rights, CASE had.grantee WHEN 0 THEN 'PUBLIC' ELSE had.grantee::regrole::text END)
        FROM (VALUES
            ('SELECT',  'jobs',         'SELECT ON holdfast.event_types'),
            ('EXECUTE', 'create_queue', 'SELECT, INSERT ON holdfast.event_types')
        ) AS n(had, before, rights)
        JOIN LATERAL (SELECT p.proacl AS acl, p.proowner AS owner FROM pg_proc p WHERE n.had = 'EXECUTE' AND p.pronamespace = 'holdfast'::regnamespace AND p.proname = n.before
                    UNION ALL
                      SELECT c.relacl, c.relowner FROM pg_class c WHERE n.had <> 'EXECUTE' AND c.relnamespace = 'holdfast'::regnamespace AND c.relname = n.before) o ON true
        CROSS JOIN LATERAL aclexplode(o.acl) AS had
        WHERE had.privilege_type = n.had AND had.grantee <> o.owner
    LOOP
        EXECUTE granted;
    END LOOP;
END $do$;
