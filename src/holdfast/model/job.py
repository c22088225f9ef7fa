"""A claimed job, and the grant that proves who owns it."""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol, cast
from uuid import UUID

from .fence import fence

JSON = Any


class Owned(Protocol):
    """One job under one claim, as its owner's writes name it. A worker has tens of thousands of them a second, so ids go
    through it as the text they came as."""

    @property
    def queue(self) -> str: ...
    @property
    def id_text(self) -> str: ...
    @property
    def generation(self) -> int: ...
    @property
    def token_text(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Grant:
    """Proof of ownership of one job by one claim. Every write by an owner is guarded by exactly this."""

    queue: str
    id: UUID
    generation: int
    token: UUID

    @property
    def id_text(self) -> str:
        return str(self.id)

    @property
    def token_text(self) -> str:
        return str(self.token)


class ClaimedJob(NamedTuple):
    """One job as its owner sees it: a row of the claim's answer as it came, so that it costs what the driver costs."""

    id_text: str
    generation: int
    seq: int  # its place in its stream
    task: str
    version: int
    payload: str  # JSON text, decoded by the handler's codec
    partition_key: str | None
    priority: int
    attempts: int  # spent before this one
    max_attempts: int
    due: float  # seconds since 1970, as is `now`
    cancel_requested: bool
    suspect: int
    rest: str | None  # JSON text of what few jobs have
    # The same for every job of a claim:
    queue: str
    token_text: str
    now: float  # when it was claimed, by the database's clock
    timeline: int  # of the server: it rises when a standby is promoted
    locked: int  # rows that the claim locked: those of them that others had just changed, it left out

    @property
    def id(self) -> UUID:
        return UUID(self.id_text)

    @property
    def grant(self) -> Grant:
        return Grant(self.queue, UUID(self.id_text), self.generation, UUID(self.token_text))

    @property
    def attempt(self) -> int:
        return self.attempts + 1

    @property
    def available_at(self) -> datetime:
        return datetime.fromtimestamp(self.due, UTC)

    @property
    def waited(self) -> float:
        """Seconds from due to claimed, by the database's clock."""
        return self.now - self.due

    @property
    def fence(self) -> str:
        return fence(self.timeline, self.seq, self.generation)

    @property
    def crashes(self) -> int:
        return int(self._rare("crashes") or 0)

    @property
    def metadata(self) -> str | None:
        """JSON text."""
        found: str | None = self._rare("metadata")
        return found

    @property
    def parent_id(self) -> UUID | None:
        found = self._rare("parent_id")
        return None if found is None else UUID(found)

    @property
    def group_id(self) -> UUID | None:
        found = self._rare("group_id")
        return None if found is None else UUID(found)

    def _rare(self, name: str) -> Any:
        return None if self.rest is None else json.loads(self.rest).get(name)


class NewRow(NamedTuple):
    """One job to enqueue, checked and encoded. A tuple: a frozen dataclass takes five times as long to make."""

    task: str
    payload: str
    queue: str = "inbox"
    version: int = 1
    partition_key: str | None = None
    priority: int = 0
    max_attempts: int = 5
    run_at: datetime | None = None
    delay: float = 0.0
    idempotency_key: str | None = None
    idempotency_lifetime: float | None = None
    tags: tuple[str, ...] = ()
    metadata: str | None = None
    follow_ups: "tuple[NewRow, ...]" = ()
    parent: UUID | None = None
    replace_key: str | None = None

    def queues(self) -> set[str]:
        """Its queue, and the queues of everything that follows it."""
        return {self.queue}.union(*(row.queues() for row in self.follow_ups))


class Enqueued(NamedTuple):
    """The database's result of one enqueue. `conflict` is None, 'payload', 'replace', 'queue' or 'key'."""

    id_text: str | None  # for UUID(): seldom asked for, and slower to make than the rest of this
    created: bool
    conflict: str | None = None

    @property
    def id(self) -> UUID | None:
        return None if self.id_text is None else UUID(self.id_text)


# As Settlement, in model/outcome.py: many are made at once.
enqueued_of = cast(
    "Callable[[tuple[str, bool, str | None]], Enqueued]", functools.partial(tuple.__new__, Enqueued)
)


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The state of a job, as a waiting producer sees it."""

    state: str  # waiting | completed | cancelled | dead_letter | gone
    result: str | None = None  # JSON text
    error: str | None = None
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class Renewal:
    """What a renewal found out about the jobs of its claims."""

    lost: list[Grant] = field(default_factory=list)
    cancel: list[Grant] = field(default_factory=list)
