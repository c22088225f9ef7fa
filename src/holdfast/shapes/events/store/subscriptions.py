"""Subscriptions: every move of a position is guarded by its owner's generation and token."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from ....store.arrays import text_array
from ....store.statement import Row, Statement, named, nothing


def subscribe(
    name: str,
    kind: str,
    patterns: Sequence[str],
    start: str | int | datetime,
    shards: int = 1,
    *,
    hold: bool = True,
    version: int = 1,
    begins: bool = True,
    lease: float = 0.0,
) -> Statement[bool]:
    """True: it is new. `begins`: this worker has just started, so its patterns count; else only if it had no owner for
    longer than `lease`."""
    word, position, at = _place(start, "now")
    params = (name, kind, list(patterns), word, shards, hold, position, at, begins, lease, version)
    return named("subscribe", params, lambda rows: bool(rows[0][0]))


def _place(to: int | datetime | str, word: str) -> tuple[str, int | None, datetime | None]:
    """A place in the log: a word, a position, a time."""
    if isinstance(to, str):
        return to, None, None
    return word, to if isinstance(to, int) else None, to if isinstance(to, datetime) else None


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
    rate: float | None  # events that it reads in a second, at most
    era: int
    crowded: bool = False  # its owner has more than its share
    reshards: bool = False  # the number of its shards is to change

    @property
    def of(self) -> str:
        """The subscription whose code it runs."""
        return self.replay_of or self.name

    @property
    def noted_as(self) -> str:
        """Where its passed events are recorded: a replay ends, and its failures belong to its subscription."""
        return self.name if self.until is None else self.of

    @property
    def key(self) -> tuple[str, int, int]:
        return (self.name, self.shard, self.generation)


@dataclass(frozen=True, slots=True)
class Owner:
    """A worker, and the declarations of its code: (name, patterns), with the version of each. `patience`: seconds until it
    takes more than its share."""

    declared: Sequence[tuple[str, Sequence[str]]]
    token: UUID
    worker: str
    lease: float
    patience: float
    versions: Sequence[int] = ()

    @property
    def params(self) -> tuple[object, ...]:
        names = [name for name, _ in self.declared]
        patterns = [text_array(patterns) for _, patterns in self.declared]
        return names, patterns, self.token, self.worker, self.lease


def own(owner: Owner) -> Statement[list[Owned]]:
    """Renew owned ones, and take a share of the free ones. A locked row is left out."""
    versions = list(owner.versions or [1] * len(owner.declared))
    params = (*owner.params, owner.patience, versions)
    return named("own_subscriptions", params, lambda rows: [Owned(*row) for row in rows])


def owned(owner: Owner) -> Statement[dict[tuple[str, int, int], bool]]:
    """(name, shard, generation) of owned ones, and whether to release them."""
    return named("owned_subscriptions", owner.params, lambda rows: {tuple(row[:3]): row[3] for row in rows})


def release(token: UUID, worker: str, only: Owned | None = None) -> Statement[None]:
    """Release all that is owned under the token, or one."""
    params = (token, None, None, worker) if only is None else (token, only.name, only.shard, worker)
    return named("release_subscriptions", params, nothing)


def advance(o: Owned, position: int, seq: int, lease: float, xid: str | None = None) -> Statement[bool]:
    """Move the position. False: fenced, paused or moved by another session, or not in the transaction `xid`."""
    return named("advance", (*_moving(o, position, seq), lease, xid), bool)


def _moving(o: Owned, position: int, seq: int) -> tuple[object, ...]:
    return o.name, o.shard, o.generation, o.token, o.position, position, seq


Span = tuple[int, int]  # positions: the first, and the one after the last


def advance_jobs(
    o: Owned, position: int, seq: int, lease: float, becoming: Sequence[Span]
) -> Statement[list[Span] | None]:
    """The same for a consumer, whose events become jobs now. Returns those that did before; None: fenced."""
    params = (*_moving(o, position, seq), lease, _multirange(becoming))
    return named("advance_jobs", params, lambda rows: _spans(rows[0][0]) if rows else None)


def deliver(name: str, becoming: Sequence[Span]) -> Statement[list[Span]]:
    """Record in a subscription which events of its replay become jobs. Returns those that did before."""
    return named("deliver", (name, _multirange(becoming)), lambda rows: _spans(rows[0][0]) if rows else [])


def _multirange(spans: Sequence[Span]) -> str:
    return "{" + ",".join(f"[{lower},{upper})" for lower, upper in spans if lower < upper) + "}"


def _spans(text: str) -> list[Span]:
    parts = [part.strip("[)").split(",") for part in text.strip("{}").split("),") if part]
    return [(int(lower), int(upper)) for lower, upper in parts]


def end_replay(o: Owned) -> Statement[None]:
    return named("end_replay", (o.name, o.token), nothing)


def stop_shard(o: Owned, why: str) -> Statement[bool]:
    return named("stop_shard", (o.name, o.shard, o.generation, o.token, why), bool)


def renew_position(o: Owned, lease: float) -> Statement[bool]:
    """False: it was fenced or paused."""
    return named("renew_position", (o.name, o.shard, o.generation, o.token, lease), bool)


def let_go(o: Owned) -> Statement[None]:
    """An owner that was fenced has stopped."""
    return named("let_go", (o.name, o.shard, o.generation), nothing)


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
    unowned_seconds: float | None = None  # since its last owner had it; None: it has one
    workers: int = 0  # that are alive and whose code declares it
    rate: float | None = None  # of a replay

    @property
    def is_rebuild(self) -> bool:
        """It rebuilds the tables of a projection."""
        return self.replay_of is not None and self.until is None


def list_subscriptions(name: str | None = None) -> Statement[list[Listed]]:
    return named("list_subscriptions", (name,), lambda rows: [Listed(*row) for row in rows])


def pause(name: str, by: str, why: str | None = None) -> Statement[int]:
    return named("pause_subscription", (name, by, why), _counted)


def resume(name: str) -> Statement[int]:
    return named("resume_subscription", (name,), _counted)


def _counted(rows: Sequence[Row]) -> int:
    return int(rows[0][0][0])


class LogPosition(NamedTuple):
    """Where a subscription would be moved."""

    position: int
    seq: int | None  # None: the log does not have it
    start: int
    last: int


def place_in_log(to: int | datetime | str) -> Statement[LogPosition]:
    word, position, at = _place(to, "end")
    return named("place_in_log", (position, at, word), lambda rows: LogPosition(*rows[0]))


class Moved(NamedTuple):
    shards: int  # 0: there is none, or it is before the start of the log
    left_out: int  # positions that became jobs before


def reset(name: str, place: LogPosition, *, again: bool) -> Statement[Moved]:
    params = (name, place.position, place.seq or 0, again)
    return named("reset_subscription", params, lambda rows: Moved(*(int(text) for text in rows[0][0][:2])))


def add_replay(
    name: str, of: str, since: int, until: int, *, again: bool, rate: float | None
) -> Statement[int | None]:
    """How many positions became jobs before and are left out; None: there is no such subscription."""
    params = (name, of, since, until, again, rate)
    return named("add_replay", params, lambda rows: int(rows[0][0]) if rows else None)


class Removed(NamedTuple):
    rows: int
    owner: str | None  # the worker that runs it; then nothing was removed
    built: str | None  # the projection whose tables are being rebuilt; then nothing was removed either


def remove(name: str, *, with_build: bool = False) -> Statement[Removed]:
    """`with_build`: the caller abandons its rebuild in this transaction."""
    return named("remove_subscription", (name, with_build), lambda rows: Removed(*rows[0]))


def position_of(name: str, target: int) -> Statement[tuple[int, str | None] | None]:
    """The lowest position over its shards, and the status of a shard that stops before the target."""
    return named("projection_positions", (name, target), lambda rows: rows[0] if rows else None)
