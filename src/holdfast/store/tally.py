"""The tally: what workers finished, added up by minute, queue and task."""

from collections.abc import Mapping, Sequence
from uuid import UUID

from ..model.tally import Sums
from .statement import Flow, Statement, named, nothing

Sheet = Mapping[tuple[str, str], Sums]  # (queue, task) -> sums


def tally(sheet: Sheet) -> Flow[str]:
    """Add a sheet to the sums of this minute; returns the transaction, by which tally_state finds it again."""
    yield from named("tally_begin", (), nothing)
    rows = [(*key, *sums.columns()) for key, sums in sheet.items()]
    columns = tuple(list(column) for column in zip(*rows, strict=True))
    xid = yield from named("tally", columns, lambda found: str(found[0][0]))
    return xid


def tally_state(xid: str) -> Statement[str | None]:
    return named("tally_state", (xid,), lambda rows: rows[0][0])


def buried_tasks(job_ids: Sequence[UUID]) -> Statement[list[tuple[str, str]]]:
    return named("buried_tasks", (list(job_ids),), lambda rows: [(r[0], r[1]) for r in rows])
