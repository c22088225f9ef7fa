-- holdfast: expand (needs code >= 1)
-- holdfast: no-transaction
CREATE INDEX CONCURRENTLY IF NOT EXISTS idempotency_job ON holdfast.idempotency (job_id);
