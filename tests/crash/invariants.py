"""What holds for runs at every moment, whoever is lost: looked at while crashes go on, and each time in one snapshot."""

import contextlib
from typing import Any

from holdfast.errors import DatabaseUnavailable
from holdfast.shapes.workflows import health
from holdfast.testing import Kit

# I4: an open run has one job, and one that ended has none.
JOBS = """
SELECT r.workflow, r.key, r.state, w.jobs
FROM holdfast.workflow_runs r CROSS JOIN LATERAL (SELECT count(*) AS jobs FROM holdfast.work w WHERE w.id = r.id) w
WHERE w.jobs <> CASE WHEN r.ended_at IS NULL THEN 1 ELSE 0 END
"""
# I2: nobody writes under a claim that was never given.
OWNERS = """
SELECT s.key, s.generation, w.lease_generation FROM holdfast.workflow_steps s JOIN holdfast.work w ON w.id = s.run_id
WHERE s.generation > w.lease_generation
"""
# I7: a signal is taken by a record that is there, or unread.
TAKEN = """
SELECT g.name, g.taken_by FROM holdfast.workflow_signals g
WHERE g.taken_by IS NOT NULL AND g.name !~ ':'
  AND NOT EXISTS (SELECT FROM holdfast.workflow_steps s WHERE s.run_id = g.run_id AND s.key = g.taken_by)
"""
# I1: what was decided.
DECIDED = """
SELECT s.run_id, r.era, s.key, s.n, s.generation, s.kind, s.outcome, s.result, s.error FROM holdfast.workflow_steps s
JOIN holdfast.workflow_runs r ON r.id = s.run_id WHERE s.outcome NOT IN ('retrying', 'calling')
"""


class Invariants:
    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self._decided: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self.looks = 0

    def look(self) -> None:
        sql, run = self._kit.sql, self._kit.database.run
        assert sql(JOBS) == [], "I4"
        assert sql(OWNERS) == [], "I2"
        assert sql(TAKEN) == [], "I7"
        with contextlib.suppress(DatabaseUnavailable):  # cut off with the worker: the next look asks again
            assert run(health.stuck) == [], "I5, I6"
            assert run(health.orphans) == [], "I8"
        for row in sql(DECIDED):
            place = (row["run_id"], row["era"], row["key"])
            found = (row["n"], row["generation"], row["kind"], row["outcome"], row["result"], row["error"])
            assert self._decided.setdefault(place, found) == found, f"I1: {place} has changed"
        self.looks += 1
