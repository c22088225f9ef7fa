"""What a check says, its limits, and what it has to go by."""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Literal

from ...db.database import Database
from ...db.embedded import default_path, parse_embedded_url
from ...db.probe import Probe
from ...errors import ConfigurationError
from ...store import doctor as store
from ...store.catalog import Catalog, read_catalog
from ...store.doctor import ServerFacts
from ..wording import AppName, command

Level = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Finding:
    code: str
    level: Level
    what: str
    fix: list[str]  # commands that mend it, in order
    details: list[str] = field(default_factory=list)
    otherwise: list[str] = field(default_factory=list)  # other ways out, one of which is enough


class Left(str):
    """What a fix tells of something that it did not touch."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """From where on something is worth a word. Seconds, rows or transactions."""

    statement: float = 5.0  # longest statement of a check; one that takes longer is not made
    horizon: float = 300.0  # seconds that a transaction may be open
    horizon_xids: float = 1_000_000.0  # transactions that a replication slot may be behind
    dead_rows: float = 100_000.0  # dead rows of a table
    xid_age: float = 1_000_000_000.0  # transactions since a table was frozen
    listen: float = 3.0  # seconds that a notification may take
    skew: float = 1.0  # seconds between this machine's clock and the server's
    stuck: float = 60.0  # seconds that a sweep or a schedule may be late
    cancel: float = 300.0  # seconds that a job may go on after it was asked to stop
    running: float = 14_400.0  # seconds that a job may run
    usual: float = 10.0  # times its usual time that a job may be claimed by a worker that does not run it
    paused: float = 86_400.0  # seconds that a pause may last
    dead: float = 100.0  # dead letters in an hour
    lag: float = 300.0  # seconds that a subscription may be behind the log
    lag_events: float = 100_000.0  # events that it may be behind

    def changed(self) -> dict[str, float]:
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}


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


class NotChecked(Exception):
    """This check cannot be made here, and why."""


class Patient:
    """The database under examination, and what several checks want to know about it, asked once."""

    def __init__(
        self, database: Database, probe: Probe, limits: Limits, app: AppName, actor: str = ""
    ) -> None:
        self.database = database
        self.probe = probe
        self.limits = limits
        self.app = app
        self.actor = actor  # of a fix

    def knows(self, task: str, version: int) -> bool:
        """Whether the named app can run it; one that was not named may."""
        return self.app.knows(task, version)

    @property
    def dead_after(self) -> float:
        return self.database.settings.dead_after

    @functools.cached_property
    def server(self) -> ServerFacts:
        return self.probe.look(store.server())

    @functools.cached_property
    def catalog(self) -> Catalog:
        return self.probe.look(read_catalog())

    def fixing(self, name: str, **other: float) -> str:
        """Our own command, with the limits it was found under."""
        found_under = replace(self.limits, **other)
        limits = [f"--limit={k}={v:g}" for k, v in found_under.changed().items()]
        return command("holdfast", "doctor", "--fix", name, *limits)

    def psql(self, *statements: str) -> str:
        """One call of psql that runs each statement by itself."""
        words = [word for text in statements for word in ("-c", text)]
        if self.database.is_embedded:
            return command("holdfast", "db", "psql", *self.place(), *words)
        return f'psql "$HOLDFAST_DATABASE_URL" {command(*words)}'

    def place(self) -> list[str]:
        """Which embedded server is meant, for `holdfast db`."""
        path = parse_embedded_url(self.database.url)
        return [] if path == default_path() else ["--path", str(path)]

    def worker(self, queue: str, able: bool = True) -> str:
        return self.app.worker(queue, able)


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    about: str  # what is so when nothing is found
    codes: tuple[str, ...]
    run: Callable[[Patient], Iterable[Finding]]
    needs_schema: bool = True
    compares: bool = False  # with what this release makes, so not where a newer one made it
