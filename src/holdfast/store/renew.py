"""Renew: keep the jobs that a worker holds, and learn which it has lost."""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar
from uuid import UUID

from ..model.job import Owned
from ..model.vitals import Vitals
from .arrays import int_array, plain_array, text_array, uuid_array
from .statement import Flow, Row, Statement, ids, named, nothing


class Ended(NamedTuple):
    """How many jobs of each claim are known to have ended, on a server of that timeline."""

    timeline: int
    counts: Mapping[str, int]  # by token


NOTHING_ENDED = Ended(0, {})
OwnedJob = TypeVar("OwnedJob", bound=Owned)


def heartbeat(worker: str, vitals: Vitals | None = None) -> Statement[str | None]:
    """The worker's status, or None when the registry does not know it."""
    said = None if vitals is None else json.dumps(vitals.as_json())
    return named("heartbeat", (worker, said), lambda rows: rows[0][0] if rows else None)


def report_held(worker: str, ids: Sequence[UUID]) -> Statement[None]:
    return named("report_held", (worker, list(ids)), nothing)


def renew(
    worker: str, held: Sequence[OwnedJob], lease: float, ended: Ended = NOTHING_ENDED
) -> Flow[tuple[list[OwnedJob], list[OwnedJob]]]:
    """Renew the claims of these jobs; returns (lost, to be cancelled). Drops claim rows nobody needs any more; `ended`: the
    claims whose ends are known."""
    tokens = uuid_array(sorted({job.token_text for job in held}))
    lost: list[OwnedJob] = []
    cancel: list[OwnedJob] = []
    if held:
        yield from named("renew", (tokens, lease), ids)
        by_key = {(job.id_text, job.generation): job for job in held}
        for job_id, generation, gone in (yield from _check_owned(held)):
            (lost if gone else cancel).append(by_key[str(job_id), generation])
    counts = int_array(ended.counts.values())
    params = (worker, tokens, uuid_array(list(ended.counts)), counts, ended.timeline)
    yield from named("tidy_claims", params, nothing)
    return lost, cancel


def _check_owned(held: Sequence[Owned]) -> Statement[list[tuple[UUID, int, bool]]]:
    def decode(rows: Sequence[Row]) -> list[tuple[UUID, int, bool]]:
        return [(r[0], r[1], r[2]) for r in rows]

    columns = (
        text_array([job.queue for job in held]),
        uuid_array([job.id_text for job in held]),
        plain_array([str(job.generation) for job in held]),
        uuid_array([job.token_text for job in held]),
    )
    return named("check_owned", columns, decode)
