-- holdfast: expand
--
-- Workers write down the signatures of their tasks, and which of them refused the payload of a job.

CREATE TABLE holdfast.misfits (
    job_id       uuid NOT NULL,
    signature    text NOT NULL,   -- a value of workers.signatures
    queue        text NOT NULL,
    available_at timestamptz NOT NULL,
    reason       text NOT NULL,
    at           timestamptz NOT NULL,
    PRIMARY KEY (job_id, signature)
);
CREATE INDEX misfits_at ON holdfast.misfits (at);

ALTER TABLE holdfast.workers ADD COLUMN signatures jsonb;
