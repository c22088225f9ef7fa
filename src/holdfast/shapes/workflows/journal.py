"""Everything that the code of a run needs from the database: the boundary between replay and storage.

`Workflow` and `drive` use this protocol. `DatabaseJournal` implements it: one per run, all of a worker's over one Recorder,
which writes the rows of all its runs in one statement.

Every write is guarded by the run's grant (id, generation, token). For a run that has another owner it raises Evicted
and writes nothing. JSON is passed as text. Times are the database's.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol
from uuid import UUID

from ...errors import HoldfastError
from ...model.outcome import ErrorText
from .outgoing import NewEvent

Kind = Literal[
    "step",
    "transaction",
    "call",
    "child",
    "sleep",
    "signal",
    "decision",
    "patch",
    "compensation",
    "continued",
    "event",
]
STICKY = 2.0  # seconds that a wait stays in memory before the run is put away
Decided = Literal["done", "failed", "timed_out", "cancelled", "retrying", "calling"]


class Record(NamedTuple):
    """A row to write. `ordinal` is its place in its scope, None for what has none (patch markers, compensations). A tuple: a
    frozen dataclass takes four times as long to make."""

    key: str  # scope/name#n
    kind: Kind
    outcome: Decided
    ordinal: int | None = None
    result: str | None = None  # JSON text
    error: str | None = None  # JSON text: kind, message, attempts, data
    attempts: int = 1
    began: float | None = None  # seconds since 1970 by the worker's estimate of the database's clock
    input_hash: bytes | None = None
    linked: UUID | None = None  # the job or run that it started
    ended: datetime | None = None  # by the same estimate, if the code continued before it was written


class Stored(NamedTuple):
    """A row of the history: what was recorded, by which generation, and when by the database's clock."""

    record: Record
    generation: int
    at: datetime


class History(NamedTuple):
    """The state of a run at its claim."""

    id: str  # the id it was started with
    run_id: UUID
    version: int
    era: int
    created_at: datetime  # of the era: what now() says before the first record
    rows: Sequence[Stored]  # in the order in which they were written
    cancel_requested: bool
    state: str  # of the run: open, compensating, ...
    seed: UUID | None = None  # of a fork: the run whose random numbers it continues
    cancel_reason: str | None = None
    paused: bool = False  # by an operator, before this claim


@dataclass(frozen=True, slots=True)
class Wait:
    """What a run waits for at one place of its code.

    `retry` is decided by its time alone and never given to decide(): a step that failed, whose `retrying` row is written.
    `child`: the run that this one started under the key behind `child:` has ended; its result goes into the row of `key`.
    `call`: the row of `key` is `calling` until the jobs' own end turns it into done or failed."""

    key: str
    ordinal: int | None
    kind: Literal["sleep", "signal", "call", "child", "retry"]
    name: str = ""  # of the signal; `child:<key of its start>` or `call:<key>`
    until: datetime | None = None  # a deadline or the end of a sleep
    began: float | None = None
    cancellable: bool = (
        True  # False: a cancel was raised before, or this is a compensation; a cancel does not end the wait
    )


@dataclass(frozen=True, slots=True)
class NewChild:
    """A child to start."""

    workflow: str
    id: str
    version: int | None
    payload: str
    queue: str | None = None
    on_cancel: Literal["cancel", "abandon"] = "cancel"


@dataclass(frozen=True, slots=True)
class NewJobs:
    """Jobs of other queues that the run waits for: one for call(), many for map(). The result of `many` is a list."""

    specs: str  # JSON text: a list of what holdfast.enqueue_specs() takes
    many: bool = False
    limit: int | None = None  # as many of them at once, at most


class RecordRefused(HoldfastError):
    """The database refuses a row at every try (a NUL in a text, say). Nothing of its entry was written."""


class CancelAsked(asyncio.Event):
    """A cancel of the run was requested."""

    then: Callable[[], None] | None = None  # called once, when that happens
    why: str | None = None

    def set(self, why: str | None = None) -> None:
        self.why = self.why or why
        if self.is_set():
            return
        super().set()
        if self.then is not None:
            self.then()


class Journal(Protocol):
    cancelled: CancelAsked  # set once a cancel was requested, also if the history has it
    paused: bool  # a pause was requested, as far as is known here

    def now(self) -> datetime:
        """The worker's estimate of the database's clock."""
        ...

    def time(self) -> float:
        """The same as seconds since 1970."""
        ...

    async def history(self) -> History:
        """Generation 1 of era 0 has no rows, and needs no round trip."""
        ...

    def lost(self) -> bool:
        """Whether the worker knows that the run has another owner. Called from any thread."""
        ...

    def begins(self, key: str, kind: Kind, ordinal: int | None, began: float, attempt: int) -> None:
        """A body runs from now on, until beat(key, None) reports its end. For people who look at the run."""
        ...

    def beat(self, key: str, detail: str | None) -> None:
        """The progress of a running step; None: it has ended. Called from any thread; written regularly."""
        ...

    def failed(self, key: str, attempt: int, error: ErrorText) -> None:
        """An attempt of a step failed. Written beside the others of its job, for people: nothing waits for it."""
        ...

    def record(
        self, rows: Sequence[Record], *, state: str | None = None, events: Sequence[NewEvent] = ()
    ) -> Awaitable[datetime]:
        """Write these rows together, with the value of set_state() and the published events. Returns the time they
        carry, once it is durable. RecordRefused: record a failure instead."""
        ...

    def record_at_end(self, rows: Sequence[Record]) -> None:
        """Write these rows with the end of the run's job, in whatever way it ends."""
        ...

    async def decide(self, wait: Wait, rows: Sequence[Record] = ()) -> Stored | None:
        """If the awaited event has come (a signal: taken, the oldest first), or its time is over, or a cancel was requested,
        record that, with `rows`, and return the record. None: wait on, and nothing is written. The result of a signal is
        `{"value": its payload, "sent_at": ISO 8601, "key": its idempotency key}`, that of a child or call what it returned;
        the error of one that failed is `{"kind": ..., "message": ..., "attempts": ...}`."""
        ...

    async def receive(self, wait: Wait, rows: Sequence[Record] = ()) -> Stored:
        """Take all waiting signals of its name, and record them, with `rows`. The result is the list of their
        payloads, the oldest first."""
        ...

    async def child_end(self, name: str) -> tuple[Decided, str | None, str | None] | None:
        """How the child ended whose message of that name another call has taken: outcome, result and error. None: it has
        not ended, or its message is unread."""
        ...

    async def changed(self, until: datetime | None, *, resting: bool) -> bool:
        """Until an event for this run has come (signal, end of a child or call, cancel, pause) or the time is over:
        True. `resting`: nothing else of the run is running, so its slot may be given up; False then means that it has
        rested long enough, and must suspend. May be cancelled at any time."""
        ...

    async def suspend(self, waits: Sequence[Wait]) -> bool:
        """Put the run away until one of these can be decided. False: one can be now, nothing was changed."""
        ...

    async def transact(self, run: Callable[[Any], Awaitable[str]], row: Callable[[str], Record]) -> Stored:
        """`run(tx)` and the record of its result, in one separate transaction. Once, whatever is lost: returns
        the recorded result. Errors of `run` go out as they are, and its writes are rolled back."""
        ...

    async def transact_blocking(self, run: Callable[[Any], str], row: Callable[[str], Record]) -> Stored:
        """The same for a plain function, which is called in a thread."""
        ...

    async def compensates(self, yes: bool) -> None:
        """The run compensates, or continues after that. For people who look at it; nothing depends on it."""
        ...

    async def start(self, child: NewChild, row: Record) -> Stored:
        """The child, its job and the record of its start, together. The record has the child's run as `linked`."""
        ...

    async def call(self, jobs: NewJobs, row: Record) -> None:
        """The jobs and a row `calling`, together. Their own settle turns it into done or failed, and wakes the run."""
        ...

    async def continue_as_new(self, payload: str, unseen: Sequence[str] = ()) -> History:
        """Fold this era's history; the run continues in the next one under the same claim. `unseen`: the keys of records
        with a signal that no code has seen. It is unread again."""
        ...


# The store functions of handles, next to this file: they return a Statement or a Flow, to be run on our own
# connections or on the caller's (`conn=`).
#
#   start(StartRun) -> Started
#   signal(workflow, id, name, payload, idempotency_key) -> str: sent, duplicate, ended, unknown
#   cancel(workflow, id, reason) -> str: requested, already, ended, unknown
#   look(workflow, id) -> Look | None


@dataclass(frozen=True, slots=True)
class StartRun:
    workflow: str
    version: int
    id: str
    payload: str
    queue: str
    delay: float = 0.0
    priority: int = 0
    tags: Sequence[str] = ()
    if_exists: Literal["same", "restart_ended", "refuse"] = "same"


@dataclass(frozen=True, slots=True)
class Started:
    run_id: UUID
    created: bool
    conflict: str | None = None  # `queue`: it does not exist; `exists`: refused


@dataclass(frozen=True, slots=True)
class Look:
    """A run as its handle sees it."""

    run_id: UUID
    state: str
    shown: str | None  # the value of set_state(), JSON text
    result: str | None  # JSON text
    error: str | None  # `Kind: message`
