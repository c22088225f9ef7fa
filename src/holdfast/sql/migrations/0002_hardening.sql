-- holdfast: expand
-- What was found when the engine was tried from outside: deaths, limits, locks, rights and housekeeping. Functions and views are those of
-- schema.sql. Tables that everybody writes come last or change in their catalogue entry only.

-- What a worker says of itself, and what others say of it when it is gone.
ALTER TABLE holdfast.workers ADD COLUMN fenced_at timestamptz, ADD COLUMN blamed uuid[], ADD COLUMN death text, ADD COLUMN holds uuid[];

ALTER TABLE holdfast.migrations ADD COLUMN needs_code int;

COMMENT ON COLUMN holdfast.migrations.needs_code IS
    'The newest migration that code must know to run on this one; NULL: this one. Older code reads it to decide whether it may run.';
