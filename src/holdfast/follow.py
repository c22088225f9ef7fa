"""The seam between the log of events and shapes that read it: a follower registers here, and imports neither.

The events shape owns the log. It gives a follower one cursor under lease and generation, and runs it in one worker at a
time (ADR 37). A follower reads ahead of its cursor, processes the events, and moves the cursor past the finished ones.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol
from uuid import UUID

from .store.statement import Flow
from .tasks.definition import SourceLine

if TYPE_CHECKING:
    from .shapes.events.event import Event

Start = Literal["now", "start"] | int | datetime


class LogRow(Protocol):
    """One event as the log has it; `headers` and `data` are JSON text. `data` None: it was erased."""

    @property
    def position(self) -> int: ...
    @property
    def seq(self) -> int: ...
    @property
    def id(self) -> UUID: ...
    @property
    def type(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def key(self) -> str | None: ...
    @property
    def time(self) -> datetime: ...
    @property
    def headers(self) -> str | None: ...
    @property
    def data(self) -> str | None: ...


class BareRow(NamedTuple):
    """An event without its data: small, and enough to record it."""

    position: int
    seq: int
    id: UUID
    type: str
    version: int
    key: str | None
    time: datetime
    headers: None = None
    data: None = None

    @classmethod
    def of(cls, row: LogRow) -> "BareRow":
        return cls(row.position, row.seq, row.id, row.type, row.version, row.key, row.time)


class OtherVersion(Exception):
    """An event that cannot be sent as the requested version. The text gives the reason."""


class LogPage(Protocol):
    """The result of a read. `position` and `seq` say how far it read: it may have read more events than matched."""

    @property
    def events(self) -> Sequence[LogRow]: ...
    @property
    def position(self) -> int: ...
    @property
    def seq(self) -> int: ...


class Note(NamedTuple):
    """An event that is passed without being processed. `kind`: skipped; parked, and its key waits until it is retried;
    spilled, and its key is tried again by itself; behind one of those."""

    row: LogRow
    kind: Literal["skipped", "parked", "spilled", "behind"]
    error: str | None = None


class Cursor(Protocol):
    """A follower's place in the log. Every move or record raises LeaseLost once another worker owns the place."""

    left: asyncio.Event  # it was asked to stop

    @property
    def name(self) -> str: ...
    @property
    def era(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def seq(self) -> int: ...
    @property
    def lease(self) -> float: ...

    async def read(self, position: int, seq: int, most: int, most_bytes: int) -> LogPage | None:
        """Events after a position; waits for one. None: it was asked to stop."""
        ...

    async def advance(
        self, position: int, seq: int, notes: Sequence[Note], effect: "Callable[[], Flow[Any]] | None" = None
    ) -> None:
        """All events up to here are done, or recorded in the same transaction. `effect` runs in it too, after the cursor:
        its writes happen once, whatever crashes."""
        ...

    def certain_for(self) -> float:
        """Seconds for which no other worker can own it, by the clock of this machine; negative: another may."""
        ...

    async def renew(self) -> None: ...

    async def waiting_keys(self) -> dict[str | None, bool]:
        """Keys with events that wait in order, and whether they are tried again by themselves. None: those without one."""
        ...

    async def waiting(self, key: str | None, most: int, after: int) -> list[tuple[str, LogRow]]:
        """Those of a key after a position, in order, with the kind of each."""
        ...

    async def settle_waiting(self, done: Sequence[int], notes: Sequence[Note]) -> None:
        """Forget those at these positions, and record the new state of others."""
        ...

    async def stop(self, why: str) -> None:
        """It does not run again before it is resumed. Raises LeaseLost."""
        ...

    async def say_trouble(self, what: str) -> None: ...

    def event(self, row: LogRow) -> "Event[Any]": ...

    def cloudevent(self, row: LogRow, event_id: str) -> str:
        """The event in the JSON form of CloudEvents: the same text every time. `event_id`: its id as text."""
        ...


class Following(Protocol):
    """A running follower."""

    @property
    def stuck(self) -> bool:
        """It cannot continue for now."""
        ...

    async def run(self) -> None:
        """Until it was asked to stop. Raises LeaseLost."""
        ...


@dataclass(frozen=True, slots=True)
class Follower:
    """A follower as the code declares it."""

    name: str
    kind: str
    on: Sequence[Any]  # event classes, names and patterns
    start: Start
    hold: bool  # the log is kept for it, up to the limits
    place: SourceLine
    make: Callable[[Cursor], Following]
