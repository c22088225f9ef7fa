-- holdfast: expand
-- A worker reports which jobs it holds, so that the doctor finds one that its worker has forgotten.

ALTER TABLE holdfast.workers ADD COLUMN holds uuid[];
