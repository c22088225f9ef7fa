"""Streams: which keys of an ordered queue have something to claim, and claiming from their front."""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from ..model.job import ClaimedJob
from ..sql import query_in
from .arrays import int_array
from .claim import CLAIM_BYTES, Mark, taking
from .statement import Row, Statement, ids


class Due(NamedTuple):
    """What a read along the due jobs of one priority has met."""

    priority: int
    seen: int  # rows
    mark: Mark
    keys: list[str]


class Ready(NamedTuple):
    key: str
    priority: int
    late: float  # seconds since its first job is due


class Scan(NamedTuple):
    seen: int  # keys read
    last: tuple[int, str] | None  # bucket and key of the last one
    ready: list[Ready]


def claim_streams(
    queue: str,
    worker: str,
    token: UUID,
    *,
    lease: float,
    keys: Sequence[str],
    run: int,
    most: int | None = None,
    suspects: bool = False,
    limited: int = 0,
    most_bytes: int = CLAIM_BYTES,
    trial: bool = False,
) -> Statement[list[ClaimedJob]]:
    """A gapless run of at most `run` jobs from the front of each key, `most` in all. `trial`: from keys whose holds
    are locked for it."""
    bound = len(keys) * run if most is None else most
    params = (queue, worker, token, lease, list(keys), run, suspects, limited, most_bytes, trial, bound)
    return taking("claim_streams", params, queue, token)


def due_streams(
    queue: str, marks: Sequence[tuple[int, Mark]], rows: int, buckets: Sequence[int] | None
) -> Statement[list[Due]]:
    """The keys of due jobs, each priority from its mark on."""

    def decode(rows: Sequence[Row]) -> list[Due]:
        return [Due(r[0], r[1], Mark(r[2], r[3]), list(r[4])) for r in rows]

    params = (
        queue,
        [priority for priority, _ in marks],
        [mark.at for _, mark in marks],
        [mark.seq for _, mark in marks],
        rows,
        None if buckets is None else int_array(sorted(buckets)),
    )
    return Statement("due_streams", query_in("due_streams", queue), params, decode)


def scan_streams(
    queue: str,
    buckets: Sequence[int] | None,
    after: tuple[int, str] | None,
    keys: int,
    *,
    suspects: bool = False,
) -> Statement[Scan]:
    """Step from key to key through the buckets (None: all), whether they have due jobs or not, however deep each key is."""
    wanted = None if buckets is None else int_array(sorted(buckets))
    params = (queue, wanted, *(after or (None, None)), keys, suspects)
    return Statement("scan_streams", query_in("scan_streams", queue), params, decode_scan)


def decode_scan(rows: Sequence[Row]) -> Scan:
    seen, bucket, key, found, priorities, lates = rows[0]
    ready = [Ready(*r) for r in zip(found, priorities, lates, strict=True)]
    return Scan(seen, None if bucket is None else (bucket, key), ready)


def suspect_streams(queue: str, limit: int) -> Statement[list[str]]:
    return Statement("suspect_streams", query_in("suspect_streams", queue), (queue, limit), ids)


def stream_head(queue: str, key: str, *, suspects: bool = False) -> Statement[UUID | None]:
    """The first job of the key, whatever it is: nothing is taken before it."""
    return Statement(
        "stream_head", query_in("stream_head", queue), (queue, key), lambda rows: rows[0][0] if rows else None
    )


def unhold(queue: str, job_ids: Sequence[UUID]) -> Statement[list[str]]:
    return Statement("unhold", query_in("unhold", queue), (queue, list(job_ids)), ids)
