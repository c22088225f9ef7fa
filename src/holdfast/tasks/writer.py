"""The Producer behind an app: writes and watches jobs, on our own connections or inside the caller's transaction."""

import difflib
from collections.abc import Callable, Iterable, Sequence
from uuid import UUID

from ..db.database import Database
from ..db.guests import async_guest, sync_guest
from ..errors import UnknownQueue
from ..model.job import Enqueued, Fate, NewRow
from ..store import jobs


class Writer:
    """Queue names are checked before the caller's connection is touched; known ones are remembered."""

    def __init__(self, database: Callable[[], Database], declared: Callable[[], Iterable[str]]) -> None:
        self._database = database
        self._declared = declared
        self._known = {"inbox"}

    def forget(self) -> None:
        """Another database was put under the app: what was known of queues is not true there."""
        self._known = {"inbox"}

    def enqueue(self, rows: Sequence[NewRow], conn: object | None) -> list[Enqueued]:
        guest = None if conn is None else sync_guest(conn, "enqueue", "aenqueue")
        if missing := {r.queue for r in rows} - self._known:
            existing = self._database().run(jobs.queue_names)
            self._note(missing, existing)
            for name in sorted({r.queue for r in rows} - self._known):
                self._database().run(lambda name=name: jobs.create_queue(name))  # type: ignore[misc]
                self._known.add(name)
        if guest is None:
            return self._checked(rows, self._database().run(lambda: jobs.enqueue(rows)))
        return self._checked(rows, guest.run(jobs.enqueue(rows)))

    async def aenqueue(self, rows: Sequence[NewRow], conn: object | None) -> list[Enqueued]:
        guest = None if conn is None else async_guest(conn, "aenqueue", "enqueue")
        if missing := {r.queue for r in rows} - self._known:
            existing = await self._database().arun(jobs.queue_names)
            self._note(missing, existing)
            for name in sorted({r.queue for r in rows} - self._known):
                await self._database().arun(lambda name=name: jobs.create_queue(name))  # type: ignore[misc]
                self._known.add(name)
        if guest is None:
            return self._checked(rows, await self._database().arun(lambda: jobs.enqueue(rows)))
        return self._checked(rows, await guest.arun(jobs.enqueue(rows)))

    def _note(self, missing: set[str], existing: Sequence[str]) -> None:
        """Remember what exists. What does not is refused, unless it is declared and the server is our own embedded one."""
        self._known |= set(existing)
        for name in sorted(missing - self._known):
            if not (self._database().is_embedded and name in set(self._declared())):
                raise unknown_queue(name, existing)

    def _checked(self, rows: Sequence[NewRow], answers: list[Enqueued]) -> list[Enqueued]:
        for row, answer in zip(rows, answers, strict=True):
            if answer.conflict == "queue":  # dropped since we last looked
                self.forget()
                raise unknown_queue(row.queue, [])
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
