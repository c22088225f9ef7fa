"""How an attempt ends: values, decided once, settled by the store."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, cast
from uuid import UUID

from .breaker import Watch
from .job import Owned


class Recorded(NamedTuple):
    """A row that a handler recorded: for which recorder of a shape, and its JSON text."""

    table: str
    row: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one attempt. Middleware receives and returns it."""

    rows: tuple[Recorded, ...] = field(default=(), kw_only=True, repr=False)  # that are written with it


@dataclass(frozen=True, slots=True)
class Completed(Outcome):
    result: str | None = None  # JSON text
    beside: bool = False  # this attempt recorded steps or progress, which go with the job


NOTHING = Completed("null")  # what most handlers return


@dataclass(frozen=True, slots=True)
class Cancelled(Outcome):
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Failed(Outcome):
    """The handler failed: retried after `delay` while attempts are left, a dead letter otherwise. Also a dead letter: a job
    that has been tried for `deadline` seconds."""

    error: "ErrorText"
    delay: float = 0.0
    deadline: float | None = None
    completed_itself: bool = False  # the handler called job.complete(): right only if that was not committed


@dataclass(frozen=True, slots=True)
class DeadLettered(Outcome):
    """No further attempt, whatever is left."""

    error: "ErrorText"


@dataclass(frozen=True, slots=True)
class Snoozed(Outcome):
    delay: float


@dataclass(frozen=True, slots=True)
class Released(Outcome):
    """Given back as it was: no attempt spent, claimable at once."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Held(Outcome):
    """Set aside until a worker knows its task and version."""

    reason: str


@dataclass(frozen=True, slots=True)
class Misfit(Outcome):
    """The payload does not fit the signature of this worker: set aside for a worker with another one."""

    reason: str
    signature: str  # the fingerprint that refused it
    newer: bool = False  # only newer code can take it: it waits, and never becomes a dead letter for that


@dataclass(frozen=True, slots=True)
class Lost(Outcome):
    """Nothing to settle: this worker does not own the job any more."""


@dataclass(frozen=True, slots=True)
class SettledElsewhere(Outcome):
    """Nothing to settle: the handler completed the job in its own transaction."""

    result: str | None = None


@dataclass(frozen=True, slots=True)
class Suspended(Outcome):
    """Nothing to settle: the handler put its job back itself, until an event. No attempt is spent."""


@dataclass(frozen=True, slots=True)
class ErrorText:
    """An error made safe for storage: no NUL, no lone surrogate, bounded."""

    kind: str
    message: str
    trace: str = ""

    @property
    def summary(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind


class Settlement(NamedTuple):
    """One attempt to end: which job under which claim, and how."""

    grant: Owned
    outcome: Outcome
    watch: Watch | None = None
    keep: bool | None = None  # whether it stays in the archive when it completed; None: as its queue says


# A worker makes tens of thousands a second, and this takes half the time.
settlement_of = cast(
    "Callable[[tuple[Owned, Outcome, Watch | None, bool | None]], Settlement]",
    functools.partial(tuple.__new__, Settlement),
)


class Ended(NamedTuple):
    """An attempt whose end was written, as a recorder of rows sees it."""

    grant: Owned
    outcome: Outcome
    state: str  # where its job went, as in Settled


@dataclass(frozen=True, slots=True)
class Settled:
    """What the database did with a settlement.

    `state` is where the job went: completed, cancelled, pending, held, dead_letter; `busy` when another
    transaction holds the row right now; `lost` when it was not ours. `already`: an earlier try had done it.
    """

    id: UUID
    state: str
    already: bool = False
    group: UUID | None = field(default=None, compare=False)  # the group it was in, when it ended
    then: str | None = field(default=None, compare=False)  # what follows if it completed, as JSON
