"""What an owner may do apart from settling: record steps, guard a resource, report progress."""

from collections.abc import Sequence

from ..model.job import Grant
from ..model.outcome import ErrorText
from .statement import Row, Statement, named, nothing


def _first(rows: Sequence[Row]) -> tuple[bool, str | None]:
    return (True, rows[0][0]) if rows else (False, None)


def once_get(grant: Grant, name: str) -> Statement[tuple[bool, str | None]]:
    """(recorded?, JSON text)."""
    return named("once_get", (grant.id, name), _first)


def once_put(grant: Grant, name: str, result: str) -> Statement[tuple[bool, str | None]]:
    """(still ours?, the JSON text that counts): the first record under a name wins."""
    return named(
        "once_put",
        (grant.queue, grant.id, grant.generation, grant.token, name, result),
        _first,
    )


def guard(grant: Grant, resource: str, fence: str) -> Statement[bool]:
    """True: this worker owns it, and holds it until the caller's transaction ends."""
    params = (grant.queue, grant.id, grant.generation, grant.token, resource, str(grant.id), fence)
    return named("guard", params, bool)


def count_crash(grant: Grant, most: int, worker: str, error: ErrorText) -> Statement[int | None]:
    """Deaths that the job was in, this one included. None: this worker does not own it any more."""
    params = (grant.queue, grant.id, grant.generation, grant.token, most, worker, error.message, error.trace)
    return named("count_crash", params, lambda rows: rows[0][0] if rows else None)


def progress(reports: Sequence[tuple[Grant, float, str]]) -> Statement[None]:
    columns = (
        [g.id for g, _, _ in reports],
        [g.queue for g, _, _ in reports],
        [g.generation for g, _, _ in reports],
        [f for _, f, _ in reports],
        [m for _, _, m in reports],
        [g.token for g, _, _ in reports],
    )
    return named("progress", columns, nothing)
