-- holdfast: expand (needs code >= 1)
-- What people who operate the engine see: the audit says by which surface, from where and why, and what was changed.

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
