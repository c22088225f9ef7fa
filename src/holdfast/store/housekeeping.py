"""Housekeeping: the tidying that any worker does regularly, in bounded batches. There is no separate process."""

from collections.abc import Sequence
from datetime import datetime

from ..sql import query
from .statement import Row, Statement, count, ids, named


def tidy_begin(interval: float) -> Statement[int | None]:
    """The retention in days when it is this worker's turn, else None."""
    return named("tidy_begin", (interval,), lambda rows: rows[0][0] if rows else None)


def prune_workers(limit: int) -> Statement[int]:
    return named("prune_workers", (limit,), count)


def prune_throughput(days: int, limit: int) -> Statement[int]:
    return named("prune_throughput", (days, limit), count)


def prune_audit(limit: int) -> Statement[int]:
    return named("prune_audit", (limit,), count)


def prune_quarantine(limit: int) -> Statement[int]:
    return named("prune_quarantine", (limit,), count)


_PRUNE = {
    "idempotency": lambda: query("prune_idempotency"),
    "once": lambda: query("prune_once"),
    "progress": lambda: query("prune_progress"),
    "errors": lambda: query("prune_errors"),
    "fences": lambda: query("prune_fences"),
    "misfits": lambda: query("prune_misfits"),
    "groups": lambda: query("prune_groups"),
    "replacements": lambda: query("prune_replacements"),
}
FROM_MARK = tuple(_PRUNE)


def prune(
    table: str, days: int, limit: int, after: datetime | None
) -> Statement[tuple[datetime | None, int]]:
    """Delete one batch of expired rows of a table; returns where to continue (None: that was all) and how many went."""

    def decode(rows: Sequence[Row]) -> tuple[datetime | None, int]:
        return rows[0][0], rows[0][1]

    return Statement(f"prune_{table}", _PRUNE[table](), (days, limit, after), decode)


def note_slots() -> Statement[list[int]]:
    return named("note_slots", (), ids)


def expired_slots(days: int) -> Statement[list[int]]:
    return named("expired_slots", (days,), ids)


def empty_slot(slot: int, days: int) -> Statement[bool]:
    return named("empty_slot", (slot, days), lambda rows: bool(rows[0][0]))
