"""The Producer behind an app: writes and watches jobs, on our own connections or inside the caller's transaction."""

import difflib
import functools
from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from ..db.database import Database
from ..db.faults import Forbidden
from ..db.guests import async_guest, sync_guest
from ..errors import ConfigurationError, InvalidOption, UnknownQueue
from ..model.job import Enqueued, Fate, NewRow
from ..model.queue import QueueRules
from ..store import jobs


class Writer:
    """Queue names are checked before the caller's connection is touched; known ones are remembered."""

    def __init__(
        self, database: Callable[[], Database], declared: Callable[[], Mapping[str, QueueRules]]
    ) -> None:
        self._database = database
        self._declared = declared
        self._known = {"inbox"}

    def forget(self) -> None:
        """Another database was put under the app: what was known of queues is not true there."""
        self._known = {"inbox"}

    def enqueue(self, rows: Sequence[NewRow], conn: object | None) -> list[Enqueued]:
        guest = None if conn is None else sync_guest(conn, "enqueue", "aenqueue")
        if missing := {r.queue for r in rows} - self._known:
            try:
                for name, rules in self._missing(missing, self._database().run(jobs.queue_names)):
                    self._database().run(functools.partial(jobs.create_queue, name, rules=rules))
            except Forbidden:
                pass  # EXECUTE is all a producer needs: the function answers for unknown queues by itself
            self._known |= missing
        if guest is None:
            return self._checked(rows, self._database().run(lambda: jobs.enqueue(rows)))
        return self._checked(rows, guest.run(jobs.enqueue(rows)))

    async def aenqueue(self, rows: Sequence[NewRow], conn: object | None) -> list[Enqueued]:
        guest = None if conn is None else async_guest(conn, "aenqueue", "enqueue")
        if missing := {r.queue for r in rows} - self._known:
            try:
                for name, rules in self._missing(missing, await self._database().arun(jobs.queue_names)):
                    await self._database().arun(functools.partial(jobs.create_queue, name, rules=rules))
            except Forbidden:
                pass
            self._known |= missing
        if guest is None:
            return self._checked(rows, await self._database().arun(lambda: jobs.enqueue(rows)))
        return self._checked(rows, await guest.arun(jobs.enqueue(rows)))

    def _missing(self, wanted: set[str], existing: list[str]) -> list[tuple[str, QueueRules]]:
        """The queues to create: declared ones, on our own embedded server. Any other that does not exist is refused."""
        missing = sorted(wanted - set(existing))
        declared = self._declared() if missing and self._database().is_embedded else {}
        for name in missing:
            if name not in declared:
                raise unknown_queue(name, existing)
        return [(name, declared[name]) for name in missing]

    def _checked(self, rows: Sequence[NewRow], answers: list[Enqueued]) -> list[Enqueued]:
        for row, answer in zip(rows, answers, strict=True):
            if answer.conflict == "queue":  # dropped since we last looked
                self.forget()
                raise unknown_queue(row.queue, [])
            if answer.conflict == "key":
                raise InvalidOption(
                    f"queue {row.queue!r} is ordered by key, and this job of {row.task} has none. "
                    'Say whose turn it is: using(partition_key="customer:1")'
                )
        return answers

    def fate(self, job_id: UUID, queue: str) -> Fate:
        return self._database().run(lambda: jobs.fate(job_id, queue))

    async def afate(self, job_id: UUID, queue: str) -> Fate:
        return await self._database().arun(lambda: jobs.fate(job_id, queue))

    def cancel(self, job_id: UUID, queue: str) -> bool:
        return self._database().run(lambda: jobs.cancel(job_id, queue))

    async def acancel(self, job_id: UUID, queue: str) -> bool:
        return await self._database().arun(lambda: jobs.cancel(job_id, queue))


def unknown_queue(name: str, existing: Sequence[str]) -> UnknownQueue:
    known = f" (known: {', '.join(existing)})" if existing else ""
    close = difflib.get_close_matches(name, existing, 1)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    return UnknownQueue(
        f"queue {name!r} does not exist{known}.{guess} Create it: holdfast queue create {name}"
    )


def check_rules(queue: str, declared: QueueRules | None, found: QueueRules) -> None:
    """A worker that believed in another order than the queue has would break its app's promises."""
    if declared is None or declared == found or declared == QueueRules():
        return
    name = declared.differs(found)[0]
    has, wants = getattr(found, name), getattr(declared, name)
    when, options = "", f"--{name.replace('_', '-')} {wants}"
    if name == "ordering":
        when = " while it is empty and no worker serves it"
        options += f" --on-dead-letter {declared.on_dead_letter}" if wants == "key" else ""
    raise ConfigurationError(
        f"queue {queue!r} has {name}={has!r} in the database, and the app declares {name}={wants!r}. "
        f"Declare what it has, or change it{when}: holdfast queue set {queue} {options}"
    )
