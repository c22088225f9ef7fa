"""A claimed job, and the grant that proves who owns it."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

JSON = Any


@dataclass(frozen=True, slots=True)
class Grant:
    """Proof of ownership of one job by one claim. Every write by an owner is guarded by exactly this."""

    queue: str
    id: UUID
    generation: int
    token: UUID


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """One job as its owner sees it."""

    grant: Grant
    fence: str
    task: str
    version: int
    payload: str  # JSON text, decoded by the handler's codec
    partition_key: str | None
    priority: int
    attempts: int  # spent before this one
    max_attempts: int
    crashes: int
    available_at: datetime
    created_at: datetime
    metadata: str | None = None  # JSON text
    cancel_requested: bool = False
    suspect: int = 0
    waited: float = 0.0  # seconds from due to claimed, by the database's clock
    seq: int = 0  # its place in its stream
    parent_id: UUID | None = None
    group_id: UUID | None = None

    @property
    def id(self) -> UUID:
        return self.grant.id

    @property
    def attempt(self) -> int:
        return self.attempts + 1


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
        """Its queue, and those of everything that follows it."""
        return {self.queue}.union(*(row.queues() for row in self.follow_ups))


class Enqueued(NamedTuple):
    """What the database says of one enqueue. `conflict` is None, 'payload', 'replace', 'queue' or 'key'."""

    id: UUID | None
    created: bool
    conflict: str | None = None


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a job, as a waiting producer sees it."""

    state: str  # waiting | completed | cancelled | dead_letter | gone
    result: str | None = None  # JSON text
    error: str | None = None
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class Renewal:
    """What a renewal found out about the jobs of its claims."""

    lost: list[Grant] = field(default_factory=list)
    cancel: list[Grant] = field(default_factory=list)
