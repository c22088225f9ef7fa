"""The Producer behind an app: writes and watches jobs, on our own connections or inside the caller's transaction."""

import contextlib
import difflib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NoReturn, TypeVar
from uuid import UUID

from ..db.database import Database
from ..db.faults import BadRow, Contended, Forbidden
from ..db.guests import async_guest, sync_guest
from ..errors import (
    ConfigurationError,
    HoldfastError,
    IdempotencyConflict,
    InvalidOption,
    ReplaceConflict,
    UnknownQueue,
)
from ..model.job import Enqueued, JobStatus, NewRow
from ..model.queue import PROMISED, QueueRules
from ..model.text import command
from ..store import chains, jobs, queues
from ..store.copy import COPY, bulk_begin, load_begin
from ..store.show import Look, look_job
from ..store.statement import Statement
from .copy import Bulk, Load, NotByCopy, bulk_of, rows_of
from .newjob import NewJob

T = TypeVar("T")
_queue: Callable[[NewRow], str] = attrgetter("queue")
_follow_ups: Callable[[NewRow], Sequence[NewRow]] = attrgetter("follow_ups")
_KEYS = ("payload", "replace")  # an equal job exists already, in another form


class Writer:
    """Queue names are checked before the caller's connection is touched; known ones are remembered."""

    def __init__(
        self, database: Callable[[], Database], declared: Callable[[], Mapping[str, QueueRules]]
    ) -> None:
        self._database = database
        self._declared = declared
        self._known = {"inbox"}
        self._may_copy = True
        self.check_guest: Callable[[object], None] | None = None  # refuses a connection to another database

    @property
    def database(self) -> Database:
        return self._database()

    def forget(self) -> None:
        """The app uses another database now: what was known about queues does not apply there."""
        self._known, self._may_copy = {"inbox"}, True

    def enqueue(self, rows: Sequence[NewRow], conn: object | None) -> list[Enqueued]:
        if self._may_copy and (bulk := bulk_of(rows, conn)):
            self.ready(queues_of(rows))
            with self._or_by_function():
                self._database().load(COPY, bulk_begin(NotByCopy), bulk.pieces, bulk.after)
                return self._copied(rows, bulk)
        return self._checked(rows, self._write(lambda: jobs.enqueue(rows), rows, conn, "enqueue"))

    async def aenqueue(self, rows: Sequence[NewRow], conn: object | None) -> list[Enqueued]:
        if self._may_copy and (bulk := bulk_of(rows, conn)):
            await self.aready(queues_of(rows))
            with self._or_by_function():
                await self._database().aload(COPY, bulk_begin(NotByCopy), bulk.pieces, bulk.after)
                return self._copied(rows, bulk)
        return self._checked(rows, await self._awrite(lambda: jobs.enqueue(rows), rows, conn, "enqueue"))

    @contextlib.contextmanager
    def _or_by_function(self) -> Iterator[None]:
        """Errors of a COPY before its commit that the function may not have. Any other error
        is the caller's to handle: its jobs may be there."""
        try:
            yield
        except Forbidden:
            self._may_copy = False  # EXECUTE is all a producer needs
        except (NotByCopy, BadRow, Contended):
            pass

    def _copied(self, rows: Sequence[NewRow], bulk: Bulk) -> list[Enqueued]:
        self._tell_enqueued(rows)
        return bulk.written()

    def load(self, new: Iterable[NewJob[Any]]) -> int:
        """All of them or none, streamed by COPY; returns how many."""
        load = Load(rows_of(new), self._no_queue, keyless)
        if self._database().is_embedded:
            for name, rules in self._undeclared(self._database().run(jobs.queue_names)):
                self._database().run(functools.partial(queues.create_queue, name, rules=rules))
        self._database().load(COPY, load_begin(), load.pieces, load.after)
        return load.count

    async def aload(self, new: Iterable[NewJob[Any]]) -> int:
        load = Load(rows_of(new), self._no_queue, keyless)
        if self._database().is_embedded:
            for name, rules in self._undeclared(await self._database().arun(jobs.queue_names)):
                await self._database().arun(functools.partial(queues.create_queue, name, rules=rules))
        await self._database().aload(COPY, load_begin(), load.pieces, load.after)
        return load.count

    def _no_queue(self, name: str, existing: list[str]) -> UnknownQueue:
        return unknown_queue(name, existing, self._declared().get(name))

    def _undeclared(self, existing: list[str]) -> list[tuple[str, QueueRules]]:
        """Queues that the app declares and our own embedded server does not have yet."""
        return [(name, rules) for name, rules in self._declared().items() if name not in existing]

    def enqueue_group(
        self, rows: Sequence[NewRow], callback: Sequence[NewRow], when: str, conn: object | None
    ) -> list[Enqueued]:
        written = self._write(
            lambda: chains.enqueue_group(rows, callback, when), [*rows, *callback], conn, "group"
        )
        return self._checked_group(rows, callback, written)

    async def aenqueue_group(
        self, rows: Sequence[NewRow], callback: Sequence[NewRow], when: str, conn: object | None
    ) -> list[Enqueued]:
        written = await self._awrite(
            lambda: chains.enqueue_group(rows, callback, when), [*rows, *callback], conn, "group"
        )
        return self._checked_group(rows, callback, written)

    def _write(
        self, make: Callable[[], Statement[T]], rows: Sequence[NewRow], conn: object | None, verb: str
    ) -> T:
        guest = None if conn is None else sync_guest(conn, verb, f"a{verb}")
        if guest is not None and self.check_guest is not None:
            self.check_guest(conn)
        if not self._knows(rows):
            self.ready(queues_of(rows))
        if guest is not None:
            return guest.run(make())
        written = self._database().run(make)
        self._tell_enqueued(rows)
        return written

    def _tell_enqueued(self, rows: Sequence[NewRow]) -> None:
        if enqueued := self._database().enqueued:
            enqueued({row.queue for row in rows if not row.delay and row.run_at is None})

    def _knows(self, rows: Sequence[NewRow]) -> bool:
        """For one job: whether its queue exists, and nothing follows it."""
        return len(rows) == 1 and not rows[0].follow_ups and rows[0].queue in self._known

    def ready(self, wanted: set[str]) -> None:
        """These queues exist, as far as we may read them; on our own embedded server a declared one is made."""
        if missing := wanted - self._known:
            try:
                for name, rules in self._missing(missing, self._database().run(jobs.queue_names)):
                    self._database().run(functools.partial(queues.create_queue, name, rules=rules))
            except Forbidden:
                pass  # EXECUTE is all a producer needs: the function answers for unknown queues by itself
            self._known |= missing

    async def _awrite(
        self, make: Callable[[], Statement[T]], rows: Sequence[NewRow], conn: object | None, verb: str
    ) -> T:
        guest = None if conn is None else async_guest(conn, f"a{verb}", verb)
        if not self._knows(rows):
            await self.aready(queues_of(rows))
        if guest is not None:
            return await guest.arun(make())
        written = await self._database().arun(make)
        self._tell_enqueued(rows)
        return written

    async def aready(self, wanted: set[str]) -> None:
        if missing := wanted - self._known:
            try:
                for name, rules in self._missing(missing, await self._database().arun(jobs.queue_names)):
                    await self._database().arun(functools.partial(queues.create_queue, name, rules=rules))
            except Forbidden:
                pass
            self._known |= missing

    def _missing(self, wanted: set[str], existing: list[str]) -> list[tuple[str, QueueRules]]:
        """The queues to create: declared ones, on our own embedded server. Any other that does not exist is refused."""
        missing = sorted(wanted - set(existing))
        declared = self._declared() if missing else {}
        for name in missing:
            if name not in declared or not self._database().is_embedded:
                raise unknown_queue(name, existing, declared.get(name))
        return [(name, declared[name]) for name in missing]

    def _checked(self, rows: Sequence[NewRow], answers: list[Enqueued]) -> list[Enqueued]:
        if len(answers) == 1 and answers[0].conflict is None:
            return answers
        if (error := conflict_in(rows, answers)) is not None:
            self._refuse(error)
        return answers

    def _refuse(self, error: HoldfastError) -> NoReturn:
        if isinstance(error, UnknownQueue):
            self.forget()
        raise error

    def _checked_group(
        self, rows: Sequence[NewRow], callback: Sequence[NewRow], answers: list[Enqueued]
    ) -> list[Enqueued]:
        group, *members = answers
        if group.conflict == "queue":
            self._refuse(unknown_queue(sorted(queues_of(callback))[0], []))
        if group.conflict == "key":
            self._refuse(keyless(callback[0]))
        self._checked(rows, members)
        return answers

    def group_status(self, group_id: UUID) -> chains.GroupStatus | None:
        return self._database().run(lambda: chains.group_status(group_id))

    async def agroup_status(self, group_id: UUID) -> chains.GroupStatus | None:
        return await self._database().arun(lambda: chains.group_status(group_id))

    def status(self, job_id: UUID, queue: str) -> JobStatus:
        return self._database().run(lambda: jobs.job_status(job_id, queue))

    async def astatus(self, job_id: UUID, queue: str) -> JobStatus:
        return await self._database().arun(lambda: jobs.job_status(job_id, queue))

    def look(self, job_id: UUID) -> Look | None:
        return self._database().run(lambda: look_job(job_id))

    async def alook(self, job_id: UUID) -> Look | None:
        return await self._database().arun(lambda: look_job(job_id))

    def cancel(self, job_id: UUID, queue: str) -> bool:
        return self._database().run(lambda: jobs.cancel(job_id, queue))

    async def acancel(self, job_id: UUID, queue: str) -> bool:
        return await self._database().arun(lambda: jobs.cancel(job_id, queue))


def queues_of(rows: Sequence[NewRow]) -> set[str]:
    """The queues of the rows and of everything that follows them."""
    found = set(map(_queue, rows))
    if any(map(_follow_ups, rows)):
        found = found.union(*(row.queues() for row in rows))
    return found


def conflict_in(rows: Sequence[NewRow], answers: Sequence[Enqueued]) -> HoldfastError | None:
    """The error to raise; None: all of them are written, or were before. Errors of a row itself come first."""
    found = [(row, answer) for row, answer in zip(rows, answers, strict=True) if answer.conflict is not None]
    if not found:
        return None
    row, answer = min(found, key=lambda pair: pair[1].conflict in _KEYS)
    match answer.conflict:
        case "queue":  # dropped since the last read
            return unknown_queue(row.queue, [])
        case "then_queue":
            return UnknownQueue(f"a queue of what is to follow this job of {row.task} does not exist")
        case "key" | "then_key":
            return keyless(row, follows=answer.conflict == "then_key")
        case "replace":
            return _of_replace_key(row, answer, len(rows))
        case _:
            return _of_idempotency_key(row, answer, len(rows))


def _others(batch: int) -> str:
    return "" if batch == 1 else f". Nothing of this call of {batch} jobs was written"


def _of_replace_key(row: NewRow, found: Enqueued, batch: int) -> ReplaceConflict:
    waiting = f"job {found.id}" if found.id else "another job of this call"
    clash = ReplaceConflict(
        f"replace key {row.replace_key!r} of queue {row.queue!r} belongs to {waiting}, "
        f"which is of another task or partition key. Use another key{_others(batch)}"
    )
    clash.job_id, clash.key, clash.queue = found.id, row.replace_key, row.queue
    return clash


def _of_idempotency_key(row: NewRow, found: Enqueued, batch: int) -> IdempotencyConflict:
    user = f"job {found.id}" if found.id else "another job of this call"
    error = IdempotencyConflict(
        f"idempotency key {row.idempotency_key!r} of queue {row.queue!r} was used by {user} "
        f"with another payload. Use a new key for new work, or the same payload to get that job back{_others(batch)}"
    )
    error.job_id, error.key, error.queue = found.id, row.idempotency_key, row.queue
    return error


def unknown_queue(name: str, existing: Sequence[str], rules: QueueRules | None = None) -> UnknownQueue:
    """`rules`: those that the app declares for it; a queue made by its name alone would not have them."""
    missing = missing_queue(name, existing)
    how = f"Create it: {command('holdfast', 'queue', 'create', name)}"
    if rules is not None and rules != QueueRules():
        how = "Create it with the rules that the app declares: holdfast queue sync --app MODULE:APP"
    return UnknownQueue(f"{missing} {how}" if missing.endswith("?") else f"{missing}. {how}")


def missing_queue(name: str, existing: Sequence[str]) -> str:
    known = f" (known: {', '.join(existing)})" if existing else ""
    close = difflib.get_close_matches(name, existing, 1)
    guess = f". Did you mean {close[0]!r}?" if close else ""
    return f"queue {name!r} does not exist{known}{guess}"


def keyless(row: NewRow, *, follows: bool = False) -> InvalidOption:
    """A job without a key, for a queue that is claimed key by key; `follows`: one that is to follow it."""
    what = f"a job that is to follow this one of {row.task}" if follows else f"this job of {row.task}"
    where = "a queue of what follows" if follows else f"queue {row.queue!r}"
    return InvalidOption(
        f"{where} is claimed key by key, and {what} has no key. "
        'Say whose turn it is: using(partition_key="customer:1")'
    )


def check_rules(queue: str, declared: QueueRules | None, found: QueueRules) -> list[str]:
    """A worker that assumes another ordering than the queue has would break its app's promises.

    Returns what else differs: limits, which an operator may change at any time, so the database's values apply."""
    if declared is None or declared == QueueRules():
        return []
    names = declared.differs(found)
    for name in names:
        if name in PROMISED:
            has, wants = getattr(found, name), getattr(declared, name)
            raise ConfigurationError(
                f"queue {queue!r} has {name}={has!r} in the database, and the app declares {name}={wants!r}. "
                f"Declare what it has, or {_way_out(queue, name, declared)}"
            )
    return names


def _way_out(queue: str, name: str, declared: QueueRules) -> str:
    if name == "on_dead_letter":
        return f"change it: holdfast queue set {queue} --on-dead-letter {declared.on_dead_letter}"
    if name != "ordering":
        return "declare another queue: this one was not made for it"
    options = f"--ordering {declared.ordering}"
    if declared.ordered:
        options += f" --on-dead-letter {declared.on_dead_letter}"
    return f"change it while it is empty and no worker serves it: holdfast queue set {queue} {options}"
