-- name: catalog_path
-- First in a transaction: the printed form of names, times and expressions must not depend on the session.
SELECT set_config('search_path', 'pg_catalog, pg_temp', true), set_config('quote_all_identifiers', 'off', true),
       set_config('intervalstyle', 'postgres', true), set_config('datestyle', 'ISO, YMD', true), set_config('timezone', 'UTC', true),
       set_config('standard_conforming_strings', 'on', true);

-- name: catalog_major
-- The server's major version.
SELECT current_setting('server_version_num')::int / 10000;

-- name: catalog_queues
-- Queues and their tables, also those that lack the other: (queue, table, the table is there, it is a partition of work, for which value, bytes, kind).
SELECT q.name, coalesce(q.relation, t.relname::text), t.oid IS NOT NULL, coalesce(t.attached, false), t.bound, coalesce(pg_relation_size(t.oid), 0),
       CASE WHEN q.ordering = 'key' THEN '*ordered' WHEN q.keyed THEN '*shared' ELSE '*queue' END
FROM holdfast.queues q
FULL JOIN (SELECT c.oid, c.relname, i.inhrelid IS NOT NULL AS attached, substring(pg_get_expr(c.relpartbound, c.oid) FROM '^FOR VALUES IN \(''(.*)''\)$') AS bound
           FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid AND i.inhparent = to_regclass('holdfast.work')
           WHERE c.relnamespace = 'holdfast'::regnamespace AND c.relkind = 'r'
             AND (i.inhrelid IS NOT NULL OR EXISTS (SELECT FROM holdfast.queues x WHERE x.relation = c.relname))) t
       ON t.relname = q.relation
ORDER BY 2;

-- name: catalog_tables
-- Tables and how they are stored.
SELECT c.relname::text, '', jsonb_build_object(
           'kind', c.relkind, 'persistence', c.relpersistence, 'partition_by', pg_get_partkeydef(c.oid),
           'of', (SELECT p.relname FROM pg_inherits i JOIN pg_class p ON p.oid = i.inhparent WHERE i.inhrelid = c.oid),
           'bound', pg_get_expr(c.relpartbound, c.oid),
           'options', coalesce((SELECT jsonb_object_agg(o.option_name, o.option_value) FROM pg_options_to_table(c.reloptions) o
                                WHERE o.option_name <> 'autovacuum_enabled'), '{}'))::text
FROM pg_class c WHERE c.relnamespace = 'holdfast'::regnamespace AND c.relkind IN ('r', 'p') ORDER BY 1;

-- name: catalog_columns
-- Columns of tables.
SELECT c.relname::text, a.attname::text, jsonb_build_object(
           'type', format_type(a.atttypid, a.atttypmod), 'not_null', a.attnotnull, 'default', pg_get_expr(d.adbin, d.adrelid),
           'generated', a.attgenerated <> '', 'identity', a.attidentity, 'statistics', coalesce(a.attstattarget, -1),
           'collation', (SELECT l.collname FROM pg_collation l JOIN pg_type t ON t.oid = a.atttypid
                         WHERE l.oid = a.attcollation AND a.attcollation <> t.typcollation))::text
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE c.relnamespace = 'holdfast'::regnamespace AND c.relkind IN ('r', 'p') ORDER BY 1, 2;

-- name: catalog_constraints
-- Checks, foreign keys, exclusions, and unique keys that cannot be Holdfast's. Primary keys and the unique key of a queue's table
-- are found among the indexes, NOT NULL among the columns.
SELECT c.relname::text, n.conname::text, jsonb_build_object('definition', regexp_replace(pg_get_constraintdef(n.oid), ' NOT VALID$', ''), 'valid', n.convalidated)::text
FROM pg_constraint n JOIN pg_class c ON c.oid = n.conrelid
WHERE c.relnamespace = 'holdfast'::regnamespace AND n.conparentid = 0
  AND (n.contype IN ('c', 'f', 'x') OR (n.contype = 'u' AND c.relname <> 'queues')) ORDER BY 1, 2;

-- name: catalog_indexes
-- Indexes, and whether they can be used: null for one that is being built right now.
SELECT t.relname::text, c.relname::text, jsonb_build_object(
           'definition', substring(pg_get_indexdef(c.oid) FROM ' USING (.*)$'), 'unique', i.indisunique, 'primary', i.indisprimary,
           'valid', CASE WHEN i.indisvalid AND i.indisready THEN true
                         WHEN NOT EXISTS (SELECT FROM pg_stat_progress_create_index g WHERE g.index_relid = c.oid) THEN false END)::text
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid
WHERE t.relnamespace = 'holdfast'::regnamespace AND t.relkind IN ('r', 'p') ORDER BY 1, 2;

-- name: catalog_functions
-- Functions, each by its name and the types of its arguments, their text as a hash.
SELECT p.proname::text, '(' || oidvectortypes(p.proargtypes) || ')', jsonb_build_object(
           'arguments', pg_get_function_arguments(p.oid), 'result', pg_get_function_result(p.oid), 'language', l.lanname, 'kind', p.prokind,
           'volatility', p.provolatile, 'strict', p.proisstrict, 'definer', p.prosecdef, 'parallel', p.proparallel,
           'settings', (SELECT jsonb_agg(s ORDER BY s) FROM unnest(p.proconfig) s),
           'public', EXISTS (SELECT FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) x WHERE x.grantee = 0),
           'text', encode(sha256(convert_to(coalesce(pg_get_function_sqlbody(p.oid), p.prosrc), 'UTF8')), 'hex'))::text
FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang WHERE p.pronamespace = 'holdfast'::regnamespace ORDER BY 1, 2;

-- name: catalog_views
-- Views, their text as a hash: the server prints it its own way in each version.
SELECT c.relname::text, '', jsonb_build_object('text', encode(sha256(convert_to(pg_get_viewdef(c.oid), 'UTF8')), 'hex'))::text
FROM pg_class c WHERE c.relnamespace = 'holdfast'::regnamespace AND c.relkind = 'v' ORDER BY 1;

-- name: catalog_sequences
-- Sequences.
SELECT c.relname::text, '', jsonb_build_object('type', format_type(s.seqtypid, NULL), 'increment', s.seqincrement, 'cache', s.seqcache, 'cycle', s.seqcycle)::text
FROM pg_class c JOIN pg_sequence s ON s.seqrelid = c.oid WHERE c.relnamespace = 'holdfast'::regnamespace ORDER BY 1;

-- name: catalog_triggers
-- Triggers; their tables may be those of queues, so their names are left out of the text.
SELECT c.relname::text, t.tgname::text, jsonb_build_object('definition', regexp_replace(pg_get_triggerdef(t.oid), ' ON \S+ ', ' ON * '))::text
FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
WHERE c.relnamespace = 'holdfast'::regnamespace AND NOT t.tgisinternal AND t.tgparentid = 0 ORDER BY 1, 2;

-- name: catalog_security
-- Tables with row level security: this release turns it on for none.
SELECT c.relname::text, '', jsonb_build_object('definition', 'row level security is ' || CASE WHEN c.relforcerowsecurity THEN 'forced' ELSE 'on' END)::text
FROM pg_class c
WHERE c.relnamespace = 'holdfast'::regnamespace AND c.relkind IN ('r', 'p') AND (c.relrowsecurity OR c.relforcerowsecurity) ORDER BY 1;

-- name: catalog_rows
-- Rows that the engine cannot do without.
SELECT 'engine', '', '{}' WHERE EXISTS (SELECT FROM holdfast.engine)
UNION ALL SELECT 'workflow_upkeep', '', '{}' WHERE (SELECT count(*) FROM holdfast.workflow_upkeep) = 1
UNION ALL SELECT 'archive_slots', '', '{}' WHERE (SELECT count(*) FROM holdfast.archive_slots WHERE slot BETWEEN 0 AND 31) = 32;
