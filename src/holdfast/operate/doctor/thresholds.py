"""The limits above which something is reported. Doctor and runbook read them; checks of shapes also have constants."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from ...errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, rows, transactions, bytes or a share."""

    statement: float = 5.0  # longest statement of a check; one that takes longer is not made
    horizon: float = 300.0  # seconds that a transaction may be open
    horizon_xids: float = 1_000_000.0  # transactions that a replication slot may be behind
    wal: float = 2.0**30  # bytes of WAL that a replication slot may keep
    dead_rows: float = 100_000.0  # dead rows of a table
    xid_age: float = 1_000_000_000.0  # transactions since a table was frozen
    listen: float = 3.0  # seconds that a notification may take
    skew: float = 1.0  # seconds between this machine's clock and the server's
    stuck: float = 60.0  # seconds that a due job, a sweep or a schedule may be late
    failing: float = 0.05  # share of the attempts that may fail
    cancel: float = 300.0  # seconds that a job may continue after it was asked to stop
    running: float = 14_400.0  # seconds that a job may run
    usual: float = 10.0  # times its usual time that a job may be claimed by a worker that does not run it
    paused: float = 86_400.0  # seconds that a pause may last
    dead: float = 100.0  # dead letters in an hour
    lag: float = 300.0  # seconds that a subscription may be behind the log
    lag_events: float = 100_000.0  # events that it may be behind

    def changed(self) -> dict[str, float]:
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}

    # Comparisons that several questions share. SQL that filters by a threshold uses >= as well.

    def is_late(self, seconds: float | None) -> bool:
        """A due job, by how long it has been due."""
        return (seconds or 0.0) >= self.stuck

    def is_failing(self, failed: int, attempts: int) -> bool:
        return failed > self.failing * attempts

    def has_dead_rows(self, dead: int | None) -> bool:
        return (dead or 0) >= max(self.dead_rows, 1)

    def is_unfrozen(self, xid_age: int | None) -> bool:
        return (xid_age or 0) >= self.xid_age

    def is_open_long(self, seconds: float | None) -> bool:
        """A transaction, by how long it has been open."""
        return (seconds or 0.0) >= self.horizon

    def is_behind(self, transactions: int | None, wal: int | None) -> bool:
        """A replication slot."""
        return (transactions or 0) >= self.horizon_xids or (wal or 0) >= self.wal


def read_limits(words: Iterable[str]) -> Limits:
    """`horizon=60` and so on."""
    known = [f.name for f in fields(Limits)]
    limits = Limits()
    for word in words:
        name, _, value = word.partition("=")
        if name not in known:
            raise ConfigurationError(f"there is no limit {name!r} (known: {', '.join(known)})")
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf"):
            raise ConfigurationError(f"limit {name} must be a number of 0 or more, not {value!r}")
        limits = replace(limits, **{name: number})
    return limits
