-- holdfast: expand (needs code >= 1)
-- Queues without order whose keys stay with one worker while it lives. A worker that does not know of it claims from such a queue as from any other.

ALTER TABLE holdfast.queues
    ADD COLUMN affinity text NOT NULL DEFAULT 'none' CHECK (affinity IN ('none', 'key')),
    ADD CONSTRAINT queues_affinity CHECK (affinity = 'none' OR (ordering = 'none' AND NOT fair AND key_concurrency IS NULL AND key_rate IS NULL
                                                                AND aging IS NULL));
