-- holdfast: expand
--
-- A silence counts as a death against the jobs of a worker until it turns up alive; then it takes the count back.

ALTER TABLE holdfast.workers ADD COLUMN fenced_at timestamptz, ADD COLUMN blamed uuid[], ADD COLUMN death text;
