"""Subscriptions: every move of a position is guarded by its owner's generation and token."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from ....store.statement import Statement, count, named, nothing


def subscribe(
    name: str,
    kind: str,
    patterns: Sequence[str],
    start: str,
    shards: int = 1,
    *,
    hold: bool = True,
    version: int = 1,
) -> Statement[bool]:
    """True: it is new."""
    params = (name, kind, list(patterns), start, shards, hold, version)
    return named("subscribe", params, lambda rows: bool(rows[0][0]))


@dataclass(slots=True)
class Owned:
    """A subscription, or a shard of one, as its owner has it. Every move of its position is guarded by this."""

    name: str
    shard: int
    shards: int
    kind: str
    patterns: list[str]
    position: int
    seq: int
    until: int | None
    replay_of: str | None
    status: str
    generation: int
    token: UUID
    barrier: int | None
    delivered: str  # positions that became jobs, as a multirange
    era: int

    @property
    def of(self) -> str:
        """The subscription whose code it runs."""
        return self.replay_of or self.name

    @property
    def key(self) -> tuple[str, int, int]:
        return (self.name, self.shard, self.generation)


def own(
    names: Sequence[str], token: UUID, worker: str, lease: float, versions: Sequence[int] | None = None
) -> Statement[list[Owned]]:
    """Renew what is owned under the token, and take what is free. A row that somebody holds is left out, and so is what code
    of another version runs."""
    params = (list(names), token, worker, lease, list(versions or [1] * len(names)))
    return named("own_subscriptions", params, lambda rows: [Owned(*row) for row in rows])


def owned_keys(token: UUID) -> Statement[set[tuple[str, int, int]]]:
    """(name, shard, generation) of what is owned under the token."""
    return named("locked_subscriptions", (token,), lambda rows: {tuple(row) for row in rows})


def release(token: UUID) -> Statement[None]:
    return named("release_subscriptions", (token,), nothing)


def advance(o: Owned, position: int, seq: int, lease: float, delivered: str | None = None) -> Statement[bool]:
    """Move the position. False: fenced, paused or moved by somebody else."""
    params = (o.name, o.shard, o.generation, o.token, o.position, position, seq, lease, delivered)
    return named("advance", params, bool)


def end_replay(o: Owned) -> Statement[None]:
    return named("end_replay", (o.name, o.token), nothing)


def stop_shard(o: Owned, why: str) -> Statement[bool]:
    return named("stop_shard", (o.name, o.shard, o.generation, o.token, why), bool)


def note_trouble(o: Owned, what: str) -> Statement[None]:
    return named("note_trouble", (o.name, o.shard, o.token, what), nothing)


@dataclass(frozen=True, slots=True)
class Listed:
    """A subscription, or a shard of one, as `holdfast subscriptions list` shows it."""

    name: str
    shard: int
    shards: int
    kind: str
    patterns: list[str]
    position: int
    status: str
    hold: bool
    owner: str | None
    lag_events: int
    lag_seconds: float
    missed: int | None
    problem: str | None
    paused_by: str | None
    paused_seconds: float | None
    until: int | None
    replay_of: str | None
    moved_seconds: float
    failures: int


def list_subscriptions(name: str | None = None) -> Statement[list[Listed]]:
    return named("list_subscriptions", (name,), lambda rows: [Listed(*row) for row in rows])


def pause(name: str, by: str, why: str | None = None) -> Statement[int]:
    return named("pause_subscription", (name, by, why), count)


def resume(name: str) -> Statement[int]:
    return named("resume_subscription", (name,), count)


class Moved(NamedTuple):
    shards: int  # 0: it may not be put there, or there is none
    position: int
    start: int
    last: int


def reset(name: str, to: int | datetime | str) -> Statement[Moved]:
    position = to if isinstance(to, int) else None
    at = to if isinstance(to, datetime) else None
    word = to if isinstance(to, str) else "end"
    return named("reset_subscription", (name, position, at, word), lambda rows: Moved(*rows[0]))


def add_replay(name: str, of: str, since: int, until: int, *, again: bool) -> Statement[bool]:
    return named("add_replay", (name, of, since, until, again), bool)


def remove(name: str) -> Statement[int]:
    return named("remove_subscription", (name,), count)


def position_of(name: str) -> Statement[tuple[int, str | None] | None]:
    """The lowest position over its shards, and a status that is not active; None: there is none."""
    return named("projection_positions", (name,), lambda rows: rows[0] if rows else None)
