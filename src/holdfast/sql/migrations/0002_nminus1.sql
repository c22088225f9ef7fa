-- holdfast: expand

ALTER TABLE holdfast.migrations ADD COLUMN needs_code int;
COMMENT ON COLUMN holdfast.migrations.needs_code IS
    'The newest migration that code must know to run on this one; NULL: this one. Older code reads it to decide whether it may run.';
