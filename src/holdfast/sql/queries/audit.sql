-- name: audit
-- anywhere
-- Write down what an operator did, in the transaction that does it.
-- $1 actor, $2 action, $3 selection (JSON), $4 how many, $5 surface, $6 address, $7 reason, $8 before (JSON), $9 after (JSON), $10 operation
SELECT ARRAY[holdfast.record_act($1::text, $2::text, $3::text::jsonb, $4::bigint, $5::text, $6::text, $7::text, $8::text::jsonb, $9::text::jsonb,
                                 $10::text::uuid)::text];

-- name: audit_add
-- An act in several transactions: count what this one did. False: there is no such entry of this role.
-- $1 id, $2 how many more
SELECT holdfast.audit_more($1, $2) IS NOT NULL;

-- name: audit_begin
-- The entry of an act that takes several transactions; returns its id.
-- $1 actor, $2 action, $3 selection (JSON), $4 how many, $5 surface, $6 address, $7 reason, $8 before (JSON), $9 after (JSON), $10 operation
SELECT holdfast.record_act($1, $2, $3::text::jsonb, $4::bigint, $5, $6, $7, $8::text::jsonb, $9::text::jsonb, $10::text::uuid);

-- name: list_audit
-- Acts of operators, the last first, and the entry where the search stopped (NULL: it has seen the first). It reads a bounded number of entries.
-- $1 before this id, $2 limit, $3 how many to look at, $4 actor, $5 action or its noun, $6 a value in the selection
WITH looked AS MATERIALIZED (
    SELECT a.* FROM holdfast.audit a WHERE $1::bigint IS NULL OR a.id < $1 ORDER BY a.id DESC LIMIT $3
), fitting AS MATERIALIZED (
    SELECT a.* FROM looked a
    WHERE ($4::text IS NULL OR a.actor = $4)
      AND ($5::text IS NULL OR a.action = $5 OR starts_with(a.action, $5 || ' '))
      AND ($6::text IS NULL OR jsonb_path_exists(a.selection, 'strict $.** ? (@ == $wanted)', jsonb_build_object('wanted', $6), true))
    ORDER BY a.id DESC LIMIT $2
), reached AS (
    SELECT CASE WHEN count(*) >= $3 THEN min(l.id) END AS id FROM looked l
)
SELECT r.id, a.id, a.at, a.actor, a.action, a.selection::text, a.count, a.role, a.surface, host(a.address), a.reason, a.before::text, a.after::text, a.operation
FROM reached r LEFT JOIN fitting a ON true ORDER BY a.id DESC;
