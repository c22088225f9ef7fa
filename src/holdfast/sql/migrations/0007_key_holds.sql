-- holdfast: expand (needs code >= 1)
-- Keys from which nothing is claimed before a moment. With `trial` one job is claimed then, and the rest waits until somebody lifts the hold
-- or renews it. The trial is the job trial_id under the claim trial_token; who decides after it sets `decided`.
CREATE TABLE holdfast.key_holds (
    queue         text NOT NULL,
    partition_key text NOT NULL,
    until         timestamptz NOT NULL,   -- infinity: until it is lifted
    trial         boolean NOT NULL DEFAULT false,
    decided       boolean NOT NULL DEFAULT false,   -- the hold was renewed since its trial was claimed
    held_at       timestamptz NOT NULL,
    reason        text,
    trial_id      uuid,
    trial_token   uuid,
    PRIMARY KEY (queue, partition_key)
) WITH (fillfactor = 50);
CREATE INDEX key_holds_until ON holdfast.key_holds (queue, until);
CREATE INDEX key_holds_trial ON holdfast.key_holds (queue, until, partition_key) WHERE trial;

-- Claims read it: who may do that with `work` may do it here.
DO $do$
DECLARE
    granted text;
BEGIN
    FOR granted IN
        SELECT format('GRANT %s ON holdfast.key_holds TO %s', n.rights, CASE had.grantee WHEN 0 THEN 'PUBLIC' ELSE had.grantee::regrole::text END)
        FROM (VALUES ('SELECT', 'SELECT'), ('UPDATE', 'SELECT, INSERT, UPDATE, DELETE')) AS n(had, rights)
        CROSS JOIN pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) AS had
        WHERE c.oid = 'holdfast.work'::regclass AND had.privilege_type = n.had AND had.grantee <> c.relowner
    LOOP
        EXECUTE granted;
    END LOOP;
END $do$;
