-- holdfast: expand (needs code >= 1)
-- holdfast: no-transaction
-- Indexes for lists: runs that failed, were cancelled, terminated or set aside, at any number of runs; and the history of one queue among many.

CREATE INDEX CONCURRENTLY IF NOT EXISTS workflow_runs_wrong ON holdfast.workflow_runs (id) WHERE error IS NOT NULL;
CREATE INDEX CONCURRENTLY IF NOT EXISTS samples_queue ON holdfast.samples (queue, minute);
