"""Statements of projections: the row that an effect is guarded by, and the transaction that it is in."""

from typing import NamedTuple

from ....store.statement import Statement, named, nothing
from .subscriptions import Owned


class Held(NamedTuple):
    """The row of a position, locked to the end of a transaction."""

    position: int
    xid: str  # of that transaction
    pid: int  # of its server process


def hold_position(o: Owned) -> Statement[Held | None]:
    """Lock the row, first in the transaction of an effect. None: fenced, paused or moved."""
    params = (o.name, o.shard, o.generation, o.token, o.position)
    return named("hold_position", params, lambda rows: _held(rows[0][0]) if rows else None)


def _held(row: list[str]) -> Held:
    return Held(int(row[0]), row[1], int(row[2]))


def current_xid() -> Statement[str | None]:
    return named("current_xid", (), lambda rows: rows[0][0][0])


def end_backend(held: Held) -> Statement[None]:
    """End the session of a function that does not return, if it is still in that transaction."""
    return named("end_backend", (held.pid, held.xid), nothing)


def lock_positions(name: str) -> Statement[Held | None]:
    """Lock every shard's row; the highest position of them. None: there is no such subscription."""
    return named(
        "lock_positions", (name,), lambda rows: max(map(_held, (row[0] for row in rows)), default=None)
    )


def fence(name: str) -> Statement[None]:
    """Whoever owns a shard of it begins anew, and reads again which keys are parked."""
    return named("fence_subscription", (name,), nothing)
