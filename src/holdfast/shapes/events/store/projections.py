"""Statements of projections: the row that an effect is guarded by, and the transaction that it is in."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ....store.statement import Statement, count, named, nothing
from .subscriptions import Owned


class Held(NamedTuple):
    """The row of a position, locked to the end of a transaction."""

    position: int
    xid: str  # of that transaction
    pid: int  # of its server process
    version: int = 0  # of the code that its tables are for; 0: not asked


def hold(o: Owned) -> Statement[Held | None]:
    """Lock the row, first in the transaction of an effect. None: fenced, paused or moved."""
    params = (o.name, o.shard, o.generation, o.token, o.position)
    return named("hold_position", params, lambda rows: _held(rows[0][0]) if rows else None)


def _held(row: list[str]) -> Held:
    return Held(int(row[0]), row[1], int(row[2]), *map(int, row[3:]))


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
    """The owners of its shards start again, and read again which keys are parked."""
    return named("fence_subscription", (name,), nothing)


@dataclass(frozen=True, slots=True)
class Summary:
    """A projection, as `holdfast projection list` shows it."""

    name: str
    version: int
    shards: int
    position: int
    lag_events: int
    lag_seconds: float
    status: str
    problem: str | None
    failures: int  # events that it skipped or parked
    rebuild: str | None
    wanted_shards: int | None


def list_projections(name: str | None = None) -> Statement[list[Summary]]:
    return named("list_projections", (name,), lambda rows: [Summary(*row) for row in rows])


def restart_projection(name: str, tables: Sequence[int], version: int) -> Statement[int]:
    return named("restart_projection", (name, list(tables), version), lambda rows: int(rows[0][0][0]))


# Rebuilds ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Build:
    """The purpose of a rebuild's subscription."""

    projection: str
    version: int
    shadow: str  # the schema of the new tables
    old: str  # and of the old ones, from the swap on
    since: int
    rate: float | None


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a rebuild."""

    name: str
    version: int
    since: int
    position: int
    live: int  # the position of the live projection
    owner: str | None  # the worker that builds
    status: str
    problem: str | None


def _text(rows: Sequence[Any]) -> str | None:
    found: str | None = rows[0][0][0]
    return found


def find_tables(names: Sequence[str]) -> Statement[dict[str, int | None]]:
    """Each name with the table that it means for this role; None: there is no such table."""

    def decode(rows: Sequence[Any]) -> dict[str, int | None]:
        return {row[0][0]: None if row[0][1] is None else int(row[0][1]) for row in rows}

    return named("find_tables", (list(names),), decode)


def rebuild_obstacle(tables: Sequence[int]) -> Statement[str | None]:
    return named("rebuild_obstacle", (list(tables),), _text)


def schema_exists(name: str) -> Statement[bool]:
    return named("schema_exists", (name,), lambda rows: _text(rows) == "true")


def make_shadow(tables: Sequence[int], shadow: str, old: str) -> Statement[None]:
    return named("make_shadow", (list(tables), shadow, old), nothing)


def seed_shadow(tables: Sequence[int], shadow: str, seed: str) -> Statement[str | None]:
    """Why not; None: done."""
    return named("seed_shadow", (list(tables), shadow, seed), _text)


def add_build(
    name: str, build: Build, tables: Sequence[int], who: str, patterns: Sequence[str]
) -> Statement[bool]:
    """False: a rebuild of this projection is in progress."""
    b = build
    params = (
        name,
        b.projection,
        b.version,
        list(tables),
        b.shadow,
        b.old,
        b.since,
        b.rate,
        who,
        list(patterns),
    )
    return named("add_build", params, bool)


def build_of(name: str) -> Statement[Build | None]:
    def decode(rows: Sequence[Any]) -> Build | None:
        if not rows:
            return None
        projection, version, shadow, old, since, rate = rows[0][0]
        return Build(projection, int(version), shadow, old, int(since), None if rate is None else float(rate))

    return named("build_of", (name,), decode)


def build_progress(projection: str) -> Statement[Progress | None]:
    return named("build_progress", (projection,), lambda rows: Progress(*rows[0]) if rows else None)


def enter_shadow(schema: str) -> Statement[None]:
    return named("enter_shadow", (schema,), nothing)


def wait_for_locks(limit: str) -> Statement[None]:
    return named("wait_for_locks", (limit,), nothing)


def written_beside(schema: str) -> Statement[str | None]:
    """A table beside the shadow that this transaction has written to."""
    return named("written_beside", (schema,), _text)


def swap_projection(name: str, position: int, seq: int) -> Statement[str | None]:
    """Why not; None: done."""
    return named("swap_projection", (name, position, seq), _text)


def live_position(name: str) -> Statement[int | None]:
    return named("live_position", (name,), lambda rows: rows[0][0])


def cancel_build(projection: str) -> Statement[int]:
    return named("cancel_build", (projection,), count)


def drop_old_tables(schema: str) -> Statement[list[str]]:
    return named("drop_old_tables", (schema,), lambda rows: rows[0][0])


# Shards -----------------------------------------------------------------------------------------------------------------


def want_shards(name: str, shards: int, version: int) -> Statement[None]:
    return named("want_shards", (name, shards, version), nothing)


def begin_reshard(name: str) -> Statement[int | None]:
    """The barrier; None: not now."""
    return named("begin_reshard", (name,), lambda rows: rows[0][0])


def finish_reshard(name: str) -> Statement[bool]:
    """False: not all shards have reached the barrier."""
    return named("finish_reshard", (name,), lambda rows: bool(rows[0][0]))
