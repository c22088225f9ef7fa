"""Renew: keep what a worker holds, and learn what it has lost."""

from collections.abc import Sequence
from uuid import UUID

from ..model.job import Grant
from ..sql import query
from .statement import Flow, Row, Statement, ids, nothing


def heartbeat(worker: str) -> Statement[str | None]:
    """The worker's status, or None when the registry does not know it."""
    return Statement("heartbeat", query("heartbeat"), (worker,), lambda rows: rows[0][0] if rows else None)


def report_held(worker: str, ids: Sequence[UUID]) -> Statement[None]:
    return Statement("report_held", query("report_held"), (worker, list(ids)), nothing)


def renew(worker: str, grants: Sequence[Grant], lease: float) -> Flow[tuple[list[Grant], list[Grant]]]:
    """Renew the claims behind these grants; answers (lost, to be cancelled). Drops claim rows nobody needs any more."""
    tokens = sorted({g.token for g in grants})
    lost: list[Grant] = []
    cancel: list[Grant] = []
    if grants:
        yield from Statement("renew", query("renew"), (tokens, lease), ids)
        by_key = {(g.id, g.generation): g for g in grants}
        for job_id, generation, gone in (yield from _check_owned(grants)):
            (lost if gone else cancel).append(by_key[job_id, generation])
    yield from Statement("tidy_claims", query("tidy_claims"), (worker, tokens), nothing)
    return lost, cancel


def _check_owned(grants: Sequence[Grant]) -> Statement[list[tuple[UUID, int, bool]]]:
    def decode(rows: Sequence[Row]) -> list[tuple[UUID, int, bool]]:
        return [(r[0], r[1], r[2]) for r in rows]

    columns = (
        [g.queue for g in grants],
        [g.id for g in grants],
        [g.generation for g in grants],
        [g.token for g in grants],
    )
    return Statement("check_owned", query("check_owned"), columns, decode)
