"""Questions of the doctor and the metrics. Nothing here changes anything, and no page is turned."""

from typing import NamedTuple

from ....store.statement import Statement, count, named


class Health(NamedTuple):
    """A subscription, or a shard of one."""

    name: str
    shard: int
    shards: int
    kind: str
    status: str
    position: int
    lag_events: int
    lag_seconds: float
    owner: str | None  # a live worker
    missed: int | None
    problem: str | None
    paused_by: str | None
    paused_seconds: float | None
    failures: int
    replay_of: str | None

    @property
    def rebuilds(self) -> str | None:
        """The projection whose tables it rebuilds."""
        return self.replay_of if self.kind == "projection" else None


def subscription_health(dead_after: float) -> Statement[list[Health]]:
    """`dead_after`: seconds after which a silent worker counts as gone."""
    return named("subscription_health", (dead_after,), lambda rows: [Health(*row) for row in rows])


class SetAside(NamedTuple):
    """Events that a subscription passed without processing them."""

    name: str
    of: str  # kind of the subscription
    kind: str  # skipped, parked, spilled, behind
    events: int  # up to 10,000
    keys: int
    seconds: float  # the oldest of them
    error: str | None  # the newest


def set_aside() -> Statement[list[SetAside]]:
    return named("set_aside", (), lambda rows: [SetAside(*row) for row in rows])


class LogHealth(NamedTuple):
    foreign: bool
    waiting: int  # events without a position for long, up to 1,000
    seconds: float  # the oldest of them


def log_health(seconds: float) -> Statement[LogHealth]:
    return named("log_health", (seconds,), lambda rows: LogHealth(*rows[0]))


class OpenPublisher(NamedTuple):
    pid: int | None
    gid: str | None  # of a prepared transaction
    role: str
    application: str
    seconds: float


def open_publishers(seconds: float) -> Statement[list[OpenPublisher]]:
    return named("open_publishers", (seconds,), lambda rows: [OpenPublisher(*row) for row in rows])


def last_position() -> Statement[int]:
    return named("last_position", (), count)
